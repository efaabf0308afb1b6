"""A declared initialisation, and the stream, branches and gradients that theory expects of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from normwise.theory.forms import FORMS, Step
from normwise.theory.gradients import GradientProfile, gradient_profile
from normwise.theory.growth import connected, stream_moments
from normwise.theory.moments import Moments, Reversible
from normwise.theory.stack import Stack


@dataclass(frozen=True)
class Recipe:
    """How a stack of residual connections was initialised, as its author declares it.

    Args:
        words: for a reader, as in "N(0, 0.02), outputs of branches divided by sqrt(2L)".
        placement: full name of a placement, a row of `growth.RULES`.
        stack: depth and branches.
        branches: the residual branches in order.
        tokens: length of the sequences.
        entry_square: mean square of what enters the stack; None for one that is taken as it comes.
        eps: of the norms.
        constants: of the placement, where they are not its own.
        scaled: the last matrices of the branches are scaled with depth, so that the stream's
            profile hardly scatters.
    """

    words: str
    placement: str
    stack: Stack
    branches: Sequence[Reversible]
    tokens: int
    entry_square: float | None = None
    eps: float = 0.0
    constants: Mapping[str, Any] = field(default_factory=dict)
    scaled: bool = False


@dataclass(frozen=True)
class Profile:
    """RMS at the S + 1 points of a stream, of the S branches as they are added (empty where a
    placement is none of one form), and of gradients over that at the end (None without theory).
    """

    stream: list[float]
    branch: list[float]
    gradient: GradientProfile | None


def profile(recipe: Recipe, entry: Moments) -> Profile:
    """What is expected of a stack that `entry` enters."""
    rest: dict[str, Any] = {"eps": recipe.eps, "constants": recipe.constants}
    stream = stream_moments(recipe.placement, entry, recipe.branches, recipe.stack, **rest)
    return Profile(
        [at.square**0.5 for at in stream],
        _branches(recipe, stream),
        gradient_profile(
            recipe.placement, entry, recipe.branches, recipe.stack, recipe.tokens, **rest
        ),
    )  # fmt: skip


def _branches(recipe: Recipe, stream: Sequence[Moments]) -> list[float]:
    if recipe.placement not in FORMS:
        return []
    found = []
    for index, (branch, x) in enumerate(zip(recipe.branches, stream, strict=False)):
        form = FORMS[recipe.placement](Step(recipe.stack, index, recipe.eps, recipe.constants))
        out = connected(form, x, branch, recipe.eps)[1]
        added = (out.normed(recipe.eps) if form.norm_branch else out).scaled(form.scale**2)
        found.append(added.square**0.5)
    return found
