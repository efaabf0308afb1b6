"""The norms written out in float64, apart from the code under test: what every test compares with.

Inputs are given as the code under test sees them, already rounded to their dtype, and widened here.
Gradients come from float64 autograd of the written formula.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

Formula = Callable[..., Tensor]


@dataclass(frozen=True)
class Expected:
    """What a norm and its backward give in exact arithmetic.

    `dx_size` bounds the terms whose sum is dx; `dw_terms` and `db_terms` are the terms of each
    parameter gradient, one row of x along axis 0.
    """

    y: Tensor
    dx: Tensor
    dw: Tensor
    db: Tensor
    dx_size: Tensor
    dw_terms: Tensor
    db_terms: Tensor


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    axes: int = 1,
    offset: float = 0.0,
) -> Tensor:
    """(offset + weight) (x - mean)/sqrt(var + eps) + bias over the last `axes` axes."""
    dims = _dims(axes)
    centred = x - x.mean(dims, keepdim=True)
    variance = (centred * centred).mean(dims, keepdim=True)
    return _affine(centred / (variance + eps).sqrt(), weight, bias, offset)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-6,
    axes: int = 1,
    offset: float = 0.0,
) -> Tensor:
    """(offset + weight) x/sqrt(mean(x^2) + eps) + bias over the last `axes` axes."""
    mean_square = (x * x).mean(_dims(axes), keepdim=True)
    return _affine(x / (mean_square + eps).sqrt(), weight, bias, offset)


FORMULAS: dict[str, Formula] = {"layer_norm": layer_norm, "rms_norm": rms_norm}


def wide(x: Tensor | None) -> Tensor | None:
    """The values of x as float64, cut from its graph."""
    return None if x is None else x.detach().double()


def expected(
    name: str,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    dy: Tensor,
    eps: float,
    axes: int = 1,
    offset: float = 0.0,
) -> Expected:
    """Output and gradients of a norm for the values that are given."""
    shape = x.shape[-axes:]
    gain = torch.ones(shape, dtype=torch.float64) - offset if weight is None else wide(weight)
    shift = torch.zeros(shape, dtype=torch.float64) if bias is None else wide(bias)
    inputs = [t.clone().requires_grad_() for t in (wide(x), gain, shift)]
    formula = partial(FORMULAS[name], eps=eps, axes=axes, offset=offset)
    y = formula(*inputs)
    dx, dw, db = torch.autograd.grad(y, inputs, wide(dy))
    unit = FORMULAS[name](wide(x), eps=eps, axes=axes)
    dn = (wide(dy) * (gain + offset)).abs().amax(_dims(axes), keepdim=True)
    size = inverse_root(name, wide(x), eps, axes) * dn * (2.0 + unit.abs())
    rows = (-1, *shape)
    return Expected(
        y.detach(), dx, dw, db, size, (wide(dy) * unit).reshape(rows), wide(dy).reshape(rows)
    )


def inverse_root(name: str, x: Tensor, eps: float, axes: int = 1) -> Tensor:
    """1/sqrt(var + eps) for layer_norm, 1/sqrt(mean(x^2) + eps) for rms_norm."""
    dims = _dims(axes)
    if name == "layer_norm":
        x = x - x.mean(dims, keepdim=True)
    return ((x * x).mean(dims, keepdim=True) + eps).rsqrt()


def _dims(axes: int) -> tuple[int, ...]:
    return tuple(range(-axes, 0))


def _affine(unit: Tensor, weight: Tensor | None, bias: Tensor | None, offset: float) -> Tensor:
    scaled = unit if weight is None else unit * (weight + offset)
    return scaled if bias is None else scaled + bias
