"""A monitor in a training of two processes: the record is that of one process with all data."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from normwise.probe.monitor import Monitor
from normwise.probe.record import Record
from tests.probe.models import Tiny, ids, loss_of

STEPS = 6
CLOSE = 2e-4  # after six steps whose gradients were summed in another order


def trained(model: nn.Module, monitor: Monitor, batch: torch.Tensor) -> list[Record]:
    """The records of a few steps on one batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor.watch(optimizer)
    for _ in range(STEPS):
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss=loss)
    monitor.close()
    return monitor.run.records


def replicated(batch: torch.Tensor) -> list[Record]:
    model = DistributedDataParallel(Tiny())
    return trained(model, Monitor(model), batch)


def sharded(batch: torch.Tensor) -> list[Record]:
    model = Tiny()
    monitor = Monitor(model, batch=batch)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return trained(model, monitor, batch)


WAYS = {way.__name__: way for way in (replicated, sharded)}


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2,
        timeout=timedelta(minutes=4),
    )  # fmt: skip
    half = ids(rows=8).chunk(2)[rank]
    torch.save({name: way(half) for name, way in WAYS.items()}, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Record]]]:
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(work, (folder,), nprocs=2, daemon=True)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def numbers(record: Record) -> dict[str, list[float]]:
    """What is the same however the batch is divided; samples of attention and updates are not."""
    (stack,) = record.stacks
    points = [point for point in stack.points if point is not None]
    return {
        "count": [p.count for p in points],
        "stream": [p.rms for p in points],
        "largest": [p.largest for p in points],
        "gradient": [p.gradient for p in points],
        "branch": [c.branch.rms for c in stack.connections if c.branch is not None],
        "parameters": [c.parameter_gradient or 0.0 for c in stack.connections],
        "norms": [norm.share for norm in record.norms],
        "bounds": [bound for one in record.attentions for bound in one.bound],
        "loss": [record.loss],
    }


@pytest.mark.parametrize("way", WAYS)
def test_the_records_are_those_of_one_process(
    ranks: list[dict[str, list[Record]]], way: str
) -> None:
    model = Tiny()
    alone = trained(model, Monitor(model), ids(rows=8))
    for rank in ranks:
        assert [record.step for record in rank[way]] == [record.step for record in alone]
        for one, both in zip(alone, rank[way], strict=True):
            expected, found = numbers(one), numbers(both)
            for name in expected:
                assert found[name] == pytest.approx(expected[name], rel=CLOSE), (one.step, name)


@pytest.mark.parametrize("way", WAYS)
def test_both_processes_have_the_same_record(
    ranks: list[dict[str, list[Record]]], way: str
) -> None:
    first, second = (rank[way] for rank in ranks)
    assert list(map(numbers, first)) == list(map(numbers, second))
    assert [u.relative for u in first[-1].updates] == [u.relative for u in second[-1].updates]
    assert all(u.relative > 0 for u in first[-1].updates if u.matrix)
