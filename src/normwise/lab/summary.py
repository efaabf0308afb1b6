"""From stored runs to variants: loss with its interval over seeds, and what went wrong."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from normwise.errors import MissingExtra
from normwise.lab.store import Record

try:
    from scipy.special import stdtrit
except ImportError:
    raise MissingExtra("scipy", "lab", "A comparison") from None

CONFIDENCE = 0.95
STUCK_WITHIN = 0.1
VARIANT_AXES = ("norm", "placement", "init", "warmup", "optimizer", "depth")
MODEL_AXES = ("norm", "placement", "init", "depth")


@dataclass(frozen=True)
class RateSummary:
    """One variant at one learning rate.

    Args:
        lr: the rate.
        losses: validation loss by seed; None where the run diverged.
        mean: over the seeds that did not diverge; None if all did.
        half_width: of the 95 % Student-t interval of the mean; None with fewer than two seeds.
        diverged: step at which the loss was not finite, by seed.
        stuck: seeds that ended within 0.1 nats of the unigram level.
        untrained: seeds that ended above that.
    """

    lr: float
    losses: dict[int, float | None]
    mean: float | None
    half_width: float | None
    diverged: dict[int, int]
    stuck: list[int]
    untrained: list[int]


@dataclass(frozen=True)
class VariantSummary:
    """One variant: everything but rate and seed.

    Args:
        axes: its place on the grid.
        best: the rate with the fewest diverged seeds and then the lowest mean loss.
        rates: all its rates, in ascending order.
        parameters: of the model.
        tokens_per_second: median over its runs, in training.
        peak_memory_bytes: largest over its runs.
        seeds: number of seeds at the best rate.
    """

    axes: dict[str, str | int]
    best: RateSummary
    rates: list[RateSummary]
    parameters: int
    tokens_per_second: float
    peak_memory_bytes: int
    seeds: int


@dataclass(frozen=True)
class InitialProfile:
    """A model at initialisation, by connection: mean RMS over its seeds, None for an overflow.

    Args:
        axes: norm, placement, initialisation and depth.
        stream: the stream at its entry and after each branch.
        branch: each branch as it leaves its sublayer.
        stream_gradient: gradient of the loss at the same points as `stream`.
        predicted: what theory expects of `stream`; None where it has nothing to say.
    """

    axes: dict[str, str | int]
    stream: list[float | None]
    branch: list[float | None]
    stream_gradient: list[float | None]
    predicted: list[float] | None


def summarize(records: Iterable[Record], unigram_loss: float) -> list[VariantSummary]:
    """The variants in the order in which their first run comes."""
    return [_variant(axes, runs, unigram_loss) for axes, runs in group(records, VARIANT_AXES)]


def mean_profile(runs: Sequence[Record], name: str) -> list[float | None]:
    """Mean over runs of one of their initial profiles, point by point; None where one overflows."""
    profiles = [run["initial"][name] for run in runs]
    return [
        None if None in values else statistics.fmean(values)
        for values in zip(*profiles, strict=True)
    ]


def group(
    records: Iterable[Record], axes: Sequence[str]
) -> list[tuple[dict[str, str | int], list[Record]]]:
    """Records that agree on these settings, in order of first appearance."""
    groups: dict[tuple[str | int, ...], list[Record]] = {}
    for record in records:
        key = tuple(record["settings"][axis] for axis in axes)
        groups.setdefault(key, []).append(record)
    return [(dict(zip(axes, key, strict=True)), runs) for key, runs in groups.items()]


def interval_half_width(values: Sequence[float]) -> float | None:
    """Half the 95 % Student-t interval of a mean: t(n-1) s/sqrt(n). None below two values."""
    if len(values) < 2:
        return None
    quantile = float(stdtrit(len(values) - 1, 0.5 + CONFIDENCE / 2))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def _variant(axes: dict[str, str | int], runs: list[Record], unigram_loss: float) -> VariantSummary:
    rates = [
        _rate(float(key["lr"]), at_rate, unigram_loss) for key, at_rate in group(runs, ("lr",))
    ]
    rates.sort(key=lambda rate: rate.lr)
    best = min(rates, key=lambda rate: (len(rate.diverged), rate.mean or math.inf))
    return VariantSummary(
        axes=axes,
        best=best,
        rates=rates,
        parameters=runs[0]["parameters"],
        tokens_per_second=statistics.median(run["tokens_per_second"] for run in runs),
        peak_memory_bytes=max(run["peak_memory_bytes"] for run in runs),
        seeds=len(best.losses),
    )


def _rate(lr: float, runs: list[Record], unigram_loss: float) -> RateSummary:
    losses = {run["settings"]["seed"]: run["validation_loss"] for run in runs}
    excess = {s: loss - unigram_loss for s, loss in losses.items() if loss is not None}
    finite = [loss for loss in losses.values() if loss is not None]
    return RateSummary(
        lr=lr,
        losses=losses,
        mean=statistics.fmean(finite) if finite else None,
        half_width=interval_half_width(finite),
        diverged={
            run["settings"]["seed"]: run["diverged_at"] for run in runs if run["diverged_at"]
        },
        stuck=[seed for seed in excess if abs(excess[seed]) <= STUCK_WITHIN],
        untrained=[seed for seed in excess if excess[seed] > STUCK_WITHIN],
    )
