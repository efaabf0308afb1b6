"""The loss of every variant: the table, how it fell, and how it depends on the rate."""

import math
from collections.abc import Sequence
from typing import Any

from normwise.lab.comparison import Comparison
from normwise.lab.summary import CONFIDENCE, STUCK_WITHIN, Curve, RateSummary, VariantSummary
from normwise.report.document import Block, Column, Note, Spread, Table
from normwise.report.naming import Naming, axis_title, varying
from normwise.report.spelling import rate

# More lines than these no reader tells apart; the lowest losses are shown.
LINES_SHOWN = 16
INTERVAL = f"{100 * CONFIDENCE:.0f} % Student-t interval"


def loss_table(comparison: Comparison) -> Table:
    """Each variant at its best rate, in the order of the grid."""
    axes = varying([variant.axes for variant in comparison.variants])
    seeds = {variant.seeds for variant in comparison.variants}
    columns = [
        *(Column(axis_title(axis)) for axis in axes),
        Column("loss", "loss"), Column("above lowest", "difference"), Column("apart", "separable"),
        *([Column("seeds", "seeds")] if len(seeds) > 1 else []),
        Column("rate", "rate"), Column("outcome", "text"),
    ]  # fmt: skip
    return Table(
        name="losses",
        columns=columns,
        rows=[
            (
                *(str(variant.axes[axis]) for axis in axes),
                _spread(variant.best.mean, variant.best.half_width),
                *_difference(comparison, index),
                *([variant.seeds] if len(seeds) > 1 else []),
                variant.best.lr,
                _outcome(variant),
            )
            for index, variant in enumerate(comparison.variants)
        ],
        marked=comparison.ranking.lowest if comparison.ranking else None,
    )


def _spread(mean: float | None, half_width: float | None) -> Spread | None:
    return None if mean is None else Spread(mean, half_width)


def _difference(comparison: Comparison, index: int) -> tuple[Spread | None, bool | None]:
    found = comparison.ranking and comparison.ranking.differences[index]
    return (Spread(found.mean, found.half_width), found.separable) if found else (None, None)


def _outcome(variant: VariantSummary) -> str:
    """What went wrong at the best rate, and which rates went worse."""
    best = variant.best
    parts = []
    if best.diverged:
        steps = ", ".join(str(step) for step in sorted(best.diverged.values()))
        parts.append(f"diverged at {steps}")
    for what, seeds in (("stuck", best.stuck), ("untrained", best.untrained)):
        if seeds:
            parts.append(f"{what} {len(seeds)}/{variant.seeds}")
    lost = [other.lr for other in variant.rates if other.diverged and other is not best]
    if lost:
        parts.append("diverged at rate " + ", ".join(map(rate, lost)))
    return "; ".join(parts) or "trained"


def loss_notes(comparison: Comparison) -> list[Block]:
    """What the columns mean, and what the numbers cannot say."""
    variants = comparison.variants
    seeds = [variant.seeds for variant in variants]
    counts = " to ".join(str(count) for count in sorted({min(seeds), max(seeds)}))
    counted = "1 seed" if counts == "1" else f"{counts} seeds"
    level = comparison.data["unigram_loss"]
    lost = ", without those that diverged" if any(v.best.diverged for v in variants) else ""
    texts = [
        f"Loss: validation, nats a token, mean \u00b1 half the {INTERVAL} over {counted}{lost}, "
        f"at the best rate of each variant. Stuck: within {STUCK_WITHIN} of {level:.2f}, the loss "
        f"of a model that knows only how frequent each token is. Untrained: above that."
    ]
    compared = (
        sum(d is not None for d in comparison.ranking.differences) if comparison.ranking else 0
    )
    if compared:
        texts.append(
            f"Above lowest: difference from the variant with the lowest mean, paired by seed, with "
            f"its own {INTERVAL}. Apart: that interval lies above 0. None of the {compared} "
            f"intervals is widened for there being {compared}, nor for rates that were chosen on "
            f"the same losses."
        )
    edge = sum(len(v.rates) > 1 and v.best.lr in (v.rates[0].lr, v.rates[-1].lr) for v in variants)
    if edge:
        texts.append(
            f"The best rate of {edge} of {len(variants)} variants is the lowest or the highest "
            f"that was tried: a better one may lie beyond."
        )
    texts += [f"Skipped {item.what}: {item.reason}." for item in comparison.skipped]
    return [*map(Note, texts)]


def loss_figures(comparison: Comparison) -> list[Block]:
    """How the loss fell, and where every rate of every variant ended."""
    naming = Naming([variant.axes for variant in comparison.variants])
    shown = shown_variants(comparison.variants)
    level = comparison.data["unigram_loss"]
    some = len(shown) < len(comparison.variants)
    limited = f" The {LINES_SHOWN} lowest of {len(comparison.variants)} variants." if some else ""
    curves = [
        (comparison.variants[index].axes, _curve_rows(comparison.curves[index])) for index in shown
    ]
    finals = [(variant.axes, _final_rows(variant)) for variant in comparison.variants]
    several = len({rate.lr for variant in comparison.variants for rate in variant.rates}) > 1
    return [
        *naming.figures(
            "curves", "Training loss by step", curves, level=level,
            caption=f"Line: mean over the seeds still running, at each variant's best rate. Band: "
            f"from the lowest seed to the highest. Dotted: {level:.2f}, from token frequencies "
            f"alone. "
            f"Cross: a seed diverged, at its last finite loss.{limited}",
        ),
        *naming.figures(
            *(("rates", "Validation loss by learning rate") if several
              else ("finals", "Validation loss")),
            finals, level=level,
            caption=f"Large point: mean, with its {INTERVAL}. Small points: the seeds. "
            f"Cross at the edge: a seed diverged.",
        ),
    ]  # fmt: skip


def shown_variants(variants: Sequence[VariantSummary]) -> list[int]:
    """The variants with the lowest losses, in the order of the grid."""
    means = [math.inf if v.best.mean is None else v.best.mean for v in variants]
    return sorted(sorted(range(len(variants)), key=lambda index: means[index])[:LINES_SHOWN])


def _curve_rows(curve: Curve) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"step": step, "mean": mean, "low": low, "high": high}
        for step, mean, low, high in zip(
            curve.steps, curve.mean, curve.low, curve.high, strict=True
        )
    ]
    crosses = (
        {"step": step, "lost": True} if loss is None else {"step": step, "diverged": loss}
        for step, loss in curve.diverged
    )
    return [*rows, *crosses]


def _final_rows(variant: VariantSummary) -> list[dict[str, Any]]:
    return [row for rate in variant.rates for row in _rate_rows(rate)]


def _rate_rows(rate: RateSummary) -> list[dict[str, Any]]:
    """The mean with its interval, then the seeds; a seed without loss has diverged."""
    half = rate.half_width or 0.0
    whole = {"lr": rate.lr, "mean": rate.mean, "low": rate.mean - half, "high": rate.mean + half} \
        if rate.mean is not None else {}  # fmt: skip
    seeds = [
        {"lr": rate.lr, "seed": seed, "loss": loss, "diverged": loss is None}
        for seed, loss in rate.losses.items()
    ]
    return [*([whole] if whole else []), *seeds]
