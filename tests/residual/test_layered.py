"""Branches that look back at the entry of their layer."""

import pytest
import torch
from torch import Tensor

from tests.residual.stacks import (
    DIM,
    Branch,
    built,
    connections,
    drawn,
    layer,
    layer_norm,
    matrices,
    moved,
    relu_branches,
    run,
)
from tests.tolerance import FLOAT64_OUTPUT, assert_close


# placements.md, b2t: dropping the extra x must reproduce post_norm bit for bit
@pytest.mark.parametrize("branches", [2, 3])
def test_b2t_without_its_entry_is_post_norm_to_the_bit(branches: int) -> None:
    placement, base = built("b2t", branches=branches), built("post_norm", branches=branches)
    x = drawn(4, DIM)
    functions = relu_branches(matrices(3 * branches))
    stream = x
    for connection, branch in zip(connections(placement), functions, strict=True):
        stream, _ = connection((stream, torch.zeros_like(x)), branch)
    expected = run(base, x, functions)
    assert torch.equal(stream, expected)
    assert (run(placement, x, functions) - expected).abs().max() > 0.1


def test_b2t_of_one_branch_is_post_norm_to_the_bit() -> None:
    x, branches = drawn(4, DIM), relu_branches(matrices(3))
    ours, theirs = built("b2t", branches=1), built("post_norm", branches=1)
    assert torch.equal(run(ours, x, branches), run(theirs, x, branches))


# Takase et al. 2022 (2206.00330), figure 2; with cross-attention only the last norm receives it
@pytest.mark.parametrize("branches", [2, 3])
def test_b2t_adds_the_input_of_the_layer_at_its_last_norm_only(branches: int) -> None:
    placement = built("b2t", branches=branches)
    x = 2.0 * drawn(4, DIM)
    outs = [drawn(4, DIM, seed=10 + s) for s in range(branches)]
    functions: list[Branch] = [lambda entry, out=out: out for out in outs]  # type: ignore[misc]
    expected = x
    for out in outs[:-1]:
        expected = layer_norm(expected + out)
    expected = layer_norm(x + expected + outs[-1])
    out, _ = layer(placement, (drawn(4, DIM, seed=9), x), functions, 1)
    assert_close(layer(placement, (x, x), functions, 1)[0], expected, FLOAT64_OUTPUT)
    assert (out - expected).abs().max() > 0.1  # the entry is that of this layer, not of an earlier


@pytest.mark.parametrize("branches", [2, 3])
@pytest.mark.parametrize("name", ["parallel", "parallel_norms"])
def test_parallel_branches_do_not_see_each_other(name: str, branches: int) -> None:
    placement = moved(built(name, branches=branches))
    x, seen = drawn(4, DIM), []

    def branch(entry: Tensor) -> Tensor:
        seen.append(entry)
        return torch.ones_like(entry)

    stream, _ = layer(placement, placement.enter(x), [branch] * branches, 1)
    assert_close(stream, x + branches, FLOAT64_OUTPUT)
    own = connections(placement)[branches : 2 * branches]
    for entry, connection in zip(seen, own, strict=True):
        norm = (own[0] if name == "parallel" else connection).norm
        assert_close(entry, layer_norm(x, norm.weight, norm.bias).detach(), FLOAT64_OUTPUT)


def test_parallel_norms_that_are_alike_are_one() -> None:
    x, branches = drawn(4, DIM), relu_branches(matrices(2 * 3))
    apart, shared = built("parallel_norms"), built("parallel")
    assert torch.equal(run(apart, x, branches), run(shared, x, branches))


def test_parallel_is_pre_norm_where_a_layer_has_one_branch() -> None:
    x, branches = drawn(4, DIM), relu_branches(matrices(3))
    expected = run(built("pre_norm", branches=1), x, branches)
    assert torch.equal(run(built("parallel", branches=1), x, branches), expected)
    serial = run(built("pre_norm"), x, relu_branches(matrices(2 * 3)))
    assert (run(built("parallel"), x, relu_branches(matrices(2 * 3))) - serial).abs().max() > 0.01
