"""What is measured. Imports nothing heavy, so that the command line can show it without torch."""

from dataclasses import asdict, dataclass
from typing import Any

from normwise.errors import SettingError

OPS = ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm", "rms_norm_add", "layer_norm_add")
DTYPES = ("fp32", "bf16", "fp16", "fp64")
MEMORY = ("reused", "default", "huge")


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """The cases of a benchmark: every op in every shape and dtype, under each allocator setting.

    Args:
        ops: rows of `OPS`.
        shapes: ROWSxWIDTH.
        dtypes: rows of `DTYPES`, of input, residual, weight, bias and gradients alike.
        memory: "reused" keeps freed memory in the process, "default" is the system's allocator,
            "huge" the same with huge pages.
        threads: torch's threads, for all peers.
        repeats: how often each peer is timed, in turns.
    """

    ops: tuple[str, ...] = ("rms_norm", "layer_norm", "add_rms_norm")
    shapes: tuple[str, ...] = ("4096x768",)
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    memory: tuple[str, ...] = ("reused", "default")
    threads: int = 2
    repeats: int = 30

    def __post_init__(self) -> None:
        """Raises `SettingError` for the first value that cannot be."""
        for field, known in (("ops", OPS), ("dtypes", DTYPES), ("memory", MEMORY)):
            for value in getattr(self, field):
                if value not in known:
                    raise SettingError(
                        f"{field} must be of {', '.join(known)}. One is {value!r}. Choose of these."
                    )
        for shape in self.shapes:
            parse_shape(shape)
        for field in ("threads", "repeats"):
            if getattr(self, field) < 1:
                raise SettingError(
                    f"{field} must be at least 1. It is {getattr(self, field)}. Name more."
                )

    def cases(self) -> list["Case"]:
        """One for each memory setting, op, shape and dtype."""
        return [
            Case(memory, op, *parse_shape(shape), dtype)
            for memory in self.memory
            for op in self.ops
            for shape in self.shapes
            for dtype in self.dtypes
        ]

    def to_json(self) -> dict[str, Any]:
        """As plain values, as a result file holds them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Case:
    """One op on tensors of one shape and dtype."""

    memory: str
    op: str
    rows: int
    width: int
    dtype: str

    def __str__(self) -> str:
        """rms_norm 4096x768 bf16, memory reused"""
        return f"{self.op} {self.rows}x{self.width} {self.dtype}, memory {self.memory}"


def parse_shape(shape: str) -> tuple[int, int]:
    """4096x768 as (4096, 768)."""
    parts = shape.split("x")
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise SettingError(
            f"A shape must be ROWSxWIDTH, such as 4096x768. One is {shape!r}. Write two numbers."
        )
    return int(parts[0]), int(parts[1])
