"""Where the rows of a tensor lie."""

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from normwise.ops.numba_cpu.lanes import STRIDE


class Rows(NamedTuple):
    """A tensor whose normalized axes lie in one piece, row after row or by a table.

    `step` is the distance of neighbouring rows in entries; -1 if `table` has the place of each.
    """

    tensor: Tensor
    step: int
    table: Tensor | None = None


def fields(rows: Rows | None) -> tuple[int, int, int]:
    """As a kernel's call wants them: an address, a step, the address of a table."""
    if rows is None:
        return 0, 0, 0
    tensor, step, table = rows
    return tensor.data_ptr(), step, 0 if table is None else table.data_ptr()


def rows_of(x: Tensor, axes: int, size: int) -> Rows:
    """The rows of x over its last `axes` axes, `size` entries each.

    Only where these axes have gaps is x copied, or where its sign is kept beside its numbers. Of a
    gradient that is one number expanded, as `sum()` gives, a single row is made.
    """
    if x.is_neg():
        x = x.resolve_neg()
    if x.is_contiguous():
        return Rows(x, size)
    leading = x.ndim - axes
    if not any(x.stride()):
        return Rows(x[(0,) * leading].contiguous(), 0)
    if not _dense(x.shape[leading:], x.stride()[leading:]):
        return Rows(x.contiguous(), size)
    step = _common_step(x.shape[:leading], x.stride()[:leading])
    return Rows(x, step) if step is not None else Rows(x, -1, _places(x, leading))


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def _common_step(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """The distance between rows, if one number says it."""
    axes = [(n, stride) for n, stride in zip(shape, strides, strict=True) if n != 1]
    if not axes:
        return 0
    for (_, outer), (length, inner) in pairwise(axes):
        if outer != length * inner:
            return None
    return axes[-1][1]


def _places(x: Tensor, leading: int) -> Tensor:
    """Where each row begins, in entries from the first."""
    places = torch.zeros(1, dtype=torch.int64, device="cpu")
    for length, stride in zip(x.shape[:leading], x.stride()[:leading], strict=True):
        steps = torch.arange(length, dtype=torch.int64, device="cpu") * stride
        places = (places[:, None] + steps).reshape(-1)
    return places


def chunks_of(rows: int, size: int) -> tuple[int, int]:
    """How many chunks the rows are cut into, and how many rows each has.

    A function of the shape alone, since each chunk has its own sums: of 64 rows at most, whose
    sums in fp32 are exact enough. Else there are 64 chunks, for as many threads, unless they would
    have fewer than 32768 entries, some 5 us of work.
    """
    per_chunk = min(64, max(math.ceil(rows / 64), (1 << 15) // size, 1))
    return math.ceil(rows / per_chunk), per_chunk


def padded(size: int) -> int:
    """The length of a row in a buffer, so that every lane of a step of a kernel's loops has a place
    in it.
    """
    return (size + STRIDE - 1) // STRIDE * STRIDE
