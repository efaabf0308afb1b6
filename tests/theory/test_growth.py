"""Predicted growth of the stream against textbook numbers and against random matrices."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from normwise.residual.registry import PLACEMENTS
from normwise.theory import expansion, growth
from normwise.theory.growth import (
    Attention,
    Branch,
    FeedForward,
    Moments,
    Step,
    plain_growth,
    stream_moments,
)
from tests.tolerance import WIDE_BRANCH, WIDE_SOFTMAX

WIDTH, TOKENS, DRAWS = 256, 24, 160


def flat(variance: float) -> Branch:
    return lambda entry: Moments(variance, 0.0)


def test_every_placement_has_a_rule_and_every_rule_a_placement() -> None:
    assert set(growth.RULES) == set(PLACEMENTS) == set(expansion.RULES)


# Xiong et al. 2020 (2002.04745), Lemma 2; Kim et al. 2025 (2502.02732)
@pytest.mark.parametrize("variance", [0.25, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("branches", [1, 2, 24, 128])
def test_textbook_growth(branches: int, variance: float) -> None:
    assert plain_growth("pre_norm", variance, branches) == pytest.approx(1 + branches * variance)
    assert plain_growth("post_norm", variance, branches) == pytest.approx(1.0, rel=1e-14)
    assert plain_growth("deep_norm", variance, branches) == pytest.approx(1.0, rel=1e-14)
    assert plain_growth("peri_norm", variance, branches) == pytest.approx(1.0 + branches, rel=1e-14)


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_zero_branches_leave_the_stream_or_norm_it(placement: str) -> None:
    # placements.md, section 1, column F=0
    expected = 1.0 if PLACEMENTS[placement].norms_stream else 4.0
    at = Step(eps=1e-8, alpha=2.0)
    profile = stream_moments(placement, Moments(4.0, 1.0), [flat(0.0)] * 5, at)
    assert profile[-1].square == pytest.approx(expected, rel=1e-7)
    assert profile[-1].overlap == pytest.approx(expected / 4, rel=1e-7)
    assert len(profile) == 6


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_zero_branches_of_the_textbook_leave_unit_variance(placement: str) -> None:
    assert plain_growth(placement, 0.0, 3) == pytest.approx(1.0)


def test_eps_takes_its_share_of_a_small_stream() -> None:
    post = stream_moments("post_norm", Moments(1e-5, 0.0), [flat(0.0)], Step(eps=1e-5))
    assert post[-1].square == pytest.approx(0.5)
    peri = stream_moments("peri_norm", Moments(1.0, 0.0), [flat(1e-5)], Step(eps=1e-5))
    assert peri[-1].square == pytest.approx(1.5)


def test_deep_norm_puts_alpha_on_the_skip() -> None:
    at = Step(alpha=10.0)
    shared_skip = stream_moments("deep_norm", Moments(1.0, 1.0), [flat(1.0)], at)[-1]
    assert shared_skip.overlap == pytest.approx(100 / 101)
    on_the_branch = 1 / 101  # what alpha on F would keep of the stream
    assert shared_skip.overlap > 50 * on_the_branch


def test_branches_see_the_normed_stream_only_where_a_norm_stands_before_them() -> None:
    seen: dict[str, float] = {}
    for placement in PLACEMENTS:

        def branch(entry: Moments, placement: str = placement) -> Moments:
            seen[placement] = entry.square
            return entry

        stream_moments(placement, Moments(9.0, 0.0), [branch])
    assert seen == {"pre_norm": 1.0, "post_norm": 9.0, "deep_norm": 9.0, "peri_norm": 1.0}


def unit_attention(tokens: int, *, logits: float, causal: bool = True) -> Attention:
    return Attention(logits, logits, value_gain=1.0, output_gain=1.0, tokens=tokens, causal=causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("gain", [0.0, 1.0, 3.0])
def test_attention_of_one_token_is_its_value(gain: float, causal: bool) -> None:  # noqa: FBT001
    out = unit_attention(1, logits=gain, causal=causal)(Moments(0.7, 0.2))
    assert out.square == pytest.approx(0.7, rel=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 32])
def test_attention_over_identical_tokens_is_their_value(
    tokens: int,
    causal: bool,  # noqa: FBT001
) -> None:
    attention = Attention(2.0, 2.0, value_gain=0.5, output_gain=3.0, tokens=tokens, causal=causal)
    out = attention(Moments(0.8, 0.8))
    assert (out.square, out.overlap) == pytest.approx((1.2, 1.2), rel=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tokens", [2, 7, 64])
def test_uniform_attention_is_averaging(tokens: int, causal: bool) -> None:  # noqa: FBT001
    """Second moments of A x with A the averaging matrix are exactly A G A^T."""
    square, overlap = 1.3, 0.4
    gram = np.full((tokens, tokens), overlap) + (square - overlap) * np.eye(tokens)
    average = np.tril(np.ones((tokens, tokens))) if causal else np.ones((tokens, tokens))
    average /= average.sum(1, keepdims=True)
    mixed = average @ gram @ average.T
    out = unit_attention(tokens, logits=0.0, causal=causal)(Moments(square, overlap))
    assert out.square == pytest.approx(np.diag(mixed).mean(), rel=1e-12)
    pairs = ~np.eye(tokens, dtype=bool)
    assert out.overlap == pytest.approx(mixed[pairs].mean(), rel=1e-12)


def drawn(rng: torch.Generator, rows: int) -> Tensor:
    return torch.randn(rows, WIDTH, generator=rng, dtype=torch.float64)


def correlated(rng: torch.Generator, entry: Moments) -> Tensor:
    own = math.sqrt(entry.square - entry.overlap) * drawn(rng, TOKENS)
    return math.sqrt(entry.overlap) * drawn(rng, 1) + own


def matrix(rng: torch.Generator, gain: float) -> Tensor:
    return math.sqrt(gain / WIDTH) * drawn(rng, WIDTH)


def simulated(branch: Callable[[torch.Generator, Tensor], Tensor], entry: Moments) -> Moments:
    """Mean over draws of what a branch makes of correlated tokens."""
    rng = torch.Generator().manual_seed(0)
    pairs = ~torch.eye(TOKENS, dtype=torch.bool)
    squares, overlaps = [], []
    for _ in range(DRAWS):
        out = branch(rng, correlated(rng, entry))
        gram = out @ out.T / WIDTH
        squares.append(gram.diag().mean().item())
        overlaps.append(gram[pairs].mean().item())
    return Moments(math.fsum(squares) / DRAWS, math.fsum(overlaps) / DRAWS)


def softmax_attention(rng: torch.Generator, x: Tensor) -> Tensor:
    logits = (x @ matrix(rng, 1.0)) @ (x @ matrix(rng, 1.0)).T / math.sqrt(WIDTH)
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    weights = logits.masked_fill(later, -math.inf).exp()
    return weights / weights.sum(1, keepdim=True) @ (x @ matrix(rng, 1.5) @ matrix(rng, 0.5))


@pytest.mark.parametrize(
    "entry", [Moments(1.0, 0.0), Moments(1.0, 0.6), Moments(0.5, 0.3)], ids=str
)
def test_softmax_attention_agrees_with_random_matrices(entry: Moments) -> None:
    direct = simulated(softmax_attention, entry)
    out = Attention(1.0, 1.0, value_gain=1.5, output_gain=0.5, tokens=TOKENS)(entry)
    assert out.square == pytest.approx(direct.square, rel=WIDE_SOFTMAX)
    assert out.overlap == pytest.approx(direct.overlap, abs=WIDE_SOFTMAX * direct.square)


def relu(rng: torch.Generator, x: Tensor) -> Tensor:
    return (x @ matrix(rng, 1.6)).clamp(min=0.0) @ matrix(rng, 0.9)


def gelu(rng: torch.Generator, x: Tensor) -> Tensor:
    inner = x @ matrix(rng, 1.6)
    return (inner * torch.special.ndtr(inner)) @ matrix(rng, 0.9)


def swiglu(rng: torch.Generator, x: Tensor) -> Tensor:
    inner, gate = x @ matrix(rng, 1.6), x @ matrix(rng, 0.7)
    return (gate / (1 + (-gate).exp()) * inner) @ matrix(rng, 0.9)


@pytest.mark.parametrize("branch", [relu, gelu, swiglu])
@pytest.mark.parametrize("entry", [Moments(1.0, 0.0), Moments(2.0, 1.5)], ids=str)
def test_feed_forward_agrees_with_random_matrices(
    branch: Callable[[torch.Generator, Tensor], Tensor], entry: Moments
) -> None:
    direct = simulated(branch, entry)
    out = FeedForward(branch.__name__, 1.6, 0.9, gate_gain=0.7)(entry)
    assert out.square == pytest.approx(direct.square, rel=WIDE_BRANCH)
    assert out.overlap == pytest.approx(direct.overlap, abs=WIDE_BRANCH * direct.square)


def test_moments_add_and_scale() -> None:
    total = Moments(1.0, 0.5) + Moments(3.0, -0.25)
    assert total == Moments(4.0, 0.25)
    assert total.scaled(2.0) == Moments(8.0, 0.5)
    normed = total.normed(eps=1.0)
    assert (normed.square, normed.overlap) == pytest.approx((0.8, 0.05))
