"""Size of gradients by depth, for each placement, at initialisation.

The gradient is followed back through the stack as its covariance between the tokens of a sequence:
attention adds up the gradients of all tokens that look at one, and what they share adds up
coherently. A norm divides each token by the RMS it has divided by in the forward pass, so that is
followed token by token too: in a causal stack the first tokens average over few, grow most, and get
most of the gradient, and at a mean RMS it would grow 12 times too much over 24 layers of Llama. The
two directions of the width that a norm takes out of a gradient are left in. Gradients of different
tokens start independent at the end of the stack, as random targets make them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normwise.theory.forms import FORMS, Form, Step
from normwise.theory.moments import Covariance, Moments, Reversible, sizes, spread
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
    x: Covariance
    entry: Covariance
    out: Covariance
    total: Covariance
    eps: float

    def backward(self, gradient: Covariance) -> tuple[Covariance, Covariance]:
        """Covariance of the gradient at the branch's output, and at the stream before it."""
        form = self.form
        after = gradient / (sizes(self.total, self.eps) if form.norm_out else 1.0)
        at_branch = after * form.scale**2
        at_branch = at_branch / (sizes(self.out, self.eps) if form.norm_branch else 1.0)
        before = sizes(self.x, self.eps)
        through = self.branch.backward(self.entry, at_branch) * form.entry**2
        through = through / (before if form.norm_in else 1.0)
        around = after * form.skip**2 / (before if form.normed_skip else 1.0)
        return at_branch, around + through


def _passed(
    form: Form, branch: Reversible, x: Covariance, eps: float
) -> tuple[_Passed, Covariance]:
    """A connection, and the stream behind it; as `growth.connected`, token by token."""
    normed = x / sizes(x, eps) if form.norm_in or form.normed_skip else x
    entry = (normed if form.norm_in else x) * form.entry**2
    out = branch.forward(entry)
    added = (out / sizes(out, eps) if form.norm_branch else out) * form.scale**2
    total = (normed if form.normed_skip else x) * form.skip**2 + added
    passed = _Passed(form, branch, x, entry, out, total, eps)
    return passed, total / sizes(total, eps) if form.norm_out else total


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
    passed, x = [], spread(entry, tokens)
    for index, branch in enumerate(branches):
        form = FORMS[placement](Step(stack, index, eps, constants or {}))
        connection, x = _passed(form, branch, x, eps)
        passed.append(connection)
    gradient = np.eye(tokens)
    streams, outputs = [1.0], []
    for connection in reversed(passed):
        at_branch, gradient = connection.backward(gradient)
        outputs.append(_rms(at_branch))
        streams.append(_rms(gradient))
    return GradientProfile(streams[::-1], outputs[::-1])


def _rms(gradient: Covariance) -> float:
    return math.sqrt(np.trace(gradient) / len(gradient))
