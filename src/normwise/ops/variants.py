"""Norms that are a line or two of torch beside the two of `functional`.

x is (..., *normalized_shape) and `spec` is made by `functional.spec_of`. Everything is computed in
fp32, or in fp64 where a tensor is fp64, and rounded once.
"""

import torch
from torch import Tensor

from normwise.ops.functional import layer_norm
from normwise.ops.reference import NormSpec, affine, gain, largest, power_of_two, rms_unit
from normwise.ops.rounding import compute_dtype


def scale_norm(x: Tensor, weight: Tensor | None, start: float, spec: NormSpec) -> Tensor:
    """g x/max(norm2(x), eps) with one g; Nguyen and Salazar 2019 (1910.05895), equation 5.

    g is the weight, under a unit offset `start` (1 + weight), and `start` where there is none. The
    row is first divided by a power of two near its largest entry, and eps with it, so that a row of
    1e30 keeps its length.
    """
    row = x.to(compute_dtype(x, weight))
    factor = start if weight is None else gain(weight, row.dtype, spec)
    if spec.unit_offset:
        factor = start * factor
    scale = power_of_two(largest(row, spec.dims))
    row = row / scale
    length = torch.linalg.vector_norm(row, dim=spec.dims, keepdim=True)
    y: Tensor = row * (factor / length.clamp_min(spec.eps / scale))
    return y.to(spec.out_dtype)


def partial_rms_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, first: int, spec: NormSpec
) -> Tensor:
    """g x/sqrt(mean(x_1^2 ... x_k^2) + eps) + b with k = `first`; Zhang and Sennrich 2019
    (1910.07467), section 3.2.
    """
    wide = x.to(compute_dtype(x, weight, bias))
    start = wide.flatten(-len(spec.dims))[..., :first]
    _, inverse = rms_unit(start, (-1,), spec.eps)
    inverse = inverse.reshape(*inverse.shape[:-1], *(1 for _ in spec.dims))
    return affine(wide * inverse, weight, bias, spec)


def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, spec: NormSpec
) -> Tensor:
    """LayerNorm without gain in each of `groups` equal parts of a token, then g and b of its whole
    width; Wu and He 2018 (1803.08494), equation 7, within a token.
    """
    parts = x.flatten(-len(spec.dims)).unflatten(-1, (groups, -1))
    wide = compute_dtype(x, weight, bias)
    unit = layer_norm(parts, parts.shape[-1], eps=spec.eps, out_dtype=wide)
    return affine(unit.reshape(x.shape), weight, bias, spec)


def dynamic_tanh(
    x: Tensor, alpha: Tensor | float, weight: Tensor | None, bias: Tensor | None, spec: NormSpec
) -> Tensor:
    """g tanh(alpha x) + b; Zhu et al. 2025 (2503.10622), equation 1."""
    unit = torch.tanh(_times(x, alpha, weight, bias))
    return affine(unit, weight, bias, spec)


def derf(
    x: Tensor,
    alpha: Tensor | float,
    shift: Tensor | float,
    weight: Tensor | None,
    bias: Tensor | None,
    spec: NormSpec,
) -> Tensor:
    """g erf(alpha x + s) + b; Chen et al. 2025 (2512.10938)."""
    inner = _times(x, alpha, weight, bias)
    inner = inner + (shift.to(inner.dtype) if isinstance(shift, Tensor) else shift)
    return affine(torch.erf(inner), weight, bias, spec)


def _times(x: Tensor, alpha: Tensor | float, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """alpha x, in a dtype in which the gradient of alpha, a sum over all of x, is exact enough."""
    wide = x.to(compute_dtype(x, weight, bias, alpha if isinstance(alpha, Tensor) else None))
    return wide * (alpha.to(wide.dtype) if isinstance(alpha, Tensor) else alpha)
