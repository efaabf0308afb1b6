"""From stored runs to variants: loss with its interval over seeds, and what went wrong."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from normwise.errors import MissingExtra
from normwise.lab.store import Record

try:
    from scipy.special import stdtrit
except ImportError:
    raise MissingExtra("scipy", "lab", "A comparison") from None

CONFIDENCE = 0.95
STUCK_WITHIN = 0.1
CURVE_POINTS = 100
VARIANT_AXES = ("norm", "placement", "init", "warmup", "optimizer", "depth")
# Settings that the model at initialisation does not depend on.
TRAINING = (
    "lr", "seed", "warmup", "optimizer", "steps", "accumulate", "schedule", "betas",
    "weight_decay", "clip",
)  # fmt: skip

Axes = dict[str, Any]


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
        best: the rate with the most seeds, then the fewest diverged, then the lowest mean loss.
        rates: all its rates, in ascending order.
        parameters: of the model.
        tokens_per_second: median over its runs, in training.
        peak_memory_bytes: largest over its runs.
        seeds: number of seeds at the best rate.
    """

    axes: Axes
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

    axes: Axes
    stream: list[float | None]
    branch: list[float | None]
    stream_gradient: list[float | None]
    predicted: list[float] | None


@dataclass(frozen=True)
class Curve:
    """Training loss of one variant at its best rate, each point the mean over a few steps.

    Args:
        steps: middle of the steps that a point stands for.
        mean: over the seeds that came so far; those that diverged before are not in it.
        low, high: the lowest and the highest of them.
        diverged: the step at which a seed's loss was not finite, and its last finite loss, for
            each such seed.
    """

    steps: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    diverged: list[tuple[int, float | None]]


def summarize(records: Sequence[Record], unigram_loss: float) -> list[VariantSummary]:
    """The variants in the order in which their first run comes."""
    axes = variant_axes(records)
    return [_variant(point, runs, unigram_loss) for point, runs in group(records, axes)]


def loss_curves(records: Sequence[Record], variants: Sequence[VariantSummary]) -> list[Curve]:
    """One curve for each variant, in the same order."""
    groups = group(records, variant_axes(records))
    return [
        _curve([run for run in runs if run["settings"]["lr"] == variant.best.lr])
        for variant, (_, runs) in zip(variants, groups, strict=True)
    ]


def variant_axes(records: Sequence[Record]) -> list[str]:
    """The axes of the grid, and every other setting but rate and seed that is not the same."""
    others = (name for name in varying(records) if name not in ("lr", "seed", *VARIANT_AXES))
    return [*VARIANT_AXES, *others]


def model_axes(records: Sequence[Record]) -> list[str]:
    """Those of them that the model at initialisation depends on."""
    return [axis for axis in variant_axes(records) if axis not in TRAINING]


def varying(records: Sequence[Record]) -> list[str]:
    """Names of the settings on which these runs differ."""
    settings = [record["settings"] for record in records]
    return [
        name for name in (settings[0] if settings else ())
        if any(other[name] != settings[0][name] for other in settings)
    ]  # fmt: skip


def mean_profile(runs: Sequence[Record], name: str) -> list[float | None]:
    """Mean over runs of one of their initial profiles, point by point; None where one overflows."""
    profiles = [run["initial"][name] for run in runs]
    return [
        None if None in values else statistics.fmean(values)
        for values in zip(*profiles, strict=True)
    ]


def group(records: Iterable[Record], axes: Sequence[str]) -> list[tuple[Axes, list[Record]]]:
    """Records that agree on these settings, in order of first appearance."""
    groups: dict[str, tuple[Axes, list[Record]]] = {}
    for record in records:
        point = {axis: record["settings"][axis] for axis in axes}
        groups.setdefault(json.dumps(point), (point, []))[1].append(record)
    return list(groups.values())


def interval_half_width(values: Sequence[float]) -> float | None:
    """Half the 95 % Student-t interval of a mean: t(n-1) s/sqrt(n). None below two values."""
    if len(values) < 2:
        return None
    quantile = float(stdtrit(len(values) - 1, 0.5 + CONFIDENCE / 2))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def _variant(axes: Axes, runs: list[Record], unigram_loss: float) -> VariantSummary:
    rates = [
        _rate(float(key["lr"]), at_rate, unigram_loss) for key, at_rate in group(runs, ("lr",))
    ]
    rates.sort(key=lambda rate: rate.lr)
    best = min(rates, key=_preference)
    return VariantSummary(
        axes=axes,
        best=best,
        rates=rates,
        parameters=runs[0]["parameters"],
        tokens_per_second=statistics.median(run["tokens_per_second"] for run in runs),
        peak_memory_bytes=max(run["peak_memory_bytes"] for run in runs),
        seeds=len(best.losses),
    )


def _preference(rate: RateSummary) -> tuple[int, int, float]:
    """More seeds first, so that a rate that has just begun is not compared with a whole one."""
    loss = math.inf if rate.mean is None else rate.mean
    return -len(rate.losses), len(rate.diverged), loss


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


def _curve(runs: Sequence[Record]) -> Curve:
    longest = max(len(run["train_loss"]) for run in runs)
    width = math.ceil(longest / CURVE_POINTS) or 1
    starts = range(0, longest, width)
    points = [
        [statistics.fmean(part) for run in runs if (part := run["train_loss"][at : at + width])]
        for at in starts
    ]
    return Curve(
        steps=[(at + min(at + width, longest) + 1) / 2 for at in starts],
        mean=[statistics.fmean(values) for values in points],
        low=[min(values) for values in points],
        high=[max(values) for values in points],
        diverged=[
            (run["diverged_at"], run["train_loss"][-1] if run["train_loss"] else None)
            for run in runs
            if run["diverged_at"]
        ],
    )
