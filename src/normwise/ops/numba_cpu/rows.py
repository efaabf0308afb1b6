"""A kernel's view of memory: rows at addresses, and the chunks that threads take in turn."""

import numpy as np
from llvmlite import ir
from numba import carray, from_dtype, njit, types
from numba.extending import intrinsic, overload

from normwise.ops.numba_cpu.elements import STORAGE, narrow, widen

_DTYPES = {from_dtype(np.dtype(stored)): stored for stored in STORAGE.values()}


@intrinsic
def pointer(typing_context, address, dtype):
    """An address as a pointer to entries of `dtype`."""

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(dtype.dtype)(address, dtype), generate


@intrinsic
def next_ticket(typing_context, address):
    """The count at `address`, which is one higher afterwards; no two threads get the same."""

    def generate(context, builder, signature, args):
        count = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", count, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.int64), generate


@njit(error_model="numpy")
def entries(address, size, dtype):
    """The `size` entries at an address."""
    return carray(pointer(address, dtype), (size,))


@njit(error_model="numpy")
def row_of(address, step, table, index, size, dtype):
    """Row `index` of a tensor whose last axes are contiguous.

    Rows lie `step` entries apart, or where the int64s at `table` say if step is negative. Each row
    is an array of its own: an index `base + j` would keep the test for negative indices in the
    loop, which is then not vectorized and 4 times slower.
    """
    base = entries(table, index + 1, np.int64)[index] if step < 0 else index * step
    return entries(address, base + size, dtype)[base : base + size]


def scaled(row, scale, dtype):
    """A copy of the row, times a power of two.

    It is stored as the row is, so that one machine code serves both. The products are exact but for
    entries so far below the largest that they do not count.
    """


@overload(scaled)
def _scaled(row, scale, dtype):
    stored = _DTYPES[row.dtype]

    def multiply(row, scale, dtype):
        copy = np.empty(row.size, stored)
        for j in range(row.size):
            copy[j] = narrow(widen(row[j], dtype) * dtype(scale), stored, False)
        return copy

    return multiply
