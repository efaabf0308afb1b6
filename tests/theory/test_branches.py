"""What branches do to second moments, against averages written out and against random matrices."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from normwise.theory.branches import Attention, FeedForward, Joined
from normwise.theory.moments import Covariance, Moments, Reversible, spread
from tests.tolerance import WIDE_BRANCH, WIDE_SOFTMAX

WIDTH, TOKENS, DRAWS = 256, 24, 160
ENTRIES = [Moments(1.0, 0.0), Moments(1.0, 0.6), Moments(0.5, 0.3)]


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


def rms_norm(x: Tensor) -> Tensor:
    normed: Tensor = x / x.square().mean(-1, keepdim=True).sqrt()
    return normed


def softmax_attention(
    logits: float,
    *,
    normed_logits: float | None = None,
    value_norm: bool = False,
    output_norm: bool = False,
) -> Callable[[torch.Generator, Tensor], Tensor]:
    """Causal attention with W_Q and W_K of one gain, W_V of 1.5 and W_O of 0.5."""

    def branch(rng: torch.Generator, x: Tensor) -> Tensor:
        query, key = x @ matrix(rng, logits), x @ matrix(rng, logits)
        value, output = x @ matrix(rng, 1.5), matrix(rng, 0.5)
        if normed_logits is not None:
            query, key = rms_norm(query), rms_norm(key)
        later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        weights = (query @ key.T / math.sqrt(WIDTH)).masked_fill(later, -math.inf).softmax(-1)
        mixed = weights @ (rms_norm(value) if value_norm else value)
        return (rms_norm(mixed) if output_norm else mixed) @ output

    return branch


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
@pytest.mark.parametrize(
    "inside",
    [
        {},
        {"normed_logits": 1.0},
        {"value_norm": True},
        {"output_norm": True},
    ],
    ids=str,
)
def test_softmax_attention_agrees_with_random_matrices(
    entry: Moments, inside: dict[str, bool]
) -> None:
    logits = 4.0 if "normed_logits" in inside else 1.0
    direct = simulated(softmax_attention(logits, **inside), entry)
    out = Attention(logits, logits, 1.5, 0.5, tokens=TOKENS, **inside)(entry)
    assert out.square == pytest.approx(direct.square, rel=WIDE_SOFTMAX)
    assert out.overlap == pytest.approx(direct.overlap, abs=WIDE_SOFTMAX * direct.square)


@pytest.mark.parametrize("gain", [0.2, 1.0, 4.0])
def test_gains_under_a_norm_do_not_matter(gain: float) -> None:
    entry = Moments(0.7, 0.2)
    normed = {"normed_logits": 1.0, "value_norm": True}
    attention = Attention(gain, gain, gain, 0.5, tokens=TOKENS, **normed)(entry)
    assert attention == Attention(1.0, 1.0, 1.0, 0.5, tokens=TOKENS, **normed)(entry)
    assert FeedForward("relu", gain, 2.0, output_norm=True)(entry).square == pytest.approx(2.0)
    nothing = Attention(gain, gain, gain, 0.5, tokens=TOKENS, output_norm=True, **normed)
    assert nothing(Moments(0.0, 0.0)) == Moments(0.0, 0.0)


def relu(rng: torch.Generator, x: Tensor) -> Tensor:
    return (x @ matrix(rng, 1.6)).clamp(min=0.0)


def gelu(rng: torch.Generator, x: Tensor) -> Tensor:
    inner = x @ matrix(rng, 1.6)
    hidden: Tensor = inner * torch.special.ndtr(inner)
    return hidden


def swiglu(rng: torch.Generator, x: Tensor) -> Tensor:
    inner, gate = x @ matrix(rng, 1.6), x @ matrix(rng, 0.7)
    return gate / (1 + (-gate).exp()) * inner


def geglu(rng: torch.Generator, x: Tensor) -> Tensor:
    inner, gate = x @ matrix(rng, 1.6), x @ matrix(rng, 0.7)
    return gate * torch.special.ndtr(gate) * inner


@pytest.mark.parametrize("output_norm", [False, True])
@pytest.mark.parametrize("hidden", [relu, gelu, swiglu, geglu])
@pytest.mark.parametrize("entry", [Moments(1.0, 0.0), Moments(2.0, 1.5)], ids=str)
def test_feed_forward_agrees_with_random_matrices(
    hidden: Callable[[torch.Generator, Tensor], Tensor],
    entry: Moments,
    output_norm: bool,  # noqa: FBT001
) -> None:
    def branch(rng: torch.Generator, x: Tensor) -> Tensor:
        inner = hidden(rng, x)
        return (rms_norm(inner) if output_norm else inner) @ matrix(rng, 0.9)

    direct = simulated(branch, entry)
    out = FeedForward(hidden.__name__, 1.6, 0.9, gate_gain=0.7, output_norm=output_norm)(entry)
    assert out.square == pytest.approx(direct.square, rel=WIDE_BRANCH)
    assert out.overlap == pytest.approx(direct.overlap, abs=WIDE_BRANCH * direct.square)


BRANCHES: list[Reversible] = [
    Attention(1.0, 1.0, 1.5, 0.5, TOKENS), Attention(1.0, 1.0, 1.5, 0.5, TOKENS, causal=False),
    Attention(1.0, 1.0, 1.5, 0.5, TOKENS, normed_logits=1.0, value_norm=True, output_norm=True),
    FeedForward("relu", 1.6, 0.9), FeedForward("gelu", 1.6, 0.9),
    FeedForward("geglu", 1.6, 0.9, gate_gain=0.7), FeedForward("gelu", 1.6, 0.9, output_norm=True),
]  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
@pytest.mark.parametrize("branch", BRANCHES, ids=str)
def test_token_by_token_the_mean_is_that_of_the_moments(branch: Reversible, entry: Moments) -> None:
    """To 1 % of a norm of each token's own values, and of 40 Hermite polynomials."""
    mean = np.trace(branch.forward(spread(entry, TOKENS))) / TOKENS
    assert mean == pytest.approx(branch(entry).square, rel=0.01)


def test_a_sum_of_branches_is_the_sum_of_each() -> None:
    entry, gradient = spread(ENTRIES[1], TOKENS), np.eye(TOKENS)
    parts = BRANCHES[0], BRANCHES[3]
    both = Joined(parts)
    assert both(ENTRIES[1]) == parts[0](ENTRIES[1]) + parts[1](ENTRIES[1])
    assert np.allclose(both.forward(entry), sum(part.forward(entry) for part in parts))
    back = sum(part.backward(entry, gradient) for part in parts)
    assert np.allclose(both.backward(entry, gradient), back)


def test_the_first_token_of_a_causal_sequence_stays_the_largest() -> None:
    out: Covariance = BRANCHES[0].forward(spread(ENTRIES[0], TOKENS))
    assert np.diag(out)[0] == pytest.approx(0.75)
    assert (np.diff(np.diag(out)) < 0.0).all()
