"""A kernel's gain and bias, and the sums of its parameter gradients.

A parameter is read into a buffer, and a gradient written from one, by the `kind` of its dtype in
memory, which a call says: with a kernel for each there would be four times as many.
"""

from functools import cache

import numpy as np
import torch

from normwise.ops.numba_cpu.lanes import LANES, in_fp64, ordinary, rounded_to_odd, spread
from normwise.ops.numba_cpu.memory import STORAGE, buffer, reader, writer
from normwise.ops.numba_cpu.parts import parts
from normwise.ops.numba_cpu.rows import aligned, hold, padded

KINDS = {dtype: kind for kind, dtype in enumerate(STORAGE)}
ABSENT = -1
_COLUMNS = 1024  # whose totals fit into the first-level cache
_FP32, _FP64, _BF16 = (KINDS[dtype] for dtype in (torch.float32, torch.float64, torch.bfloat16))


@cache
def parameter_reading(dtype, *, paired):
    """Makes `parameter(address, kind, size, offset, place)`, the address at which `offset` plus the
    parameter is found, or ones where it is absent, and `read(address, j, size)`.

    It is the parameter itself where that is stored as the kernel computes. Else it is a copy at
    `place`, in which each NaN is the ordinary one, as a tame writer wants it.
    """
    part = parts("parameters", dtype, paired)
    fp32, fp64, bf16, fp16 = (reader(stored, dtype, paired=paired) for stored in STORAGE.values())
    load, store = buffer(dtype)
    own = None if paired else _FP32 if dtype is np.float32 else _FP64

    @part()
    def parameter(address, kind, size, offset, place):
        if kind == own and offset == 0:
            return address
        shift, value = spread(dtype(offset)), spread(dtype(1))
        for j in range(0, padded(size), LANES):
            if kind == _FP32:
                value = fp32(address, j, size) + shift
            elif kind == _FP64:
                value = fp64(address, j, size) + shift
            elif kind == _BF16:
                value = bf16(address, j, size) + shift
            elif kind != ABSENT:
                value = fp16(address, j, size) + shift
            store(place, j, size, ordinary(value))
        return place

    return parameter, load if paired else reader(dtype, dtype, paired=False)


@cache
def gradient_sum(dtype, *, paired):
    """Makes `add_up(sums, step, chunks, size, address, kind)`: the sums of all chunks, `step` bytes
    apart, are added in fp64, in their order, and the total is rounded once.
    """
    part = parts("gradients", dtype, paired)
    read, _ = buffer(dtype)
    read_total, write_total = buffer(np.float64)
    fp32, fp64, bf16, fp16 = (
        writer(stored, np.float64, paired=paired, tame=False) for stored in STORAGE.values()
    )

    @part()
    def add_up(sums, step, chunks, size, address, kind):
        space = np.empty(_COLUMNS + LANES, np.float64)
        place = aligned(space)
        for start in range(0, size, _COLUMNS):
            stop = min(start + _COLUMNS, size)
            for chunk in range(chunks):
                row = sums + chunk * step
                for j in range(start, stop, LANES):
                    value = in_fp64(read(row, j, size))
                    if chunk > 0:
                        value = value + read_total(place, j - start, size)
                    write_total(place, j - start, size, value)
            for j in range(start, stop, LANES):
                value = read_total(place, j - start, size)
                if kind == _FP32:
                    fp32(address, j, size, value)
                elif kind == _FP64:
                    fp64(address, j, size, value)
                elif kind == _BF16:
                    bf16(address, j, size, rounded_to_odd(value))
                else:
                    fp16(address, j, size, rounded_to_odd(value))
        hold(space)

    return add_up
