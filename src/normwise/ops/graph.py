"""The kernels as operators, which a compiler keeps whole: `launch`'s two functions once more.

A compiled graph is made with tensors that hold no numbers, so it needs to know of an operator what
its results look like. Neither operator has a derivative: `autograd` joins them as it joins the
kernels themselves.
"""

import math
from typing import Any

import torch
from torch import Tensor

from normwise.ops.forms import Form, Inputs, result_dtypes
from normwise.ops.numba_cpu import launch
from normwise.ops.reference import NormSpec

Three = tuple[Tensor, Tensor, Tensor]


def forward(
    norm: str, form: Form, inputs: Inputs, spec: NormSpec, *, rounded: bool, keep: bool
) -> launch.Results:
    """`launch.forward` by the operator."""
    y, stream, saved = forward_operator(
        *inputs, norm, form.name, len(spec.dims), spec.eps, spec.unit_offset, spec.rounding,
        spec.out_dtype, rounded, keep,
    )  # fmt: skip
    return y, stream if form is Form.ADD else None, saved if keep else None


def backward(
    norm: str,
    source: tuple[Tensor, Tensor | None],
    parameters: tuple[Tensor | None, Tensor | None],
    gradients: tuple[Tensor, Tensor | None],
    saved: Tensor,
    spec: NormSpec,
    *,
    dx_dtype: torch.dtype | None,
    wants: tuple[bool, bool],
) -> launch.Gradients:
    """`launch.backward` by the operator."""
    dx, dw, db = backward_operator(
        *source, *parameters, *gradients, saved, norm, len(spec.dims), spec.eps,
        spec.unit_offset, spec.rounding, spec.dtype, dx_dtype, list(wants),
    )  # fmt: skip
    return None if dx_dtype is None else dx, dw if wants[0] else None, db if wants[1] else None


@torch.library.custom_op("normwise::norm_forward", mutates_args=())
def forward_operator(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    norm: str,
    form: str,
    axes: int,
    eps: float,
    unit_offset: bool,
    rounding: str,
    out_dtype: torch.dtype,
    rounded: bool,
    keep: bool,
) -> Three:
    """The result, the stream and the rows' statistics, each empty where there is none."""
    spec = _spec(axes, eps, unit_offset, rounding, x.dtype, out_dtype)
    y, stream, saved = launch.forward(
        norm, Form[form], (x, residual, weight, bias), spec, rounded=rounded, keep=keep
    )
    return y, _or_empty(stream, x), _or_empty(saved, x)


@forward_operator.register_fake
def _forward_shapes(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, *call: Any
) -> Three:
    _, form, axes, _, _, _, out_dtype, _, keep = call
    residual_dtype = None if residual is None else residual.dtype
    dtypes = result_dtypes(Form[form], x.dtype, residual_dtype, out_dtype)
    y, *rest = (x.new_empty(x.shape, dtype=dtype) for dtype in dtypes)
    stream = rest[0] if rest else x.new_empty(0)
    rows = math.prod(x.shape[: x.ndim - axes])  # Size.numel() would fix the sizes
    saved = x.new_empty((rows, 2), dtype=torch.float64) if keep else x.new_empty(0)
    return y, stream, saved


@torch.library.custom_op("normwise::norm_backward", mutates_args=())
def backward_operator(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    dy: Tensor,
    dstream: Tensor | None,
    saved: Tensor,
    norm: str,
    axes: int,
    eps: float,
    unit_offset: bool,
    rounding: str,
    dtype: torch.dtype,
    dx_dtype: torch.dtype | None,
    wants: list[bool],
) -> Three:
    """The gradients of what was normed, of the weight and of the bias; empty if not wanted."""
    found = launch.backward(
        norm, (x, residual), (weight, bias), (dy, dstream), saved,
        _spec(axes, eps, unit_offset, rounding, dtype, dtype),
        dx_dtype=dx_dtype, wants=(wants[0], wants[1]),
    )  # fmt: skip
    dx, dw, db = (_or_empty(part, x) for part in found)
    return dx, dw, db


@backward_operator.register_fake
def _backward_shapes(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, *call: Any
) -> Three:
    dx_dtype, wants = call[-2:]
    dx = x.new_empty(0) if dx_dtype is None else x.new_empty(x.shape, dtype=dx_dtype)
    dw, db = (
        parameter.new_empty(parameter.shape) if want and parameter is not None else x.new_empty(0)
        for parameter, want in zip((weight, bias), wants, strict=True)
    )
    return dx, dw, db


def _or_empty(part: Tensor | None, x: Tensor) -> Tensor:
    """An operator has no optional results."""
    return x.new_empty(0) if part is None else part


def _spec(
    axes: int, eps: float, unit_offset: bool, rounding: str, dtype: torch.dtype, out: torch.dtype
) -> NormSpec:
    return NormSpec(tuple(range(-axes, 0)), eps, unit_offset, rounding, dtype, out)
