"""bf16 and fp16 to fp32 and back, in lanes.

fp16 is converted by the machine where it can, and by integers where LLVM would call a function that
is not there and end the process: on x86 without F16C, which is also what Numba compiles for under
NUMBA_CPU_NAME=generic.
"""

from functools import cache

from llvmlite import binding, ir
from numba.core.registry import cpu_target

from normwise.ops.numba_cpu.lanes import FLOAT, INT, LANES, constant, is_nan, pick, vector

HALF = LANES // 2
_HIGH = 0xFFFF0000


def fp32_of_bf16(builder, found, paired):
    """The high half of an fp32, one by one or, where lanes are paired, by words of two."""
    if not paired:
        bits = builder.shl(builder.zext(found, vector(INT)), constant(INT, 16))
        return builder.bitcast(bits, vector(FLOAT))
    words = builder.bitcast(found, vector(INT, HALF))
    even = builder.shl(words, constant(INT, 16, HALF))
    odd = builder.and_(words, constant(INT, _HIGH, HALF))
    return builder.bitcast(pick(builder, even, odd, range(LANES)), vector(FLOAT))


def bf16_of_fp32(builder, value, paired, tame):
    """Adds 0x7FFF and the lowest bit that is kept, then cuts."""
    bits = builder.bitcast(value, vector(INT))
    lowest = builder.and_(builder.lshr(bits, constant(INT, 16)), constant(INT, 1))
    bits = builder.add(builder.add(bits, constant(INT, 0x7FFF)), lowest)
    if not tame:
        bits = builder.select(is_nan(builder, value), constant(INT, 0x7FC00000), bits)
    if not paired:
        high = builder.lshr(bits, constant(INT, 16))
        return builder.trunc(high, vector(ir.IntType(16)))
    even = builder.lshr(pick(builder, bits, bits, range(HALF)), constant(INT, 16, HALF))
    odd = pick(builder, bits, bits, range(HALF, LANES))
    words = builder.or_(even, builder.and_(odd, constant(INT, _HIGH, HALF)))
    return builder.bitcast(words, vector(ir.IntType(16)))


def fp32_of_fp16(builder, found):
    """By integers, the exponent is moved up by 112, by 224 for infinity and NaN; a subnormal gets
    one bit before its fraction, which is then subtracted: no fp32 in between is subnormal.
    """
    if _machine_converts_fp16():
        return builder.fpext(builder.bitcast(found, vector(ir.HalfType())), vector(FLOAT))
    bits = builder.zext(found, vector(INT))
    sign = builder.shl(builder.and_(bits, _of(0x8000)), _of(16))
    size = builder.shl(builder.and_(bits, _of(0x7FFF)), _of(13))
    exponent = builder.and_(size, _of(0x7C00 << 13))
    moved = builder.add(size, _of(112 << 23))
    infinite = builder.add(moved, _of(112 << 23))
    shifted = builder.bitcast(builder.add(moved, _of(1 << 23)), vector(FLOAT))
    small = builder.fsub(shifted, constant(FLOAT, 2.0**-14))
    value = builder.select(
        builder.icmp_unsigned("==", exponent, _of(0x7C00 << 13)), infinite, moved
    )
    value = builder.select(
        builder.icmp_unsigned("==", exponent, _of(0)), builder.bitcast(small, vector(INT)), value
    )
    return builder.bitcast(builder.or_(value, sign), vector(FLOAT))


def fp16_of_fp32(builder, value):
    """By integers, an fp32 addition of 0.5 does the rounding below 2^-14, since its last bit is
    then the last of a subnormal fp16.
    """
    if _machine_converts_fp16():
        half = builder.fptrunc(value, vector(ir.HalfType()))
        return builder.bitcast(half, vector(ir.IntType(16)))
    bits = builder.bitcast(value, vector(INT))
    size = builder.and_(bits, _of(0x7FFFFFFF))
    sign = builder.lshr(builder.xor(bits, size), _of(16))
    half = builder.fadd(builder.bitcast(size, vector(FLOAT)), constant(FLOAT, 0.5))
    small = builder.sub(builder.bitcast(half, vector(INT)), _of(126 << 23))
    lowest = builder.and_(builder.lshr(size, _of(13)), _of(1))
    moved = builder.add(builder.add(size, _of(0xFFF - (112 << 23))), lowest)
    found = builder.select(
        builder.icmp_unsigned("<", size, _of(113 << 23)), small, builder.lshr(moved, _of(13))
    )
    found = builder.select(builder.icmp_unsigned(">=", size, _of(143 << 23)), _of(0x7C00), found)
    found = builder.select(is_nan(builder, value), _of(0x7E00), found)
    return builder.trunc(builder.or_(found, sign), vector(ir.IntType(16)))


def _of(number):
    return constant(INT, number & 0xFFFFFFFF)


@cache
def _machine_converts_fp16():
    """Whether the assembly of a conversion is without a call."""
    module = ir.Module()
    kind = ir.FunctionType(vector(FLOAT), [vector(ir.HalfType())])
    function = ir.Function(module, kind, "convert")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(builder.fpext(function.args[0], vector(FLOAT)))
    codegen = cpu_target.target_context.codegen()
    module.triple = codegen.magic_tuple()[0]
    return "extendhf" not in codegen._tm.emit_assembly(binding.parse_assembly(str(module)))
