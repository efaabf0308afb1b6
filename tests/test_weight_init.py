"""Initial weights: their size by role and depth, and which matrices a scheme touches."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from normwise.errors import SettingError, UnknownName
from normwise.model.config import TransformerConfig
from normwise.model.transformer import Transformer
from normwise.residual.registry import PLACEMENTS
from normwise.theory.stack import Stack
from normwise.weight_init import INITS, ROLES, Weight, initial_std, initialize
from tests.tolerance import STANDARD_ERRORS

STACK = Stack(12)
FAN_OUT, FAN_IN = 96, 160
SMALL = TransformerConfig(depth=2, width=32, heads=2, vocab_size=50, max_len=16)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(init: str, roles: dict[str, Tensor], stack: Stack = STACK) -> None:
    weights = [Weight(tensor, role) for role, tensor in roles.items()]
    initialize(weights, init, stack, generator())


BRANCH_SCALED = ("value", "attention_output", "ff_in", "ff_gate", "ff_out")
EMBEDDINGS = ("embedding", "position")


def written_out(init: str, role: str) -> float:
    """The schemes as their papers state them, for 12 layers of two branches."""
    crosses, role = role.startswith("cross_"), role.removeprefix("cross_")
    if init in ("normal", "gpt2"):  # Radford et al. 2019, 2.3
        last = init == "gpt2" and role in ("attention_output", "ff_out")
        return 0.02 / math.sqrt(24) if last else 0.02
    if init == "scaled_residual":  # Kedia et al. 2024: a ReLU halves the square, two matrices mend
        if role in EMBEDDINGS:
            return math.sqrt(1 / 2)
        return math.sqrt((math.sqrt(2) if role in ("ff_in", "ff_out") else 1) / FAN_IN)
    xavier = math.sqrt(2 / (FAN_IN + FAN_OUT))  # Glorot and Bengio 2010, equation 16
    if init == "xavier_packed" and role in ("query", "key", "value"):
        return math.sqrt(2 / (FAN_IN + 3 * FAN_OUT))
    if init == "t_fixup" and role in EMBEDDINGS:  # Huang et al. 2020, section 3.3
        return float(math.sqrt(1 / FAN_IN) * (9 * 12) ** -0.25)
    gain = {
        "deep_norm": (8 * 12) ** -0.25,  # Wang et al. 2022 (2203.00555), figure 2
        # Wang et al. 2022 (2210.06423), figure 2, leaves cross-attention as it is
        "sub_norm": 1.0 if crosses else math.sqrt(math.log(2 * 12)),
        "t_fixup": 0.67 * 12**-0.25,
    }.get(init, 1.0)
    return float(xavier * gain) if role in BRANCH_SCALED else xavier


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("init", sorted(INITS))
def test_measured_std_is_the_stated_one(init: str, role: str) -> None:
    weight = torch.empty(FAN_OUT, FAN_IN)
    drawn(init, {role: weight})
    stated = initial_std(init, role, FAN_IN, FAN_OUT, STACK)
    assert stated == pytest.approx(written_out(init, role), rel=1e-12)
    share = STANDARD_ERRORS / math.sqrt(weight.numel())
    assert weight.double().std().item() == pytest.approx(stated, rel=share / math.sqrt(2))
    assert abs(weight.double().mean().item()) < share * stated


@pytest.mark.parametrize("depth", [2, 12, 100])
def test_P47_value_is_smaller_than_query_by_beta(depth: int) -> None:
    """P47: separate matrices; std ratio V:Q = beta, K:Q = 1, and the other branches' = beta."""
    # xformers PR#284, #219; microsoft/torchscale#16
    width = 192
    names = ("query", "key", "value", "attention_output", "ff_in", "ff_gate", "ff_out")
    roles = {name: torch.empty(width, width) for name in names}
    drawn("deep_norm", roles, Stack(depth))
    beta = (8 * depth) ** -0.25
    xavier = width**-0.5
    three_sigma = 3 / width  # of the ratio of two stds of width^2 entries each
    for name, weight in roles.items():
        gain = 1.0 if name in ("query", "key") else beta
        ratio = (weight.std() / roles["query"].std()).item()
        assert ratio == pytest.approx(gain, rel=three_sigma), name
        assert weight.std().item() == pytest.approx(gain * xavier, rel=three_sigma), name


def ratio(packed: Tensor) -> float:
    """std of the V rows over that of the Q rows."""
    query, _, value = packed.chunk(3)
    return (value.std() / query.std()).item()


@pytest.mark.parametrize("depth", [2, 12, 100])
def test_P47_only_the_value_rows_of_a_packed_matrix_are_scaled(depth: int) -> None:
    """P47: a packed (3d, d) matrix given as slices is the separate ones, bit for bit."""
    # xformers PR#284: the value part of a fused QKV was not scaled
    width = 128
    packed = torch.empty(3 * width, width)
    rows = dict(zip(("query", "key", "value"), packed.chunk(3), strict=True))
    drawn("deep_norm", rows, Stack(depth))
    separate = {name: torch.empty(width, width) for name in ("query", "key", "value")}
    drawn("deep_norm", separate, Stack(depth))
    assert torch.equal(packed, torch.cat(list(separate.values())))
    beta, three_sigma = (8 * depth) ** -0.25, 3 / width
    assert ratio(packed) == pytest.approx(beta, rel=three_sigma)


def test_P47_a_packed_matrix_scaled_as_a_whole_is_seen() -> None:
    """P47, negative controls: one draw for all rows, with beta on all of them or on none."""
    width, beta = 128, (8 * 12) ** -0.25
    whole = torch.empty(3 * width, width)
    drawn("deep_norm", {"value": whole})
    assert ratio(whole) != pytest.approx(beta, rel=3 / width)
    drawn("deep_norm", {"query": whole})
    assert ratio(whole) != pytest.approx(beta, rel=3 / width)


# placements.md, section 7, item 3: gain (8N)^(+1/4) and alpha 2.828 at every depth
@pytest.mark.parametrize("width", [64, 512])
def test_deep_norm_is_smaller_than_xavier_at_every_depth(width: int) -> None:
    depths = [1, 2, 6, 12, 24, 32, 100, 1000]
    xavier = initial_std("xavier", "value", width, width, Stack(1))
    stds = [initial_std("deep_norm", "value", width, width, Stack(depth)) for depth in depths]
    assert all(std < xavier for std in stds)
    assert stds == sorted(stds, reverse=True)
    assert len(set(stds)) == len(depths)


@pytest.mark.parametrize("depth", [1, 6, 12, 32])
def test_alpha_of_a_model_follows_its_depth_and_matches_its_beta(depth: int) -> None:
    # placements.md, section 7, items 2 and 3; alpha/beta = 2 sqrt(N)
    config = TransformerConfig(depth=depth, width=8, heads=1, placement="deep_norm")
    alpha: Any = Transformer(config, seed=0).placement.connections[-1].alpha
    assert alpha == pytest.approx((2 * depth) ** 0.25, rel=1e-12)
    beta = initial_std("deep_norm", "value", 8, 8, config.stack) / math.sqrt(2 / 16)
    assert alpha / beta == pytest.approx(2 * math.sqrt(depth), rel=1e-12)
    assert config.init == "deep_norm"


def test_a_matrix_given_twice_is_drawn_once_in_its_first_role() -> None:
    tied, last = torch.empty(64, 64), torch.empty(64, 64)
    weights = [Weight(tied, "embedding"), Weight(tied, "ff_out"), Weight(last, "ff_out")]
    initialize(weights, "gpt2", STACK, generator())
    once = [torch.empty(64, 64), torch.empty(64, 64)]
    initialize(
        [Weight(once[0], "embedding"), Weight(once[1], "ff_out")], "gpt2", STACK, generator()
    )
    assert torch.equal(tied, once[0])
    assert torch.equal(last, once[1])
    assert tied.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("init", sorted(INITS))
def test_one_seed_gives_one_set_of_weights(init: str) -> None:
    def weights(seed: int) -> Tensor:
        tensor = torch.empty(16, 16)
        initialize([Weight(tensor, "ff_in")], init, STACK, generator(seed))
        return tensor

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


def test_without_a_generator_torchs_own_is_used() -> None:
    first, second = torch.empty(8, 8), torch.empty(8, 8)
    for tensor in (first, second):
        torch.manual_seed(5)
        initialize([Weight(tensor, "ff_in")], "xavier", STACK)
    assert torch.equal(first, second)


def test_layers_differ_from_each_other() -> None:
    # placements.md, section 7, item 19; pytorch#120396: deep-copied layers were identical
    first, second = Transformer(SMALL, seed=0).layers
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert one.ndim < 2 or not torch.equal(one, other)


def test_parameters_keep_their_gradient_flag_and_no_graph() -> None:
    parameter = torch.nn.Parameter(torch.empty(4, 4))
    drawn("xavier", {"ff_in": parameter})
    assert parameter.requires_grad
    assert parameter.grad_fn is None


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_a_model_draws_every_role_at_its_size(placement: str) -> None:
    config = TransformerConfig(
        depth=2, width=96, heads=4, vocab_size=300, max_len=64, placement=placement,
        activation="swiglu",
    )  # fmt: skip
    weights = list(Transformer(config, seed=1).weights())
    assert {weight.role for weight in weights} == {r for r in ROLES if "cross" not in r}
    for weight in weights:
        fan_out, fan_in = weight.tensor.shape
        stated = initial_std(str(config.init), weight.role, fan_in, fan_out, Stack(2))
        share = STANDARD_ERRORS / math.sqrt(2 * weight.tensor.numel())
        assert weight.tensor.std().item() == pytest.approx(stated, rel=share), weight.role


@pytest.mark.parametrize(
    ("stack", "beta"),
    [(Stack(6, 2, "encoder", 6), 0.4970), (Stack(6, 3, "decoder", 6), 0.3433)],
    ids=str,
)
def test_P47_deep_norm_knows_a_pair(stack: Stack, beta: float) -> None:
    """P47: the encoder of a pair is drawn with 0.4970 at (6, 6), never with 0.6569."""
    # placements.md, section 7, item 2: torchscale has 1.15 where the paper has 0.87
    gain = initial_std("deep_norm", "value", 64, 64, stack) * math.sqrt(64)
    assert round(gain, 4) == beta


def test_a_relu_branch_of_scaled_residual_keeps_variance_1() -> None:
    stds = {role: initial_std("scaled_residual", role, 512, 512, STACK) for role in ROLES}
    assert 512 * stds["ff_in"] ** 2 / 2 * 512 * stds["ff_out"] ** 2 == pytest.approx(1.0)
    assert 512 * stds["value"] ** 2 * 512 * stds["attention_output"] ** 2 == pytest.approx(1.0)
    assert stds["embedding"] ** 2 + stds["position"] ** 2 == pytest.approx(1.0)


@pytest.mark.parametrize("role", ["query", "value", "ff_out", "embedding", "head"])
def test_sub_norm_is_not_for_one_branch(role: str) -> None:
    """ln 1 = 0 would draw zeros."""
    with pytest.raises(SettingError) as raised:
        initial_std("sub_norm", role, 8, 8, Stack(1, branches=1))
    assert str(raised.value) == (
        "sub_norm scales by sqrt(ln S), so it needs at least two branches. The stack has 1. "
        "Build a deeper one."
    )
    assert initial_std("sub_norm", role, 8, 8, Stack(2, branches=1)) > 0
    with pytest.raises(SettingError):
        Transformer(TransformerConfig(depth=1, attention=False, placement="sub_norm"), seed=0)


def test_an_unknown_init_names_the_known_ones() -> None:
    with pytest.raises(UnknownName) as raised:
        initial_std("xavier_pakced", "query", 8, 8, Stack(1))
    assert str(raised.value) == (
        "Unknown init 'xavier_pakced'. Did you mean xavier_packed? "
        f"Known: {', '.join(sorted(INITS))}."
    )
