"""Second moments of activations of correlated Gaussians.

For a pair (u, v) of zero-mean Gaussians with variance q and covariance c, `pair_moments` gives
E[phi(u)^2] and E[phi(u) phi(v)]: what a feed-forward branch does to the size of a token and to
what two tokens share. ReLU has a closed form (Cho and Saul 2009, equation 6); the smooth ones are
integrated by the trapezoid rule, which is good to 1e-6 of the result for q up to 100: at a spacing
of 0.1 the curves, smooth over 1/sqrt(q), alias by exp(-2 pi^2).
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Curve = Callable[[NDArray[np.float64]], NDArray[np.float64]]

NODES = np.linspace(-9.0, 9.0, 181)
WEIGHTS = np.exp(-(NODES**2) / 2.0) / np.exp(-(NODES**2) / 2.0).sum()


def pair_moments(activation: str, square: float, overlap: float) -> tuple[float, float]:
    """(E[phi(u)^2], E[phi(u) phi(v)]) for Var u = Var v = square, Cov(u, v) = overlap."""
    if activation == "relu":
        return square / 2.0, _relu_overlap(square, overlap)
    curve = _CURVES[activation]
    return _quadrature(curve, square, square), _quadrature(curve, square, overlap)


def pair_curve(
    activation: str, square: float, cosines: NDArray[np.float64], *, slope: bool = False
) -> NDArray[np.float64]:
    """E[phi(u) phi(v)] of pairs of variance `square` for each of their correlations, or of slopes.

    sum_k c_k^2 cosine^k with phi's coefficients in normalized Hermite polynomials; 40 of them leave
    1e-3 of the largest at a variance of 4. ReLU's corner has its closed forms.
    """
    if activation == "relu":
        angles = np.arccos(np.clip(cosines, -1.0, 1.0))
        if slope:
            return (math.pi - angles) / (2.0 * math.pi)
        return square * (np.sin(angles) + (math.pi - angles) * cosines) / (2.0 * math.pi)
    curve = (_SLOPES if slope else _CURVES)[activation]
    values = curve(math.sqrt(square) * NODES) * WEIGHTS
    grid = np.linspace(-1.0, 1.0, 801)
    sums = np.polynomial.Polynomial((_HERMITE @ values) ** 2)(grid)
    return np.asarray(np.interp(cosines, grid, sums), dtype=np.float64)


def _hermite(count: int) -> NDArray[np.float64]:
    """The first normalized Hermite polynomials at `NODES`, a row each."""
    rows = [np.ones_like(NODES), NODES]
    for k in range(1, count - 1):
        rows.append((NODES * rows[k] - math.sqrt(k) * rows[k - 1]) / math.sqrt(k + 1))
    return np.array(rows)


_HERMITE = _hermite(40)


def _relu_overlap(square: float, overlap: float) -> float:
    cosine = max(-1.0, min(1.0, overlap / square)) if square else 0.0
    angle = math.acos(cosine)
    return square * (math.sin(angle) + (math.pi - angle) * cosine) / (2.0 * math.pi)


@lru_cache(maxsize=1024)  # stream, branches and gradients of a stack ask for the same
def _quadrature(curve: Curve, square: float, overlap: float) -> float:
    """E[curve(u) curve(v)] over the pair written as one shared and one own Gaussian each."""
    shared = math.sqrt(abs(overlap))
    own = math.sqrt(max(square - abs(overlap), 0.0))
    common, single = shared * NODES[:, None], own * NODES[None, :]
    first = curve(common + single) @ WEIGHTS
    second = curve(math.copysign(1.0, overlap) * common + single) @ WEIGHTS
    return float(WEIGHTS @ (first * second))


def _gelu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    erf: NDArray[np.float64] = np.vectorize(math.erf)(x / math.sqrt(2.0))
    return 0.5 * x * (1.0 + erf)


def _silu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * x * (1.0 + np.tanh(x / 2.0))


def _gelu_slope(x: NDArray[np.float64]) -> NDArray[np.float64]:
    erf: NDArray[np.float64] = np.vectorize(math.erf)(x / math.sqrt(2.0))
    return 0.5 * (1.0 + erf) + x * np.exp(-(x**2) / 2.0) / math.sqrt(2.0 * math.pi)


def _silu_slope(x: NDArray[np.float64]) -> NDArray[np.float64]:
    share = 0.5 * (1.0 + np.tanh(x / 2.0))
    return share * (1.0 + x * (1.0 - share))


_CURVES: dict[str, Curve] = {"gelu": _gelu, "silu": _silu}
_SLOPES: dict[str, Curve] = {"gelu": _gelu_slope, "silu": _silu_slope}
