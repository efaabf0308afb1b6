"""Norms by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from normwise.norms.layer_norm import LayerNorm
from normwise.norms.no_norm import NoNorm
from normwise.norms.rms_norm import RMSNorm
from normwise.ops.functional import Shape
from normwise.table import Table

Options = dict[str, Any]


@dataclass(frozen=True)
class NormRow:
    """A norm as the registry knows it.

    Args:
        build: makes the module from its shape, `bias` and the keywords of `make_norm`.
        formula: what `normwise list norms` shows.
        normalizes: False for the identity, which leaves the scale as it is.
    """

    build: Callable[[Shape, bool, Options], nn.Module]
    formula: str
    normalizes: bool = True


NORMS = Table(
    "norm",
    {
        "layer_norm": NormRow(
            lambda shape, bias, options: LayerNorm(shape, bias=bias, **options),
            "g (x - mean)/sqrt(var + eps) + b",
        ),
        "rms_norm": NormRow(
            lambda shape, bias, options: RMSNorm(shape, **options),
            "g x/sqrt(mean(x^2) + eps)",
        ),
        "no_norm": NormRow(
            lambda shape, bias, options: NoNorm(shape, **options), "x", normalizes=False
        ),
    },
    aliases={"ln": "layer_norm", "rms": "rms_norm", "none": "no_norm"},
)


def make_norm(
    name: str,
    normalized_shape: Shape,
    *,
    eps: float | None = None,
    affine: bool = True,
    bias: bool = True,
    **options: Any,
) -> nn.Module:
    """A norm module by its name in `normwise list norms`.

    Args:
        eps: None for the norm's own default.
        affine: with a learned gain (and bias, where the norm has one).
        bias: False takes the bias from a norm that has one by nature; it gives none to RMSNorm.
        options: further keywords of the module, such as `unit_offset` and `rounding`.

    Raises:
        UnknownName: no norm of this name.

    >>> nw.make_norm("rms_norm", 64)
    RMSNorm((64,), eps=1e-06, elementwise_affine=True, bias=False, unit_offset=False, rounding=fp32)
    """
    own: Options = {"elementwise_affine": affine, **options}
    if eps is not None:
        own["eps"] = eps
    return NORMS[name].build(normalized_shape, bias, own)
