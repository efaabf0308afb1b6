"""Initialisations that Hugging Face configurations declare, read without that package.

A family is a row of `FAMILIES`: what its configuration calls things, and where it differs from
matrices of N(0, initializer_range) under a stream of tokens alone. Read from the `_init_weights` of
transformers 5.24, and never from the weights of the model at hand.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from normwise.theory.branches import Attention, FeedForward, Joined
from normwise.theory.moments import Moments, Reversible
from normwise.theory.recipe import Recipe
from normwise.theory.scaling import residual_projection_scale
from normwise.theory.stack import Stack

PLACEMENTS = {
    "pre": "pre_norm", "post": "post_norm", "sandwich": "peri_norm", "output": "output_norm",
}  # fmt: skip
ACTIVATIONS = {
    "relu": "relu", "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu",
    "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu",
}  # fmt: skip
GATED = {"silu": "swiglu", "gelu": "geglu"}
EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
OWN_EPS = {"opt": 1e-5, "olmo": 1e-5, "distilbert": 1e-12}  # in the code of a model
DEFAULT_STD = 0.02  # of transformers, where a configuration has 0 or none

Config = Any


def _std(config: Config) -> float:
    for name in ("initializer_range", "init_std"):
        if getattr(config, name, None):
            return float(getattr(config, name))
    return DEFAULT_STD


def _eps(config: Config) -> float:
    """Of the norms of the stream."""
    given = (getattr(config, name, None) for name in EPS)
    own = OWN_EPS.get(config.model_type, 0.0)
    return next((float(value) for value in given if value is not None), own)


def _stack(config: Config, branches: int = 2) -> Stack:
    return Stack(int(config.num_hidden_layers), branches)


def _head(config: Config) -> int:
    given = getattr(config, "head_dim", None)
    return int(given or config.hidden_size // config.num_attention_heads)


def _inner(config: Config) -> int:
    """Width of the feed-forward layer; GPT-2 calls 4 d None."""
    for name in ("intermediate_size", "ffn_dim", "n_inner", "hidden_dim"):
        if getattr(config, name, None):
            return int(getattr(config, name))
    return 4 * int(config.hidden_size)


def _activation(config: Config) -> str:
    """As the configuration calls it."""
    names = ("hidden_act", "hidden_activation", "activation_function", "activation")
    return str(next(getattr(config, name) for name in names if getattr(config, name, None)))


def _tokens(config: Config) -> float:
    return _std(config) ** 2


def _tokens_and_positions(config: Config) -> float:
    """OPT of another width than its embedding has none: it is projected."""
    return 2.0 * _std(config) ** 2


def _normed_sum(config: Config) -> float:
    """Tokens, positions and a kind of token each, behind a norm."""
    return Moments(3.0 * _std(config) ** 2, 0.0).normed(_eps(config)).square


def _normed_tokens_and_positions(config: Config) -> float:
    return Moments(2.0 * _std(config) ** 2, 0.0).normed(_eps(config)).square


def _root_times_tokens(config: Config) -> float:
    return float(config.hidden_size) * _std(config) ** 2


def _as_found(config: Config) -> None:
    return None


def _always(config: Config) -> bool:
    return True


def _never(config: Config) -> bool:
    return False


def _flag(name: str) -> Callable[[Config], bool]:
    return lambda config: bool(getattr(config, name, False))


def _unit(config: Config) -> float:
    return 1.0


def _patches(config: Config, tokens: int) -> int:
    """Patches of an image, and the token of its class."""
    sides = (config.image_size, config.patch_size)
    image, patch = (each if isinstance(each, list | tuple) else (each, each) for each in sides)
    return int(image[0] // patch[0]) * int(image[1] // patch[1]) + 1


@dataclass(frozen=True)
class Family:
    """What a family of models has of its own; each field is told from a configuration.

    Args:
        entry: mean square of what enters the stack; None for one that is taken as it comes.
        gated: a gate in the feed-forward branch.
        causal: a token sees those before it alone.
        query_key_norm: RMS norms of queries and keys.
        logits: square of the factor on a logit, over that of 1/sqrt(width of a head).
        output: factor on the std of each branch's last matrix.
        branch: factor on a branch as it is added.
        joined: attention and feed-forward are added up before they reach the stream.
        parallel: they start from one stream, and are added one by one.
        tokens: length of the sequences, where it is not that of the batch.
        refused: settings that theory does not follow, name and why.
    """

    entry: Callable[[Config], float | None] = _tokens
    gated: Callable[[Config], bool] = _always
    causal: Callable[[Config], bool] = _always
    query_key_norm: Callable[[Config], bool] = _never
    logits: Callable[[Config], float] = _unit
    output: Callable[[Config], float] = _unit
    branch: Callable[[Config], float] = _unit
    joined: Callable[[Config], bool] = _never
    parallel: Callable[[Config], bool] = _never
    tokens: Callable[[Config, int], int] = lambda config, tokens: tokens
    refused: dict[str, str] = field(default_factory=dict)


_CROSS = {"add_cross_attention": "its cross-attention reads another stream"}
_LLAMA = Family()
_BERT = Family(entry=_normed_sum, gated=_never, causal=_flag("is_decoder"), refused=_CROSS)

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        entry=_tokens_and_positions, gated=_never,
        logits=lambda config: 1.0 if config.scale_attn_weights else float(_head(config)),
        output=lambda config: residual_projection_scale(_stack(config)),
        refused=_CROSS | {"scale_attn_by_inverse_layer_idx": "its logits shrink with the layer"},
    ),
    "gpt_neo": Family(
        entry=_tokens_and_positions, gated=_never, logits=lambda config: float(_head(config))
    ),
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "olmo", "phi3", "smollm3", "seed_oss"), _LLAMA
    ),
    **dict.fromkeys(("qwen3", "olmo2", "olmo3", "exaone4"), Family(query_key_norm=_always)),
    "starcoder2": Family(gated=_never),
    "gemma": Family(entry=_root_times_tokens),
    "gemma2": Family(
        entry=_root_times_tokens,
        logits=lambda config: _head(config) / config.query_pre_attn_scalar,
    ),
    "gemma3_text": Family(
        entry=_root_times_tokens, query_key_norm=_always,
        logits=lambda config: _head(config) / config.query_pre_attn_scalar,
    ),
    "granite": Family(
        entry=lambda config: _tokens(config) * config.embedding_multiplier**2,
        logits=lambda config: _head(config) * config.attention_multiplier**2,
        branch=lambda config: float(config.residual_multiplier),
    ),
    "opt": Family(
        entry=lambda config: _tokens_and_positions(config)
        if config.word_embed_proj_dim == config.hidden_size else None,
        gated=_never,
    ),
    "gpt_neox": Family(gated=_never, joined=_flag("use_parallel_residual")),
    "phi": Family(gated=_never, joined=_always, query_key_norm=_flag("qk_layernorm")),
    "cohere": Family(parallel=_always, query_key_norm=_flag("use_qk_norm")),
    "stablelm": Family(
        parallel=_flag("use_parallel_residual"), query_key_norm=_flag("qk_layernorm")
    ),
    **dict.fromkeys(("bert", "roberta", "roberta-prelayernorm"), _BERT),
    "distilbert": Family(entry=_normed_tokens_and_positions, gated=_never, causal=_never),
    "vit": Family(entry=_as_found, gated=_never, causal=_never, tokens=_patches),
}  # fmt: skip
PAIRS = ("t5", "mt5")


def recipes(model: nn.Module, placement: str, tokens: int) -> list[Recipe | None] | str:
    """The recipe of each stack of a model with a `config`, or why there is none.

    Args:
        model: with a `config` of transformers.
        placement: as `anatomy` found it.
        tokens: length of the sequences of the batch.
    """
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if not isinstance(kind, str):
        return (
            "no initialisation is declared: the model has no method recipes(tokens) and no "
            "configuration of transformers"
        )
    if kind not in FAMILIES and kind not in PAIRS:
        return f"the initialisation of {kind!r} is not among those that are known"
    if placement not in PLACEMENTS:
        return f"theory expects nothing of the placement that was found, {placement!r}"
    if kind in PAIRS:
        return _pair(model, config, PLACEMENTS[placement], tokens)
    family = FAMILIES[kind]
    length = family.tokens(config, tokens)
    return _why_not(family, config, length) or [
        _recipe(family, config, PLACEMENTS[placement], length)
    ]  # fmt: skip


def _why_not(family: Family, config: Config, tokens: int) -> str | None:
    """Why theory does not follow this configuration."""
    for name, why in family.refused.items():
        if getattr(config, name, False):
            return f"{name}: {why}"
    if _activation(config) not in ACTIVATIONS:
        return f"theory does not know the activation {_activation(config)!r}"
    windows = [getattr(config, name, None) for name in ("sliding_window", "window_size")]
    if any(window and window < tokens for window in windows):
        return f"sequences of {tokens} tokens are longer than the attention's window"
    return None


def _recipe(family: Family, config: Config, placement: str, tokens: int) -> Recipe:
    attention, feed_forward = _branches(family, config, tokens)
    layer: list[Reversible] = [attention, feed_forward]
    if family.joined(config):
        layer = [Joined((attention, feed_forward))]
    stack = _stack(config, len(layer))
    scaled = family.output(config) != 1.0
    outputs = ", last matrix of each branch divided by sqrt(2L)" if scaled else ", every matrix"
    return Recipe(
        words=f"N(0, {_std(config):.3g}){outputs}, as {config.model_type} has it",
        placement="parallel" if family.parallel(config) else placement,
        stack=stack,
        branches=layer * stack.depth,
        tokens=tokens,
        entry_square=family.entry(config),
        eps=_eps(config),
        scaled=scaled,
    )


def _branches(family: Family, config: Config, tokens: int) -> tuple[Attention, FeedForward]:
    """A gain is fan_in * std^2 of a matrix."""
    square = _std(config) ** 2
    last = square * (family.output(config) * family.branch(config)) ** 2
    gain, activation = config.hidden_size * square, ACTIVATIONS[_activation(config)]
    logits, gated = family.logits(config), family.gated(config)
    return (
        Attention(
            query_gain=gain * logits, key_gain=gain, value_gain=gain,
            output_gain=config.num_attention_heads * _head(config) * last,
            tokens=tokens, causal=family.causal(config),
            normed_logits=logits if family.query_key_norm(config) else None,
        ),
        FeedForward(
            GATED[activation] if gated else activation, in_gain=gain,
            out_gain=_inner(config) * last, gate_gain=gain if gated else 0.0,
        ),
    )  # fmt: skip


def _pair(
    model: nn.Module, config: Config, placement: str, tokens: int
) -> list[Recipe | None] | str:
    """T5's encoder, whose matrices keep the mean square, and none for a decoder, whose
    cross-attention reads another stream.

    Its logits have no factor 1/sqrt(width of a head); that of queries is in their std.
    """
    if config.initializer_factor != 1.0:
        return "an initializer_factor other than 1 is one on the norms' gains too"
    if config.dense_act_fn not in ACTIVATIONS:
        return f"theory does not know the activation {config.dense_act_fn!r}"
    activation = ACTIVATIONS[config.dense_act_fn]
    gated = bool(config.is_gated_act)
    attention = Attention(1.0, 1.0, 1.0, 1.0, tokens, causal=False)
    feed_forward = FeedForward(GATED[activation] if gated else activation, 1.0, 1.0, float(gated))
    stack = Stack(int(config.num_layers))
    encoder = Recipe(
        words="N(0, 1/fan_in), queries N(0, 1/(fan_in width of a head)), embedding N(0, 1)",
        placement=placement,
        stack=stack,
        branches=[attention, feed_forward] * stack.depth,
        tokens=tokens,
        entry_square=1.0,
        eps=_eps(config),
    )
    return [encoder, None] if _decodes(model) else [encoder]


def _decodes(model: nn.Module) -> bool:
    return any(name.split(".")[-1] == "decoder" for name, _ in model.named_modules())
