"""Initialisations that Hugging Face configurations declare, read without that package."""

from torch import nn

from normwise.theory.recipe import Recipe


def recipes(model: nn.Module, placement: str, tokens: int) -> list[Recipe | None] | str:
    """The recipe of each stack of a model with a `config`, or why there is none."""
    return "no initialisation is declared for this model"
