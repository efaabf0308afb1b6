"""The residual stream and the norms on it, in models of other people and in our own."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normwise.anatomy.stream import Anatomy, anatomy
from normwise.errors import AnatomyUnknown
from normwise.model.config import TransformerConfig
from normwise.model.transformer import Transformer
from tests.anatomy.families import FAMILIES, tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers
TOKENS = torch.arange(32).reshape(2, 16)


def label(found: Anatomy) -> str:
    return f"{found.placement}, parallel" if found.parallel else found.placement


@pytest.mark.parametrize("family", FAMILIES)
def test_placement_of_a_family(family: str) -> None:
    model, batch = tiny(family)
    assert label(anatomy(model, **batch)) == FAMILIES[family][1]


@pytest.mark.parametrize("family", FAMILIES)
def test_names_decide_nothing(family: str) -> None:
    """Class names and paths are exchanged for numbers."""
    model, batch = tiny(family)
    plain = anatomy(model, **batch)
    modules = list(model.modules())
    for number, module in enumerate(modules):
        module.__class__ = type(f"C{number}", (type(module),), {})
    named = [(f"m{number}", module) for number, module in enumerate(modules)]
    object.__setattr__(model, "named_modules", lambda *rest, **options: iter(named))
    found = anatomy(model, **batch)
    assert label(found) == label(plain) == FAMILIES[family][1]
    assert places(found) == places(plain)


def places(found: Anatomy) -> Counter[str]:
    return Counter(norm.place for norm in found.norms)


def kinds(found: Anatomy) -> Counter[str]:
    return Counter(connection.kind for connection in found.connections)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama", {"pre": 8, "final": 1}), ("qwen3", {"pre": 8, "qk": 8, "final": 1}),
        ("gemma2", {"pre": 8, "output": 8, "final": 1}), ("bert", {"embed": 1, "post": 8}),
        ("olmo2", {"qk": 8, "output": 8, "final": 1}), ("gpt2", {"pre": 8, "final": 1}),
        ("gpt_neox", {"pre": 8, "final": 1}), ("albert", {"embed": 1, "post": 8}),
    ],
)  # fmt: skip
def test_every_norm_has_its_place(family: str, expected: dict[str, int]) -> None:
    model, batch = tiny(family)
    assert places(anatomy(model, **batch)) == expected


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "qwen3"])
def test_connections_alternate(family: str) -> None:
    model, batch = tiny(family)
    found = anatomy(model, **batch)
    assert [c.kind for c in found.connections] == ["attention", "feed_forward"] * 4


OURS = {
    "pre_norm": "pre", "post_norm": "post", "deep_norm": "post", "peri_norm": "sandwich",
    "output_norm": "output", "depth_scaled_norm": "pre", "layer_scale": "pre", "keel": "post+pre",
    "rezero": "none", "t_fixup": "none", "parallel": "pre, parallel", "sub_norm": "pre",
}  # fmt: skip


@pytest.mark.parametrize("placement", OURS)
def test_placement_of_our_own(placement: str) -> None:
    model = Transformer(TransformerConfig(depth=6, placement=placement), seed=0)
    assert label(anatomy(model, TOKENS)) == OURS[placement]


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_the_formula_of_every_norm(norm: str) -> None:
    model = Transformer(TransformerConfig(depth=4, norm=norm), seed=0)
    found = anatomy(model, TOKENS)
    assert {n.node.norm.formula for n in found.norms if n.node.norm} == {norm}


def test_the_sums_are_the_streams() -> None:
    model = Transformer(TransformerConfig(depth=4), seed=0)
    found = anatomy(model, TOKENS)
    for before, after in zip(found.connections, found.connections[1:], strict=False):
        assert after.skip is before.add
        torch.testing.assert_close(after.add.value, after.skip.value + after.branch.value)


def test_a_model_is_left_as_it_was() -> None:
    model = Transformer(TransformerConfig(depth=4), seed=0).train()
    before = model(TOKENS)
    state = torch.get_rng_state()
    anatomy(model, TOKENS)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training and torch.equal(model(TOKENS), before)
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class InPlace(nn.Module):
    """A pre-norm stack that adds to its stream in place."""

    def __init__(self, depth: int = 4, width: int = 16) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.matrices = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        for norm, matrix in zip(self.norms, self.matrices, strict=True):
            x += matrix(norm(x)).relu()
        return x


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_parallel_branches_at_any_depth(depth: int) -> None:
    """One norm for both branches, which two adds share."""
    model = Transformer(TransformerConfig(depth=depth, placement="parallel"), seed=0)
    assert label(anatomy(model, TOKENS)) == "pre, parallel"


@pytest.mark.parametrize("family", ["llama", "qwen3", "bert", "gemma2"])
def test_trained_gains_in_bf16(family: str) -> None:
    model, batch = tiny(family)
    for name, parameter in model.named_parameters():
        if "norm" in name.lower():
            nn.init.uniform_(parameter, 0.2, 1.5)
    assert label(anatomy(model.bfloat16(), **batch)) == FAMILIES[family][1]


@pytest.mark.parametrize("family", ["llama", "bert", "gpt2"])
def test_one_token_is_enough(family: str) -> None:
    model, _ = tiny(family)
    found = anatomy(model, input_ids=torch.tensor([[5]]))
    assert label(found) == FAMILIES[family][1]


@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_s_own_encoder(*, norm_first: bool) -> None:
    """Its fused layers would hide all of it."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    found = anatomy(model, torch.randn(2, 16, 32))
    assert (found.placement, len(found.connections)) == ("pre" if norm_first else "post", 8)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_stack_that_is_seen_in_part_is_refused() -> None:
    """A branch that is subtracted is no add, and the skip behind it starts anew."""

    class Subtracted(InPlace):
        def forward(self, x: Tensor) -> Tensor:
            for at, (norm, matrix) in enumerate(zip(self.norms, self.matrices, strict=True)):
                x = x + matrix(norm(x)) if at % 2 else x - matrix(norm(x))
            return x

    with pytest.raises(AnatomyUnknown, match="part of the model was not understood"):
        anatomy(Subtracted(), torch.randn(2, 8, 16))


class WrittenOut(nn.Module):
    """A pre-norm stack whose norms are lines of its forward pass."""

    def __init__(self, form: str, width: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.form = form
        self.gains = nn.ParameterList(torch.rand(width) + 0.5 for _ in range(depth))
        self.matrices = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def normed(self, x: Tensor, gain: Tensor) -> Tensor:
        width = x.shape[-1]
        if self.form == "F.layer_norm":
            return nn.functional.layer_norm(x, (width,), gain)
        if self.form == "F.rms_norm":
            return nn.functional.rms_norm(x, (width,), gain)
        if self.form == "rms":
            return gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))
        if self.form == "rms without gain":
            return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        centred = x - x.mean(-1, keepdim=True)
        return gain * centred / (centred.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() + 0.1

    def forward(self, x: Tensor) -> Tensor:
        for gain, matrix in zip(self.gains, self.matrices, strict=True):
            x = x + matrix(self.normed(x, gain)).relu()
        return x


@pytest.mark.parametrize(
    "form", ["F.layer_norm", "F.rms_norm", "rms", "rms without gain", "layer by hand"]
)
def test_norms_that_are_written_out(form: str) -> None:
    sizes = torch.rand(2, 8, 1) + 0.5
    found = anatomy(WrittenOut(form), sizes * torch.randn(2, 8, 16))
    assert (found.placement, places(found)) == ("pre", {"pre": 4})
    expected = "rms_norm" if "rms" in form else "layer_norm"
    assert {norm.node.norm.formula for norm in found.norms if norm.node.norm} == {expected}


def test_adds_in_place_are_seen() -> None:
    found = anatomy(InPlace(), torch.randn(2, 8, 16))
    assert (len(found.connections), found.placement) == (4, "pre")


def test_an_activation_is_no_stream() -> None:
    """GELU by hand adds x and a power of x."""

    class Gelu(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * x.pow(3))))

    model = nn.Sequential(nn.Linear(16, 16), Gelu(), nn.Linear(16, 16))
    with pytest.raises(AnatomyUnknown, match="None was found"):
        anatomy(model, torch.randn(2, 8, 16))


def test_an_add_with_a_factor_is_refused_and_not_guessed() -> None:
    class Scaled(InPlace):
        def forward(self, x: Tensor) -> Any:
            for norm, matrix in zip(self.norms, self.matrices, strict=True):
                x = torch.add(x, matrix(norm(x)), alpha=0.5)
            return x

    with pytest.raises(AnatomyUnknown, match="None was found"):
        anatomy(Scaled(), torch.randn(2, 8, 16))
