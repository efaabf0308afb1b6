"""Placements with constants of depth: the constants, where they stand, and the bugs of others."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from normwise.errors import SettingError
from normwise.residual.registry import build_placement
from normwise.theory.stack import Stack
from tests.residual.stacks import (
    DIM,
    built,
    connections,
    drawn,
    layer_norm,
    matrices,
    moved,
    relu_branches,
    run,
)
from tests.tolerance import FLOAT64_OUTPUT, assert_close


# labmlai/annotated_deep_learning_paper_implementations#145; placements.md, section 7, item 1
@pytest.mark.parametrize("depth", [6, 12, 24, 100])
def test_P46_zero_branch_gives_the_norm_of_the_scaled_skip(depth: int) -> None:
    """P46: f = 0 gives LN(alpha x), with the gradient through alpha. A large eps shows alpha."""
    eps = 0.5
    connection = connections(built("deep_norm", depth, eps=eps))[0]
    x = drawn(4, DIM).requires_grad_()
    alpha = (2 * depth) ** 0.25
    cotangent = drawn(4, DIM, seed=5)
    out, expected = connection(x, torch.zeros_like), layer_norm(alpha * x, eps=eps)
    assert_close(out, expected, FLOAT64_OUTPUT)
    (ours,) = torch.autograd.grad(out, x, cotangent)
    (reference,) = torch.autograd.grad(expected, x, cotangent, retain_graph=True)
    assert_close(ours, reference, FLOAT64_OUTPUT)
    (unscaled,) = torch.autograd.grad(layer_norm(x, eps=eps), x, cotangent)
    assert (ours - unscaled).abs().max() > 0.01


@pytest.mark.parametrize("depth", [6, 100])
def test_P46_zero_stream_gives_the_norm_of_the_branch(depth: int) -> None:
    """P46: x = 0 gives LN(f), the branch without alpha. A large eps shows it."""
    branch = drawn(4, DIM)
    connection = connections(built("deep_norm", depth, eps=0.5))[0]
    out = connection(torch.zeros_like(branch), lambda x: branch)
    assert_close(out, layer_norm(branch, eps=0.5), FLOAT64_OUTPUT)
    scaled = layer_norm((2 * depth) ** 0.25 * branch, eps=0.5)
    assert (out - scaled).abs().max() > 0.01


def test_P46_alpha_to_infinity_leaves_the_skip() -> None:
    """P46: LN(x), never LN(f); with alpha on the branch it would be LN(f)."""
    connection = connections(built("deep_norm"))[0]
    connection.alpha = 1e12
    x, branch = drawn(4, DIM), drawn(4, DIM, seed=1)
    out = connection(x, lambda entry: branch)
    assert_close(out, layer_norm(x, eps=0.0), FLOAT64_OUTPUT)
    wrong = layer_norm(x + connection.alpha * branch)
    assert_close(wrong, layer_norm(branch, eps=0.0), FLOAT64_OUTPUT)
    assert (out - wrong).abs().max() > 0.5


@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize("depth", [6, 12, 24, 100])
def test_P46_alpha_follows_the_number_of_branches(depth: int, branches: int) -> None:
    """P46: (2N)^(1/4) everywhere, N^(1/4) with one branch a layer, (3N)^(1/4) with three."""
    expected = pytest.approx((branches * depth) ** 0.25, rel=1e-12)
    alphas = [connection.alpha for connection in connections(built("deep_norm", depth, branches))]
    assert alphas == [expected] * (branches * depth)


# placements.md, section 7, item 2: torchscale's encoder of a pair
@pytest.mark.parametrize(("depth", "alpha"), [(6, 1.4179), (18, 1.9987), (100, 3.4157)])
def test_P46_alpha_of_an_encoder_knows_its_decoder(depth: int, alpha: float) -> None:
    """P46: 0.81 (N^4 M)^(1/16) for the encoder of a pair."""
    stack = Stack(depth, 2, "encoder", other_depth=depth)
    placement = build_placement("deep_norm", stack, DIM, lambda kind, layer: nn.Identity(), {})
    assert {round(connection.alpha, 4) for connection in connections(placement)} == {alpha}


# placements.md, depth_scaled_norm: worked factors, the same for all branches of a layer
@pytest.mark.parametrize("branches", [1, 2, 3])
def test_depth_scaled_norm_divides_by_the_root_of_the_layer(branches: int) -> None:
    scales = [c.scale for c in connections(built("depth_scaled_norm", 32, branches))]
    for number, factor in [(1, 1.0), (2, 0.7071), (4, 0.5), (12, 0.2887), (32, 0.1768)]:
        of_layer = scales[(number - 1) * branches : number * branches]
        assert [round(scale, 4) for scale in of_layer] == [factor] * branches


def test_depth_scaled_norm_scales_what_the_branch_reads() -> None:
    connection = connections(built("depth_scaled_norm", depth=9))[-1]
    x = drawn(4, DIM)
    assert_close(connection(x, lambda entry: entry), x + layer_norm(x) / 3, FLOAT64_OUTPUT)


@pytest.mark.parametrize(
    ("options", "alpha"), [({}, 12.0), ({"alpha": None}, 12.0), ({"alpha": 3.5}, 3.5)]
)
def test_keel_starts_with_pre_norm_and_goes_on_with_alpha(
    options: dict[str, Any], alpha: float
) -> None:
    # placements.md, keel: the first branch is x + F(LN x); S branches, and alpha = S
    first, *others = connections(built("keel", depth=6, eps=0.5, **options))
    x, branch = drawn(4, DIM), drawn(4, DIM, seed=1)
    assert torch.equal(first(x, lambda entry: branch), x + branch)
    for connection in others:
        out = connection(x, lambda entry: branch)
        assert_close(out, layer_norm(alpha * x + branch, eps=0.5), FLOAT64_OUTPUT)
        convex = layer_norm(alpha * x + (1 - alpha) * branch, eps=0.5)
        assert (out - convex).abs().max() > 0.1
    assert len(others) == 11


@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize(
    ("options", "share"),
    [({}, None), ({"share": 0.005}, 0.005), ({"share": 0.0}, 0.0), ({"share": 1.0}, 1.0)],
)
def test_squares_of_a_scaled_residual_add_up_to_1(
    options: dict[str, Any], share: float | None, branches: int
) -> None:
    # Kedia et al. 2024; its code has beta^2 = 0.005, ours 1/S
    share = 1 / (4 * branches) if share is None else share
    x, branch = drawn(4, DIM), drawn(4, DIM, seed=1)
    for connection in connections(built("scaled_residual", 4, branches, **options)):
        out = connection(x, lambda entry: branch)
        expected = math.sqrt(1 - share) * x + math.sqrt(share) * branch
        assert_close(out, expected, FLOAT64_OUTPUT)


@pytest.mark.parametrize("share", [-0.1, 1.01, math.nan])
def test_a_share_is_from_0_to_1(share: float) -> None:
    with pytest.raises(SettingError) as raised:
        built("scaled_residual", share=share)
    assert str(raised.value) == f"scaled_residual: share must be from 0 to 1. It is {share}."


def test_a_keel_of_alpha_1_is_post_norm_with_norms_before_the_branches() -> None:
    placement = moved(built("keel", alpha=1.0))
    x, branches = drawn(4, DIM), relu_branches(matrices(2 * 3))
    expected = x
    for index, (connection, branch) in enumerate(
        zip(connections(placement), branches, strict=True)
    ):
        before, after = connection.norm_in, connection.norm_out
        expected = expected + branch(layer_norm(expected, before.weight, before.bias))
        if index:
            expected = layer_norm(expected, after.weight, after.bias)
    assert_close(run(placement, x, branches), expected.detach(), FLOAT64_OUTPUT)
