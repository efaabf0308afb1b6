"""What a kernel is told: one record for each call, shared by all threads that work on it.

Addresses and flags are int64. A tensor that is read has three fields: where it begins, how many
entries its rows lie apart, and the table of its rows where no one step says that (`rows.row_of`).
"""

from ctypes import Structure, c_double, c_int64

_SHARED = ("ticket", "chunks", "rows_per_chunk", "rows", "size")


def _strided(name: str) -> tuple[str, str, str]:
    return name, f"{name}_step", f"{name}_table"


class ForwardCall(Structure):
    """One call of a forward kernel."""

    _fields_ = [
        *[
            (field, c_int64)
            for field in (
                *_SHARED,
                *_strided("x"),
                *_strided("residual"),
                *("gain", "bias", "y", "stream", "saved"),
                *("rounded", "llama", "has_bias", "keep"),
            )
        ],
        ("eps", c_double),
    ]


class BackwardCall(Structure):
    """One call of a backward kernel."""

    _fields_ = [
        (field, c_int64)
        for field in (
            *_SHARED,
            *_strided("x"),
            *_strided("residual"),
            *_strided("dy"),
            *_strided("dstream"),
            *("gain", "saved", "dx", "weight_sums", "bias_sums"),
            *("llama", "wants_x", "wants_weight", "wants_bias"),
        )
    ]


class CombineCall(Structure):
    """One call of the kernel that adds up the sums of all chunks."""

    _fields_ = [(field, c_int64) for field in (*_SHARED, "sums", "total")]
