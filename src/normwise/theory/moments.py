"""Second moments of tokens, and what a residual branch is to them.

A token is described by two numbers: the mean square of its entries, and the mean product of the
same entry in two tokens of one sequence. The second is needed because averaging over tokens, which
attention does, shrinks what the tokens do not share and keeps what they do; a stack of ReLU layers
makes the tokens more alike, so attention branches grow with depth.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Covariance = NDArray[np.float64]
"""Mean products of entries between the tokens of a sequence, (tokens, tokens)."""


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


def spread(moments: Moments, tokens: int) -> Covariance:
    """The covariance of tokens that differ from each other in the same degree."""
    own = moments.square - moments.overlap
    return np.full((tokens, tokens), moments.overlap) + own * np.eye(tokens)


def mean_moments(x: Covariance) -> Moments:
    """Means over tokens and over pairs of them."""
    tokens, square = len(x), float(np.trace(x)) / len(x)
    return Moments(square, (float(x.sum()) / tokens - square) / (tokens - 1) if tokens > 1 else 0.0)


def sizes(x: Covariance, eps: float = 0.0) -> Covariance:
    """What a norm divides a product of two tokens by; infinite for tokens of nothing."""
    root = np.sqrt(np.diag(x) + eps)
    root = np.where(root > 0.0, root, np.inf)
    return root * root[:, None]


class Branch(Protocol):
    """A residual branch at initialisation: moments in, moments out."""

    def __call__(self, entry: Moments) -> Moments: ...


class Reversible(Branch, Protocol):
    """A branch that says token by token what it does, and to a gradient on its way back."""

    def forward(self, entry: Covariance) -> Covariance:
        """Covariance of what it gives."""
        ...

    def backward(self, entry: Covariance, gradient: Covariance) -> Covariance:
        """Covariance of the gradient at the entry, from that at the output."""
        ...
