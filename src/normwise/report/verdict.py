"""The verdict on a comparison, in a sentence."""

from collections.abc import Sequence

from normwise.lab.comparison import Comparison
from normwise.lab.ranking import Ranking
from normwise.lab.summary import VariantSummary
from normwise.report.document import Spread
from normwise.report.naming import label, telling
from normwise.report.spelling import rate, spread

NAMES_SHOWN = 3


def verdict(comparison: Comparison) -> str:
    """Which variant has the lowest loss, at which rate, and whether the seeds can tell."""
    variants = comparison.variants
    if not variants:
        return "No run has finished: there is nothing to compare yet."
    names = _names(variants)
    if comparison.ranking is None:
        return _unranked(variants, names)
    lowest = variants[comparison.ranking.lowest]
    subject = f"{names[comparison.ranking.lowest]} at rate {rate(lowest.best.lr)}"
    if len(variants) == 1:
        return f"{subject} ends at {_loss(lowest)}; there is no other variant.{_caveat(lowest)}"
    told = _told(comparison.ranking, variants, names)
    return f"{subject} has the lowest mean loss, {lowest.best.mean:.3f}, {told}.{_caveat(lowest)}"


def _caveat(variant: VariantSummary) -> str:
    """That the lowest is no good either, where it is not."""
    lost = len(variant.best.stuck) + len(variant.best.untrained)
    return f" It did not learn in {lost} of {variant.seeds} seeds." if lost else ""


def _told(ranking: Ranking, variants: Sequence[VariantSummary], names: Sequence[str]) -> str:
    """Whether the seeds tell the lowest from the others, which all had their chance."""
    seeds = len(variants[ranking.lowest].best.losses)
    others = len(variants) - 1
    paired = sum(difference is not None for difference in ranking.differences)
    if not paired:
        return "and no other variant finished every seed"
    if not ranking.tied:
        return f"and {seeds} seeds tell it from {_all_of(paired, others)}"
    tied = [names[index] for index in ranking.tied]
    more = f" and {len(tied) - NAMES_SHOWN} more" if len(tied) > NAMES_SHOWN else ""
    return (
        f"but {seeds} seeds do not tell it from {len(tied)} of {others} others: "
        f"{'; '.join(tied[:NAMES_SHOWN])}{more}"
    )


def _all_of(paired: int, others: int) -> str:
    if paired == others:
        return "every other variant" if others > 1 else "the other variant"
    return f"the {paired} of {others} others that finished every seed"


def _unranked(variants: Sequence[VariantSummary], names: Sequence[str]) -> str:
    means = {i: v.best.mean for i, v in enumerate(variants) if v.best.mean is not None}
    if not means:
        return "Every variant diverged in every seed."
    if max(len(variant.best.losses) for variant in variants) >= 2:
        return "No variant has two seeds of which none diverged: there is nothing to rank."
    lowest = min(means, key=lambda index: means[index])
    return (
        f"One seed a variant allows no ranking; the lowest loss, {means[lowest]:.3f}, is that of "
        f"{names[lowest]} at rate {rate(variants[lowest].best.lr)}. More seeds: --seeds 3."
    )


def _names(variants: Sequence[VariantSummary]) -> list[str]:
    axes = telling([variant.axes for variant in variants])
    return [label(variant.axes, axes) for variant in variants]


def _loss(variant: VariantSummary) -> str:
    best = variant.best
    return spread(Spread(best.mean, best.half_width)) if best.mean is not None else "-"
