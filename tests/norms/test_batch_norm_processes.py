"""P41: batch norms over two processes equal one process that has both batches.

pytorch#22192, #36382; apex#387, PR#792 (statistics of ranks averaged without their counts)
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn

import normwise as nw
from normwise.errors import ShapeError
from normwise.norms.batch_norm import BatchNorm
from tests.norms.test_batch_norm import CHANNELS, LENGTH, built, drawn, kept, state, written
from tests.tolerance import FLOAT64_OUTPUT, assert_close

F64 = torch.float64
EPS = 1e-5


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def reaching(*lengths: int) -> Tensor:
    return torch.arange(LENGTH) < torch.tensor(lengths).reshape(-1, 1)


@dataclass(frozen=True)
class Case:
    """A form, and what each rank has: lengths of its sequences, or None for no mask."""

    form: str
    sequences: tuple[int, int]
    lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def inputs(self, rank: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """x, dy and the mask of a rank."""
        shape = (self.sequences[rank], LENGTH, CHANNELS)
        x, dy = (1 + 2 * randn(*shape, seed=2 * k + rank) for k in range(2))
        return x, dy, None if self.lengths is None else reaching(*self.lengths[rank])

    def build(self) -> BatchNorm:
        norm = drawn(built(self.form, dtype=F64, synchronized=True))
        norm.reset_running_stats()
        return norm


CASES = {
    f"{form}, {what}": Case(form, *given)
    for form in ("tokens", "position")
    for what, given in {
        "unequal ranks": ((3, 2),),
        "an empty rank": ((3, 0),),
        "masked": ((3, 2), ((6, 4, 1), (5, 2))),
        "masked and empty": ((0, 3), ((), (6, 4, 1))),
        "all of a rank padded": ((2, 3), ((0, 0), (6, 4, 1))),
        "one token here, one there": ((1, 1), ((1,), (1,))),
    }.items()
}


def step(norm: BatchNorm, x: Tensor, dy: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """Output, gradients and buffers of one training step."""
    x.requires_grad_()
    y = norm(x, mask)
    loss = (y * dy).sum() + nw.batch_penalty(norm) / dist.get_world_size()
    loss.backward()
    gradients = {name: p.grad for name, p in norm.named_parameters()}
    return {"y": y.detach(), "x": x.grad, **gradients, **dict(norm.named_buffers())}


def by_hand(rank: int) -> dict[str, Tensor]:
    """P41's numbers."""
    own = slice(0, 3) if rank == 0 else slice(3, 5)
    x, dy = (torch.tensor(v)[own, None] for v in ([1.0, 2, 3, 10, 20], [1.0, 2, 3, 4, 5]))
    return step(nw.BatchNormTokens(1, momentum=1.0, synchronized=True), x, dy, None)


def regularized(rank: int) -> dict[str, Tensor]:
    norm = nw.RegularizedBatchNorm(CHANNELS, dtype=F64, synchronized=True, penalties=(3.0, 2.0))
    return step(norm, *CASES["tokens, masked"].inputs(rank))


def alone_in_a_group(rank: int) -> dict[str, Tensor]:
    """Each rank with a group of its own, of which all must hear."""
    groups = [dist.new_group([other]) for other in range(2)]
    norm = built("tokens", dtype=F64, synchronized=True, process_group=groups[rank])
    return step(drawn(norm), *CASES["tokens, masked"].inputs(rank))


def one_token_in_all(rank: int) -> dict[str, Tensor]:
    """Every rank raises, and none has changed."""
    norm = CASES["tokens, masked"].build()
    before = state(norm)
    with pytest.raises(ShapeError, match="two valid tokens or more"):
        norm(randn(1, LENGTH, CHANNELS), reaching(1 - rank))
    return {name: before[name] - tensor for name, tensor in norm.state_dict().items()}


def evaluated_by_one(rank: int) -> dict[str, Tensor]:
    """Evaluation waits for nobody."""
    norm = CASES["tokens, masked"].build().eval()
    return {} if rank else {"y": norm(randn(3, LENGTH, CHANNELS))}


OTHERS: dict[str, Callable[[int], dict[str, Tensor]]] = {
    work.__name__: work
    for work in (by_hand, regularized, alone_in_a_group, one_token_in_all, evaluated_by_one)
}


def work(rank: int, folder: Path) -> None:
    """All of a rank, whose results go into a file. Ranks that wait in vain give up in time."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2,
        timeout=timedelta(minutes=4),
    )  # fmt: skip
    results = {name: step(case.build(), *case.inputs(rank)) for name, case in CASES.items()}
    results |= {name: other(rank) for name, other in OTHERS.items()}
    torch.save(results, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    """What both ranks found. `spawn` raises what a process raised, or its exit code."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(work, (folder,), nprocs=2, daemon=True)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


Ranks = list[dict[str, dict[str, Tensor]]]


def joined(ranks: Ranks, name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Rows of both ranks behind one another, and sums of their parameter gradients."""
    a, b = (rank[name] for rank in ranks)
    rows = {key: torch.cat([a[key], b[key]]) for key in ("y", "x")}
    return rows, {key: a[key] + b[key] for key in ("weight", "bias")}


def assert_same_buffers(ranks: Ranks, name: str) -> dict[str, Tensor]:
    a, b = (rank[name] for rank in ranks)
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    assert all(torch.equal(a[key], b[key]) for key in buffers)
    return a


def test_P41_by_hand(ranks: Ranks) -> None:
    """P41: mean 7.2, variance 50.96 for the output and 63.7 kept; ranks averaged without their
    counts would give 8.5 and 12.83.
    """
    found = assert_same_buffers(ranks, "by_hand")
    assert_close(found["running_mean"], torch.tensor([7.2], dtype=F64), 1e-6)
    assert_close(found["running_var"], torch.tensor([63.7], dtype=F64), 1e-5)
    rows, _ = joined(ranks, "by_hand")
    x = torch.tensor([1, 2, 3, 10, 20], dtype=F64)
    assert_close(rows["y"].flatten(), (x - 7.2) / (50.96 + EPS) ** 0.5, 2e-6)
    dx = [-0.12336978, -0.00857653, 0.10621671, 0.06927180, -0.04354220]
    assert_close(rows["x"].flatten(), torch.tensor(dx, dtype=F64), 2e-6)


@pytest.mark.parametrize("name", list(CASES))
def test_P41_as_one_process(name: str, ranks: Ranks) -> None:
    """P41: outputs, gradients and running statistics of the formula on both batches at once."""
    case, norm = CASES[name], CASES[name].build()
    a, b = (case.inputs(rank) for rank in range(2))
    x, dy = (torch.cat(pair) for pair in zip(a[:2], b[:2], strict=True))
    mask = torch.ones(x.shape[:2], dtype=torch.bool)
    if a[2] is not None and b[2] is not None:
        mask = torch.cat([a[2], b[2]])
    leaves = [t.detach().clone().requires_grad_() for t in (x, norm.weight, norm.bias)]
    y = written(case.form, leaves[0], mask, *leaves[1:])
    dx, dw, db = torch.autograd.grad(y, leaves, dy)
    rows, sums = joined(ranks, name)
    for found, right in (
        (rows["y"], y.detach()), (rows["x"], dx), (sums["weight"], dw), (sums["bias"], db),
    ):  # fmt: skip
        assert_close(found, right, FLOAT64_OUTPUT * right.abs().clamp(min=10.0))
    found = assert_same_buffers(ranks, name)
    mean, variance, seen = kept(case.form, x, mask)
    assert_close(found["running_mean"], mean, FLOAT64_OUTPUT)
    assert_close(found["running_var"], variance, FLOAT64_OUTPUT)
    assert torch.equal(found["num_batches_tracked"], seen)


def test_the_penalty_of_one_process(ranks: Ranks) -> None:
    """Half of it in the loss of either rank has the gradient of the whole in one process."""
    a, b = (CASES["tokens, masked"].inputs(rank) for rank in range(2))
    x, dy, mask = (torch.cat(pair) for pair in zip(a, b, strict=True))
    x.requires_grad_()
    rows = x[mask]
    mean, variance = rows.mean(0), rows.var(0, correction=0)
    unit = (rows - mean) / variance.clamp(min=EPS).sqrt()
    penalty = 3 * mean.square().sum() + 2 * (1 - variance).abs().sum()
    (dx,) = torch.autograd.grad((unit * dy[mask]).sum() + penalty, x)
    assert_close(joined(ranks, "regularized")[0]["x"], dx, FLOAT64_OUTPUT)
    found = assert_same_buffers(ranks, "regularized")
    assert_close(found["running_mean"], 0.05 * mean.detach(), FLOAT64_OUTPUT)
    assert_close(found["running_var"], 0.95 + 0.05 * variance.detach(), FLOAT64_OUTPUT)


def test_a_group_of_one_s_own(ranks: Ranks) -> None:
    """process_group limits who is counted."""
    for rank, results in enumerate(ranks):
        case = CASES["tokens, masked"]
        x, _, mask = case.inputs(rank)
        norm: Any = case.build()
        y = written("tokens", x, mask, norm.weight.detach(), norm.bias.detach())
        assert_close(results["alone_in_a_group"]["y"], y, FLOAT64_OUTPUT)


def test_one_token_in_all_ranks(ranks: Ranks) -> None:
    """P35 over processes: each raises, with its state as before."""
    assert all(not t.any() for rank in ranks for t in rank["one_token_in_all"].values())


def test_evaluation_needs_no_other_rank(ranks: Ranks) -> None:
    norm: nn.Module = CASES["tokens, masked"].build()
    norm.synchronized = False
    y = norm.eval()(randn(3, LENGTH, CHANNELS))
    assert torch.equal(ranks[0]["evaluated_by_one"]["y"], y)
