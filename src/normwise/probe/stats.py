"""Statistics that can be merged: over batches, micro-batches and processes."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity


@dataclass
class MeanSquare:
    """Mean square of everything added, in float64; merging two is exact."""

    count: int = 0
    total: float = 0.0

    def add(self, x: Tensor) -> None:
        """Adds every entry of x. Reads the value at once, so it waits for the device."""
        self.count += x.numel()
        self.total += x.detach().cpu().double().square().sum().item()

    def merge(self, other: "MeanSquare") -> None:
        """Adds what another one has seen."""
        self.count += other.count
        self.total += other.total

    @property
    def rms(self) -> float:
        """Root of the mean square; NaN before anything was added."""
        return math.sqrt(self.total / self.count) if self.count else math.nan


def by_channel(x: Tensor) -> Tensor:
    """Largest magnitude of each channel; of two passes without a copy, quicker than of abs()."""
    flat = x.flatten(0, -2)
    return torch.maximum(flat.amax(0), -flat.amin(0)).float()


def powers(rows: Tensor) -> Tensor:
    """Entries, and the sums of their powers 1, 2 and 4, in fp64: none leaves its range."""
    largest = rows.abs().amax().clamp_min(1e-38)
    unit = rows / largest
    square = unit.square()
    size = largest.double()
    return torch.stack((
        torch.full_like(size, rows.numel()), unit.sum().double() * size,
        square.sum().double() * size**2, square.square().sum().double() * size**4,
    ))  # fmt: skip


def one_and(value: Tensor) -> Tensor:
    """A count of one, and a value."""
    return torch.stack((torch.ones_like(value), value)).double()


def pairs(rows: Tensor) -> Tensor:
    """Pairs of two tokens of a sequence times the width, and the sum of their products."""
    *sequences, tokens, width = rows.shape
    count = rows[..., 0, 0].numel() * tokens * (tokens - 1) * width
    products = rows.sum(-2).square().sum() - rows.square().sum()
    return torch.stack((torch.full_like(products, count), products)) if sequences else (
        rows.new_zeros(2)
    )  # fmt: skip


def angles(before: Tensor, rows: Tensor) -> Tensor:
    """Tokens, and the sum of arccos(cosine)/pi between two points of the stream."""
    if before.shape != rows.shape:
        return rows.new_zeros(2)
    cosine = cosine_similarity(before, rows, dim=-1).clamp(-1.0, 1.0)
    angle = cosine.arccos() / torch.pi
    return torch.stack((torch.full_like(angle.sum(), angle.numel()), angle.sum()))
