"""Placements without constants: Mix-LN's depths, and what others are at the ends of their range."""

import pytest
import torch
from torch import Tensor, nn

from normwise.residual.base import PerSublayer
from normwise.residual.registry import PLACEMENTS
from tests.residual.stacks import (
    DIM,
    built,
    connections,
    drawn,
    layer_norm,
    matrices,
    moved,
    norms_of,
    relu_branches,
    run,
)
from tests.tolerance import FLOAT64_OUTPUT, assert_close


def post_layers(placement: PerSublayer) -> list[int]:
    return sorted({c.site.layer for c in connections(placement) if c.post})


# placements.md, mix_norm: floor(a L) layers, so none below 4
@pytest.mark.parametrize(
    ("depth", "count"), [(1, 0), (3, 0), (4, 1), (7, 1), (8, 2), (12, 3), (13, 3), (32, 8)]
)
def test_mix_norm_starts_with_a_quarter_of_post_norm_layers(depth: int, count: int) -> None:
    for branches in (1, 2, 3):
        assert post_layers(built("mix_norm", depth, branches)) == list(range(count))


@pytest.mark.parametrize(
    ("share", "depth", "count"), [(0.0, 6, 0), (0.5, 5, 2), (1.0, 6, 6), (0.29, 100, 29)]
)
def test_mix_norm_has_the_share_of_post_norm_layers_it_is_given(
    share: float, depth: int, count: int
) -> None:
    assert post_layers(built("mix_norm", depth, share=share)) == list(range(count))


# placements.md, mix_norm: a = 0 equals pre_norm, a = 1 equals post_norm plus the final norm
@pytest.mark.parametrize(("share", "base"), [(0.0, "pre_norm"), (1.0, "post_norm")])
def test_mix_norm_ends_at_pre_norm_and_at_post_norm_with_a_final_norm(
    share: float, base: str
) -> None:
    x, branches = drawn(4, DIM), relu_branches(matrices(2 * 3))
    mixed, alone = moved(built("mix_norm", share=share)), moved(built(base))
    expected = run(alone, x, branches)
    if share == 1.0:
        last = mixed.final_norm
        assert isinstance(last, nn.LayerNorm)
        expected = layer_norm(expected, last.weight, last.bias)
    assert_close(run(mixed, x, branches), expected.detach(), FLOAT64_OUTPUT)


@pytest.mark.parametrize("name", ["norm_former", "norm_former_fairseq"])
def test_norm_former_starts_as_pre_norm_with_a_norm_after_attention(name: str) -> None:
    first, second = connections(built(name, depth=1))
    x, branch = drawn(4, DIM), drawn(4, DIM, seed=1)
    assert_close(first(x, lambda entry: branch), x + layer_norm(branch), FLOAT64_OUTPUT)
    assert torch.equal(second(x, lambda entry: branch), x + branch)
    assert first.skip is None and second.skip.shape == (DIM,)


# Zhuo et al. 2025 (2503.04598): the first block of HybridNorm* is pre-norm
def test_hybrid_norm_has_no_norm_before_attention_but_in_the_star_s_first_layer() -> None:
    seen: list[Tensor] = []
    x = 3.0 * drawn(4, DIM)

    def branch(entry: Tensor) -> Tensor:
        seen.append(entry)
        return torch.zeros_like(entry)

    run(built("hybrid_norm", depth=1), x, [branch] * 2)
    run(built("hybrid_norm_star", depth=1), x, [branch] * 2)
    for entry, expected in zip(seen, [x, *[layer_norm(x)] * 3], strict=True):
        assert_close(entry, expected, FLOAT64_OUTPUT)


@pytest.mark.parametrize("name", ["rezero", "skip_init", "t_fixup"])
def test_placements_without_norms_have_none(name: str) -> None:
    placement = built(name)
    assert not norms_of(placement)
    assert not PLACEMENTS[name].has_norms
