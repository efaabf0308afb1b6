"""What a kernel is told: one record for each call, shared by all threads that work on it.

Addresses and flags are int64. A tensor that is read has three fields: where it begins, how many
entries its rows lie apart, and the table of its rows where no one step says that (`rows.row_at`).
A parameter has two: where it begins, and the kind of its dtype (`parameters.KINDS`).
"""

from ctypes import Structure, c_double, c_int64

_SHARED = (
    *("taken", "arrived", "done", "threads", "counters", "thread_number"),  # `threads.run`
    *("chunks", "rows_per_chunk", "rows", "size"),
)


def _strided(name: str) -> tuple[str, str, str]:
    return name, f"{name}_step", f"{name}_table"


def _parameter(name: str) -> tuple[str, str]:
    return name, f"{name}_kind"


class ForwardCall(Structure):
    """One call of a forward kernel."""

    _fields_ = [
        *[
            (field, c_int64)
            for field in (
                *_SHARED,
                *_strided("x"),
                *_strided("residual"),
                *_parameter("weight"),
                *_parameter("bias"),
                *("y", "stream", "saved"),
                *("rounded", "llama", "unit_offset", "past"),
            )
        ],
        ("eps", c_double),
    ]


class BackwardCall(Structure):
    """One call of a backward kernel. An address of 0 stands for a gradient that is not wanted, and
    for the sums of a single chunk.
    """

    _fields_ = [
        (field, c_int64)
        for field in (
            *_SHARED,
            *_strided("x"),
            *_strided("residual"),
            *_strided("dy"),
            *_strided("dstream"),
            *_parameter("weight"),
            *("saved", "sums", "dx"),
            *_parameter("dw"),
            *_parameter("db"),
            *("llama", "unit_offset", "past"),
        )
    ]
