"""What a norm says to the other processes in one step: how often, and how many bytes."""

import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from normwise.norms.batch_norm import BatchNormTokens
from normwise.norms.layer_norm import LayerNorm

PROCESSES = 2
SENDS = ("c10d", "_c10d_functional")


class Count(TorchDispatchMode):
    """Collectives that are called while it is open, and the bytes of their tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in SENDS and "wait" not in func.__name__:
            self.calls += 1
            tensors = [leaf for leaf in tree_leaves(args[0]) if isinstance(leaf, Tensor)]
            self.bytes += sum(tensor.nbytes for tensor in tensors)
        return func(*args, **(kwargs or {}))


Case = tuple[str, int]


def collectives(cases: Sequence[Case]) -> list[tuple[int, int]]:
    """Calls and bytes of one process, forward and backward, for each norm, "layer_norm" or a
    synchronized "batch_norm", over a width.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        spawn(_process, (path, cases), nprocs=PROCESSES)
        found: list[tuple[int, int]] = torch.load(path / "count.pt")
    return found


def _process(rank: int, folder: Path, cases: Sequence[Case]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=PROCESSES,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    try:
        found = [_counted(*case) for case in cases]
        if rank == 0:
            torch.save(found, folder / "count.pt")
    finally:
        dist.destroy_process_group()


def _counted(name: str, width: int) -> tuple[int, int]:
    norm = LayerNorm(width) if name == "layer_norm" else BatchNormTokens(width, synchronized=True)
    x = torch.randn(4, 16, width, requires_grad=True)
    with Count() as count:
        norm(x).square().sum().backward()
    return count.calls, count.bytes
