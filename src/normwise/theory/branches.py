"""What attention and feed-forward branches do to second moments, at initialisation.

Exact for wide layers with independent zero-mean weights, logits that are Gaussian and independent
from key to key, and tokens that differ from each other in the same degree. Biases and norm gains
are taken at their initial 0 and 1. It follows the closed forms of Kedia et al. 2024 (2403.09635) in
spirit, with the softmax of a causal sequence written out.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from normwise.theory.activations import NODES, WEIGHTS, pair_curve, pair_moments
from normwise.theory.moments import Covariance, Moments, Reversible, mean_moments, sizes


@dataclass(frozen=True)
class Attention:
    """Softmax attention over `tokens` positions.

    A gain is fan_in * std^2 of a matrix, the factor it puts on a mean square. Under a query/key
    norm those of queries and keys do not matter, and `normed_logits` is the variance of a logit
    between independent tokens: 1 for norms of RMS 1, g^2/K for unit vectors times g. `value_norm`
    and `output_norm` are norms of the values and before the output matrix.
    """

    query_gain: float
    key_gain: float
    value_gain: float
    output_gain: float
    tokens: int
    causal: bool = True
    normed_logits: float | None = None
    value_norm: bool = False
    output_norm: bool = False

    def __call__(self, entry: Moments) -> Moments:
        own = entry.square - entry.overlap
        same = float(self._squares(entry).mean())
        across = self._shared_keys()
        mean = Moments(entry.overlap + own * same, entry.overlap + own * min(same, across))
        mixed = mean.scaled(self._value_gain(entry))
        return (mixed.normed() if self.output_norm else mixed).scaled(self.output_gain)

    def forward(self, entry: Covariance) -> Covariance:
        """Covariance of what it gives: U C U^T with the mean weights U of each query, and what the
        softmax is sharper than that of a token with itself.
        """
        keys, squares = self._keys(), self._squares(mean_moments(entry))
        values = entry / sizes(entry) if self.value_norm else entry * self.value_gain
        if self.causal:
            sums = np.cumsum(np.cumsum(values, axis=0), axis=1)
            own = np.cumsum(np.diag(values))
        else:
            sums = np.full_like(values, values.sum())
            own = np.full(self.tokens, np.trace(values))
        mixed = sums / keys / keys[:, None]
        others = np.maximum(keys * (keys - 1), 1)
        at = np.arange(self.tokens)
        mixed[at, at] = squares * own / keys + (1.0 - squares) * (np.diag(sums) - own) / others
        out: Covariance = mixed / sizes(mixed) if self.output_norm else mixed
        return out * self.output_gain

    def backward(self, entry: Covariance, gradient: Covariance) -> Covariance:
        """Covariance of the gradient at the entry: by way of the values, the queries and the keys.

        With weights a_ij of mean 1/n_i and mean square s_i/n_i, the values carry A^T G A: sums over
        the queries that see a key, in the square of the tokens. A logit moves its query by own
        values and keys, so what comes that way is each token's own.
        """
        moments = mean_moments(entry)
        keys, squares = self._keys(), self._squares(moments)
        tokens = np.diag(gradient)
        others = np.maximum(keys - 1, 1)
        apart = tokens * np.where(keys > 1, (1.0 - squares) / (keys * others), 0.0)
        apart -= tokens * np.where(keys > 1, 1.0 / keys**2, 0.0)
        alike = tokens * (squares / keys - 1.0 / keys**2)
        back = self._seen(self._seen(gradient / keys / keys[:, None]).T)
        at = np.arange(self.tokens)
        back = back + self._seen(apart)[np.maximum(at, at[:, None])]
        moved = tokens * (squares - squares**2)  # sum_j a_j^2 (1 - 2 a_j + sum_k a_k^2), about
        to_query, to_key = self._logit_gains(moments)
        own = self._seen(alike - apart) + to_query * moved + to_key * self._seen(moved / keys)
        back[at, at] += own
        through: Covariance = back / sizes(entry) if self.value_norm else back * self.value_gain
        return self.output_gain * through

    def _seen(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each key, the sum over the queries that see it, along the first axis."""
        if self.causal:
            return np.cumsum(values[::-1], axis=0)[::-1]
        return np.broadcast_to(values.sum(axis=0), values.shape)

    def _logit_gains(self, entry: Moments) -> tuple[float, float]:
        """What the mean square of a gradient is multiplied by on its way through a logit, to the
        query's token and to the key's, weights and value's gain aside.
        """
        own = entry.square - entry.overlap
        if self.normed_logits is not None:
            share = own / entry.square
            return self.normed_logits * share * share, self.normed_logits * share
        both = self.query_gain * self.key_gain
        return both * own * own, both * own * entry.square

    def _keys(self) -> NDArray[np.int64]:
        """Keys that each query sees."""
        if self.causal:
            return np.arange(1, self.tokens + 1)
        return np.full(self.tokens, self.tokens)

    def _squares(self, entry: Moments) -> NDArray[np.float64]:
        """E sum_j a_ij^2 of each query."""
        own = entry.square - entry.overlap
        variance = self.query_gain * self.key_gain * entry.square * own
        if self.normed_logits is not None:
            variance = self.normed_logits * (1.0 - entry.normed().overlap)
        if self.causal:
            return softmax_squares(self._keys(), variance)
        return np.repeat(softmax_squares(np.array([self.tokens]), variance), self.tokens)

    def _value_gain(self, entry: Moments) -> float:
        return 1.0 / entry.square if self.value_norm and entry.square else self.value_gain

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
    return _softmax_squares(tuple(keys.tolist()), min(max(variance, 0.0), 50.0))


@lru_cache(maxsize=1024)  # stream, branches and gradients of a stack ask for the same
def _softmax_squares(seen: tuple[int, ...], variance: float) -> NDArray[np.float64]:
    keys, spread = np.array(seen), math.sqrt(variance)
    logits = spread * NODES
    lowest = -9.0 * spread - math.log(keys.max()) - 16.0
    log_t = np.arange(lowest, 9.0 * spread + 5.0, 0.1)[:, None]
    decay = np.exp(-np.exp(log_t + logits))
    transform = decay @ WEIGHTS
    second = (np.exp(2.0 * (log_t + logits)) * decay) @ WEIGHTS
    powers: NDArray[np.float64] = transform[:, None] ** (keys[None, :] - 1)
    found = np.asarray(0.1 * keys * (second @ powers), dtype=np.float64)
    found.setflags(write=False)
    return found


GATES = {"swiglu": "silu", "geglu": "gelu"}
"""The activation of a gate, whose product with a linear map is what the last matrix is given."""


@dataclass(frozen=True)
class FeedForward:
    """Two matrices around an activation, "relu", "gelu" or "silu", or behind a row of `GATES`;
    `output_norm` is a norm before the last matrix.
    """

    activation: str
    in_gain: float
    out_gain: float
    gate_gain: float = 0.0
    output_norm: bool = False

    def __call__(self, entry: Moments) -> Moments:
        hidden = self.hidden(entry)
        return (hidden.normed() if self.output_norm else hidden).scaled(self.out_gain)

    def hidden(self, entry: Moments) -> Moments:
        """What the second matrix is given, before a norm of it."""
        inner = entry.scaled(self.in_gain)
        if self.activation in GATES:
            gate = entry.scaled(self.gate_gain)
            square, overlap = pair_moments(GATES[self.activation], gate.square, gate.overlap)
            return Moments(square * inner.square, overlap * inner.overlap)
        return Moments(*pair_moments(self.activation, inner.square, inner.overlap))

    def forward(self, entry: Covariance) -> Covariance:
        """Covariance of what it gives, of tokens of about one size."""
        hidden = self._hidden(entry)
        return (hidden / sizes(hidden) if self.output_norm else hidden) * self.out_gain

    def backward(self, entry: Covariance, gradient: Covariance) -> Covariance:
        """Covariance of the gradient at the entry: tokens that are alike share their slopes."""
        inner = entry * self.in_gain
        if self.activation not in GATES:
            slopes = self.in_gain * _products(self.activation, inner, slope=True)
        else:
            gate, curve = entry * self.gate_gain, GATES[self.activation]
            slopes = self.in_gain * _products(curve, gate)
            slopes += self.gate_gain * _products(curve, gate, slope=True) * inner
        back: Covariance = self.out_gain * slopes * gradient
        return back

    def _hidden(self, entry: Covariance) -> Covariance:
        inner = entry * self.in_gain
        if self.activation not in GATES:
            return _products(self.activation, inner)
        return inner * _products(GATES[self.activation], entry * self.gate_gain)


def _products(activation: str, x: Covariance, *, slope: bool = False) -> Covariance:
    """E[phi(u_i) phi(u_j)], or of slopes. A token that is not of the mean size counts as one that
    is, times a factor, which is exact for ReLU.
    """
    square = float(np.trace(x)) / len(x)
    if not square:
        return np.zeros_like(x)
    scale = sizes(x)
    found = pair_curve(activation, square, x / scale, slope=slope)
    return found if slope else found * np.where(np.isfinite(scale), scale, 0.0) / square


@dataclass(frozen=True)
class Joined:
    """Branches that start from one stream and are added to it as one sum."""

    parts: tuple[Reversible, ...]

    def __call__(self, entry: Moments) -> Moments:
        return sum((part(entry) for part in self.parts), start=Moments(0.0, 0.0))

    def forward(self, entry: Covariance) -> Covariance:
        """Covariance of the sum, of parts that are independent."""
        return sum((part.forward(entry) for part in self.parts), start=np.zeros_like(entry))

    def backward(self, entry: Covariance, gradient: Covariance) -> Covariance:
        """Covariance of the gradient at the entry, of all parts together."""
        parts = (part.backward(entry, gradient) for part in self.parts)
        return sum(parts, start=np.zeros_like(entry))
