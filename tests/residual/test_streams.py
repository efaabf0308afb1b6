"""Several streams, and all outputs: what they equal at the start, and how they mix."""

import pytest
import torch
from torch import Tensor

from normwise.errors import SettingError
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
    run,
)
from tests.tolerance import FLOAT64_OUTPUT, assert_close


# placements.md, hyper_connections: n copies, dynamic part 0, mean at the exit is pre_norm
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("streams", [1, 2, 4, 7])
def test_hyper_connections_start_as_pre_norm(streams: int, dynamic: bool) -> None:  # noqa: FBT001
    ours = built("hyper_connections", depth=6, streams=streams, dynamic=dynamic)
    theirs = built("pre_norm", depth=6)
    x = drawn(2, 5, DIM, seed=1).requires_grad_()
    weights = matrices(12).requires_grad_()
    pairs = []
    for placement in (ours, theirs):
        out = run(placement, x, relu_branches(weights))
        pairs.append((out, *torch.autograd.grad(out, [x, weights], drawn(2, 5, DIM, seed=2))))
    for result, expected in zip(*pairs, strict=True):
        assert_close(result, expected, FLOAT64_OUTPUT)


# Zhu et al. 2024 (2409.19606): the branch s reads stream s mod n
@pytest.mark.parametrize("streams", [2, 3, 4])
def test_branches_read_one_stream_in_turn(streams: int) -> None:
    state = drawn(streams, 4, DIM)
    for index, connection in enumerate(connections(built("hyper_connections", streams=streams))):
        seen: list[Tensor] = []
        connection(state, lambda entry, seen=seen: seen.append(entry) or torch.zeros_like(entry))
        assert_close(seen[0], layer_norm(state[index % streams]).detach(), FLOAT64_OUTPUT)


# placements.md, section 7, item 6: hyper-connections#8, mHC#3 did not use R
@pytest.mark.parametrize("dynamic", [True, False])
def test_permuting_rows_of_mix_permutes_the_streams(dynamic: bool) -> None:  # noqa: FBT001
    connection = connections(built("hyper_connections", dynamic=dynamic))[0]
    state, order = drawn(4, 3, DIM), [2, 0, 3, 1]
    out = connection(state, torch.zeros_like)
    assert torch.equal(out, state)
    with torch.no_grad():
        connection.mix.copy_(connection.mix[order])
    assert torch.equal(connection(state, torch.zeros_like), state[order])


# placements.md, section 7, item 5: Sinkhorn over an axis of size 1 gave 4, 16, 256 ... times x
@pytest.mark.parametrize("depth", [1, 2, 4, 12])
def test_zero_branches_leave_every_stream_its_size(depth: int) -> None:
    placement = built("hyper_connections", depth, streams=4)
    x = drawn(3, DIM)
    state = last_state(placement, x, [torch.zeros_like] * (2 * depth))
    assert torch.equal(state, x.expand(4, 3, DIM))


def test_each_stream_is_written_by_its_own_factor() -> None:
    connection = connections(built("hyper_connections"))[0]
    state, branch = drawn(4, 3, DIM), drawn(3, DIM, seed=1)
    factors = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
    with torch.no_grad():
        connection.write.copy_(factors)
    out = connection(state, lambda entry: branch)
    assert_close(out, state + factors[:, None, None] * branch, FLOAT64_OUTPUT)


def test_the_dynamic_part_starts_without_a_say_and_at_a_hundredth() -> None:
    for connection in connections(built("hyper_connections")):
        assert torch.equal(connection.weight, torch.zeros(DIM, 6).double())
        assert torch.equal(connection.factor.float(), torch.full((6,), 0.01))
    static = built("hyper_connections", dynamic=False)
    own = {name.rpartition(".")[2] for name, _ in connections(static)[0].named_parameters()}
    assert own == {"read", "mix", "write", "weight", "bias"}


@pytest.mark.parametrize("streams", [0, -1])
def test_there_is_at_least_one_stream(streams: int) -> None:
    with pytest.raises(SettingError) as raised:
        built("hyper_connections", streams=streams)
    assert str(raised.value) == (f"hyper_connections: streams must be at least 1. It is {streams}.")


# placements.md, attention_residuals, exact test: mean and sum differ by what the norms remove
@pytest.mark.parametrize("depth", [4, 16])
def test_attention_residuals_without_queries_are_pre_norm_with_rms_norm(depth: int) -> None:
    results = []
    for name in ("attention_residuals", "pre_norm"):
        placement = make_placement(name, DIM, depth, norm="rms_norm", eps=0.0).double()
        gains = [p for key, p in placement.named_parameters() if key.endswith("norm.weight")]
        with torch.no_grad():
            for seed, gain in enumerate(gains):
                gain.add_(0.3 * drawn(DIM, seed=seed))
        x = drawn(2, 5, DIM, seed=1).requires_grad_()
        weights = matrices(2 * depth).requires_grad_()
        out = run(placement, x, relu_branches(weights))
        cotangent = drawn(2, 5, DIM, seed=2)
        results.append((out, *torch.autograd.grad(out, [x, weights, *gains], cotangent)))
    for result, expected in zip(*results, strict=True):
        assert_close(result, expected, 1e-6 * expected.abs().max())


def test_a_query_turns_h_to_the_outputs_it_likes() -> None:
    connection = connections(built("attention_residuals", depth=1))[0]
    x = drawn(3, DIM)
    with torch.no_grad():
        connection.query[0] = 1e3
    x[:, 0], liked = -1.0, torch.ones(3, DIM, dtype=torch.float64)
    h, values = connection((x, (x,)), lambda entry: liked)
    assert_close(h, liked, FLOAT64_OUTPUT)
    assert len(values) == 2


# Xie et al. 2023 (2304.14802): x is post-norm and r the free sum, which the branches never read
def test_resi_dual_ends_with_post_norm_plus_the_norm_of_the_free_sum() -> None:
    x, branches = drawn(4, DIM), relu_branches(matrices(2 * 3))
    post, outs = x, []
    for branch in branches:
        outs.append(branch(post))
        post = layer_norm(post + outs[-1])
    out = run(built("resi_dual"), x, branches)
    assert_close(out, post + layer_norm(x + torch.stack(outs).sum(0)), FLOAT64_OUTPUT)


# placements.md, siamese_norm: the code has an input norm and 1/sqrt(2(l+1)) besides, l from 0
def test_the_two_forms_of_siamese_norm() -> None:
    x, y, branch = drawn(4, DIM), 2.0 * drawn(4, DIM, seed=1), drawn(4, DIM, seed=2)
    for form, entry in [
        ("siamese_norm", x + layer_norm(y)),
        ("siamese_norm_scaled", layer_norm(layer_norm(x) + layer_norm(y))),
    ]:
        for index, connection in enumerate(connections(built(form))):
            seen: list[Tensor] = []
            new_x, new_y = connection((x, y), lambda e, seen=seen: seen.append(e) or branch)
            assert_close(seen[0], entry, FLOAT64_OUTPUT)
            assert_close(new_y, y + branch, FLOAT64_OUTPUT)
            scale = (2 * (index // 2 + 1)) ** -0.5
            paper = form == "siamese_norm"
            expected = layer_norm(x + branch) if paper else layer_norm(x) + scale * branch
            assert_close(new_x, expected, FLOAT64_OUTPUT)
