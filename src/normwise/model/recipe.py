"""How a model of ours was initialised: what theory needs to expect its stream and gradients."""

from dataclasses import replace

from normwise.model.config import TransformerConfig
from normwise.norms.registry import NORMS
from normwise.norms.settings import DEFAULT_EPS
from normwise.theory.branches import Attention, FeedForward
from normwise.theory.forms import FORMS, Step
from normwise.theory.moments import Moments, Reversible
from normwise.theory.recipe import Recipe
from normwise.theory.scaling import query_key_scale
from normwise.theory.stack import Stack
from normwise.weight_init import INITS, initial_std

PLAIN_SUM = "t_fixup"  # the placement that adds, and no more


def why_no_recipe(config: TransformerConfig) -> str | None:
    """Why theory expects nothing of a model's stream; None where it does."""
    names = sorted(config.norm_names) if config.placement_row.has_norms else []
    if _is_plain_sum(config):
        return None
    odd = next((name for name in names if not NORMS[name].unit_rms), None)
    if odd is not None:
        return f"{odd} does not give each token RMS 1, or turns tokens towards each other"
    if len(names) > 1:
        return f"eps differs from place to place: {', '.join(names)}"
    return None


def recipe(config: TransformerConfig, tokens: int, stack: Stack | None = None) -> Recipe:
    """The recipe of a stack of attention and feed-forward branches without `why_no_recipe`.

    Args:
        config: the model.
        tokens: length of the sequences.
        stack: None for the one of a model that has no other.
    """
    stack = stack or config.stack
    drawn = _Draw(config, stack)
    layer: list[Reversible] = [drawn.attention(tokens)] if config.attention else []
    return Recipe(
        words=INITS[str(config.init)].summary,
        placement=PLAIN_SUM if _is_plain_sum(config) else config.placement,
        stack=stack,
        branches=[*layer, drawn.feed_forward()] * stack.depth,
        tokens=tokens,
        entry_square=drawn.entry(collision=0.0).square,
        eps=_eps(config),
        constants=config.placement_options,
        scaled=drawn.scaled,
    )


def token_moments(config: TransformerConfig, collision: float) -> Moments:
    """Moments of embedded text in which two tokens are the same with probability `collision`.

    Learned positions add to every token and are shared by none within a sequence.
    """
    return _Draw(config, config.stack).entry(collision)


def _is_plain_sum(config: TransformerConfig) -> bool:
    """Pre-norm without its norms is x + F(x)."""
    return config.placement == "pre_norm" and config.norm_names == {"no_norm"}


def _eps(config: TransformerConfig) -> float:
    if config.norm == "scale_norm":
        return 0.0  # a floor below the row's length, not added to it
    return DEFAULT_EPS.get(config.norm, 0.0) if config.norm_eps is None else config.norm_eps


class _Draw:
    """What the initialisation of a stack gives its parts."""

    def __init__(self, config: TransformerConfig, stack: Stack) -> None:
        self.config = config
        self.stack = stack

    @property
    def scaled(self) -> bool:
        """The last matrices of the branches are drawn smaller in a deeper stack, and no norm of the
        branches undoes it.
        """
        form = FORMS.get(self.config.placement)
        undone = form is not None and form(Step(self.stack)).norm_branch
        deeper = replace(self.stack, depth=2 * self.stack.depth)
        std = initial_std(str(self.config.init), "ff_out", *self._fans("ff_out"), deeper)
        return std < self._std("ff_out") and not undone

    def entry(self, collision: float) -> Moments:
        config = self.config
        square = self._std("embedding") ** 2
        if config.embedding_scale != "none":
            square *= config.width
        position = self._std("position") ** 2 if config.positions == "learned" else 0.0
        placed = Moments(square + position, collision * square)
        return placed.normed(_eps(config)) if config.embedding_norm else placed

    def attention(self, tokens: int) -> Attention:
        inside = self.config.placement_row.inside
        return Attention(
            query_gain=self._gain("query"), key_gain=self._gain("key"),
            value_gain=self._gain("value"), output_gain=self._gain("attention_output"),
            tokens=tokens, causal=self.config.causal, normed_logits=self._normed_logits(),
            value_norm=inside.value, output_norm=inside.attention_output,
        )  # fmt: skip

    def feed_forward(self) -> FeedForward:
        gate = self._gain("ff_gate") if self.config.activation == "swiglu" else 0.0
        return FeedForward(
            self.config.activation, self._gain("ff_in"), self._gain("ff_out"), gate,
            output_norm=self.config.placement_row.inside.ff_output,
        )  # fmt: skip

    def _normed_logits(self) -> float | None:
        config = self.config
        if config.query_key_norm == "unit":
            return query_key_scale(config.max_len) ** 2 / config.head_width
        return None if config.query_key_norm == "none" else 1.0

    def _gain(self, role: str) -> float:
        """fan_in * std^2: the factor a matrix puts on a mean square."""
        return self._fans(role)[0] * self._std(role) ** 2

    def _std(self, role: str) -> float:
        return initial_std(str(self.config.init), role, *self._fans(role), self.stack)

    def _fans(self, role: str) -> tuple[int, int]:
        """(fan_in, fan_out) of a matrix; an embedding maps one-hot rows to the stream."""
        width, inner = self.config.width, self.config.ff_width
        shapes = {
            "embedding": (width, self.config.vocab_size),
            "position": (width, self.config.max_len),
            "ff_in": (width, inner),
            "ff_gate": (width, inner),
            "ff_out": (inner, width),
        }
        return shapes.get(role, (width, width))
