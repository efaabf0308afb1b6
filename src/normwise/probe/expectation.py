"""What theory expects of a model's stacks, from the recipe that its author declares.

Declared, and not taken from the weights that are there: those would excuse every wrong
initialisation. A recipe comes from the caller, from a method `recipes(tokens)` of the model, or
from the configuration of a Hugging Face model.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from normwise.anatomy.hugging_face import recipes as from_configuration
from normwise.probe.record import Expected, Record, Stack
from normwise.theory.moments import Moments
from normwise.theory.recipe import Recipe, profile

SCALED, PLAIN = 1.15, 1.3  # how far prediction and measurement may lie apart by chance

Recipes = Sequence[Recipe | None]


def declared(model: nn.Module, placement: str, tokens: int) -> Recipes | str:
    """The recipes of a model's stacks, or why there are none."""
    own: Any = getattr(model, "recipes", None)
    if callable(own):
        found: Recipes | str = own(tokens)
        return found
    return from_configuration(model, placement, tokens)


def expected(record: Record, recipes: Recipes) -> list[Expected | None]:
    """The prediction for each stack of a record; None for all where the recipes are not as many, as
    where a pattern names the blocks of one stack alone.
    """
    if len(recipes) != len(record.stacks):
        return [None] * len(record.stacks)
    return [
        _expected(stack, recipe)
        for stack, recipe in zip(record.stacks, recipes, strict=True)
    ]  # fmt: skip


def _expected(stack: Stack, recipe: Recipe | None) -> Expected | None:
    entry = stack.points[0]
    if recipe is None or entry is None or len(recipe.branches) != len(stack.connections):
        return None
    square = entry.rms**2
    alike = min(1.0, max(0.0, stack.overlap / square)) if square else 0.0
    declared_square = square if recipe.entry_square is None else recipe.entry_square
    found = profile(recipe, Moments(declared_square, alike * declared_square))
    return Expected(
        recipe.words, found.stream, found.branch,
        found.gradient.stream if found.gradient else [],
        found.gradient.branch if found.gradient else [],
        SCALED if recipe.scaled else PLAIN,
    )  # fmt: skip
