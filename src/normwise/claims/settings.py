"""What is asked of the claims. Imports nothing heavy, for the command line."""

from dataclasses import dataclass
from pathlib import Path

from normwise.errors import SettingError


@dataclass(frozen=True)
class Effort:
    """How much a measurement may cost.

    Args:
        seeds: over which a training run is repeated.
        quick: fewer and smaller training runs; what they cannot tell needs the full run.
    """

    seeds: int = 3
    quick: bool = False

    @property
    def draws(self) -> range:
        """Seeds of what takes a few seconds, whether quick or not."""
        return range(max(self.seeds, 3))


@dataclass(frozen=True, kw_only=True)
class ClaimSettings:
    """Which claims are run, and where.

    Args:
        ids: rows of `CLAIMS`; none for all.
        quick: one seed, fewer and smaller runs.
        seeds: None for 3, or 1 of a quick run.
        workers: processes, one torch thread each.
        out: the folder of the runs, of the measurements, the result and the pages.
    """

    ids: tuple[str, ...] = ()
    quick: bool = False
    seeds: int | None = None
    workers: int = 2
    out: Path = Path("runs/claims")

    def __post_init__(self) -> None:
        """Raises `SettingError` for a number below 1."""
        for name, value in (("seeds", self.seeds), ("workers", self.workers)):
            if value is not None and value < 1:
                raise SettingError(f"{name} must be at least 1. It is {value}.")

    @property
    def effort(self) -> Effort:
        seeds = self.seeds or (1 if self.quick else 3)
        return Effort(seeds, self.quick)
