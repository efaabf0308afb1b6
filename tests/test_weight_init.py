"""Initial weights: their size by role and depth, and which matrices a scheme touches."""

import math

import pytest
import torch
from torch import Tensor

from normwise.errors import UnknownName
from normwise.model.config import TransformerConfig
from normwise.model.transformer import Transformer
from normwise.weight_init import INITS, ROLES, Weight, initial_std, initialize
from tests.tolerance import STANDARD_ERRORS

SUBLAYERS = 24
FAN_OUT, FAN_IN = 96, 160
SMALL = TransformerConfig(depth=2, width=32, heads=2, vocab_size=50, max_len=16)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(init: str, roles: dict[str, Tensor], sublayers: int = SUBLAYERS) -> None:
    weights = [Weight(tensor, role) for role, tensor in roles.items()]
    initialize(weights, init, sublayers, generator())


def written_out(init: str, role: str) -> float:
    """The schemes as their papers state them, for 12 layers of two branches."""
    if init == "gpt2":  # Radford et al. 2019, 2.3
        return 0.02 / math.sqrt(24) if role in ("attention_output", "ff_out") else 0.02
    xavier = math.sqrt(2 / (FAN_IN + FAN_OUT))  # Glorot and Bengio 2010, equation 16
    if init == "xavier_packed" and role in ("query", "key", "value"):
        return math.sqrt(2 / (FAN_IN + 3 * FAN_OUT))
    scaled = ("value", "attention_output", "ff_in", "ff_gate", "ff_out")
    if init == "deep_norm" and role in scaled:  # Wang et al. 2022, figure 2
        return xavier * (8 * 12) ** -0.25
    return xavier


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("init", sorted(INITS))
def test_measured_std_is_the_stated_one(init: str, role: str) -> None:
    weight = torch.empty(FAN_OUT, FAN_IN)
    drawn(init, {role: weight})
    stated = initial_std(init, role, FAN_IN, FAN_OUT, SUBLAYERS)
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
    drawn("deep_norm", roles, 2 * depth)
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
    drawn(
        "deep_norm", dict(zip(("query", "key", "value"), packed.chunk(3), strict=True)), 2 * depth
    )
    separate = {name: torch.empty(width, width) for name in ("query", "key", "value")}
    drawn("deep_norm", separate, 2 * depth)
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
    xavier = initial_std("xavier", "value", width, width, 2)
    stds = [initial_std("deep_norm", "value", width, width, 2 * depth) for depth in depths]
    assert all(std < xavier for std in stds)
    assert stds == sorted(stds, reverse=True)
    assert len(set(stds)) == len(depths)


@pytest.mark.parametrize("depth", [1, 6, 12, 32])
def test_alpha_of_a_model_follows_its_depth_and_matches_its_beta(depth: int) -> None:
    # placements.md, section 7, items 2 and 3; alpha/beta = 2 sqrt(N)
    config = TransformerConfig(depth=depth, width=8, heads=1, placement="deep_norm")
    alpha = Transformer(config, seed=0).placement.connections[-1].alpha
    assert alpha == pytest.approx((2 * depth) ** 0.25, rel=1e-12)
    beta = initial_std("deep_norm", "value", 8, 8, config.sublayers) / math.sqrt(2 / 16)
    assert alpha / beta == pytest.approx(2 * math.sqrt(depth), rel=1e-12)
    assert config.init == "deep_norm"


def test_a_matrix_given_twice_is_drawn_once_in_its_first_role() -> None:
    tied, last = torch.empty(64, 64), torch.empty(64, 64)
    weights = [Weight(tied, "embedding"), Weight(tied, "ff_out"), Weight(last, "ff_out")]
    initialize(weights, "gpt2", SUBLAYERS, generator())
    once = [torch.empty(64, 64), torch.empty(64, 64)]
    initialize(
        [Weight(once[0], "embedding"), Weight(once[1], "ff_out")], "gpt2", SUBLAYERS, generator()
    )
    assert torch.equal(tied, once[0])
    assert torch.equal(last, once[1])
    assert tied.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("init", sorted(INITS))
def test_one_seed_gives_one_set_of_weights(init: str) -> None:
    def weights(seed: int) -> Tensor:
        tensor = torch.empty(16, 16)
        initialize([Weight(tensor, "ff_in")], init, SUBLAYERS, generator(seed))
        return tensor

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


def test_without_a_generator_torchs_own_is_used() -> None:
    first, second = torch.empty(8, 8), torch.empty(8, 8)
    for tensor in (first, second):
        torch.manual_seed(5)
        initialize([Weight(tensor, "ff_in")], "xavier", SUBLAYERS)
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


@pytest.mark.parametrize("placement", ["pre_norm", "post_norm", "peri_norm", "deep_norm"])
def test_a_model_draws_every_role_at_its_size(placement: str) -> None:
    config = TransformerConfig(
        depth=2, width=96, heads=4, vocab_size=300, max_len=64, placement=placement,
        activation="swiglu",
    )  # fmt: skip
    weights = list(Transformer(config, seed=1).weights())
    assert {weight.role for weight in weights} == set(ROLES)
    for weight in weights:
        fan_out, fan_in = weight.tensor.shape
        stated = initial_std(str(config.init), weight.role, fan_in, fan_out, 4)
        share = STANDARD_ERRORS / math.sqrt(2 * weight.tensor.numel())
        assert weight.tensor.std().item() == pytest.approx(stated, rel=share), weight.role


def test_an_unknown_init_names_the_known_ones() -> None:
    with pytest.raises(UnknownName) as raised:
        initial_std("xavier_pakced", "query", 8, 8, 2)
    assert str(raised.value) == (
        "Unknown init 'xavier_pakced'. Did you mean xavier_packed? "
        "Known: deep_norm, gpt2, xavier, xavier_packed."
    )
