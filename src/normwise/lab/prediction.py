"""What theory expects of a model at initialisation: stream and gradients by depth."""

from typing import Any

from normwise.model.config import TransformerConfig
from normwise.norms.registry import NORMS
from normwise.norms.settings import DEFAULT_EPS
from normwise.theory.branches import Attention, FeedForward
from normwise.theory.gradients import UNKNOWN, GradientProfile, gradient_profile
from normwise.theory.growth import stream_moments
from normwise.theory.moments import Moments, Reversible
from normwise.theory.scaling import query_key_scale
from normwise.weight_init import initial_std

PLAIN_SUM = "t_fixup"  # the placement that adds, and no more


def why_no_stream(config: TransformerConfig) -> str | None:
    """Why `predicted_stream` gives None for a model; None where it does not."""
    names = sorted(config.norm_names) if config.placement_row.has_norms else []
    if _is_plain_sum(config):
        return None
    odd = next((name for name in names if not NORMS[name].unit_rms), None)
    if odd is not None:
        return f"{odd} does not give each token RMS 1, or turns tokens towards each other"
    if len(names) > 1:
        return f"eps differs from place to place: {', '.join(names)}"
    return None


def predicted_stream(config: TransformerConfig, entry: Moments, tokens: int) -> list[float] | None:
    """RMS of the stream at its entry and after each branch; None for `why_no_stream`.

    Args:
        config: the model.
        entry: moments of what enters the stack, see `token_moments`.
        tokens: length of the sequences.
    """
    if why_no_stream(config) is not None:
        return None
    placement = PLAIN_SUM if _is_plain_sum(config) else config.placement
    moments = stream_moments(
        placement, entry, _branches(config, tokens), config.stack, **_rest(config)
    )
    return [at.square**0.5 for at in moments]


def _is_plain_sum(config: TransformerConfig) -> bool:
    """Pre-norm without its norms is x + F(x)."""
    return config.placement == "pre_norm" and config.norm_names == {"no_norm"}


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
    return gradient_profile(
        config.placement, entry, _branches(config, tokens), config.stack, tokens, **_rest(config)
    )


def token_moments(config: TransformerConfig, collision: float) -> Moments:
    """Moments of embedded text in which two tokens are the same with probability `collision`.

    Learned positions add to every token and are shared by none within a sequence.
    """
    square = _std(config, "embedding") ** 2
    if config.embedding_scale != "none":
        square *= config.width
    position = _std(config, "position") ** 2 if config.positions == "learned" else 0.0
    placed = Moments(square + position, collision * square)
    return placed.normed(_eps(config)) if config.embedding_norm else placed


def _branches(config: TransformerConfig, tokens: int) -> list[Reversible]:
    layer: list[Reversible] = [_attention(config, tokens)] if config.attention else []
    return [*layer, _feed_forward(config)] * config.depth


def _rest(config: TransformerConfig) -> dict[str, Any]:
    return {"eps": _eps(config), "constants": config.placement_options}


def _eps(config: TransformerConfig) -> float:
    if config.norm == "scale_norm":
        return 0.0  # a floor below the row's length, not added to it
    return DEFAULT_EPS.get(config.norm, 0.0) if config.norm_eps is None else config.norm_eps


def _attention(config: TransformerConfig, tokens: int) -> Attention:
    inside = config.placement_row.inside
    return Attention(
        query_gain=_gain(config, "query"), key_gain=_gain(config, "key"),
        value_gain=_gain(config, "value"), output_gain=_gain(config, "attention_output"),
        tokens=tokens, causal=config.causal, normed_logits=_normed_logits(config),
        value_norm=inside.value, output_norm=inside.attention_output,
    )  # fmt: skip


def _normed_logits(config: TransformerConfig) -> float | None:
    if config.query_key_norm == "unit":
        return query_key_scale(config.max_len) ** 2 / config.head_width
    return None if config.query_key_norm == "none" else 1.0


def _feed_forward(config: TransformerConfig) -> FeedForward:
    gate = _gain(config, "ff_gate") if config.activation == "swiglu" else 0.0
    return FeedForward(
        config.activation, _gain(config, "ff_in"), _gain(config, "ff_out"), gate,
        output_norm=config.placement_row.inside.ff_output,
    )  # fmt: skip


def _gain(config: TransformerConfig, role: str) -> float:
    """fan_in * std^2: the factor a matrix puts on a mean square."""
    return _fans(config, role)[0] * _std(config, role) ** 2


def _std(config: TransformerConfig, role: str) -> float:
    return initial_std(str(config.init), role, *_fans(config, role), config.stack)


def _fans(config: TransformerConfig, role: str) -> tuple[int, int]:
    """(fan_in, fan_out) of a matrix of this role; an embedding maps one-hot rows to the stream."""
    width, inner = config.width, config.ff_width
    shapes = {
        "embedding": (width, config.vocab_size),
        "position": (width, config.max_len),
        "ff_in": (width, inner),
        "ff_gate": (width, inner),
        "ff_out": (inner, width),
    }
    return shapes.get(role, (width, width))
