"""The norms as functions, with torch's leading arguments: replacing `F.` by `nw.` migrates.

Shapes: `input` is (*, *normalized_shape); weight and bias, where given, have exactly
`normalized_shape`. The result has the shape of `input` and is contiguous.

Dtypes: any mix of fp16, bf16, fp32 and fp64. Everything is computed in fp32, or in fp64 where one
tensor is fp64, except under `rounding="native"`. The result is in the dtype of `input` unless
`out_dtype` says otherwise, also under autocast; each gradient is in its own tensor's dtype.

Keywords that all functions share:
    unit_offset: the gain is 1 + weight, formed in the compute dtype; needs a weight.
    rounding: where the result is rounded, a row of `normwise list roundings`: "fp32" once at the
        end, "llama" before gain and bias, "native" after every operation (overflows where the
        input's own dtype does).
    out_dtype: dtype of the result.
    out: contiguous memory of the result's shape and dtype to write to, (normed value, stream) for
        the forms with two results; only where nothing needs a gradient. It may be an input.

Errors: `ShapeError` where shapes or dtypes do not fit, `UnknownName` for a rounding.

A row of zeros gives the bias for any eps > 0. With eps = 0 it is 0/0: NaN, as in torch. A row that
holds an infinity or a NaN follows IEEE arithmetic, and no other row notices.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from normwise.errors import ShapeError
from normwise.ops import autograd
from normwise.ops.forms import Form
from normwise.ops.out import results_in
from normwise.ops.reference import NormSpec
from normwise.ops.rounding import RESIDUAL_ROUNDINGS, ROUNDINGS

Shape = int | Sequence[int]


def layer_norm(
    input: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    unit_offset: bool = False,
    rounding: str = "fp32",
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """g (x - mean)/sqrt(var + eps) + b over the trailing axes; Ba et al. 2016 (1607.06450).

    The variance is the biased one. Module docstring: shapes, dtypes, keywords, errors.

    >>> nw.layer_norm(torch.tensor([1e30, 2e30, 3e30, 4e30]), 4)
    tensor([-1.3416, -0.4472,  0.4472,  1.3416])
    """
    spec = spec_of("layer_norm", input, normalized_shape, weight, bias, eps,
                   unit_offset=unit_offset, rounding=rounding, out_dtype=out_dtype)  # fmt: skip
    inputs = (input, None, weight, bias)
    places = results_in("layer_norm", Form.PLAIN, out, inputs, spec.out_dtype)
    return autograd.norm(autograd.LAYER_NORM, Form.PLAIN, inputs, spec, out=places)[0]


def rms_norm(
    input: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    unit_offset: bool = False,
    rounding: str = "fp32",
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """g x/sqrt(mean(x^2) + eps) + b over the trailing axes; Zhang and Sennrich 2019 (1910.07467).

    `eps=None` means what it means in torch: the machine epsilon of the dtype that torch computes
    in, 1.1920929e-07 for fp16, bf16 and fp32 input, 2.220446049250313e-16 for fp64.

    >>> nw.rms_norm(torch.tensor([3.0, 4.0]), 2, eps=0.0)
    tensor([0.8485, 1.1314])
    """
    spec = spec_of("rms_norm", input, normalized_shape, weight, bias, eps,
                   unit_offset=unit_offset, rounding=rounding, out_dtype=out_dtype)  # fmt: skip
    inputs = (input, None, weight, bias)
    places = results_in("rms_norm", Form.PLAIN, out, inputs, spec.out_dtype)
    return autograd.norm(autograd.RMS_NORM, Form.PLAIN, inputs, spec, out=places)[0]


def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    unit_offset: bool = False,
    rounding: str = "fp32",
    residual_rounding: str = "before_stats",
    out_dtype: torch.dtype | None = None,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(layer_norm(stream), stream) with stream = input + residual.

    See `add_rms_norm` for the stream's dtype and `residual_rounding`.
    """
    spec = spec_of("add_layer_norm", input, normalized_shape, weight, bias, eps,
                   unit_offset=unit_offset, rounding=rounding, out_dtype=out_dtype)  # fmt: skip
    _check_same_shape("add_layer_norm", input, residual)
    inputs = (input, residual, weight, bias)
    rounded = RESIDUAL_ROUNDINGS.resolve(residual_rounding) == "before_stats"
    places = results_in("add_layer_norm", Form.ADD, out, inputs, spec.out_dtype)
    y, stream = autograd.norm(
        autograd.LAYER_NORM, Form.ADD, inputs, spec, rounded=rounded, out=places
    )
    return y, stream


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    unit_offset: bool = False,
    rounding: str = "fp32",
    residual_rounding: str = "before_stats",
    out_dtype: torch.dtype | None = None,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(rms_norm(stream), stream) with stream = input + residual, of one shape.

    The stream has the promoted dtype of the two, so an fp32 residual stays fp32; the normed value
    has the dtype of `input`. `residual_rounding` says which sum the statistics see where the
    stream is narrow: "before_stats" the rounded one, as two separate calls would (the default, so
    that fusing changes nothing), "after_stats" the unrounded one. Backward differentiates the
    value that forward used; gradients of both results add up in the compute dtype.
    """
    spec = spec_of("add_rms_norm", input, normalized_shape, weight, bias, eps,
                   unit_offset=unit_offset, rounding=rounding, out_dtype=out_dtype)  # fmt: skip
    _check_same_shape("add_rms_norm", input, residual)
    inputs = (input, residual, weight, bias)
    rounded = RESIDUAL_ROUNDINGS.resolve(residual_rounding) == "before_stats"
    places = results_in("add_rms_norm", Form.ADD, out, inputs, spec.out_dtype)
    y, stream = autograd.norm(
        autograd.RMS_NORM, Form.ADD, inputs, spec, rounded=rounded, out=places
    )
    return y, stream


def layer_norm_add(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    unit_offset: bool = False,
    rounding: str = "fp32",
    out: Tensor | None = None,
) -> Tensor:
    """residual + layer_norm(input): a branch that is normed on its way into the stream.

    The normed branch is rounded to the dtype of `input`, then added in the promoted dtype.
    """
    spec = spec_of("layer_norm_add", input, normalized_shape, weight, bias, eps,
                   unit_offset=unit_offset, rounding=rounding)  # fmt: skip
    _check_same_shape("layer_norm_add", input, residual)
    inputs = (input, residual, weight, bias)
    places = results_in("layer_norm_add", Form.OUTPUT, out, inputs, spec.out_dtype)
    return autograd.norm(autograd.LAYER_NORM, Form.OUTPUT, inputs, spec, out=places)[0]


def rms_norm_add(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    unit_offset: bool = False,
    rounding: str = "fp32",
    out: Tensor | None = None,
) -> Tensor:
    """residual + rms_norm(input): a branch that is normed on its way into the stream.

    The normed branch is rounded to the dtype of `input`, then added in the promoted dtype.
    """
    spec = spec_of("rms_norm_add", input, normalized_shape, weight, bias, eps,
                   unit_offset=unit_offset, rounding=rounding)  # fmt: skip
    _check_same_shape("rms_norm_add", input, residual)
    inputs = (input, residual, weight, bias)
    places = results_in("rms_norm_add", Form.OUTPUT, out, inputs, spec.out_dtype)
    return autograd.norm(autograd.RMS_NORM, Form.OUTPUT, inputs, spec, out=places)[0]


def spec_of(
    op: str,
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    *,
    unit_offset: bool,
    rounding: str,
    out_dtype: torch.dtype | None = None,
) -> NormSpec:
    """What a norm is to do, after its arguments were checked against one another.

    Args:
        op: the name in a message.

    Raises:
        ShapeError: shapes or dtypes that do not fit, or an offset without a weight.
        UnknownName: no rounding of this name.
    """
    shape = axes_of(normalized_shape)
    if not (
        shape
        and x.shape[-len(shape) :] == shape
        and x.is_floating_point()
        and (weight is None or _is_parameter(weight, shape))
        and (bias is None or _is_parameter(bias, shape))
        and not (unit_offset and weight is None)
        and (out_dtype is None or out_dtype.is_floating_point)
    ):
        raise _misfit(op, x, shape, {"weight": weight, "bias": bias}, out_dtype)
    return NormSpec(
        tuple(range(-len(shape), 0)),
        _torch_eps(x.dtype) if eps is None else eps,
        unit_offset,
        ROUNDINGS.resolve(rounding),
        x.dtype,
        out_dtype or x.dtype,
    )


def _is_parameter(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    return tensor.shape == shape and tensor.is_floating_point()


def _misfit(
    op: str,
    x: Tensor,
    shape: tuple[int, ...],
    parameters: dict[str, Tensor | None],
    out_dtype: torch.dtype | None,
) -> ShapeError:
    """What does not fit; looked for only where something does not."""
    for name, tensor in {"input": x, **parameters}.items():
        if tensor is not None and not tensor.is_floating_point():
            return _not_floating(op, name, tensor)
    if not shape or x.shape[-len(shape) :] != shape:
        return ShapeError(
            f"{op}: the input must end with normalized_shape. "
            f"The input is {tuple(x.shape)}, normalized_shape is {shape}. "
            f"Pass the sizes of the trailing axes to normalize over."
        )
    for name, parameter in parameters.items():
        if parameter is not None and parameter.shape != shape:
            return ShapeError(
                f"{op}: {name} must have the shape that is normalized. "
                f"{name} is {tuple(parameter.shape)}, normalized_shape is {shape}. "
                f"Pass a {name} of shape {shape}, or {name}=None."
            )
    if out_dtype is not None and not out_dtype.is_floating_point:
        return ShapeError(
            f"{op}: out_dtype must be a floating-point dtype. It is {out_dtype}. "
            f"Name one, or leave out_dtype=None."
        )
    return ShapeError(
        f"{op}: unit_offset adds 1 to the weight, and there is none. "
        f"Pass a weight of shape {shape}, or unit_offset=False."
    )


def axes_of(normalized_shape: Shape) -> tuple[int, ...]:
    """The sizes of the normalized axes; one number stands for one axis."""
    if isinstance(normalized_shape, tuple):
        return normalized_shape
    return (
        tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    )


def _not_floating(op: str, name: str, tensor: Tensor) -> ShapeError:
    return ShapeError(
        f"{op}: {name} must be a floating-point tensor. It is {tensor.dtype}. "
        f"Convert it first, for example with .float()."
    )


def _torch_eps(dtype: torch.dtype) -> float:
    """torch's default for rms_norm: the epsilon of fp32 for halves, of the dtype otherwise."""
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


def _check_same_shape(op: str, x: Tensor, residual: Tensor) -> None:
    if not residual.is_floating_point():
        raise _not_floating(op, "residual", residual)
    if x.shape != residual.shape:
        raise ShapeError(
            f"{op}: input and residual must have one shape. "
            f"The input is {tuple(x.shape)}, the residual is {tuple(residual.shape)}. "
            f"Expand the smaller one first."
        )
