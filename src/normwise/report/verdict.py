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
    others = len(variants) - 1
    pairs = {found.seeds for found in ranking.differences if found is not None}
    if not pairs:
        return "and no other variant has a seed to pair with its own"
    counts = " to ".join(str(count) for count in sorted({min(pairs), max(pairs)}))
    if not ranking.tied:
        return f"and {counts} paired seeds tell it from {_all_of(ranking, others)}"
    does = "seed does" if counts == "1" else "seeds do"
    return f"but {counts} paired {does} not tell it from {_tied(ranking, names, others)}"


def _tied(ranking: Ranking, names: Sequence[str], others: int) -> str:
    tied = [names[index] for index in ranking.tied]
    if others == 1:
        return f"the other variant, {tied[0]}"
    more = f" and {len(tied) - NAMES_SHOWN} more" if len(tied) > NAMES_SHOWN else ""
    return f"{len(tied)} of {others} others: {'; '.join(tied[:NAMES_SHOWN])}{more}"


def _all_of(ranking: Ranking, others: int) -> str:
    paired = sum(difference is not None for difference in ranking.differences)
    if paired < others:
        return f"the {paired} of {others} others that can be paired with it"
    return "every other variant, each taken by itself" if others > 1 else "the other variant"


def _unranked(variants: Sequence[VariantSummary], names: Sequence[str]) -> str:
    """Why nobody is ranked: all diverged, or too few seeds."""
    if all(variant.best.mean is None for variant in variants):
        return "Every variant diverged in every seed."
    whole = [i for i, variant in enumerate(variants) if not variant.best.diverged]
    if not whole:
        return "In every variant a seed diverged: there is nothing to rank."
    lowest = min(whole, key=lambda index: variants[index].best.mean or 0.0)
    single = sum(len(variants[index].best.losses) < 2 for index in whole)
    return (
        f"{single} of {len(variants)} variants {'have' if single > 1 else 'has'} one seed only, "
        f"which allows no ranking; the lowest loss so far, {variants[lowest].best.mean:.3f}, is "
        f"that of {names[lowest]} at rate {rate(variants[lowest].best.lr)}."
    )


def _names(variants: Sequence[VariantSummary]) -> list[str]:
    axes = telling([variant.axes for variant in variants])
    return [label(variant.axes, axes) for variant in variants]


def _loss(variant: VariantSummary) -> str:
    best = variant.best
    return spread(Spread(best.mean, best.half_width)) if best.mean is not None else "-"
