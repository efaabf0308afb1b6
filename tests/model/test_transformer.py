"""The small Transformer: what it computes, what it is made of, and how it starts."""

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normwise.errors import PairingWarning, SettingError, ShapeError, UnknownName
from normwise.model.attention import Attention, Rotary
from normwise.model.config import TransformerConfig, reference_config
from normwise.model.feed_forward import FeedForward
from normwise.model.transformer import Transformer
from normwise.norms.layer_norm import LayerNorm
from normwise.norms.registry import NORMS
from normwise.residual.registry import PLACEMENTS
from normwise.weight_init import INITS
from tests.tolerance import FLOAT64_OUTPUT, ROTARY_ANGLE, assert_close

SMALL = TransformerConfig(vocab_size=11, max_len=12, width=16, depth=2, heads=4)
PLACES = sorted(PLACEMENTS)
NO_FINAL_NORM = ("post_norm", "deep_norm", "keel", "b2t", "admin")
NORM_FORMER = ("norm_former", "norm_former_fairseq")


def config(**changes: Any) -> TransformerConfig:
    """The small model with fields changed, and what belongs to its placement."""
    return replace(SMALL, **{"init": None, "query_key_norm": None, **changes})


def tokens(batch: int = 2, length: int = 9, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, SMALL.vocab_size, (batch, length), generator=generator)


def unlike(model: Transformer, seed: int = 0) -> Transformer:
    """The model with gains, biases and factors away from their start, so that a lost one shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 or "placement" in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("positions", ["learned", "rotary", "none"])
@pytest.mark.parametrize("placement", PLACES)
def test_a_later_token_changes_no_earlier_logit(placement: str, positions: str) -> None:
    model = unlike(Transformer(config(placement=placement, positions=positions), seed=0))
    one, other = tokens(), tokens()
    other[:, 6] = (other[:, 6] + 1) % SMALL.vocab_size
    first, second = model(one), model(other)
    assert torch.equal(first[:, :6], second[:, :6])
    assert not torch.equal(first[:, 6], second[:, 6])
    assert not torch.equal(first[:, 8], second[:, 8])


def test_an_encoder_sees_both_sides() -> None:
    model = Transformer(config(causal=False), seed=0)
    one, other = tokens(), tokens()
    other[:, 6] = (other[:, 6] + 1) % SMALL.vocab_size
    assert not torch.equal(model(one)[:, 0], model(other)[:, 0])


def test_without_attention_tokens_do_not_meet() -> None:
    model = Transformer(config(attention=False, causal=False), seed=0)
    one, other = tokens(), tokens()
    other[:, 4] = (other[:, 4] + 1) % SMALL.vocab_size
    same = [t for t in range(9) if t != 4]
    assert torch.equal(model(one)[:, same], model(other)[:, same])


@pytest.mark.parametrize("positions", ["learned", "rotary", "none"])
def test_embeddings_given_are_the_embedding_path(positions: str) -> None:
    model = Transformer(config(positions=positions), seed=0)
    entry = tokens()
    expected = model(entry)
    assert torch.equal(model(inputs_embeds=model.entry.embedding(entry)), expected)
    assert expected.shape == (2, 9, SMALL.vocab_size)


def test_learned_positions_tell_equal_tokens_apart() -> None:
    entry = torch.full((1, 5), 3)
    with_them = Transformer(config(), seed=0)(entry)
    assert not torch.allclose(with_them[0, 0], with_them[0, 4])
    without = Transformer(config(positions="none"), seed=0)(entry)
    assert torch.allclose(without[0, 0], without[0, 4], atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model(), "Pass either input_ids or inputs_embeds, and not both."),
        (
            lambda model: model(tokens(), inputs_embeds=torch.zeros(2, 9, 16)),
            "Pass either input_ids or inputs_embeds, and not both.",
        ),
        (
            lambda model: model(tokens(length=13)),
            "A sequence may have max_len tokens. It has 13, max_len is 12. "
            "Build the model with a larger max_len.",
        ),
    ],
)
def test_what_cannot_enter_is_told(call: Callable[[Transformer], Tensor], message: str) -> None:
    with pytest.raises(ShapeError) as raised:
        call(Transformer(config(), seed=0))
    assert str(raised.value) == message


def gradient(part: nn.Embedding | nn.Linear) -> Tensor:
    assert part.weight.grad is not None
    return part.weight.grad


def test_a_tied_head_is_the_embedding_and_its_gradient_is_the_sum() -> None:
    tied = Transformer(config(tied_head=True), seed=0).double()
    assert tied.head.weight is tied.entry.embedding.weight
    apart = Transformer(config(), seed=0).double()
    own = {name: p for name, p in tied.state_dict().items() if name != "head.weight"}
    apart.load_state_dict({**own, "head.weight": tied.head.weight.detach().clone()})
    for model in (tied, apart):
        model(tokens()).square().sum().backward()
    expected = gradient(apart.entry.embedding) + gradient(apart.head)
    assert_close(gradient(tied.head), expected, FLOAT64_OUTPUT * (1 + expected.abs()))
    assert len(list(tied.parameters())) == len(list(apart.parameters())) - 1


def test_rotary_scores_depend_on_the_distance_only() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    rotary = Rotary(8)
    length = 40
    scores = rotary(query.expand(length, 8)) @ rotary(key.expand(length, 8)).T
    for distance in range(-length + 1, length):
        diagonal = scores.diagonal(distance)
        assert (diagonal - diagonal[0]).abs().max() < ROTARY_ANGLE
    assert scores[0].std() > 0.1


def test_rotary_turns_pairs_by_the_position() -> None:
    # Su et al. 2021 (2104.09864), equation 15, halves paired as in GPT-NeoX and Llama
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 20, 8, generator=generator, dtype=torch.float64)
    pairs = torch.complex(x[..., :4], x[..., 4:])
    angle = torch.arange(20.0).double()[:, None] * 10000.0 ** (-torch.arange(4).double() / 4)
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    out = Rotary(8)(x)
    assert_close(out, torch.cat((turned.real, turned.imag), -1), ROTARY_ANGLE)
    assert torch.equal(out[:, 0], x[:, 0])
    assert out.dtype == torch.float64


def attentions(model: Transformer) -> list[Attention]:
    return [layer.attention for layer in model.layers if layer.attention is not None]


@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize(("axis", "width"), [("head", 4), ("full", 16)])
def test_query_key_norm_gives_unit_queries_over_its_axis(axis: str, width: int, norm: str) -> None:
    # placements.md, qk_norm, "axis trap": head over d_h, full over the projection
    model = Transformer(
        config(query_key_norm=axis, norm=norm, norm_eps=0.0, init="xavier"), seed=0
    ).double()
    seen: list[Tensor] = []
    for attention in attentions(model):
        for module in (attention.query_norm, attention.key_norm):
            module.register_forward_hook(lambda module, args, out: seen.append(out))
    model(tokens())
    assert len(seen) == 4
    for normed in seen:
        assert normed.shape[-1] == width
        assert_close(normed.square().mean(-1), torch.ones(normed.shape[:-1]).double(), 1e-9)
        if axis == "full":  # then single heads are not of RMS 1: the axis is the other one
            assert (normed.unflatten(-1, (4, 4)).square().mean(-1) - 1).abs().max() > 0.1


def test_attention_is_its_formula() -> None:
    model = unlike(Transformer(config(heads=2, positions="none"), seed=0).double())
    attention = attentions(model)[0]
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(3, 7, 16, generator=generator, dtype=torch.float64)
    query, key, value = (
        x @ part.weight.T + part.bias for part in (attention.query, attention.key, attention.value)
    )
    heads = []
    for head in (slice(0, 8), slice(8, 16)):
        scores = query[..., head] @ key[..., head].transpose(1, 2) / math.sqrt(8)
        scores = scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -math.inf)
        heads.append(scores.softmax(-1) @ value[..., head])
    expected = torch.cat(heads, -1) @ attention.output.weight.T + attention.output.bias
    assert_close(attention(x), expected.detach(), FLOAT64_OUTPUT)


CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: (x + x.abs()) / 2,
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "swiglu": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", sorted(CURVES))
def test_feed_forward_is_its_formula(activation: str, bias: bool) -> None:  # noqa: FBT001
    branch = FeedForward(config(activation=activation, bias=bias, ff_ratio=2.5), layer=0).double()
    generator = torch.Generator().manual_seed(3)
    x = 2 * torch.randn(5, 16, generator=generator, dtype=torch.float64)

    def mapped(part: nn.Linear, entry: Tensor) -> Tensor:
        out = entry @ part.weight.T
        return out if part.bias is None else out + part.bias

    inner = mapped(branch.inner, x)
    if branch.gate is None:
        hidden = CURVES[activation](inner)
    else:
        hidden = CURVES[activation](mapped(branch.gate, x)) * inner
    assert_close(branch(x), mapped(branch.output, hidden).detach(), FLOAT64_OUTPUT)
    assert (branch.gate is not None) == (activation == "swiglu")
    assert hidden.shape[-1] == 40


def names(**changes: Any) -> list[str]:
    return [name for name, _ in Transformer(config(**changes), seed=0).named_parameters()]


def test_what_is_turned_off_leaves_no_parameter() -> None:
    assert not [name for name in names(attention=False) if "attention" in name]
    assert len(Transformer(config(attention=False), seed=0).placement.connections) == 2
    assert not [name for name in names(affine=False, query_key_norm="head") if "norm" in name]
    assert not [name for name in names(bias=False, query_key_norm="head") if "bias" in name]
    assert not [name for name in names(positions="rotary") if "position" in name]
    assert not [name for name in names(norm="no_norm") if "norm" in name]
    assert "head.weight" not in names(tied_head=True)


def own_parameters(c: TransformerConfig) -> tuple[int, int]:
    """Norms of width d in the placement, and its other parameters; placements.md, 2 to 4."""
    d, layers, each = c.width, c.depth, 2 if c.attention else 1
    every, n = layers * each, 4
    last = c.placement not in NO_FINAL_NORM
    norms = {
        **dict.fromkeys(("rezero", "skip_init", "t_fixup"), 0),
        "peri_norm": 2 * every + 1,
        "keel": 2 * every - 1,
        **dict.fromkeys(("norm_former", "norm_former_fairseq"), every + layers * (each - 1) + 1),
        "hybrid_norm": layers + 1,
        "hybrid_norm_star": layers + each,
        "parallel": layers + 1,
        "siamese_norm": 2 * every + 1,
        "siamese_norm_scaled": 3 * every + 3,
        "hyper_connections": 2 * every + 1,
    }.get(c.placement, every + last)
    others = {
        "rezero": layers,
        "skip_init": every,
        "gpas": layers,
        **dict.fromkeys(("layer_scale", "admin", "attention_residuals"), every * d),
        **dict.fromkeys(("norm_former", "norm_former_fairseq"), layers * d),
        "hyper_connections": every * (n + n * n + n + d * (n + 2) + n + 2),
    }.get(c.placement, 0)
    return norms, others


def inside_a_layer(c: TransformerConfig, *, attention: bool) -> int:
    """Parameters that the placement has one branch carry."""
    per_channel = 1 + (c.bias and c.norm == "layer_norm")
    if not attention:
        return c.ff_width * per_channel if c.placement in ("sub_norm", *NORM_FORMER) else 0
    axis = {"none": 0, "head": c.width // c.heads, "full": c.width}[str(c.query_key_norm)]
    value = c.width // c.heads if c.placement.startswith("hybrid_norm") else 0
    output = c.width if c.placement == "sub_norm" else 0
    head_scale = c.heads if c.placement in NORM_FORMER else 0
    return (2 * axis + value + output) * per_channel + head_scale


def counted(c: TransformerConfig) -> int:
    """Parameters by formula."""
    d, inner, bias = c.width, c.ff_width, int(c.bias)
    norm = d * (1 + bias) if c.norm == "layer_norm" else d
    attention = 4 * (d * d + d * bias) + inside_a_layer(c, attention=True)
    matrices = 3 if c.activation == "swiglu" else 2
    feed_forward = matrices * d * inner + bias * ((matrices - 1) * inner + d)
    feed_forward += inside_a_layer(c, attention=False)
    ends = c.vocab_size * d * (1 if c.tied_head else 2)
    ends += c.max_len * d if c.positions == "learned" else 0
    layers = c.depth * ((attention if c.attention else 0) + feed_forward)
    norms, others = own_parameters(c)
    return ends + layers + norm * norms + others


@pytest.mark.parametrize(
    "changes",
    [
        *({"placement": placement} for placement in PLACES),
        {"bias": False},
        {"norm": "rms_norm", "activation": "swiglu", "positions": "rotary"},
        {"activation": "swiglu", "ff_ratio": 8 / 3},
        *({"attention": False, "placement": placement} for placement in PLACES),
        {"tied_head": True},
        {"query_key_norm": "head"},
        {"query_key_norm": "full", "norm": "rms_norm"},
    ],
    ids=str,
)
def test_number_of_parameters(changes: dict[str, Any]) -> None:
    made = config(**changes)
    count = sum(p.numel() for p in Transformer(made, seed=0).parameters())
    assert count == counted(made)


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return all(a == b and torch.equal(p, q) for (a, p), (b, q) in pairs)


VARIANTS: list[dict[str, Any]] = [
    *({"placement": placement} for placement in PLACES),
    {"norm": "rms_norm", "query_key_norm": "head", "activation": "swiglu"},
    {"positions": "rotary"},
    {"affine": False, "bias": False},
    {"tied_head": True},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_P49_a_model_built_on_meta_equals_a_normal_one(changes: dict[str, Any]) -> None:
    """P49: meta, to_empty, reset_parameters: no entry is left as the memory had it."""
    # flagos-ai/FlagPerf PR#683; pytorch#115285; bionemo-recipes PR#1368
    with torch.device("meta"):
        model = Transformer(config(**changes))
    assert all(p.is_meta for p in model.parameters())
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    model.reset_parameters(seed=5)
    normal = Transformer(config(**changes), seed=5)
    assert same(model, normal)
    assert torch.equal(model(tokens()), normal(tokens()))
    assert (model.head.weight is model.entry.embedding.weight) == model.config.tied_head


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_P49_a_reset_undoes_everything(changes: dict[str, Any]) -> None:
    """P49: gains 1 and biases 0 after a reset of a trained model."""
    model = Transformer(config(**changes), seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    model.reset_parameters(seed=5)
    assert same(model, Transformer(config(**changes), seed=5))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and name.endswith(("weight", "bias")):
            assert set(parameter.tolist()) == ({0.0} if name.endswith("bias") else {1.0}), name


def test_a_seed_makes_the_weights() -> None:
    torch.manual_seed(1)
    first = Transformer(config(), seed=3)
    torch.manual_seed(2)
    assert same(first, Transformer(config(), seed=3))
    assert not same(first, Transformer(config(), seed=4))
    torch.manual_seed(2)
    unseeded = Transformer(config())
    torch.manual_seed(2)
    assert same(unseeded, Transformer(config()))


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_gradient_reaches_every_parameter(changes: dict[str, Any]) -> None:
    model = unlike(Transformer(config(max_len=9, **changes), seed=0).double())
    logits = model(torch.arange(18).reshape(2, 9) % SMALL.vocab_size)
    (logits * torch.linspace(-1, 1, SMALL.vocab_size, dtype=torch.float64)).sin().sum().backward()
    sizes = {
        name: 0.0 if p.grad is None else p.grad.abs().max().item()
        for name, p in model.named_parameters()
    }
    if model.config.positions != "rotary":
        last = "key.bias" if model.config.query_key_norm == "none" else "key_norm.bias"
        for name in [name for name in sizes if name.endswith(last)]:
            assert sizes.pop(name) < 1e-12, name  # adds the same to every logit of a query
    assert min(sizes.values()) > 1e-9, min(sizes, key=sizes.__getitem__)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 0}, "depth must be at least 1. It is 0."),
        ({"vocab_size": -1}, "vocab_size must be at least 1. It is -1."),
        ({"max_len": 0}, "max_len must be at least 1. It is 0."),
        ({"width": 0}, "width must be at least 1. It is 0."),
        ({"heads": 0}, "heads must be at least 1. It is 0."),
        (
            {"heads": 3},
            "heads must divide width. There are 3 heads and the width is 16. "
            "Pass a width that is a multiple of 3.",
        ),
        (
            {"heads": 16, "positions": "rotary"},
            "Rotary positions turn pairs, so width/heads must be even. It is 1. "
            "Change width or heads.",
        ),
        ({"ff_ratio": 0.01}, "ff_ratio must give at least one unit. It is 0.01."),
    ],
)
def test_a_config_that_cannot_be_built_is_told(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as raised:
        config(**changes)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"placement": "postnorm"},
            f"Unknown placement 'postnorm'. Did you mean post_norm? Known: {', '.join(PLACES)}.",
        ),
        (
            {"norm": "rmsnorm"},
            f"Unknown norm 'rmsnorm'. Did you mean rms_norm? Known: {', '.join(sorted(NORMS))}.",
        ),
        (
            {"activation": "swigul"},
            "Unknown activation 'swigul'. Did you mean swiglu? Known: gelu, relu, swiglu.",
        ),
        (
            {"positions": "rotarry"},
            "Unknown position encoding 'rotarry'. Did you mean rotary? "
            "Known: learned, none, rotary.",
        ),
        (
            {"query_key_norm": "heads"},
            "Unknown query/key norm 'heads'. Did you mean head? Known: full, head, none, unit.",
        ),
        (
            {"init": "gpt3"},
            f"Unknown init 'gpt3'. Did you mean gpt2? Known: {', '.join(sorted(INITS))}.",
        ),
    ],
)
def test_an_unknown_name_names_the_known_ones(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownName) as raised:
        config(**changes)
    assert str(raised.value) == message


def test_a_config_is_frozen_hashable_and_holds_full_names() -> None:
    made = TransformerConfig(placement="Post-LN", norm="RMS", activation="GELU")
    assert (made.placement, made.norm, made.activation) == ("post_norm", "rms_norm", "gelu")
    assert made.init == "xavier_packed"
    assert hash(made) == hash(
        TransformerConfig(placement="post_norm", norm="rms", activation="gelu")
    )
    with pytest.raises(FrozenInstanceError):
        made.depth = 3  # type: ignore[misc]


def test_reference_configs() -> None:
    # placements.md, reference models
    made = reference_config("r1")
    assert (made.width, made.heads, made.max_len, made.vocab_size) == (128, 1, 32, 128)
    assert (made.bias, made.affine, made.norm_eps, made.ff_width) == (False, False, 1e-5, 128)
    for weight in Transformer(made, seed=0).weights():
        assert weight.tensor.std().item() == pytest.approx(128**-0.5, rel=0.03), weight.role
    other = reference_config("R2", depth=4)
    assert (other.heads, other.norm, other.norm_eps, other.depth) == (4, "rms_norm", 1e-6, 4)
    third = reference_config("r3")
    assert (third.depth, third.width, third.heads, third.max_len) == (12, 64, 4, 64)
    assert (third.init, third.ff_width) == ("xavier_packed", 256)


def test_a_reference_config_brings_an_initialisation_that_belongs() -> None:
    assert reference_config("r1", placement="deep_norm").init == "deep_norm"
    with pytest.warns(PairingWarning):
        assert reference_config("r1", placement="deepnorm", init="xavier").init == "xavier"
    assert reference_config("r1", placement="post_norm").init == "xavier"
    assert reference_config("r2", placement="output_norm").query_key_norm == "full"


# placements.md, output_norm: constructing it without qk_norm must raise or warn
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"placement": "output_norm", "query_key_norm": "none"},
            "output_norm without a query/key norm: nothing stands before its branches, so the "
            "logits grow with the layer. It belongs with query_key_norm 'full'.",
        ),
        (
            {"placement": "hybrid_norm", "query_key_norm": "none"},
            "hybrid_norm without a query/key norm: nothing stands before its branches, so the "
            "logits grow with the layer. It belongs with query_key_norm 'head'.",
        ),
        *(
            (
                {"placement": name, "init": "xavier"},
                f"{name} with xavier: its constants assume its own initialisation, {name}.",
            )
            for name in ("deep_norm", "sub_norm", "t_fixup", "scaled_residual")
        ),
        (
            {"placement": "pre_norm", "init": "deep_norm"},
            "pre_norm with deep_norm: deep_norm belongs to the constants of deep_norm.",
        ),
    ],
    ids=str,
)
def test_a_placement_without_what_belongs_to_it_warns(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.warns(PairingWarning) as warned:
        made = TransformerConfig(**changes)
    assert [str(warning.message) for warning in warned] == [message]
    assert all(getattr(made, name) == value for name, value in changes.items())


def test_the_warning_points_at_the_line_that_made_the_config() -> None:
    with pytest.warns(PairingWarning) as warned:
        TransformerConfig(placement="deep_norm", init="xavier")
    assert warned[0].filename == __file__


@pytest.mark.parametrize("placement", PLACES)
def test_what_belongs_to_a_placement_comes_without_a_warning(placement: str) -> None:
    made = TransformerConfig(placement=placement)
    asked = {"output_norm": "full", "hybrid_norm": "head", "hybrid_norm_star": "head"}
    assert made.query_key_norm == asked.get(placement, "none")
    assert TransformerConfig(placement=placement, attention=False).query_key_norm == "none"
    own = ("deep_norm", "sub_norm", "t_fixup", "scaled_residual")
    assert (made.init == placement) == (placement in own)


def widths(part: nn.Module) -> list[int]:
    return [
        module.normalized_shape[0] for module in part.modules() if isinstance(module, LayerNorm)
    ]


# placements.md: sub_norm d and d_ff, output_norm the projection's width, hybrid_norm d_h thrice
@pytest.mark.parametrize(
    ("placement", "in_attention", "in_feed_forward"),
    [
        ("pre_norm", [], []),
        ("sub_norm", [16], [40]),
        ("output_norm", [16, 16], []),
        ("hybrid_norm", [4, 4, 4], []),
        ("hybrid_norm_star", [4, 4, 4], []),
        ("norm_former", [], [40]),
        ("norm_former_fairseq", [], [40]),
    ],
)
def test_norms_inside_the_branches(
    placement: str, in_attention: list[int], in_feed_forward: list[int]
) -> None:
    model = Transformer(config(placement=placement, ff_ratio=2.5), seed=0)
    for layer, attention in zip(model.layers, attentions(model), strict=True):
        assert widths(attention) == in_attention
        assert widths(layer.feed_forward) == in_feed_forward


def test_norms_inside_stand_in_no_other_placement() -> None:
    declared = {
        name for name, row in PLACEMENTS.items() if row.inside != PLACEMENTS["pre_norm"].inside
    }
    assert declared == {
        "sub_norm", "output_norm", "hybrid_norm", "hybrid_norm_star", *NORM_FORMER,
    }  # fmt: skip


@pytest.mark.parametrize(
    "placement", ["sub_norm", "output_norm", "hybrid_norm", "norm_former", "norm_former_fairseq"]
)
def test_attention_is_its_formula_with_what_a_placement_puts_inside(placement: str) -> None:
    """Head scales stand before W_O in the paper's form and after it in fairseq's."""
    # placements.md, section 7, item 12; fairseq#3973, #3983
    model = unlike(Transformer(config(placement=placement, heads=2), seed=0).double())
    attention = attentions(model)[0]
    g = dict(attention.named_parameters())
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(3, 7, 16, generator=generator, dtype=torch.float64)

    def mapped(part: str, entry: Tensor) -> Tensor:
        return entry @ g[f"{part}.weight"].T + g[f"{part}.bias"]

    def normed(part: str, entry: Tensor) -> Tensor:
        if f"{part}.weight" not in g:
            return entry
        centred = entry - entry.mean(-1, keepdim=True)
        unit = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return unit * g[f"{part}.weight"] + g[f"{part}.bias"]

    def split(entry: Tensor) -> Tensor:
        return torch.stack(entry.split(8, dim=-1))

    query, key, value = (mapped(part, x) for part in ("query", "key", "value"))
    if placement == "output_norm":
        query, key = normed("query_norm", query), normed("key_norm", key)
    query, key, value = split(query), split(key), normed("value_norm", split(value))
    if placement == "hybrid_norm":
        query, key = normed("query_norm", query), normed("key_norm", key)
    scores = query @ key.transpose(-1, -2) / math.sqrt(8)
    scores = scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -math.inf)
    heads = scores.softmax(-1) @ value
    scales = g.get("scale_before.weight", torch.ones(2).double())
    joined = torch.cat([scale * head for scale, head in zip(scales, heads, strict=True)], -1)
    out = mapped("output", normed("output_norm", joined))
    after = g.get("scale_after.weight", torch.ones(2).double()).repeat_interleave(8)
    assert_close(attention(x), (after * out).detach(), FLOAT64_OUTPUT)
    assert {name for name in g if "scale" in name} == {
        "norm_former": {"scale_before.weight"}, "norm_former_fairseq": {"scale_after.weight"},
    }.get(placement, set())  # fmt: skip


@pytest.mark.parametrize("placement", ["sub_norm", "norm_former"])
@pytest.mark.parametrize("activation", sorted(CURVES))
def test_a_norm_before_the_last_matrix_of_feed_forward(activation: str, placement: str) -> None:
    branch = FeedForward(config(activation=activation, placement=placement), layer=0).double()
    with torch.no_grad():
        for seed, parameter in enumerate(branch.parameters()):
            generator = torch.Generator().manual_seed(seed)
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator).double())
    g = dict(branch.named_parameters())
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    hidden = x @ g["inner.weight"].T + g["inner.bias"]
    if activation == "swiglu":
        hidden = CURVES["swiglu"](x @ g["gate.weight"].T + g["gate.bias"]) * hidden
    else:
        hidden = CURVES[activation](hidden)
    centred = hidden - hidden.mean(-1, keepdim=True)
    unit = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    normed = unit * g["output_norm.weight"] + g["output_norm.bias"]
    expected = normed @ g["output.weight"].T + g["output.bias"]
    assert_close(branch(x), expected.detach(), FLOAT64_OUTPUT)
