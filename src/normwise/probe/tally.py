"""Sums and maxima by name on the model's device: added to without waiting for it, merged over
micro-batches and processes, read with one copy.
"""

import zlib
from collections.abc import Hashable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

Key = Hashable


class Tally:
    """A tensor of sums and one of maxima of magnitudes for each key.

    What is added must be what adds up: counts, sums and sums of powers, never means.

    Args:
        device: where the values come from.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # MPS has no fp64
        self.dtype = torch.float32 if device.type == "mps" else torch.float64
        self.sums: dict[Key, Tensor] = {}
        self.maxima: dict[Key, Tensor] = {}
        self._once: dict[Key, Tensor] = {}
        self._planned: set[Key] = set()

    def plan(self) -> None:
        """All keys so far are there in every process; others come up as passes go."""
        self._planned = {*self.sums, *self.maxima}

    def prepare(self, key: Key, *, sums: int = 0, maxima: int = 0) -> None:
        """Room for a key: a compiled model can only write to tensors that are there already."""
        if sums:
            self.sums[key] = torch.zeros(sums, dtype=self.dtype, device=self.device)
        if maxima:
            self.maxima[key] = torch.zeros(maxima, dtype=self.dtype, device=self.device)

    def add(self, key: Key, values: Tensor) -> None:
        """Adds a vector to the sums of a key; one of another length begins anew."""
        if key not in self.sums or len(self.sums[key]) != len(values):
            self.prepare(key, sums=len(values))
        self.sums[key].add_(values.to(self.device, self.dtype))

    def rise(self, key: Key, values: Tensor) -> None:
        """Raises the maxima of a key to a vector of magnitudes, likewise; not-a-number stays."""
        if key not in self.maxima or len(self.maxima[key]) != len(values):
            self.prepare(key, maxima=len(values))
        here = self.maxima[key]
        here.copy_(torch.maximum(here, values.to(self.device, self.dtype)))

    def send(self, key: Key, values: Tensor) -> None:
        """Sums that go with the next collection alone."""
        self._once[key] = values.to(self.device, self.dtype).flatten()

    def clear(self) -> None:
        """Back to nothing added."""
        for tensor in (*self.sums.values(), *self.maxima.values()):
            tensor.zero_()
        self._once.clear()

    def collect(self, group: dist.ProcessGroup | None = None) -> "Collected":
        """Takes what was added so far off the device, without waiting, and clears.

        Args:
            group: of processes whose tallies become one: by two all-reduces of all values at once,
                and a small one that tells whether all have seen the same; where not, only what was
                planned is merged, and the rest is left out.
        """
        if group is not None and not self._agreed(group):
            for kept in (self.sums, self.maxima):
                for key in set(kept) - self._planned:
                    del kept[key]
        kinds = (({**self.sums, **self._once}, dist.ReduceOp.SUM),
                 (self.maxima, dist.ReduceOp.MAX))  # fmt: skip
        parts = []
        for kept, operation in kinds:
            flat = torch.cat([*kept.values(), torch.zeros(1, dtype=self.dtype, device=self.device)])
            if group is not None:
                dist.all_reduce(flat, operation, group=group)
            parts.append(_off_device(flat))
        sizes = [{key: len(value) for key, value in kept.items()} for kept, _ in kinds]
        self.clear()
        done = None
        if self.device.type == "cuda":
            done = torch.cuda.Event()
            done.record()
        return Collected(parts, sizes, done)

    def _agreed(self, group: dist.ProcessGroup) -> bool:
        """Whether all processes have the same keys with the same lengths, in one order."""
        keys = [(key, len(values)) for kept in (self.sums, self.maxima)
                for key, values in kept.items()]  # fmt: skip
        sign = zlib.crc32(repr(keys).encode())
        both = torch.tensor([sign, -sign], dtype=self.dtype, device=self.device)
        dist.all_reduce(both, dist.ReduceOp.MAX, group=group)
        return bool(both[0] == -both[1])


def _off_device(flat: Tensor) -> Tensor:
    if flat.device.type != "cuda":
        return flat.cpu()
    host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
    return host.copy_(flat, non_blocking=True)


@dataclass
class Collected:
    """A tally on its way to the host."""

    parts: list[Tensor]
    sizes: list[dict[Key, int]]
    done: torch.cuda.Event | None

    def values(self) -> tuple[dict[Key, list[float]], dict[Key, list[float]]]:
        """Sums and maxima by key; waits for the copy."""
        if self.done is not None:
            self.done.synchronize()
        found: list[dict[Key, list[float]]] = []
        for flat, sizes in zip(self.parts, self.sizes, strict=True):
            numbers, at = flat.tolist(), 0
            found.append({})
            for key, size in sizes.items():
                found[-1][key] = numbers[at : at + size]
                at += size
        return found[0], found[1]
