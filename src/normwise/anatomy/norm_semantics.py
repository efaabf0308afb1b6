"""What exactly a norm module computes: formula, eps, gain and rounding, found by trying it."""

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from normwise.anatomy.norm_kind import norm_kind, probe_rows
from normwise.ops import reference
from normwise.ops.reference import NormSpec
from normwise.ops.rounding import ROUNDINGS

FORMULAS = {"layer_norm": reference.layer_norm, "rms_norm": reference.rms_norm}
ALIKE = 0.98
CLOSE = 1e-4  # a gain that came out of a least-squares fit in fp32


@dataclass(frozen=True)
class NormSemantics:
    """A norm over the last axis.

    Args:
        formula: "layer_norm" or "rms_norm".
        width: of the axis.
        eps: inside the root, to three digits; 0 where no row is small enough to show it.
        weight: name of the parameter that is the gain; None where there is none.
        unit_offset: the gain is 1 + weight.
        bias: name of the parameter that is added; None where there is none.
        rounding: a row of `ROUNDINGS`, whose bf16 results are the module's in at least 98 % of the
            entries (two orders differ in a quarter); None where no order's are.
    """

    formula: str
    width: int
    eps: float
    weight: str | None
    unit_offset: bool
    bias: str | None
    rounding: str | None


@torch.no_grad()
def norm_semantics(module: nn.Module, width: int | None = None) -> NormSemantics | None:
    """What a module computes from (rows, width) alone; None where it is no norm, or takes more.

    The module is copied, and its own parameters and mode stay as they are.

    Args:
        module: any module.
        width: of the last axis; needed where no parameter tells it.
    """
    tried = copy.deepcopy(module).cpu().float().eval()
    vectors = {name: p for name, p in tried.named_parameters() if p.ndim == 1}
    width = width or next((len(p) for p in vectors.values()), None)
    if width is None:
        return None
    generator = torch.Generator().manual_seed(0)
    for parameter in vectors.values():
        parameter.copy_(torch.rand(parameter.shape, generator=generator) + 0.5)
    x = probe_rows(width)
    y = _called(tried, x)
    kind = None if y is None else norm_kind(x, y)
    if y is None or kind is None:
        return None
    unit = _unit(kind.formula, x, kind.eps)
    gain, bias = _gain_and_bias(unit, y)
    weight, unit_offset = _named_gain(gain, vectors)
    found = NormSemantics(
        kind.formula, width, _eps(tried, kind.formula, x, gain, bias), weight, unit_offset,
        next((name for name, p in vectors.items() if _same(bias, p)), None), None,
    )  # fmt: skip
    return _with_rounding(found, tried.bfloat16(), x.bfloat16())


def _called(module: nn.Module, x: Tensor) -> Tensor | None:
    """The module's result; None where it takes something else, or gives something else."""
    try:
        y = module(x)
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
        return None
    return y if isinstance(y, Tensor) and y.shape == x.shape else None


def _unit(formula: str, x: Tensor, eps: float) -> Tensor:
    spec = NormSpec(
        (-1,), eps, unit_offset=False, rounding="fp32", dtype=torch.float64, out_dtype=torch.float64
    )
    return FORMULAS[formula](x.double(), None, None, spec)


def _gain_and_bias(unit: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The factor and the shift of each channel, by least squares."""
    centre, middle = unit.mean(0), y.double().mean(0)
    apart = unit - centre
    gain = (apart * (y - middle)).sum(0) / apart.square().sum(0)
    return gain, middle - gain * centre


def _named_gain(gain: Tensor, vectors: dict[str, nn.Parameter]) -> tuple[str | None, bool]:
    for name, parameter in vectors.items():
        for offset in (False, True):
            if _same(gain, parameter + offset):
                return name, offset
    return None, False


def _same(found: Tensor, parameter: Tensor) -> bool:
    return found.shape == parameter.shape and bool(
        torch.allclose(found, parameter.double(), rtol=CLOSE, atol=CLOSE)
    )


def _eps(module: nn.Module, formula: str, x: Tensor, gain: Tensor, bias: Tensor) -> float:
    """From rows so small that eps takes between a tenth and nine tenths of their mean square."""
    for power in range(0, -16, -1):
        small = x * 10.0**power
        y = _called(module, small)
        if y is None:
            return 0.0
        centred = small.double()
        if formula == "layer_norm":
            centred = centred - centred.mean(-1, keepdim=True)
        square = centred.square().mean(-1)
        left = ((y.double() - bias) / gain).square().mean(-1)
        showing = (left > 0.1) & (left < 0.9)
        if bool(showing.any()):
            eps = float((square / left - square)[showing].median())
            return float(f"{eps:.2e}")
    return 0.0


def _with_rounding(found: NormSemantics, module: nn.Module, x: Tensor) -> NormSemantics:
    """The same with the rounding order that gives the module's bf16 results."""
    y = _called(module, x)
    if y is None:
        return found
    named = dict(module.named_parameters())
    weight, bias = (named[name] if name else None for name in (found.weight, found.bias))
    alike: dict[str, float] = {}
    for rounding in ROUNDINGS:
        spec = NormSpec(
            (-1,), found.eps, found.unit_offset, rounding, torch.bfloat16, torch.bfloat16
        )
        made = FORMULAS[found.formula](x, weight, bias, spec).to(torch.bfloat16)
        alike[rounding] = float((made == y.to(torch.bfloat16)).double().mean())
    best = max(alike, key=lambda rounding: alike[rounding])
    return replace(found, rounding=best if alike[best] >= ALIKE else None)
