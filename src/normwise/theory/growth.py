"""Size of the residual stream by depth, for each placement, at initialisation.

A token is described by two numbers, `Moments`: the mean square of its entries, and the mean
product of the same entry in two tokens of one sequence. The second is needed because averaging
over tokens, which attention does, shrinks what the tokens do not share and keeps what they do; a
stack of ReLU layers makes the tokens more alike, so attention branches grow with depth.

The recursion is exact for wide layers with independent zero-mean weights, logits that are Gaussian
and independent from key to key, and tokens that differ from each other in the same degree. Biases
and norm gains are taken at their initial 0 and 1. It follows the closed forms of Kedia et al. 2024
(2403.09635) in spirit, with the softmax of a causal sequence written out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from normwise.theory.activations import NODES, WEIGHTS, pair_moments


@dataclass(frozen=True)
class Moments:
    """Second moments of a token's entries: its mean square, and the mean product across tokens."""

    square: float
    overlap: float

    def __add__(self, other: "Moments") -> "Moments":
        """Moments of a sum of independent parts."""
        return Moments(self.square + other.square, self.overlap + other.overlap)

    def scaled(self, variance: float) -> "Moments":
        """Moments after a factor whose square is `variance`."""
        return Moments(self.square * variance, self.overlap * variance)

    def normed(self, eps: float = 0.0) -> "Moments":
        """Moments after a norm with gain 1: mean square q/(q + eps); nothing stays nothing."""
        return self.scaled(1.0 / (self.square + eps)) if self.square else self


class Branch(Protocol):
    """A residual branch at initialisation: moments in, moments out."""

    def __call__(self, entry: Moments) -> Moments: ...


@dataclass(frozen=True)
class Attention:
    """Softmax attention over `tokens` positions.

    A gain is fan_in * std^2 of a matrix, the factor it puts on a mean square. `query_gain` and
    `key_gain` are 1 under a query/key norm, whatever the matrices are.
    """

    query_gain: float
    key_gain: float
    value_gain: float
    output_gain: float
    tokens: int
    causal: bool = True
    query_key_norm: bool = False

    def __call__(self, entry: Moments) -> Moments:
        own = entry.square - entry.overlap
        logit_variance = self.query_gain * self.key_gain * entry.square * own
        if self.query_key_norm:
            logit_variance = 1.0 - entry.normed().overlap
        keys = np.arange(1, self.tokens + 1) if self.causal else np.array([self.tokens])
        same = float(softmax_squares(keys, logit_variance).mean())
        across = self._shared_keys()
        return Moments(entry.overlap + own * same, entry.overlap + own * min(same, across)).scaled(
            self.value_gain * self.output_gain
        )

    def _shared_keys(self) -> float:
        """Mean over pairs of tokens of sum_j a_ij a_kj for uniform weights: 1/(longer context)."""
        if not self.causal or self.tokens == 1:
            return 1.0 / self.tokens
        pairs = self.tokens * (self.tokens - 1) / 2
        return math.fsum((n - 1) / n for n in range(2, self.tokens + 1)) / pairs


def softmax_squares(keys: NDArray[np.int64], variance: float) -> NDArray[np.float64]:
    """E sum_j a_j^2 of a softmax over n independent Gaussian logits, for each n in `keys`.

    1/n for equal logits, 1 for one key. From 1/s^2 = int t exp(-t s) dt with L(t) = E exp(-t e^z):

        E sum_j a_j^2 = n int t L''(t) L(t)^(n-1) dt

    over t = e^u by the trapezoid rule; the integrand varies over u in steps of order 1. Logits of
    a variance above 50 count as 50, where one key has all the weight.
    """
    spread = math.sqrt(min(variance, 50.0))
    logits = spread * NODES
    lowest = -9.0 * spread - math.log(keys.max()) - 16.0
    log_t = np.arange(lowest, 9.0 * spread + 5.0, 0.1)[:, None]
    decay = np.exp(-np.exp(log_t + logits))
    transform = decay @ WEIGHTS
    second = (np.exp(2.0 * (log_t + logits)) * decay) @ WEIGHTS
    powers: NDArray[np.float64] = transform[:, None] ** (keys[None, :] - 1)
    return np.asarray(0.1 * keys * (second @ powers), dtype=np.float64)


@dataclass(frozen=True)
class FeedForward:
    """Two matrices around an activation: "relu", "gelu", or "swiglu" with its gate."""

    activation: str
    in_gain: float
    out_gain: float
    gate_gain: float = 0.0

    def __call__(self, entry: Moments) -> Moments:
        inner = entry.scaled(self.in_gain)
        if self.activation == "swiglu":
            gate = entry.scaled(self.gate_gain)
            square, overlap = pair_moments("silu", gate.square, gate.overlap)
            hidden = Moments(square * inner.square, overlap * inner.overlap)
        else:
            hidden = Moments(*pair_moments(self.activation, inner.square, inner.overlap))
        return hidden.scaled(self.out_gain)


@dataclass(frozen=True)
class Step:
    """What one residual connection needs to know: eps of its norm, and its constants."""

    eps: float = 0.0
    alpha: float = 1.0


def _pre_norm(x: Moments, branch: Branch, at: Step) -> Moments:
    return x + branch(x.normed(at.eps))


def _post_norm(x: Moments, branch: Branch, at: Step) -> Moments:
    return (x + branch(x)).normed(at.eps)


def _deep_norm(x: Moments, branch: Branch, at: Step) -> Moments:
    return (x.scaled(at.alpha**2) + branch(x)).normed(at.eps)


def _peri_norm(x: Moments, branch: Branch, at: Step) -> Moments:
    return x + branch(x.normed(at.eps)).normed(at.eps)


RULES: dict[str, Callable[[Moments, Branch, Step], Moments]] = {
    "pre_norm": _pre_norm,
    "post_norm": _post_norm,
    "deep_norm": _deep_norm,
    "peri_norm": _peri_norm,
}


def stream_moments(
    placement: str, entry: Moments, branches: Sequence[Branch], step: Step | None = None
) -> list[Moments]:
    """Moments of the stream at entry and after each branch, `len(branches) + 1` of them.

    Args:
        placement: a row of `RULES`, the full name of a placement.
        entry: moments of what enters the stack.
        branches: the residual branches in order.
        step: eps and constants, the same at every connection.
    """
    rule, at = RULES[placement], step or Step()
    profile = [entry]
    for branch in branches:
        profile.append(rule(profile[-1], branch, at))
    return profile


def plain_growth(placement: str, branch_variance: float, layers: int) -> float:
    """Stream variance after branches of one fixed variance on independent unit tokens.

    The textbook numbers: pre-norm 1 + n v, post-norm and DeepNorm 1, peri-norm 1 + n.
    """
    fixed = [lambda entry: Moments(branch_variance, 0.0)] * layers
    return stream_moments(placement, Moments(1.0, 0.0), fixed)[-1].square
