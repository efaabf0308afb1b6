"""What theory expects of a model at initialisation: stream and gradients by depth."""

from normwise.model.config import TransformerConfig
from normwise.model.recipe import recipe, token_moments, why_no_recipe
from normwise.theory.gradients import UNKNOWN, GradientProfile
from normwise.theory.moments import Moments
from normwise.theory.recipe import expected_gradient, expected_stream

__all__ = [
    "predicted_gradient", "predicted_stream", "token_moments", "why_no_gradient", "why_no_stream",
]  # fmt: skip


def why_no_stream(config: TransformerConfig) -> str | None:
    """Why `predicted_stream` gives None for a model; None where it does not."""
    return why_no_recipe(config)


def predicted_stream(config: TransformerConfig, entry: Moments, tokens: int) -> list[float] | None:
    """RMS of the stream at its entry and after each branch; None for `why_no_stream`.

    Args:
        config: the model.
        entry: moments of what enters the stack, see `token_moments`.
        tokens: length of the sequences.
    """
    if why_no_stream(config) is not None:
        return None
    return [at.square**0.5 for at in expected_stream(recipe(config, tokens), entry)]


def why_no_gradient(config: TransformerConfig) -> str | None:
    """Why `predicted_gradient` gives None for a model; None where it does not."""
    return UNKNOWN.get(config.placement) or why_no_stream(config)


def predicted_gradient(
    config: TransformerConfig, entry: Moments, tokens: int
) -> GradientProfile | None:
    """RMS of the gradient at the stream's points and the branches' outputs, over that at the end of
    the stack; None for `why_no_gradient`. The arguments are those of `predicted_stream`.
    """
    if why_no_gradient(config) is not None:
        return None
    return expected_gradient(recipe(config, tokens), entry)
