"""What norm a value has passed, told by the numbers before and after it and not by a name."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

FITS = 2e-3  # of the output's size: largest distance from a norm's formula; fp32 comes to 1e-6
NEAR = 0.2  # the misfit within a factor of 3 of the right eps
TELLS = 5.0  # how many times worse a factor by channel must fit, for a norm to be one
FEWEST = 4  # rows
MOST = 64  # rows that are looked at


@dataclass(frozen=True)
class NormKind:
    """A norm over the last axis.

    Args:
        formula: "layer_norm" or "rms_norm".
        eps: as the numbers tell it; of no meaning where it is far below the rows' mean square.
    """

    formula: str
    eps: float


def norm_kind(x: Tensor, y: Tensor) -> NormKind | None:
    """The norm that makes y of x, with any gain and bias by channel; None where none does.

    y must be g x/sqrt(mean(x^2) + eps) + b, or the same of x less its row's mean, for one g, b and
    eps. Where a factor by channel fits as well, rows of one size, nothing is told.
    """
    if x.shape != y.shape or x.ndim < 2 or not x.is_floating_point() or x.shape[-1] < 2:
        return None
    rows, out = (t.detach().flatten(0, -2)[:MOST].cpu().double() for t in (x, y))
    if len(rows) < FEWEST or not bool(torch.stack((rows, out)).isfinite().all()):
        return None
    plain = min(misfit(rows, out), misfit(rows - rows.mean(-1, keepdim=True), out))
    if plain < 1e-9:
        return None
    candidates = {"rms_norm": rows, "layer_norm": rows - rows.mean(-1, keepdim=True)}
    fitted = {name: _fitted(numerator, out) for name, numerator in candidates.items()}
    best = min(fitted, key=lambda name: fitted[name][0])
    found, eps = fitted[best]
    return NormKind(best, eps) if found < FITS and found * TELLS < plain else None


def _fitted(numerator: Tensor, out: Tensor) -> tuple[float, float]:
    """The smallest misfit over eps, and that eps."""
    square = numerator.square().mean(-1, keepdim=True)

    def at(eps: float) -> float:
        return misfit(numerator * (square + eps).rsqrt(), out)

    grid = float(square.mean().clamp_min(1e-30)) * 10.0 ** np.arange(-6.0, 2.5, 0.5)
    values = [at(float(eps)) for eps in grid]
    best = int(np.argmin(values))
    if values[best] > NEAR:
        return values[best], float(grid[best])
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return _narrowed(at, float(low), float(high))


def _narrowed(at: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """The least value between two eps, by golden section on their logarithm."""
    ratio = (5.0**0.5 - 1.0) / 2.0
    low, high = np.log(low), np.log(high)
    for _ in range(20):
        first, second = high - ratio * (high - low), low + ratio * (high - low)
        if at(float(np.exp(first))) < at(float(np.exp(second))):
            high = second
        else:
            low = first
    eps = float(np.exp((low + high) / 2.0))
    return at(eps), eps


def misfit(normed: Tensor, out: Tensor) -> float:
    """RMS of what is left of the output after the best gain and bias by channel, over its RMS."""
    centre, middle = normed.mean(0), out.mean(0)
    apart, moved = normed - centre, out - middle
    gain = (apart * moved).sum(0) / apart.square().sum(0).clamp_min(1e-300)
    left = moved - gain * apart
    return float((left.square().mean() / moved.square().mean().clamp_min(1e-300)).sqrt())


def probe_rows(width: int) -> Tensor:
    """Rows (64, width) of sizes from 0.1 to 10, with a mean: on them a norm shows what it is."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-1, 1, MOST)[:, None]
    return (torch.randn(MOST, width, generator=generator) + 0.5) * sizes
