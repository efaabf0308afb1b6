"""Thirty-two numbers at a time: what a kernel computes with.

Which entries of a row are added to which is written here and in the loops, and not left to a
compiler: it orders a sum otherwise in every function, so that two kernels, or two machines, would
differ in the last bit. `a * b + c` is rounded twice and `fma` once, always.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

LANES = 32  # 2 registers of 512 bits in fp32, 4 of 256
STRIDE = 2 * LANES  # what a loop that sums takes at a time, in two sums
INT = ir.IntType(32)
FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()


class Lanes(types.Type):
    """32 numbers of one dtype, fp32 or fp64."""

    def __init__(self, element: types.Float) -> None:
        self.element = element
        super().__init__(f"Lanes({element})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        element = manager.lookup(lanes.element).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(element, LANES))


def lanes_of(dtype: type) -> Lanes:
    """The type for np.float32 or np.float64."""
    return Lanes(from_dtype(np.dtype(dtype)))


def vector(element: ir.Type, size: int = LANES) -> ir.VectorType:
    """The machine's type for `size` numbers."""
    return ir.VectorType(element, size)


def constant(element: ir.Type, value: Any, size: int = LANES) -> ir.Constant:
    """`size` times a number."""
    return ir.Constant(vector(element, size), [value] * size)


def pick(builder: Any, a: Any, b: Any, places: Iterator[int] | range | list[int]) -> Any:
    """The numbers at these places of a and b, one after the other."""
    chosen = list(places)
    return builder.shuffle_vector(a, b, ir.Constant(vector(INT, len(chosen)), chosen))


def call_intrinsic(builder: Any, name: str, result: ir.Type, args: list[Any]) -> Any:
    """Calls what LLVM knows under a name."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def is_nan(builder: Any, value: Any) -> Any:
    """Which of the numbers are NaN."""
    return builder.fcmp_unordered("uno", value, value)


def _elementwise(operation: Callable[[Any, Any], Any], instruction: str) -> None:
    @intrinsic
    def apply(typing_context, a, b):
        def generate(context, builder, signature, args):
            return getattr(builder, instruction)(*args)

        return a(a, a), generate

    @overload(operation)
    def _apply(a, b):
        return (lambda a, b: apply(a, b)) if isinstance(a, Lanes) else None


_elementwise(operator.add, "fadd")
_elementwise(operator.sub, "fsub")
_elementwise(operator.mul, "fmul")


@intrinsic
def spread(typing_context, value):
    """A number in every lane."""

    def generate(context, builder, signature, args):
        kind = vector(args[0].type)
        first = builder.insert_element(ir.Constant(kind, ir.Undefined), args[0], INT(0))
        return pick(builder, first, first, [0] * LANES)

    return Lanes(value)(value), generate


@intrinsic
def fma(typing_context, a, b, c):
    """a b + c, rounded once."""

    def generate(context, builder, signature, args):
        suffix = "f32" if a.element == types.float32 else "f64"
        return call_intrinsic(builder, f"llvm.fma.v{LANES}{suffix}", args[0].type, args)

    return a(a, a, a), generate


@intrinsic
def larger_size(typing_context, a, b):
    """a, or |b| where that is larger."""

    def generate(context, builder, signature, args):
        suffix = "f32" if a.element == types.float32 else "f64"
        size = call_intrinsic(builder, f"llvm.fabs.v{LANES}{suffix}", args[1].type, [args[1]])
        return builder.select(builder.fcmp_ordered(">", size, args[0]), size, args[0])

    return a(a, a), generate


@intrinsic
def ordinary(typing_context, value):
    """The same numbers, where NaN is the one that arithmetic makes."""

    def generate(context, builder, signature, args):
        nan = constant(args[0].type.element, float("nan"))
        return builder.select(is_nan(builder, args[0]), nan, args[0])

    return value(value), generate


@intrinsic
def rounded_to_odd(typing_context, value):
    """fp64 cut to the 24 bits of fp32, the last of which is set if anything was lost: rounded
    once more, to a half, the number comes out as if it were rounded once.
    """

    def generate(context, builder, signature, args):
        long = ir.IntType(64)
        bits = builder.bitcast(args[0], vector(long))
        lost = builder.and_(bits, constant(long, (1 << 29) - 1))
        exact = builder.icmp_unsigned("==", lost, constant(long, 0))
        kept = builder.and_(bits, constant(long, -(1 << 29)))
        odd = builder.or_(kept, constant(long, 1 << 29))
        return builder.bitcast(builder.select(exact, kept, odd), vector(DOUBLE))

    return value(value), generate


def _folded(builder: Any, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """The lower half with the upper, until one number is left."""
    size = LANES
    while size > 1:
        size //= 2
        low = pick(builder, value, value, range(size))
        high = pick(builder, value, value, range(size, 2 * size))
        value = combine(low, high)
    return builder.extract_element(value, INT(0))


@intrinsic
def in_fp64(typing_context, value):
    """The same numbers in fp64."""

    def generate(context, builder, signature, args):
        wide = value.element == types.float64
        return args[0] if wide else builder.fpext(args[0], vector(DOUBLE))

    return lanes_of(np.float64)(value), generate


@intrinsic
def total(typing_context, value):
    """The sum of all lanes in fp64."""

    def generate(context, builder, signature, args):
        wide = args[0]
        if value.element == types.float32:
            wide = builder.fpext(wide, vector(DOUBLE))
        return _folded(builder, wide, builder.fadd)

    return types.float64(value), generate


@intrinsic
def largest(typing_context, value):
    """The largest lane; none of them may be NaN."""

    def generate(context, builder, signature, args):
        def larger(a, b):
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        return _folded(builder, args[0], larger)

    return value.element(value), generate
