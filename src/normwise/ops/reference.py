"""Every norm in plain PyTorch: the definition, differentiable to any order.

    layer_norm   y = g * (x - mean) / sqrt(var + eps) + b      Ba et al. 2016, equation 4
    rms_norm     y = g * x / sqrt(mean(x^2) + eps) + b         Zhang and Sennrich 2019, equation 4

with g = weight, or 1 + weight under a unit offset, and the biased variance. Every statistic is in
fp32 (fp64 where a tensor is fp64) except in `native`, which is the literal formula in x's dtype.

Two things keep fp32 exact where the textbook lines fail. A row is divided by a power of two near
its largest entry, which changes no bit of an ordinary row and keeps the squares of 1e30 finite;
eps is divided along. And LayerNorm centres twice: the first mean carries a rounding error in
proportion to the row's mean, and the second takes it out.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from normwise.ops.rounding import compute_dtype, round_through


class NormSpec(NamedTuple):
    """A call of a norm, all but its tensors.

    Args:
        dims: the normalized trailing axes, counted from the end.
        eps: added to the mean square, inside the root.
        unit_offset: the gain is 1 + weight.
        rounding: a row of `ROUNDINGS`.
        dtype: dtype of the input as the user gave it, to which `llama` rounds.
        out_dtype: dtype of the result.
    """

    dims: tuple[int, ...]
    eps: float
    unit_offset: bool
    rounding: str
    dtype: torch.dtype
    out_dtype: torch.dtype


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, spec: NormSpec) -> Tensor:
    """g (x - mean)/sqrt(var + eps) + b."""
    if spec.rounding == "native":
        centred = x - x.mean(spec.dims, keepdim=True)
        variance = x.var(spec.dims, correction=0, keepdim=True)
        return affine(centred / torch.sqrt(variance + spec.eps), weight, bias, spec)
    unit, _ = layer_unit(x.to(compute_dtype(x, weight, bias)), spec.dims, spec.eps)
    return affine(unit, weight, bias, spec)


def rms_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, spec: NormSpec) -> Tensor:
    """g x/sqrt(mean(x^2) + eps) + b."""
    if spec.rounding == "native":
        unit = x * torch.rsqrt(x.pow(2).mean(spec.dims, keepdim=True) + spec.eps)
        return affine(unit, weight, bias, spec)
    unit, _ = rms_unit(x.to(compute_dtype(x, weight, bias)), spec.dims, spec.eps)
    return affine(unit, weight, bias, spec)


def layer_unit(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """(x - mean)/sqrt(var + eps), and 1/sqrt(var + eps) by row."""
    if not _row_size(x, dims):
        return x, x
    scale = power_of_two(largest(x, dims))
    centred = x / scale
    centred = centred - centred.mean(dims, keepdim=True)
    centred = centred - centred.mean(dims, keepdim=True)
    return rms_unit(centred, dims, eps, scale)


def rms_unit(
    x: Tensor, dims: tuple[int, ...], eps: float, unit: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """x/sqrt(mean(x^2) + eps), and 1/sqrt(mean(x^2) + eps) by row, for x in units of `unit`."""
    if not _row_size(x, dims):
        return x, x
    root = torch.as_tensor(abs(eps) ** 0.5, dtype=x.dtype, device=x.device)
    scale = power_of_two(torch.maximum(largest(x, dims), root / unit))
    total = scale * unit
    row = x / scale
    inverse = torch.rsqrt(row.square().mean(dims, keepdim=True) + eps / total / total)
    return row * inverse, inverse / total


def add(x: Tensor, residual: Tensor, *, rounded: bool) -> tuple[Tensor, Tensor]:
    """x + residual: as the statistics see it, and as the stream, in the promoted dtype."""
    dtype = torch.promote_types(x.dtype, residual.dtype)
    wide = compute_dtype(x, residual)
    total = x.to(wide) + residual.to(wide)
    if rounded:
        total = round_through(total, dtype)
    return total, total.to(dtype)


def largest(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Largest magnitude in each row, positive and finite; NaN where the row holds one."""
    limits = torch.finfo(x.dtype)
    return x.detach().abs().amax(dims, keepdim=True).clamp(limits.tiny, limits.max)


def power_of_two(size: Tensor) -> Tensor:
    """The power of two in (size/2, size], exact, for finite positive sizes."""
    mantissa, _ = torch.frexp(size)
    return size / (2 * mantissa)


def _row_size(x: Tensor, dims: tuple[int, ...]) -> int:
    return math.prod([x.shape[d] for d in dims])


def affine(unit: Tensor, weight: Tensor | None, bias: Tensor | None, spec: NormSpec) -> Tensor:
    """g * unit + b in unit's dtype; one rounding to the output dtype."""
    if spec.rounding == "llama":
        unit = round_through(unit, spec.dtype)
    if weight is not None:
        unit = unit * gain(weight, unit.dtype, spec)
    if bias is not None:
        unit = unit + (bias if spec.rounding == "native" else bias.to(unit.dtype))
    return unit.to(spec.out_dtype).contiguous()


def gain(weight: Tensor, dtype: torch.dtype, spec: NormSpec) -> Tensor:
    """The weight, or 1 + weight: formed in `dtype`, in the weight's own under `native`."""
    wide = weight if spec.rounding == "native" else weight.to(dtype)
    return 1 + wide if spec.unit_offset else wide
