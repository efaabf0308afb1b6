"""The small Transformer: what it computes, what it is made of, and how it starts."""

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normwise.errors import SettingError, ShapeError, UnknownName
from normwise.model.attention import Rotary
from normwise.model.config import TransformerConfig, reference_config
from normwise.model.feed_forward import FeedForward
from normwise.model.transformer import Transformer
from normwise.residual.registry import PLACEMENTS
from tests.tolerance import FLOAT64_OUTPUT, ROTARY_ANGLE, assert_close

SMALL = TransformerConfig(vocab_size=11, max_len=12, width=16, depth=2, heads=4)
PLACES = sorted(PLACEMENTS)


def config(**changes: Any) -> TransformerConfig:
    return replace(SMALL, **changes)


def tokens(batch: int = 2, length: int = 9, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, SMALL.vocab_size, (batch, length), generator=generator)


def unlike(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with gains and biases away from 1 and 0, so that a lost one shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("positions", ["learned", "rotary", "none"])
@pytest.mark.parametrize("placement", PLACES)
def test_a_later_token_changes_no_earlier_logit(placement: str, positions: str) -> None:
    model = Transformer(config(placement=placement, positions=positions), seed=0)
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
    assert torch.equal(model(inputs_embeds=model.embedding(entry)), expected)
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


def test_a_tied_head_is_the_embedding_and_its_gradient_is_the_sum() -> None:
    tied = Transformer(config(tied_head=True), seed=0).double()
    assert tied.head.weight is tied.embedding.weight
    apart = Transformer(config(), seed=0).double()
    own = {name: p for name, p in tied.state_dict().items() if name != "head.weight"}
    apart.load_state_dict({**own, "head.weight": tied.embedding.weight.detach().clone()})
    for model in (tied, apart):
        model(tokens()).square().sum().backward()
    expected = apart.embedding.weight.grad + apart.head.weight.grad
    assert_close(tied.embedding.weight.grad, expected, FLOAT64_OUTPUT * (1 + expected.abs()))
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


@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize(("axis", "width"), [("head", 4), ("full", 16)])
def test_query_key_norm_gives_unit_queries_over_its_axis(axis: str, width: int, norm: str) -> None:
    # placements.md, qk_norm, "axis trap": head over d_h, full over the projection
    model = Transformer(
        config(query_key_norm=axis, norm=norm, norm_eps=0.0, init="xavier"), seed=0
    ).double()
    seen: list[Tensor] = []
    for layer in model.layers:
        for module in (layer.attention.query_norm, layer.attention.key_norm):
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
    attention = model.layers[0].attention
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
    branch = FeedForward(config(activation=activation, bias=bias, ff_ratio=2.5)).double()
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


def counted(c: TransformerConfig) -> int:
    """Parameters by formula."""
    d, inner, bias = c.width, c.ff_width, int(c.bias)
    norm = d * (1 + bias) if c.norm == "layer_norm" else d
    attention = 4 * (d * d + d * bias)
    if c.query_key_norm != "none":
        attention += 2 * (norm if c.query_key_norm == "full" else norm // c.heads)
    matrices = 3 if c.activation == "swiglu" else 2
    feed_forward = matrices * d * inner + bias * ((matrices - 1) * inner + d)
    each = {"pre_norm": 1, "post_norm": 1, "deep_norm": 1, "peri_norm": 2}[c.placement]
    last = c.placement in ("pre_norm", "peri_norm")
    branches = 2 if c.attention else 1
    ends = c.vocab_size * d * (1 if c.tied_head else 2)
    ends += c.max_len * d if c.positions == "learned" else 0
    layers = c.depth * ((attention if c.attention else 0) + feed_forward)
    return ends + layers + norm * (each * c.depth * branches + last)


@pytest.mark.parametrize(
    "changes",
    [
        *({"placement": placement} for placement in PLACES),
        {"bias": False},
        {"norm": "rms_norm", "activation": "swiglu", "positions": "rotary"},
        {"activation": "swiglu", "ff_ratio": 8 / 3},
        {"attention": False, "placement": "peri_norm"},
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
    assert (model.head.weight is model.embedding.weight) == model.config.tied_head


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
        if parameter.ndim == 1:
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
    sizes = {name: p.grad.abs().max().item() for name, p in model.named_parameters()}
    if model.config.query_key_norm == "none" and model.config.positions != "rotary":
        for name in [name for name in sizes if name.endswith("key.bias")]:
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
            "Unknown placement 'postnorm'. Did you mean post_norm? "
            "Known: deep_norm, peri_norm, post_norm, pre_norm.",
        ),
        (
            {"norm": "rmsnorm"},
            "Unknown norm 'rmsnorm'. Did you mean rms_norm? Known: derf, dynamic_tanh, group_norm, "
            "layer_norm, no_norm, partial_rms_norm, rms_norm, scale_norm.",
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
            "Unknown query/key norm 'heads'. Did you mean head? Known: full, head, none.",
        ),
        (
            {"init": "gpt3"},
            "Unknown init 'gpt3'. Did you mean gpt2? Known: deep_norm, gpt2, xavier, "
            "xavier_packed.",
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
    assert reference_config("r1", placement="deepnorm", init="xavier").init == "xavier"
    assert reference_config("r1", placement="post_norm").init == "xavier"
