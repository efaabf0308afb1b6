"""Joins a forward with its closed-form backward, and leaves everything else to the reference.

With n the normalized row, r = 1/sqrt(mean square + eps), g the gain and dn = g dy:

    layer_norm   dx = r (dn - mean(dn) - n mean(n dn))
    rms_norm     dx = r (dn - n mean(n dn))
    both         dw = sum over rows of n dy,  db = sum over rows of dy

The closed form serves the first derivative in eager mode, where it takes half the time and keeps
one tensor of the input's size instead of seven. Second and higher derivatives, forward mode, vmap
and compiled graphs see the reference itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from normwise.ops import reference
from normwise.ops.reference import NormSpec
from normwise.ops.rounding import compute_dtype, round_through

Formula = Callable[[Tensor, Tensor | None, Tensor | None, NormSpec], Tensor]
Unit = Callable[[Tensor, tuple[int, ...], float], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class NormOp:
    """A norm: its definition, its normalized row, and whether it takes out the mean."""

    formula: Formula
    unit: Unit
    centred: bool


LAYER_NORM = NormOp(reference.layer_norm, reference.layer_unit, centred=True)
RMS_NORM = NormOp(reference.rms_norm, reference.rms_unit, centred=False)


def norm(
    op: NormOp, x: Tensor, weight: Tensor | None, bias: Tensor | None, spec: NormSpec
) -> Tensor:
    """The norm of x, by the definition or with the closed-form backward."""
    if spec.rounding == "native" or not _plain_backward(x, weight, bias):
        return op.formula(x, weight, bias, spec)
    y: Tensor = _ClosedForm.apply(x, weight, bias, op, spec)  # type: ignore[no-untyped-call]
    return y


def _plain_backward(*tensors: Tensor | None) -> bool:
    """Eager reverse mode, outside every transform."""
    return (
        torch.is_grad_enabled()
        and any(tensor is not None and tensor.requires_grad for tensor in tensors)
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


class _ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        op: NormOp,
        spec: NormSpec,
    ) -> Tensor:
        unit, inverse = op.unit(x.to(compute_dtype(x, weight, bias)), spec.dims, spec.eps)
        ctx.op, ctx.spec = op, spec
        ctx.save_for_backward(x, weight, bias, unit, inverse)
        return reference.affine(unit, weight, bias, spec)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, unit, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_through_reference(ctx, dy, (x, weight, bias)), None, None
        wide = dy.to(unit.dtype)
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        dx = _input_gradient(ctx, wide, weight, unit, inverse).to(x.dtype) if wants_x else None
        dw = _weight_gradient(ctx.spec, wide, unit, weight) if wants_weight else None
        db = wide.sum_to_size(bias.shape).to(bias.dtype) if wants_bias else None
        return dx, dw, db, None, None


def _input_gradient(
    ctx: Any, dy: Tensor, weight: Tensor | None, unit: Tensor, inverse: Tensor
) -> Tensor:
    spec = ctx.spec
    if not unit.numel():
        return dy
    dn = dy if weight is None else dy * reference.gain(weight, unit.dtype, spec)
    rest = dn - unit * (unit * dn).mean(spec.dims, keepdim=True)
    if ctx.op.centred:
        rest = rest - dn.mean(spec.dims, keepdim=True)
    return rest * inverse


def _weight_gradient(spec: NormSpec, dy: Tensor, unit: Tensor, weight: Tensor) -> Tensor:
    if spec.rounding == "llama":
        unit = round_through(unit, spec.dtype)
    return (unit * dy).sum_to_size(weight.shape).to(weight.dtype)


def _through_reference(
    ctx: Any, dy: Tensor, inputs: tuple[Tensor | None, ...]
) -> list[Tensor | None]:
    """The first derivative as a graph, for whoever differentiates it again."""
    wants = ctx.needs_input_grad[:3]
    wanted = [x for x, want in zip(inputs, wants, strict=True) if want and x is not None]
    y = ctx.op.formula(*inputs, ctx.spec)
    grads = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
    return [next(grads) if want else None for want in wants]
