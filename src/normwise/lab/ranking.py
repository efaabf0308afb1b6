"""Which variant has the lowest loss, and from which others its seeds can tell it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from normwise.lab.summary import RateSummary, VariantSummary, interval_half_width


@dataclass(frozen=True)
class Difference:
    """Loss of a variant minus the lowest one's, seed by seed, each at its best rate.

    Args:
        mean: over the seeds that both have.
        half_width: of its 95 % Student-t interval; None with fewer than two such seeds.
        seeds: their number.
        separable: the interval lies above 0; None where there is no interval.
    """

    mean: float
    half_width: float | None
    seeds: int
    separable: bool | None


@dataclass(frozen=True)
class Ranking:
    """Who is lowest, and by how much.

    Args:
        lowest: index of the variant with the lowest mean loss among those of which no seed
            diverged.
        differences: for each variant; None for the lowest itself, for one with a diverged seed
            and for one that shares no seed with it.
    """

    lowest: int
    differences: list[Difference | None]

    @property
    def tied(self) -> list[int]:
        """Variants that the seeds do not tell from the lowest."""
        return [i for i, d in enumerate(self.differences) if d is not None and not d.separable]


def rank(variants: Sequence[VariantSummary]) -> Ranking | None:
    """None where a variant has fewer than two seeds, or every variant has a diverged one.

    Without spread there is no ranking, and a mean over one seed may be lower than all others.

    The rate of each variant was chosen on the same losses, and the intervals are not widened for
    their number, so a difference at the edge of its interval deserves more seeds.
    """
    rates = [variant.best for variant in variants]
    means = {
        index: rate.mean
        for index, rate in enumerate(rates)
        if rate.mean is not None and not rate.diverged
    }
    if not means or any(len(rates[index].losses) < 2 for index in means):
        return None
    lowest = min(means, key=lambda index: means[index])
    return Ranking(
        lowest=lowest,
        differences=[
            None if index == lowest else _difference(variant.best, variants[lowest].best)
            for index, variant in enumerate(variants)
        ],
    )


def _difference(rate: RateSummary, lowest: RateSummary) -> Difference | None:
    if rate.diverged:
        return None
    pairs = ((loss, lowest.losses.get(seed)) for seed, loss in rate.losses.items())
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    if not differences:
        return None
    average, half_width = statistics.fmean(differences), interval_half_width(differences)
    return Difference(
        mean=average,
        half_width=half_width,
        seeds=len(differences),
        separable=None if half_width is None else average > half_width,
    )
