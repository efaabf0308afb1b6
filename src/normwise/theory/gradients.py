"""Size of gradients by depth, for each placement, at initialisation.

The gradient is followed back through the stack as its covariance between the tokens of a sequence:
attention adds up the gradients of all tokens that look at one, and what they share adds up
coherently. A norm divides by the RMS it has divided by in the forward pass; the two directions of
the width that it takes out of a gradient are left in. Gradients of different tokens start
independent at the end of the stack, as random targets make them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normwise.theory.forms import FORMS, Form, Step
from normwise.theory.growth import connected
from normwise.theory.moments import Covariance, Moments, Reversible
from normwise.theory.stack import Stack

UNKNOWN = {
    "b2t": "the entry of a layer has two ways up, whose gradients are not independent",
    "resi_dual": "every branch has a way up by each stream",
    "siamese_norm": "every branch has a way up by each stream",
    "siamese_norm_scaled": "every branch has a way up by each stream",
    "admin": "its factors come from a batch",
    "parallel": "the branches of a layer read its entry, and not the stream between them",
    "parallel_norms": "the branches of a layer read its entry, and not the stream between them",
    "attention_residuals": "every output has a way up by each later branch",
    "sub_norm": "a norm of ReLU outputs, whose mean is not 0, is another in LayerNorm and RMSNorm",
    "norm_former": "a norm of ReLU outputs is another in LayerNorm and RMSNorm",
    "norm_former_fairseq": "a norm of ReLU outputs is another in LayerNorm and RMSNorm",
}
"""Placements without a prediction, and why."""


@dataclass(frozen=True)
class _Passed:
    """A connection as the forward pass went through it."""

    form: Form
    branch: Reversible
    x: Moments
    entry: Moments
    out: Moments
    total: Moments
    eps: float

    def backward(self, gradient: Covariance) -> tuple[Covariance, Covariance]:
        """Covariance of the gradient at the branch's output, and at the stream before it."""
        form = self.form
        after = gradient * (_slope(self.total, self.eps) if form.norm_out else 1.0)
        at_branch = after * form.scale**2
        at_branch = at_branch * (_slope(self.out, self.eps) if form.norm_branch else 1.0)
        before = _slope(self.x, self.eps)
        through = self.branch.backward(self.entry, at_branch) * form.entry**2
        through = through * (before if form.norm_in else 1.0)
        around = after * form.skip**2 * (before if form.normed_skip else 1.0)
        return at_branch, around + through


def _slope(x: Moments, eps: float) -> float:
    """What a norm multiplies a gradient's square with."""
    return 1.0 / (x.square + eps)


@dataclass(frozen=True)
class GradientProfile:
    """RMS of gradients over that of the gradient at the end of the stack.

    Args:
        stream: at the entry and after each branch.
        branch: at each branch's output.
    """

    stream: list[float]
    branch: list[float]


def gradient_profile(
    placement: str,
    entry: Moments,
    branches: Sequence[Reversible],
    stack: Stack,
    tokens: int,
    *,
    eps: float = 0.0,
    constants: Mapping[str, Any] | None = None,
) -> GradientProfile | None:
    """Gradients by depth; None for the placements of `UNKNOWN`.

    Args:
        placement: the full name of a placement.
        entry: moments of what enters the stack.
        branches: the residual branches in order, as many as the stack has.
        stack: depth and branches.
        tokens: length of the sequences.
        eps: of the norms.
        constants: of the placement, where they are not its own.
    """
    if placement in UNKNOWN:
        return None
    passed, x = [], entry
    for index, branch in enumerate(branches):
        form = FORMS[placement](Step(stack, index, eps, constants or {}))
        enters, out, total, following = connected(form, x, branch, eps)
        passed.append(_Passed(form, branch, x, enters, out, total, eps))
        x = following
    gradient = np.eye(tokens)
    streams, outputs = [1.0], []
    for connection in reversed(passed):
        at_branch, gradient = connection.backward(gradient)
        outputs.append(_rms(at_branch))
        streams.append(_rms(gradient))
    return GradientProfile(streams[::-1], outputs[::-1])


def _rms(gradient: Covariance) -> float:
    return math.sqrt(np.trace(gradient) / len(gradient))
