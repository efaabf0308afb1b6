"""Weight of each branch on the stream, unrolled, against Su's numbers and a random run."""

import math

import pytest
import torch
from torch.nn.functional import layer_norm

from normwise.theory.expansion import RULES, branch_weights
from normwise.theory.growth import stream_moments
from normwise.theory.moments import Moments
from normwise.theory.stack import Stack
from tests.tolerance import TRACKED_LOG2

DEPTH = 24


def log2s(weights: list[float]) -> list[float]:
    """log2 of the weights of x_0, F_0, F_10 and F_23."""
    return [math.log2(weights[at]) for at in (0, 1, 11, 24)]


def test_post_norm_halves_every_second_branch() -> None:
    # placements.md, 5.7; claims.md, post-expansion
    assert log2s(branch_weights("post_norm", [1.0] * DEPTH)) == pytest.approx([-12, -12, -7, -0.5])


def test_base_is_sqrt_of_one_and_a_half_for_branches_of_variance_one_half() -> None:
    # placements.md, 5.7: a Xavier feed-forward branch with ReLU has variance 1/2
    weights = branch_weights("post_norm", [0.5] * DEPTH)
    assert weights[0] == pytest.approx(1.5 ** (-DEPTH / 2), rel=1e-12)
    for index in range(DEPTH):
        assert weights[index + 1] == pytest.approx(1.5 ** (-(DEPTH - index) / 2), rel=1e-12)
    assert weights[0] > 30 * 2.0 ** (-DEPTH / 2)


@pytest.mark.parametrize("variance", [0.5, 1.0, 3.0])
def test_pre_norm_gives_every_branch_the_weight_1(variance: float) -> None:
    assert branch_weights("pre_norm", [variance] * DEPTH) == [1.0] * (DEPTH + 1)


def test_peri_norm_gives_every_branch_its_own_norm() -> None:
    assert branch_weights("peri_norm", [4.0, 0.25, 1.0]) == pytest.approx([1.0, 0.5, 2.0, 1.0])


@pytest.mark.parametrize("alpha", [1.0, 2.2134, 3.7606])
def test_deep_norm_keeps_more_of_the_skip(alpha: float) -> None:
    weights = branch_weights("deep_norm", [1.0] * DEPTH, alpha=alpha)
    skip, branch = alpha / math.hypot(alpha, 1.0), 1 / math.hypot(alpha, 1.0)
    assert weights[0] == pytest.approx(skip**DEPTH, rel=1e-12)
    for index in range(DEPTH):
        expected = branch * skip ** (DEPTH - 1 - index)
        assert weights[index + 1] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("placement", sorted(RULES))
@pytest.mark.parametrize("entry", [0.02, 1.0, 5.0])
def test_weighted_variances_sum_to_the_variance_of_the_stream(placement: str, entry: float) -> None:
    variances = [0.1, 2.0, 0.7, 1.0, 5.0]
    alpha = 5**0.25  # of five layers of one branch
    weights = branch_weights(placement, variances, entry=entry, alpha=alpha)
    total = sum(w**2 * v for w, v in zip(weights, [entry, *variances], strict=True))
    branches = [lambda x, v=v: Moments(v, 0.0) for v in variances]
    predicted = stream_moments(placement, Moments(entry, 0.0), branches, Stack(5, branches=1))
    assert total == pytest.approx(predicted[-1].square, rel=1e-12)
    assert len(weights) == len(variances) + 1


def test_no_branch_leaves_the_entry() -> None:
    assert branch_weights("post_norm", []) == [1.0]


@pytest.mark.parametrize("variance", [1.0, 0.5])
def test_coefficients_tracked_through_layer_norm_agree(variance: float) -> None:
    """Each term's coefficient is multiplied by the factor that LayerNorm really applied."""
    generator = torch.Generator().manual_seed(0)

    def drawn() -> torch.Tensor:
        return torch.randn(1 << 15, generator=generator, dtype=torch.float64)

    stream = drawn()
    terms, tracked = [stream], [1.0]
    for _ in range(DEPTH):
        branch = math.sqrt(variance) * drawn()
        total = stream + branch
        stream = layer_norm(total, total.shape)
        factor = float(stream @ (total - total.mean()) / (total - total.mean()).square().sum())
        terms.append(branch)
        tracked = [factor * weight for weight in tracked] + [factor]
    rebuilt = torch.stack([w * (t - t.mean()) for w, t in zip(tracked, terms, strict=True)]).sum(0)
    assert torch.allclose(rebuilt, stream, atol=1e-9)
    expected = log2s(branch_weights("post_norm", [variance] * DEPTH))
    assert log2s(tracked) == pytest.approx(expected, abs=TRACKED_LOG2)
