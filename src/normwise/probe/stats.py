"""Statistics that can be merged: over batches, micro-batches and processes."""

import math
from dataclasses import dataclass

from torch import Tensor


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
