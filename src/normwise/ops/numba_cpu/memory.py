"""From memory into lanes and back.

Numba knows no bf16 and no fp16 on the CPU: here uint16 stands for bf16 and int16 for fp16. Reading
gives the value in fp32 or fp64, writing rounds to nearest, ties to even, as torch does: to a half
through fp32.

Two bf16 are read as one 32-bit word, whose halves are two values at the cost of a shift and a mask.
The lanes then hold 16 even entries and after them the 16 odd ones: they are `paired`. A kernel
computes in one order throughout, and its buffers keep it.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from normwise.ops.numba_cpu.halves import (
    bf16_of_fp32,
    fp16_of_fp32,
    fp32_of_bf16,
    fp32_of_fp16,
)
from normwise.ops.numba_cpu.lanes import (
    DOUBLE,
    FLOAT,
    INT,
    LANES,
    call_intrinsic,
    constant,
    lanes_of,
    pick,
    vector,
)

STORAGE = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.bfloat16: np.uint16,
    torch.float16: np.int16,
}
_ELEMENTS = {
    np.float32: FLOAT,
    np.float64: DOUBLE,
    np.uint16: ir.IntType(16),
    np.int16: ir.IntType(16),
}
_PAIRED = [*range(0, LANES, 2), *range(1, LANES, 2)]  # which entry is in each lane
_UNPAIRED = [_PAIRED.index(entry) for entry in range(LANES)]  # in which lane each entry is
LINE = 64  # bytes of a cache line


@cache
def reader(stored: type, dtype: type, *, paired: bool) -> Any:
    """Makes `read(row, j, size)`: the entries from `j` on of the row of `size` entries at an
    address, in `dtype`; 0 in lanes beyond the row's end.
    """
    lanes = lanes_of(dtype)

    @intrinsic
    def read(typing_context, row, j, size):
        def generate(context, builder, signature, args):
            place = _place(builder, args[0], args[1], stored)
            count = builder.sub(args[2], args[1])
            with builder.if_else(_is_whole(builder, count)) as (then, otherwise):
                with then:
                    whole = _widen(builder, _load(builder, place, stored), stored, dtype, paired)
                    from_whole = builder.basic_block
                with otherwise:
                    found = _load_some(builder, place, stored, count)
                    part = _widen(builder, found, stored, dtype, paired)
                    from_part = builder.basic_block
            return _either(builder, (whole, from_whole), (part, from_part))

        return lanes(types.int64, types.int64, types.int64), generate

    return read


@cache
def writer(stored: type, dtype: type, *, paired: bool, tame: bool) -> Any:
    """Makes `write(row, j, size, value)`, which leaves alone what lies beyond the row's end.

    `tame` says that a NaN can only be one that arithmetic made or that came from bf16: its low bits
    are 0 and do not carry over. Taking its word saves bf16 a tenth of the time.
    """
    lanes = lanes_of(dtype)

    @intrinsic
    def write(typing_context, row, j, size, value):
        def generate(context, builder, signature, args):
            _write(builder, *args, stored, paired, tame, ir.IntType(1)(0))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, lanes), generate

    return write


@cache
def result_writer(stored: type, dtype: type, *, paired: bool, tame: bool) -> Any:
    """Makes `write(row, j, size, value, past)`. Where `past` is set, rows begin at cache lines and
    are written past the caches, which spares reading the lines that will be overwritten.
    """
    lanes = lanes_of(dtype)

    @intrinsic
    def write(typing_context, row, j, size, value, past):
        def generate(context, builder, signature, args):
            _write(builder, *args[:4], stored, paired, tame, args[4])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, lanes, types.boolean), generate

    return write


@cache
def rounder(stored: type, dtype: type, *, tame: bool) -> Any:
    """Makes `round(value)`: what would be read after writing."""
    lanes = lanes_of(dtype)

    @intrinsic
    def round_through(typing_context, value):
        def generate(context, builder, signature, args):
            narrow = _narrow(builder, args[0], stored, False, tame)
            return _widen(builder, narrow, stored, dtype, False)

        return lanes(lanes), generate

    return round_through


@cache
def limiter(dtype: type, *, paired: bool) -> Any:
    """Makes `within(value, j, size)`: 0 in lanes beyond the row's end."""
    lanes = lanes_of(dtype)

    @intrinsic
    def within(typing_context, value, j, size):
        def generate(context, builder, signature, args):
            count = builder.sub(args[2], args[1])
            before = builder.basic_block
            with builder.if_then(builder.not_(_is_whole(builder, count)), likely=False):
                inside = _inside(builder, count, _PAIRED if paired else range(LANES))
                zero = constant(args[0].type.element, 0.0)
                part = builder.select(inside, args[0], zero)
                from_part = builder.basic_block
            return _either(builder, (args[0], before), (part, from_part))

        return lanes(lanes, types.int64, types.int64), generate

    return within


@cache
def buffer(dtype: type) -> tuple[Any, Any]:
    """Makes `read` and `write` for a row that a kernel keeps for itself: in its dtype, in the order
    of its lanes, and so long (`padded`) that none reaches beyond the end.
    """
    lanes, size = lanes_of(dtype), np.dtype(dtype).itemsize

    @intrinsic
    def read(typing_context, row, j, entries):
        def generate(context, builder, signature, args):
            return builder.load(_place(builder, args[0], args[1], dtype), align=size)

        return lanes(types.int64, types.int64, types.int64), generate

    @intrinsic
    def write(typing_context, row, j, entries, value):
        def generate(context, builder, signature, args):
            builder.store(args[3], _place(builder, args[0], args[1], dtype), align=size)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, lanes), generate

    return read, write


def _place(builder, row, j, stored):
    offset = builder.mul(j, j.type(np.dtype(stored).itemsize))
    return builder.inttoptr(builder.add(row, offset), vector(_ELEMENTS[stored]).as_pointer())


def _is_whole(builder, count):
    return builder.icmp_signed(">=", count, count.type(LANES))


def _either(builder, *cases):
    value = builder.phi(cases[0][0].type)
    for case, block in cases:
        value.add_incoming(case, block)
    return value


def _inside(builder, count, entries):
    """Which lanes hold one of the first `count` entries."""
    low = builder.select(
        builder.icmp_signed(">", count, count.type(0)), builder.trunc(count, INT), INT(0)
    )
    first = builder.insert_element(ir.Constant(vector(INT), ir.Undefined), low, INT(0))
    limit = pick(builder, first, first, [0] * LANES)
    return builder.icmp_signed("<", ir.Constant(vector(INT), list(entries)), limit)


def _load(builder, place, stored):
    return builder.load(place, align=np.dtype(stored).itemsize)


def _load_some(builder, place, stored, count):
    kind = vector(_ELEMENTS[stored])
    args = [
        place, INT(np.dtype(stored).itemsize), _inside(builder, count, range(LANES)),
        ir.Constant(kind, None),
    ]  # fmt: skip
    return call_intrinsic(builder, f"llvm.masked.load.{_mangled(stored)}.p0", kind, args)


def _write(builder, row, j, size, value, stored, paired, tame, past):
    place, count = _place(builder, row, j, stored), builder.sub(size, j)
    narrow = _narrow(builder, value, stored, paired, tame)
    with builder.if_else(_is_whole(builder, count), likely=True) as (whole, part):
        with whole, builder.if_else(past) as (streamed, plain):
            with streamed:
                store = builder.store(narrow, place, align=LINE)
                store.set_metadata("nontemporal", builder.module.add_metadata([INT(1)]))
            with plain:
                builder.store(narrow, place, align=np.dtype(stored).itemsize)
        with part:
            _store_some(builder, narrow, place, stored, count)


def _store_some(builder, value, place, stored, count):
    args = [
        value, place, INT(np.dtype(stored).itemsize), _inside(builder, count, range(LANES)),
    ]  # fmt: skip
    name = f"llvm.masked.store.{_mangled(stored)}.p0"
    call_intrinsic(builder, name, ir.VoidType(), args)


def _mangled(stored):
    names = {np.float32: "f32", np.float64: "f64", np.uint16: "i16", np.int16: "i16"}
    return f"v{LANES}{names[stored]}"


def _widen(builder, found, stored, dtype, paired):
    """From entries as they are stored to lanes."""
    if stored is np.uint16:
        found = fp32_of_bf16(builder, found, paired)
    else:
        found = fp32_of_fp16(builder, found) if stored is np.int16 else found
        found = pick(builder, found, found, _PAIRED) if paired else found
    return _cast(builder, found, vector(_ELEMENTS[dtype]))


def _narrow(builder, value, stored, paired, tame):
    """From lanes to entries as they are stored."""
    if stored is np.uint16:
        return bf16_of_fp32(builder, _cast(builder, value, vector(FLOAT)), paired, tame)
    if stored is np.int16:
        value = fp16_of_fp32(builder, _cast(builder, value, vector(FLOAT)))
    else:
        value = _cast(builder, value, vector(_ELEMENTS[stored]))
    return pick(builder, value, value, _UNPAIRED) if paired else value


def _cast(builder, value, kind):
    """To a wider or a narrower floating-point format."""
    if value.type == kind:
        return value
    return builder.fpext(value, kind) if kind.element == DOUBLE else builder.fptrunc(value, kind)
