"""Moments of activations against closed forms and against an integral on a fine grid."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from normwise.theory.activations import pair_curve, pair_moments
from tests.tolerance import QUADRATURE, TRAPEZOID_KINK

Array = NDArray[np.float64]
PAIRS = [
    (1.0, 0.0), (1.0, 0.5), (1.0, 1.0), (1.0, -0.5), (1.0, -1.0), (0.02, 0.013),
    (4.0, 3.0), (4.0, -3.9), (25.0, 12.0), (100.0, 99.0), (100.0, -30.0),
]  # fmt: skip


def gelu(x: Array) -> Array:
    return x * torch.special.ndtr(torch.from_numpy(x)).numpy()


def silu(x: Array) -> Array:
    return x * torch.sigmoid(torch.from_numpy(x)).numpy()


def relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


def integrated(curve: Callable[[Array], Array], square: float, overlap: float) -> float:
    """E[curve(u) curve(v)] by the trapezoid rule over v = (c/q) u + an independent Gaussian.

    The integrand is smooth and falls like a Gaussian, so the rule converges faster than any
    power of the step; 0.0125 standard deviations out to 9 leave under 1e-9.
    """
    grid = np.linspace(-9.0, 9.0, 1441)
    mass = np.exp(-(grid**2) / 2)
    mass /= mass.sum()
    first = math.sqrt(square) * grid
    rest = math.sqrt(max(square - overlap**2 / square, 0.0))
    second = overlap / square * first[:, None] + rest * grid[None, :]
    return float(np.einsum("i,ij,j->", mass * curve(first), curve(second), mass))


@pytest.mark.parametrize("square", [0.3, 1.0, 50.0])
@pytest.mark.parametrize(("cosine", "share"), [(0.0, 1 / (2 * math.pi)), (1.0, 0.5), (-1.0, 0.0)])
def test_relu_at_right_angle_and_at_both_ends(square: float, cosine: float, share: float) -> None:
    # Cho and Saul 2009, equation 6
    own, shared = pair_moments("relu", square, cosine * square)
    assert own == pytest.approx(square / 2, rel=1e-12)
    assert shared == pytest.approx(square * share, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("square", "overlap"), PAIRS)
def test_relu_agrees_with_the_integral(square: float, overlap: float) -> None:
    own, shared = pair_moments("relu", square, overlap)
    allowed = TRAPEZOID_KINK * square
    assert own == pytest.approx(integrated(relu, square, square), abs=allowed)
    assert shared == pytest.approx(integrated(relu, square, overlap), abs=allowed)


@pytest.mark.parametrize(("name", "curve"), [("gelu", gelu), ("silu", silu)])
@pytest.mark.parametrize(("square", "overlap"), PAIRS)
def test_quadrature_agrees_with_the_integral(
    name: str, curve: Callable[[Array], Array], square: float, overlap: float
) -> None:
    own, shared = pair_moments(name, square, overlap)
    allowed = QUADRATURE * max(1.0, square)
    assert own == pytest.approx(integrated(curve, square, square), abs=allowed)
    assert shared == pytest.approx(integrated(curve, square, overlap), abs=allowed)


@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
def test_sign_of_the_overlap_matters(name: str) -> None:
    assert pair_moments(name, 1.0, -0.8)[1] < pair_moments(name, 1.0, 0.0)[1]
    assert pair_moments(name, 1.0, 0.0)[1] < pair_moments(name, 1.0, 0.8)[1]


@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
def test_zero_goes_to_zero(name: str) -> None:
    assert pair_moments(name, 0.0, 0.0) == (0.0, 0.0)


@pytest.mark.parametrize("overlap", [1.0 + 1e-12, -1.0 - 1e-12])
@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
def test_an_overlap_rounded_past_the_square_stays_finite(name: str, overlap: float) -> None:
    assert all(map(math.isfinite, pair_moments(name, 1.0, overlap)))


COSINES = np.array([-0.9, -0.3, 0.0, 0.4, 0.9, 1.0])


@pytest.mark.parametrize("square", [0.02, 1.0, 4.0])
@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
def test_the_curve_of_pairs_goes_through_the_moments_of_each(name: str, square: float) -> None:
    expected = [pair_moments(name, square, cosine * square)[1] for cosine in COSINES]
    largest = pair_moments(name, square, square)[0]
    assert pair_curve(name, square, COSINES) == pytest.approx(expected, abs=1e-3 * largest)


@pytest.mark.parametrize("square", [0.02, 1.0, 4.0])
@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
def test_slopes_are_the_derivative_of_the_curve(name: str, square: float) -> None:
    """d/dc E[phi(u) phi(v)] = E[phi'(u) phi'(v)] with the covariance c (Price 1958)."""
    inside, step = COSINES[:-1], 0.02
    ends = [pair_curve(name, square, inside + side) for side in (step, -step)]
    expected = (ends[0] - ends[1]) / (2.0 * step * square)
    assert pair_curve(name, square, inside, slope=True) == pytest.approx(expected, rel=5e-3)
