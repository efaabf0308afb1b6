"""Predicted growth of the stream against textbook numbers and against the placements themselves."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from normwise.residual.registry import PLACEMENTS, make_placement
from normwise.theory import expansion, growth
from normwise.theory.growth import plain_growth, stream_moments
from normwise.theory.moments import Branch, Moments
from normwise.theory.stack import Stack
from tests.tolerance import WIDE_BRANCH

NAMES = sorted(PLACEMENTS)
OF_UNIT_SIZE = [
    "post_norm", "deep_norm", "keel", "b2t", "admin", "resi_dual", "hybrid_norm",
    "hybrid_norm_star",
]  # fmt: skip
WIDTH = 1 << 14


def flat(variance: float) -> Branch:
    return lambda entry: Moments(variance, 0.0)


def test_every_placement_has_a_rule_and_every_rule_a_placement() -> None:
    assert set(growth.RULES) == set(PLACEMENTS)
    assert set(expansion.RULES) <= set(PLACEMENTS)


# Xiong et al. 2020 (2002.04745), Lemma 2; Kim et al. 2025 (2502.02732)
@pytest.mark.parametrize("variance", [0.25, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("branches", [1, 2, 24, 128])
def test_textbook_growth(branches: int, variance: float) -> None:
    linear = pytest.approx(1 + branches * variance)
    for name in ("pre_norm", "t_fixup", "parallel", "gpas", "hyper_connections"):
        assert plain_growth(name, variance, branches) == linear, name
    for name in ("post_norm", "deep_norm", "b2t", "admin", "resi_dual"):
        assert plain_growth(name, variance, branches) == pytest.approx(1.0, rel=1e-14), name
    for name in ("peri_norm", "output_norm"):
        assert plain_growth(name, variance, branches) == pytest.approx(1.0 + branches), name
    assert plain_growth("rezero", variance, branches) == 1.0
    near = 1 + branches * variance * (1e-10 if branches <= 24 else 1e-12)
    assert plain_growth("layer_scale", variance, branches) == pytest.approx(near, rel=1e-14)


@pytest.mark.parametrize("branches", [2, 24, 128])
def test_a_scaled_residual_of_unit_branches_keeps_variance_1(branches: int) -> None:
    # placements.md, scaled_residual: 1 only when each branch has variance 1
    assert plain_growth("scaled_residual", 1.0, branches) == pytest.approx(1.0, rel=1e-12)
    assert plain_growth("scaled_residual", 0.5, branches) < 0.9


@pytest.mark.parametrize("layers", [2, 8, 64])
def test_depth_scaled_norm_grows_like_the_logarithm(layers: int) -> None:
    # a branch of the identity has variance 1/l in layer l
    def identity(entry: Moments) -> Moments:
        return entry

    stack = Stack(layers, branches=1)
    stream = stream_moments("depth_scaled_norm", Moments(1.0, 0.0), [identity] * layers, stack)
    harmonic = math.fsum(1 / layer for layer in range(1, layers + 1))
    assert stream[-1].square == pytest.approx(1 + harmonic, rel=1e-12)


# placements.md, sub_norm: 1 + 2 L ln 2 L, printed to two or three digits
@pytest.mark.parametrize(
    ("layers", "variance"), [(2, 6.5), (4, 17.6), (8, 45.4), (16, 112), (32, 267), (64, 622)]
)
def test_sub_norm_grows_by_the_square_of_its_gain(layers: int, variance: float) -> None:
    stack = Stack(layers)
    branches = [flat(math.log(2 * layers))] * (2 * layers)
    stream = stream_moments("sub_norm", Moments(1.0, 0.0), branches, stack)
    assert stream[-1].square == pytest.approx(variance, rel=0.01)


@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize("placement", NAMES)
def test_zero_branches_leave_the_stream_or_norm_it(placement: str, branches: int) -> None:
    # placements.md, section 1, column F=0
    stack = Stack(3, branches)
    expected = 1.0 if placement in OF_UNIT_SIZE else 4.0
    if placement == "scaled_residual":
        expected *= (1 - 1 / stack.sublayers) ** stack.sublayers
    if placement == "attention_residuals":
        expected /= (1 + stack.sublayers) ** 2
    zero = [flat(0.0)] * stack.sublayers
    profile = stream_moments(placement, Moments(4.0, 1.0), zero, stack, eps=1e-8)
    assert profile[-1].square == pytest.approx(expected, rel=1e-6)
    assert profile[-1].overlap == pytest.approx(expected / 4, rel=1e-6)
    assert len(profile) == stack.sublayers + 1


def test_a_first_quarter_of_post_norm_leaves_variance_1() -> None:
    zero = [flat(0.0)] * 8
    profile = stream_moments("mix_norm", Moments(4.0, 1.0), zero, Stack(8, 1))
    assert [at.square for at in profile] == pytest.approx([4.0] + [1.0] * 8)


def test_eps_takes_its_share_of_a_small_stream() -> None:
    one = Stack(1, branches=1)
    post = stream_moments("post_norm", Moments(1e-5, 0.0), [flat(0.0)], one, eps=1e-5)
    assert post[-1].square == pytest.approx(0.5)
    peri = stream_moments("peri_norm", Moments(1.0, 0.0), [flat(1e-5)], one, eps=1e-5)
    assert peri[-1].square == pytest.approx(1.5)


def test_deep_norm_puts_alpha_on_the_skip() -> None:
    stack = Stack(10_000, branches=1)  # alpha = 10
    shared_skip = stream_moments("deep_norm", Moments(1.0, 1.0), [flat(1.0)], stack)[-1]
    assert shared_skip.overlap == pytest.approx(100 / 101)
    on_the_branch = 1 / 101  # what alpha on F would keep of the stream
    assert shared_skip.overlap > 50 * on_the_branch


@pytest.mark.parametrize(
    ("placement", "square"),
    [
        *dict.fromkeys(
            ("pre_norm", "peri_norm", "depth_scaled_norm", "layer_scale", "keel", "sub_norm",
             "norm_former", "parallel", "scaled_residual", "gpas", "siamese_norm_scaled",
             "hyper_connections", "attention_residuals"), 1.0,
        ).items(),
        *dict.fromkeys(("post_norm", "deep_norm", "output_norm", "b2t", "admin"), 9.0).items(),
        ("siamese_norm", 16.0),  # x + norm(x) of RMS 3 + 1
    ],
)  # fmt: skip
def test_branches_see_the_normed_stream_only_where_a_norm_stands_before_them(
    placement: str, square: float
) -> None:
    seen: list[float] = []

    def branch(entry: Moments) -> Moments:
        seen.append(entry.square)
        return entry

    stream_moments(placement, Moments(9.0, 0.0), [branch] * 2, Stack(1))
    assert seen[0] == pytest.approx(square)


def turned(index: int) -> tuple[Callable[[Tensor], Tensor], Branch]:
    """A signed permutation: what it gives is independent of what it takes. One for both tokens
    keeps their product, and one for each, which every second branch has, leaves none.
    """
    rng = torch.Generator().manual_seed(100 + index)
    gain, apart = 0.6 + 0.2 * (index % 5), index % 2 == 1
    orders = torch.stack([torch.randperm(WIDTH, generator=rng) for _ in range(2)])
    signs = torch.randint(0, 2, (WIDTH,), generator=rng).double() * 2 - 1
    orders = orders if apart else orders[:1].expand(2, -1)

    def rule(entry: Moments) -> Moments:
        return Moments(entry.square, 0.0 if apart else entry.overlap).scaled(gain**2)

    return lambda x: gain * signs * x.gather(1, orders), rule


def correlated() -> tuple[Tensor, Moments]:
    """Two tokens of mean square 2 that share half of it."""
    shared, *own = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0)).double()
    tokens = torch.stack([shared + part for part in own])
    return tokens, Moments(2.0, 1.0)


CONSTANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES if name != "admin"),
    ("admin", {"growth": "logarithmic"}), ("admin", {"growth": "constant"}),
    ("keel", {"alpha": 1.5}), ("layer_scale", {"start": 0.7}), ("mix_norm", {"share": 0.5}),
    ("scaled_residual", {"share": 0.3}), ("hyper_connections", {"streams": 2}),
]  # fmt: skip


@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize(("name", "constants"), CONSTANTS, ids=str)
def test_a_rule_is_what_its_placement_does(
    name: str, constants: dict[str, Any], branches: int
) -> None:
    stack = Stack(4, branches)
    placement = make_placement(
        name, WIDTH, stack.depth, "rms_norm", branches=branches, eps=0.0, **constants
    ).double()
    x, entry = correlated()
    functions, rules = zip(*map(turned, range(stack.sublayers)), strict=True)
    predicted = stream_moments(name, entry, rules, stack, constants=constants)
    state = placement.enter(x)
    with torch.no_grad():
        for connection, function, said in zip(
            placement.connections, functions, predicted[1:], strict=True
        ):
            state = connection(state, function)
            gram = connection.stream(state) @ connection.stream(state).T / WIDTH  # type: ignore[operator]
            assert gram.diag().mean().item() == pytest.approx(said.square, rel=WIDE_BRANCH)
            assert gram[0, 1].item() == pytest.approx(said.overlap, abs=WIDE_BRANCH * said.square)


def test_admin_s_profiled_factor_weighs_all_branches_before() -> None:
    # Liu et al. 2020: omega_(i+1)^2 = omega_i^2 Var[x_i] + Var[f_i] with omega_1 = 1
    variances, entry = [0.5, 2.0, 1.0, 0.25], 4.0
    branches = [flat(variance) for variance in variances]
    profile = stream_moments("admin", Moments(entry, entry), branches, Stack(2))
    omega_square, overlap, square = 1.0, entry, entry
    for index, variance in enumerate(variances):
        overlap = omega_square * overlap / (omega_square * square + variance)
        assert profile[index + 1].overlap == pytest.approx(overlap, rel=1e-12)
        omega_square = omega_square * square + variance
        square = 1.0


def test_moments_add_and_scale() -> None:
    total = Moments(1.0, 0.5) + Moments(3.0, -0.25)
    assert total == Moments(4.0, 0.25)
    assert total.scaled(2.0) == Moments(8.0, 0.5)
    normed = total.normed(eps=1.0)
    assert (normed.square, normed.overlap) == pytest.approx((0.8, 0.05))
    assert Moments(0.0, 0.0).normed() == Moments(0.0, 0.0)
