"""Learned factors: where they start, what moves at the first step, and that sharing survives."""

import copy
import io
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from normwise.errors import SettingError
from normwise.residual.base import PerSublayer
from normwise.residual.registry import make_placement
from tests.residual.stacks import (
    DIM,
    built,
    connections,
    drawn,
    last_state,
    layer_norm,
    matrices,
    relu_branches,
    reset,
    run,
)
from tests.tolerance import FLOAT64_OUTPUT, assert_close


def gradients(
    placement: PerSublayer, branches: int = 2
) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor]:
    """Output, and gradients of parameters, input and branch weights, of a stack of 3 layers."""
    weights = matrices(3 * branches).requires_grad_()
    x = drawn(2, 5, DIM, seed=1).requires_grad_()
    out = run(placement, x, relu_branches(weights))
    own = dict(placement.named_parameters())
    found = torch.autograd.grad(out, [x, weights, *own.values()], drawn(2, 5, DIM, seed=2))
    return out, dict(zip(own, found[2:], strict=True)), found[0], found[1]


# placements.md, rezero; skip_init is the same algebra with an alpha for each branch
@pytest.mark.parametrize("name", ["rezero", "skip_init"])
def test_at_the_start_the_stack_is_the_identity_and_only_alpha_moves(name: str) -> None:
    placement = built(name)
    out, alphas, _, of_branches = gradients(placement)
    assert torch.equal(out, drawn(2, 5, DIM, seed=1))
    assert torch.equal(of_branches, torch.zeros_like(of_branches))
    assert all(gradient.abs() > 0.1 for gradient in alphas.values())
    assert all(parameter == 0 for parameter in placement.parameters())


@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "each"),
    [("rezero", 1), ("gpas", 1), ("skip_init", None)],
)
def test_how_many_numbers_a_layer_has(name: str, each: int | None, branches: int) -> None:
    state = built(name, depth=4, branches=branches).state_dict()
    numbers = [key for key, value in state.items() if value.ndim == 0]
    assert len(numbers) == 4 * (each or branches)


def deep_copied(placement: PerSublayer, name: str) -> PerSublayer:
    return copy.deepcopy(placement)


def pickled(placement: PerSublayer, name: str) -> PerSublayer:
    stored = io.BytesIO()
    torch.save(placement, stored)
    stored.seek(0)
    loaded: PerSublayer = torch.load(stored, weights_only=False)
    return loaded


def from_meta(placement: PerSublayer, name: str) -> PerSublayer:
    with torch.device("meta"):
        empty = make_placement(name, DIM, depth=3)
    return reset(empty.to_empty(device="cpu")).double()


def from_state_dict(placement: PerSublayer, name: str) -> PerSublayer:
    other = built(name)
    other.load_state_dict(placement.state_dict())
    return other


@pytest.mark.parametrize("name", ["rezero", "gpas"])
@pytest.mark.parametrize("made_by", [deep_copied, pickled, from_meta, from_state_dict])
def test_the_branches_of_a_layer_go_on_sharing_their_number(
    made_by: Callable[[PerSublayer, str], PerSublayer], name: str
) -> None:
    original = built(name)
    other = made_by(original, name)
    assert len(list(other.parameters())) == len(list(original.parameters()))
    before = run(original, x := drawn(4, DIM), branches := relu_branches(matrices(2 * 3)))
    first, second = connections(other)[2:4]
    nn.init.constant_(first.number, 0.5)
    zero = torch.zeros_like
    factor = 1 - 0.5 / (1 + math.exp(-0.5))
    state = (x, torch.tensor(math.nan))
    for connection in (first, second):
        branch = (lambda entry: entry) if name == "rezero" else zero
        once = 1.5 if name == "rezero" else factor
        before_it = state[0]
        state = connection(state, branch)
        assert_close(state[0], once * before_it, FLOAT64_OUTPUT)
    assert torch.equal(run(original, x, branches), before)
    assert not torch.equal(run(other, x, branches), before)


# placements.md, layer_scale: 1e-5 up to 24 layers, 1e-6 above
@pytest.mark.parametrize(("depth", "start"), [(1, 1e-5), (24, 1e-5), (25, 1e-6), (48, 1e-6)])
def test_layer_scale_starts_near_0_by_depth(depth: int, start: float) -> None:
    for connection in connections(make_placement("layer_scale", DIM, depth)):
        assert torch.equal(connection.scale, torch.full((DIM,), start))


def test_layer_scale_of_0_keeps_its_parameter_and_leaves_the_stream() -> None:
    # placements.md, section 7, item 11: timm's `if init_values` drops LayerScale at 0.0
    placement = built("layer_scale", start=0.0)
    x = drawn(4, DIM)
    assert torch.equal(last_state(placement, x, relu_branches(matrices(2 * 3))), x)
    scales = [value for key, value in placement.named_parameters() if key.endswith("scale")]
    assert [scale.shape for scale in scales] == [(DIM,)] * 6
    _, own, _, _ = gradients(placement)
    assert all(own[key].abs().max() > 0.01 for key in own if key.endswith("scale"))


# placements.md, gpas: g = 0 must equal the base exactly
@pytest.mark.parametrize("branches", [1, 2, 3])
def test_gpas_at_0_is_pre_norm_to_the_bit(branches: int) -> None:
    gated, base = built("gpas", branches=branches), built("pre_norm", branches=branches)
    ours, own, dx, of_branches = gradients(gated, branches)
    theirs, expected, reference_dx, reference = gradients(base, branches)
    assert torch.equal(ours, theirs)
    assert torch.equal(dx, reference_dx)
    assert torch.equal(of_branches, reference)
    assert all(torch.equal(own[name], expected[name]) for name in expected)
    assert set(own) - set(expected) == {f"connections.{branches * n}.number" for n in range(3)}


def test_the_backward_pass_of_gpas_ignores_the_gate() -> None:
    first, second = connections(built("gpas"))[:2]
    nn.init.constant_(first.number, 1.3)
    x, cotangent = drawn(4, DIM).requires_grad_(), drawn(4, DIM, seed=1)
    out, _ = second(first((x, x), torch.zeros_like), torch.zeros_like)
    share = 1 - 1.3 / (1 + math.exp(-1.3))
    assert_close(out, share**2 * x.detach(), FLOAT64_OUTPUT)
    (gradient,) = torch.autograd.grad(out, x, cotangent)
    assert torch.equal(gradient, cotangent)


# placements.md, gpas: clip the gate gradient at 0.01
@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_gradient_of_a_gate_is_clipped(sign: float, branches: int) -> None:
    placement = built("gpas", depth=1, branches=branches)
    state = last_state(placement, drawn(4, DIM), [torch.zeros_like] * branches)
    (sign * 100 * state[0] * drawn(4, DIM)).sum().backward()
    gate = connections(placement)[0].number
    assert gate.grad.item() == pytest.approx(-sign * 0.01, rel=1e-12)


def test_a_small_gradient_of_a_gate_is_left_as_it_is() -> None:
    placement = built("gpas", depth=1, branches=1)
    x = drawn(4, DIM)
    out, _ = last_state(placement, x, [torch.zeros_like])
    (1e-5 * out * x).sum().backward()
    # silu'(0) = 1/2
    expected = -0.5e-5 * x.square().sum().item()
    assert connections(placement)[0].number.grad.item() == pytest.approx(expected, rel=1e-12)


def test_admin_s_omega_to_infinity_leaves_the_skip() -> None:
    # placements.md, admin: a version with omega on f is wrong
    connection = connections(built("admin"))[0]
    nn.init.constant_(connection.omega, 1e12)
    x, branch = drawn(4, DIM), drawn(4, DIM, seed=1)
    out = connection(x, lambda entry: branch)
    assert_close(out, layer_norm(x, eps=0.0), FLOAT64_OUTPUT)
    assert (out - layer_norm(branch, eps=0.0)).abs().max() > 0.5


def test_admin_starts_as_post_norm() -> None:
    x, branches = drawn(4, DIM), relu_branches(matrices(2 * 3))
    assert torch.equal(run(built("admin"), x, branches), run(built("post_norm"), x, branches))


# placements.md, admin: worked values of O(log n)
@pytest.mark.parametrize(
    ("growth", "depth", "omega"),
    [
        ("logarithmic", 6, 2.0170), ("logarithmic", 12, 2.6013), ("logarithmic", 24, 3.4045),
        ("logarithmic", 64, 5.0541), ("linear", 12, 1.0), ("constant", 8, 4.0),
        ("profiled", 12, 1.0),
    ],
)  # fmt: skip
def test_admin_has_one_omega_for_each_channel_by_growth(
    growth: str, depth: int, omega: float
) -> None:
    for connection in connections(built("admin", depth, growth=growth)):
        assert connection.omega.shape == (DIM,)
        assert {round(value, 4) for value in connection.omega.tolist()} == {omega}


def test_an_unknown_growth_is_told() -> None:
    with pytest.raises(SettingError) as raised:
        built("admin", growth="cubic")
    assert str(raised.value) == (
        "admin: growth must be profiled, logarithmic, linear or constant. It is cubic."
    )
