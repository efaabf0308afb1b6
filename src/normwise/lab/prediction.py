"""The stream's size by depth that theory predicts for a model at initialisation."""

from normwise.model.config import TransformerConfig
from normwise.norms.registry import NORMS
from normwise.norms.settings import DEFAULT_EPS
from normwise.theory.growth import Attention, Branch, FeedForward, Moments, Step, stream_moments
from normwise.theory.scaling import deep_norm_alpha
from normwise.weight_init import initial_std


def predicted_stream(config: TransformerConfig, entry: Moments, tokens: int) -> list[float] | None:
    """RMS of the stream at its entry and after each branch; None where norms do not give RMS 1.

    Args:
        config: the model.
        entry: moments of what enters the stack, see `token_moments`.
        tokens: length of the sequences.
    """
    if not NORMS[config.norm].unit_rms:
        return None
    attention, feed_forward = _attention(config, tokens), _feed_forward(config)
    branches = ([attention] if config.attention else []) + [feed_forward]
    step = Step(eps=_eps(config), alpha=deep_norm_alpha(config.sublayers))
    moments = stream_moments(config.placement, entry, branches * config.depth, step)
    return [at.square**0.5 for at in moments]


def token_moments(config: TransformerConfig, collision: float) -> Moments:
    """Moments of embedded text in which two tokens are the same with probability `collision`.

    Learned positions add to every token and are shared by none within a sequence.
    """
    square = _std(config, "embedding") ** 2
    position = _std(config, "position") ** 2 if config.positions == "learned" else 0.0
    return Moments(square + position, collision * square)


def _eps(config: TransformerConfig) -> float:
    if config.norm == "scale_norm":
        return 0.0  # a floor below the row's length, not added to it
    return DEFAULT_EPS[config.norm] if config.norm_eps is None else config.norm_eps


def _attention(config: TransformerConfig, tokens: int) -> Branch:
    return Attention(
        query_gain=_gain(config, "query"), key_gain=_gain(config, "key"),
        value_gain=_gain(config, "value"), output_gain=_gain(config, "attention_output"),
        tokens=tokens, causal=config.causal, query_key_norm=config.query_key_norm != "none",
    )  # fmt: skip


def _feed_forward(config: TransformerConfig) -> Branch:
    gate = _gain(config, "ff_gate") if config.activation == "swiglu" else 0.0
    return FeedForward(config.activation, _gain(config, "ff_in"), _gain(config, "ff_out"), gate)


def _gain(config: TransformerConfig, role: str) -> float:
    """fan_in * std^2: the factor a matrix puts on a mean square."""
    return _fans(config, role)[0] * _std(config, role) ** 2


def _std(config: TransformerConfig, role: str) -> float:
    return initial_std(str(config.init), role, *_fans(config, role), config.sublayers)


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
