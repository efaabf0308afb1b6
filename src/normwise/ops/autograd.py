"""Joins a forward with its backward, and leaves every other derivative to the reference.

With n the normalized row, r = 1/sqrt(mean square + eps), g the gain and dn = g dy:

    layer_norm   dx = r (dn - mean(dn) - n mean(n dn))
    rms_norm     dx = r (dn - n mean(n dn))
    both         dw = sum over rows of n dy,  db = sum over rows of dy

Two pairs serve first derivatives in eager mode: the kernels, and where they cannot run these lines
in torch's operations, which take half the time of the composite formula and keep one tensor of the
input's size instead of seven. Second and higher derivatives, forward mode and vmap see the
reference itself, so none can come out as zero or as if statistics were constants.

A compiled graph gets the kernels as operators (`graph.py`), or the reference under a transform.
That is decided when the compiler lowers the graph, since it is not known before. An exported
program gets the reference, so that it runs where normwise is not installed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normwise.ops import dispatch, reference
from normwise.ops.forms import Form, Inputs
from normwise.ops.out import copy_into, mark_written, may_be_written
from normwise.ops.reference import NormSpec
from normwise.ops.rounding import compute_dtype, round_through

Formula = Callable[[Tensor, Tensor | None, Tensor | None, NormSpec], Tensor]
Unit = Callable[[Tensor, tuple[int, ...], float], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class NormOp:
    """A norm: its name, its definition, its normalized row, and whether it takes out the mean."""

    name: str
    formula: Formula
    unit: Unit
    centred: bool


LAYER_NORM = NormOp("layer_norm", reference.layer_norm, reference.layer_unit, centred=True)
RMS_NORM = NormOp("rms_norm", reference.rms_norm, reference.rms_unit, centred=False)
OPS = {op.name: op for op in (LAYER_NORM, RMS_NORM)}


def norm(
    op: NormOp,
    form: Form,
    inputs: Inputs,
    spec: NormSpec,
    *,
    rounded: bool = False,
    out: tuple[Tensor, ...] = (),
) -> tuple[Tensor, ...]:
    """The result of a form, and of the one that adds also the stream.

    Args:
        op: the norm.
        form: what is done with the residual.
        inputs: x, residual, weight, bias.
        spec: the call, all but its tensors.
        rounded: whether the statistics of a sum see it as the stream holds it.
        out: memory for the results, if it is given.
    """
    if out:
        return _norm_into(out, op, form, inputs, spec, rounded=rounded)
    if torch.compiler.is_compiling():
        if torch.compiler.is_exporting():
            return _by_torch(op, form, inputs, spec, rounded=rounded)
        results: tuple[Tensor, ...] = _in_graph(*inputs, op.name, form.name, *spec, rounded)
        return results
    kernels = dispatch.kernels(*inputs, rounding=spec.rounding, out_dtype=spec.out_dtype)
    if kernels is not None:
        return _by_kernel(kernels, op, form, inputs, spec, rounded=rounded)
    return _by_torch(op, form, inputs, spec, rounded=rounded)


def _norm_into(
    out: tuple[Tensor, ...],
    op: NormOp,
    form: Form,
    inputs: Inputs,
    spec: NormSpec,
    *,
    rounded: bool,
) -> tuple[Tensor, ...]:
    """The results in memory that is given; a kernel writes there itself where it may."""
    if not torch.compiler.is_compiling():
        kernels = dispatch.kernels(*inputs, *out, rounding=spec.rounding)
        if kernels is not None and may_be_written(out, inputs):
            kernels.forward(op.name, form, inputs, spec, rounded=rounded, keep=False, out=out)
            mark_written(out)
            return out
    return copy_into(out, norm(op, form, inputs, spec, rounded=rounded))


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _in_graph(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    norm_name: str,
    form_name: str,
    *call: Any,
) -> tuple[Tensor, ...]:
    """What a compiler leaves for the moment when it knows under which transforms it is."""
    op, form, inputs = OPS[norm_name], Form[form_name], (x, residual, weight, bias)
    spec, rounded = NormSpec(*call[:-1]), call[-1]
    operators = dispatch.operators(*inputs, rounding=spec.rounding, out_dtype=spec.out_dtype)
    if operators is None:
        return _by_torch(op, form, inputs, spec, rounded=rounded)
    return _by_kernel(operators, op, form, inputs, spec, rounded=rounded, in_graph=True)


def _by_kernel(
    kernels: Any,
    op: NormOp,
    form: Form,
    inputs: Inputs,
    spec: NormSpec,
    *,
    rounded: bool,
    in_graph: bool = False,
) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled() and _need_gradients(inputs):
        apply: Callable[..., tuple[Tensor, ...]] = _Kernels.apply
        return apply(_Call(kernels, op, form, spec, rounded, in_graph), *inputs)
    y, stream, _ = kernels.forward(op.name, form, inputs, spec, rounded=rounded, keep=False)
    return (y,) if stream is None else (y, stream)


def _need_gradients(tensors: tuple[Tensor | None, ...]) -> bool:
    """A loop, since this is 1 of the 12 us that a small norm takes as a generator."""
    for tensor in tensors:  # noqa: SIM110
        if tensor is not None and tensor.requires_grad:
            return True
    return False


class _Call(NamedTuple):
    """A call of a kernel, all but its tensors."""

    kernels: Any
    op: NormOp
    form: Form
    spec: NormSpec
    rounded: bool
    in_graph: bool

    def reads(self, *gradients: Tensor | None) -> bool:
        """Whether a backward pass may be a kernel's."""
        plain = self.in_graph or dispatch.is_plain(*gradients)
        return plain and not torch.is_grad_enabled()


class _Kernels(torch.autograd.Function):
    """Saves what was normed and two numbers a row; the sum of the form that adds is its stream."""

    @staticmethod
    def forward(
        ctx: Any,
        call: _Call,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> tuple[Tensor, ...]:
        inputs = (x, residual, weight, bias)
        y, stream, saved = call.kernels.forward(
            call.op.name, call.form, inputs, call.spec, rounded=call.rounded, keep=True
        )
        ctx.call = call
        ctx.x_dtype, ctx.residual_dtype = x.dtype, None if residual is None else residual.dtype
        ctx.set_materialize_grads(False)
        if stream is None:
            ctx.save_for_backward(x, None, weight, bias, saved)
            return (y,)
        if call.rounded or stream.dtype == compute_dtype(*inputs):
            ctx.save_for_backward(stream, None, weight, bias, saved)
        else:
            ctx.save_for_backward(x, residual, weight, bias, saved)
        return y, stream

    @staticmethod
    def backward(
        ctx: Any, dy: Tensor | None, dstream: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        wants_x, wants_residual, *wants = ctx.needs_input_grad[1:]
        adds = ctx.call.form is Form.ADD
        wants_seen = wants_x or (adds and wants_residual)
        if dy is None:
            dseen, dw, db = dstream, None, None
        elif not ctx.call.reads(dy, dstream):
            dseen, dw, db = _through_reference(ctx, dy, dstream, (wants_seen, *wants))
        else:
            source, added, weight, bias, saved = ctx.saved_tensors
            joint = ctx.x_dtype
            if adds:
                joint = torch.promote_types(joint, ctx.residual_dtype)
            call = ctx.call
            dseen, dw, db = call.kernels.backward(
                call.op.name, (source, added), (weight, bias), (dy, dstream), saved, call.spec,
                dx_dtype=joint if wants_seen else None, wants=wants,
            )  # fmt: skip
        into_residual = dseen if adds else dy
        dx = dseen.to(ctx.x_dtype) if wants_x and dseen is not None else None
        if wants_residual and into_residual is not None:
            dresidual = into_residual.to(ctx.residual_dtype)
        else:
            dresidual = None
        return None, dx, dresidual, dw, db


def _through_reference(
    ctx: Any, dy: Tensor, dstream: Tensor | None, wants: tuple[bool, ...]
) -> list[Tensor | None]:
    """The first derivatives in torch's operations, for whoever transforms them or differentiates
    them again.
    """
    source, added, weight, bias, _ = ctx.saved_tensors
    if added is not None:
        wide = compute_dtype(source, added)
        with torch.enable_grad():
            source = source.to(wide) + added.to(wide)
    spec = ctx.call.spec._replace(out_dtype=dy.dtype)
    with torch.enable_grad():
        y = ctx.call.op.formula(source, weight, bias, spec)
    dseen, dw, db = _wanted_gradients(y, (source, weight, bias), dy, wants)
    if dseen is not None and dstream is not None:
        dseen = dseen + dstream
    return [dseen, dw, db]


def _wanted_gradients(
    y: Tensor, inputs: tuple[Tensor | None, ...], dy: Tensor, wants: tuple[bool, ...]
) -> list[Tensor | None]:
    wanted = [x for x, want in zip(inputs, wants, strict=True) if want and x is not None]
    graph = torch.is_grad_enabled()
    grads = iter(torch.autograd.grad(y, wanted, dy, retain_graph=True, create_graph=graph))
    return [next(grads) if want else None for want in wants]


def _by_torch(
    op: NormOp, form: Form, inputs: Inputs, spec: NormSpec, *, rounded: bool
) -> tuple[Tensor, ...]:
    """A form in torch's operations. `native` knows no sum wider than the stream."""
    x, residual, weight, bias = inputs
    if residual is None:
        return (_normed(op, x, weight, bias, spec),)
    if form is Form.ADD:
        seen, stream = reference.add(x, residual, rounded=rounded)
        seen = stream if spec.rounding == "native" else seen
        return _normed(op, seen, weight, bias, spec), stream
    joint = torch.promote_types(x.dtype, residual.dtype)
    normed = _normed(op, x, weight, bias, spec._replace(out_dtype=joint))
    return ((residual + round_through(normed, x.dtype)).contiguous(),)


def _normed(
    op: NormOp, x: Tensor, weight: Tensor | None, bias: Tensor | None, spec: NormSpec
) -> Tensor:
    """The norm by the definition, or with the closed-form backward."""
    if spec.rounding == "native" or not _plain_backward(x, weight, bias):
        return op.formula(x, weight, bias, spec)
    y: Tensor = _ClosedForm.apply(x, weight, bias, op, spec)  # type: ignore[no-untyped-call]
    return y


def _plain_backward(*tensors: Tensor | None) -> bool:
    """Eager reverse mode, outside every transform."""
    return (
        torch.is_grad_enabled()
        and _need_gradients(tensors)
        and not torch.compiler.is_compiling()
        and not dispatch.in_transform()
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
            y = ctx.op.formula(x, weight, bias, ctx.spec)
            wants = ctx.needs_input_grad[:3]
            return *_wanted_gradients(y, (x, weight, bias), dy, wants), None, None
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
