"""How numbers lie in memory, and how a kernel reads and writes them.

Numba knows no bf16 and no fp16 on the CPU. A kernel is given the 16 bits of either as an integer:
uint16 stands for bf16 and int16 for fp16. `widen` gives the value in fp32 or fp64, `narrow`
rounds to nearest, ties to even, as torch does.
"""

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

STORAGE = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.bfloat16: np.uint16,
    torch.float16: np.int16,
}


@intrinsic
def _bits_of_fp32(typing_context, value):
    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def _fp32_of_bits(typing_context, bits):
    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _fp32_of_fp16(typing_context, stored):
    def generate(context, builder, signature, args):
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.int16), generate


@intrinsic
def _fp16_of_fp32(typing_context, value):
    def generate(context, builder, signature, args):
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.int16(types.float32), generate


@njit(error_model="numpy")
def _bf16_of_fp32(value):
    """Adds 0x7FFF and the lowest bit that is kept, then cuts."""
    bits = _bits_of_fp32(value)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16((bits + np.uint32(0x7FFF) + even) >> np.uint32(16))


@njit(error_model="numpy")
def _bf16_of_any_fp32(value):
    """The same where the low 16 bits of a NaN may be set: they would carry over into a zero."""
    return np.uint16(0x7FC0) if value != value else _bf16_of_fp32(value)


def widen(stored, dtype):
    """The value of `stored` in `dtype`, np.float32 or np.float64."""


@overload(widen)
def _widen(stored, dtype):
    if stored == types.uint16:
        return lambda stored, dtype: dtype(
            _fp32_of_bits(np.uint32(np.uint32(stored) << np.uint32(16)))
        )
    if stored == types.int16:
        return lambda stored, dtype: dtype(_fp32_of_fp16(stored))
    return lambda stored, dtype: dtype(stored)


def narrow(value, dtype, tame):
    """`value` rounded once, as it is stored: np.uint16 for bf16, np.int16 for fp16.

    `tame` says that a NaN can only be one that arithmetic made or that came from bf16: its low bits
    are 0. Taking its word saves bf16 a comparison and a choice, a tenth of the time.
    """


@overload(narrow)
def _narrow(value, dtype, tame):
    if dtype.dtype == types.int16:
        return lambda value, dtype, tame: _fp16_of_fp32(np.float32(value))
    if dtype.dtype != types.uint16:
        return lambda value, dtype, tame: dtype(value)

    def round_to_bf16(value, dtype, tame):
        wide = np.float32(value)
        return _bf16_of_fp32(wide) if tame else _bf16_of_any_fp32(wide)

    return round_to_bf16
