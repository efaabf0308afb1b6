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
"""Mean products of a gradient's entries between the tokens of a sequence, (tokens, tokens)."""


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


class Reversible(Branch, Protocol):
    """A branch that says what it does to a gradient on its way back."""

    def backward(self, entry: Moments, gradient: Covariance) -> Covariance:
        """Covariance of the gradient at the entry, from that at the output."""
        ...
