"""A declared initialisation, and the stream, branches and gradients that theory expects of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from normwise.theory.branches import Attention, Joined
from normwise.theory.forms import FORMS, Step
from normwise.theory.gradients import GradientProfile, gradient_profile
from normwise.theory.growth import connected, stream_moments
from normwise.theory.moments import Moments, Reversible
from normwise.theory.stack import Stack

LONGEST = 512  # tokens that a gradient is followed through


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
    """What is expected of a stack.

    Args:
        stream: RMS of the S skips, behind a norm and before a factor on them, and of the stream at
            the end.
        branch: RMS of the S branches as they are added; empty for a placement that is no `Form`.
        gradient: RMS at those points over that at the end; None without theory.
    """

    stream: list[float]
    branch: list[float]
    gradient: GradientProfile | None


def profile(recipe: Recipe, entry: Moments) -> Profile:
    """What is expected of a stack that `entry` enters."""
    stream = expected_stream(recipe, entry)
    sums = _sums(recipe, stream)
    skips = [each.skip for each in sums] or stream[:-1]
    gradient = expected_gradient(recipe, entry)
    if gradient is not None:
        factors = [*(each.divided for each in sums), 1.0]
        seen = [g * by for g, by in zip(gradient.stream, factors, strict=True)]
        gradient = replace(gradient, stream=seen)
    return Profile(
        [at.square**0.5 for at in (*skips, stream[-1])],
        [each.branch.square**0.5 for each in sums],
        gradient,
    )


def expected_stream(recipe: Recipe, entry: Moments) -> list[Moments]:
    """Moments of the stream at its S + 1 points."""
    return stream_moments(
        recipe.placement, entry, recipe.branches, recipe.stack,
        eps=recipe.eps, constants=recipe.constants,
    )  # fmt: skip


def expected_gradient(recipe: Recipe, entry: Moments) -> GradientProfile | None:
    """Gradients by depth over that at the end of the stack; None for a placement without them.

    Work grows with the square of the tokens, and what it gives with their logarithm: it is done for
    512 of them at most, and of 2048 came at most 20 % another number, in 12 layers of peri-norm.
    """
    tokens = min(recipe.tokens, LONGEST)
    branches = [_of_length(branch, tokens) for branch in recipe.branches]
    return gradient_profile(
        recipe.placement, entry, branches, recipe.stack, tokens,
        eps=recipe.eps, constants=recipe.constants,
    )  # fmt: skip


def _of_length(branch: Reversible, tokens: int) -> Reversible:
    if isinstance(branch, Joined):
        return Joined(tuple(_of_length(part, tokens) for part in branch.parts))
    return replace(branch, tokens=tokens) if isinstance(branch, Attention) else branch


@dataclass(frozen=True)
class _Sum:
    """A residual add: its operands, the skip without its factor, and what a norm on the skip has
    divided by.
    """

    skip: Moments
    branch: Moments
    divided: float


def _sums(recipe: Recipe, stream: Sequence[Moments]) -> list[_Sum]:
    """The residual adds of a placement that is a `Form`."""
    if recipe.placement not in FORMS:
        return []
    found = []
    for index, (branch, x) in enumerate(zip(recipe.branches, stream, strict=False)):
        form = FORMS[recipe.placement](Step(recipe.stack, index, recipe.eps, recipe.constants))
        out = connected(form, x, branch, recipe.eps)[1]
        skip = x.normed(recipe.eps) if form.normed_skip else x
        added = (out.normed(recipe.eps) if form.norm_branch else out).scaled(form.scale**2)
        divided = (x.square + recipe.eps) ** 0.5 if form.normed_skip else 1.0
        found.append(_Sum(skip, added, divided))
    return found
