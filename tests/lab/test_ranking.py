"""Which variant is lowest, and what its seeds can tell; differences worked by hand."""

from typing import Any

import pytest

from normwise.lab.ranking import Ranking, rank
from normwise.lab.store import Record
from normwise.lab.summary import summarize
from tests.report.comparisons import record

T1, T2 = 12.7062, 4.30265  # Student's 97.5 % quantile for 1 and 2 degrees of freedom


def ranking(*records: Record) -> Ranking:
    found = rank(summarize(records, unigram_loss=3.25))
    assert found is not None
    return found


def runs(placement: str, *losses: float | None, **changes: Any) -> list[Record]:
    return [record(placement, seed, loss, **changes) for seed, loss in enumerate(losses)]


def test_differences_are_paired_by_seed() -> None:
    """Losses far apart between seeds, and 0.1 and 0.12 apart within: 0.11 +- t s / sqrt(2)."""
    found = ranking(*runs("pre_norm", 2.0, 3.0), *runs("post_norm", 2.1, 3.12))
    difference = found.differences[1]
    assert found.lowest == 0 and found.differences[0] is None
    assert difference is not None and difference.seeds == 2
    assert difference.mean == pytest.approx(0.11)
    assert difference.half_width == pytest.approx(T1 * 0.01, rel=1e-4)
    assert not difference.separable and found.tied == [1]


def test_an_interval_above_zero_is_separable() -> None:
    """Differences 0.10, 0.11 and 0.12: mean 0.11, half width t 0.01 / sqrt(3) = 0.025."""
    found = ranking(*runs("pre_norm", 2.0, 2.5, 3.0), *runs("post_norm", 2.1, 2.61, 3.12))
    difference = found.differences[1]
    assert difference is not None
    assert difference.half_width == pytest.approx(T2 * 0.01 / 3**0.5, rel=1e-4)
    assert difference.separable and found.tied == []


def test_equal_losses_are_not_separable() -> None:
    found = ranking(*runs("pre_norm", 2.0, 2.5), *runs("post_norm", 2.0, 2.5))
    assert found.tied == [1]


def test_only_seeds_that_both_have_are_paired() -> None:
    others = [record("post_norm", 1, 2.6), record("post_norm", 5, 9.0), record("post_norm", 2, 3.2)]
    found = ranking(*runs("pre_norm", 2.0, 2.5, 3.0), *others)
    difference = found.differences[1]
    assert difference is not None and difference.seeds == 2
    assert difference.mean == pytest.approx(0.15)


def test_one_seed_in_common_tells_nothing() -> None:
    others = [record("post_norm", 0, 9.0), record("post_norm", 7, 9.0)]
    found = ranking(*runs("pre_norm", 2.0, 2.5), *others)
    difference = found.differences[1]
    assert difference is not None
    assert (difference.half_width, difference.separable) == (None, None)
    assert found.tied == [1]


def test_without_a_seed_in_common_there_is_no_difference() -> None:
    others = [record("post_norm", 7, 9.0), record("post_norm", 8, 9.0)]
    found = ranking(*runs("pre_norm", 2.0, 2.5), *others)
    assert found.differences == [None, None]


def test_one_variant_with_one_seed_forbids_a_ranking() -> None:
    """It may be the lowest: a comparison that was stopped after post_norm's second seed."""
    stopped = [record("pre_norm", 0, 2.2), *runs("post_norm", 3.2, 3.3)]
    assert rank(summarize(stopped, unigram_loss=3.25)) is None


def test_a_rate_with_fewer_seeds_is_not_the_best() -> None:
    """Were it, a rate that has just begun would hide a variant with all its seeds."""
    found = ranking(
        *runs("pre_norm", 2.0, 2.1),
        record("pre_norm", 0, 1.9, lr=4e-3),
        *runs("post_norm", 2.2, 2.3),
    )
    assert found.lowest == 0


def test_a_variant_with_a_diverged_seed_is_neither_lowest_nor_compared() -> None:
    found = ranking(*runs("pre_norm", 1.0, None, 1.0), *runs("post_norm", 2.0, 2.1, 2.2))
    assert found.lowest == 1 and found.differences == [None, None]


def test_each_variant_counts_at_its_best_rate() -> None:
    found = ranking(
        *runs("pre_norm", 3.0, 3.1), *runs("pre_norm", 2.0, 2.1, lr=4e-3),
        *runs("post_norm", 2.2, 2.3), *runs("post_norm", 5.0, 5.1, lr=4e-3),
    )  # fmt: skip
    difference = found.differences[1]
    assert found.lowest == 0
    assert difference is not None and difference.mean == pytest.approx(0.2)


@pytest.mark.parametrize(
    "records",
    [
        [],
        [record("pre_norm", 0, 2.0), record("post_norm", 0, 2.5)],
        [record("pre_norm", 0, 2.0), record("pre_norm", 1, None)],
        [record("pre_norm", 0, None), record("pre_norm", 1, None)],
    ],
)
def test_without_spread_there_is_no_ranking(records: list[Record]) -> None:
    assert rank(summarize(records, unigram_loss=3.25)) is None


def test_a_variant_that_is_lower_on_the_common_seeds_is_tied() -> None:
    """Three seeds against two: the mean is higher, and every common seed is lower by 0.1."""
    found = ranking(*runs("pre_norm", 2.0, 2.1), *runs("post_norm", 1.9, 2.0, 9.0))
    difference = found.differences[1]
    assert found.lowest == 0 and difference is not None
    assert difference.mean == pytest.approx(-0.1)
    assert not difference.separable and found.tied == [1]


def test_tied_are_those_compared_and_not_told_apart() -> None:
    """Neither the lowest, nor one told apart, nor one that diverged."""
    found = ranking(
        *runs("pre_norm", 2.0, 2.1), *runs("post_norm", 3.0, 3.1), *runs("deep_norm", None, 1.0),
        *runs("pre_norm", 2.0, 2.3, warmup=0),
    )  # fmt: skip
    assert found.lowest == 0 and found.tied == [3]
