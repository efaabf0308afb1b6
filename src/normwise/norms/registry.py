"""Norms by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from normwise.errors import SettingError
from normwise.norms.affine import AffineNorm
from normwise.norms.batch_norm import BatchNormPosition, BatchNormTokens
from normwise.norms.elementwise import Derf, DynamicTanh
from normwise.norms.group_norm import GroupNorm
from normwise.norms.layer_norm import LayerNorm
from normwise.norms.no_norm import NoNorm
from normwise.norms.partial_rms_norm import PartialRMSNorm
from normwise.norms.power_norm import PowerNorm
from normwise.norms.regularized_batch_norm import RegularizedBatchNorm
from normwise.norms.rms_norm import RMSNorm
from normwise.norms.scale_norm import ScaleNorm
from normwise.ops.functional import Shape, axes_of
from normwise.table import Table

Options = dict[str, Any]
NORM_MODULES = (LayerNorm, RMSNorm, AffineNorm, ScaleNorm)  # all that have parameters


@dataclass(frozen=True)
class NormRow:
    """A norm as the registry knows it.

    Args:
        build: makes the module from its shape, `bias` and the keywords of `make_norm`.
        formula: what `normwise list norms` shows.
        normalizes: whether a row comes out with a size of its own, whatever it came in with.
        unit_rms: whether it does so with RMS 1 at the start and keeps the angle between tokens,
            which predictions assume.
        has_eps: whether the module takes an eps.
        has_parameters: whether there is anything to learn in it.
        batch: what its statistics are of in training, "position" or "tokens" of a batch; None for
            a norm that sees one token. A batch of tokens shows a causal model its future.
    """

    build: Callable[[Shape, bool, Options], nn.Module]
    formula: str
    normalizes: bool = True
    unit_rms: bool = True
    has_eps: bool = True
    has_parameters: bool = True
    batch: str | None = None


def _over_batch(
    kind: Callable[..., nn.Module],
    shape: Shape,
    bias: bool,  # noqa: FBT001
    options: Options,
) -> nn.Module:
    """A norm of channels, which are one axis; torch calls its gain and bias `affine`."""
    sizes = axes_of(shape)
    if len(sizes) != 1:
        raise SettingError(
            f"A norm over a batch has one axis of channels. normalized_shape is {sizes}. Pass the "
            f"number of channels."
        )
    affine = options.pop("elementwise_affine")
    return kind(sizes[0], bias=bias, affine=affine, **options)


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
        "partial_rms_norm": NormRow(
            lambda shape, bias, options: PartialRMSNorm(shape, **options),
            "g x/sqrt(mean(x_1^2 ... x_k^2) + eps)", unit_rms=False,
        ),
        "scale_norm": NormRow(
            lambda shape, bias, options: ScaleNorm(shape, **options),
            "g x/max(norm2(x), eps), one g",
        ),
        "group_norm": NormRow(
            lambda shape, bias, options: GroupNorm(shape, bias=bias, **options),
            "layer_norm in groups of channels",
        ),
        "batch_norm_position": NormRow(
            partial(_over_batch, BatchNormPosition),
            "g (x - mean)/sqrt(var + eps) + b over a position's sequences", batch="position",
            unit_rms=False,
        ),
        "batch_norm_tokens": NormRow(
            partial(_over_batch, BatchNormTokens),
            "g (x - mean)/sqrt(var + eps) + b over a batch's tokens", batch="tokens",
            unit_rms=False,
        ),
        "regularized_batch_norm": NormRow(
            partial(_over_batch, RegularizedBatchNorm),
            "batch_norm_tokens with a penalty on mean and variance", batch="tokens",
            unit_rms=False,
        ),
        "power_norm": NormRow(
            partial(_over_batch, PowerNorm),
            "g z/sqrt(mean(z^2) + eps) + b over a batch's tokens, z = rms_norm(x)", batch="tokens",
            unit_rms=False,
        ),
        "dynamic_tanh": NormRow(
            lambda shape, bias, options: DynamicTanh(shape, bias=bias, **options),
            "g tanh(alpha x) + b", normalizes=False, unit_rms=False, has_eps=False,
        ),
        "derf": NormRow(
            lambda shape, bias, options: Derf(shape, bias=bias, **options),
            "g erf(alpha x + s) + b", normalizes=False, unit_rms=False, has_eps=False,
        ),
        "no_norm": NormRow(
            lambda shape, bias, options: NoNorm(shape, **options),
            "x", normalizes=False, unit_rms=False, has_parameters=False,
        ),
    },
    aliases={
        "ln": "layer_norm", "rms": "rms_norm", "prms_norm": "partial_rms_norm",
        "dyt": "dynamic_tanh", "reg_batch_norm": "regularized_batch_norm", "none": "no_norm",
    },
)  # fmt: skip


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
        eps: None for the norm's own default; norms without an eps have no use for it.
        affine: with a learned gain (and bias, where the norm has one).
        bias: False takes the bias from a norm that has one by nature; it gives none to RMSNorm.
        options: further keywords of the module, such as `unit_offset` and `rounding`;
            batch_norm_position needs `max_len`.

    Raises:
        UnknownName: no norm of this name.

    >>> nw.make_norm("rms_norm", 64)
    RMSNorm((64,), eps=1e-06, elementwise_affine=True, bias=False, unit_offset=False, rounding=fp32)
    """
    own: Options = {"elementwise_affine": affine, **options}
    row = NORMS[name]
    if eps is not None and row.has_eps:
        own["eps"] = eps
    return row.build(normalized_shape, bias, own)
