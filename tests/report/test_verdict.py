"""The verdict, whole sentences for every case."""

from typing import Any

import pytest

from normwise.lab.store import Record
from normwise.report.verdict import verdict
from tests.report.comparisons import comparison, record


def runs(placement: str, *losses: float | None, **changes: Any) -> list[Record]:
    return [record(placement, seed, loss, **changes) for seed, loss in enumerate(losses)]


BEST = runs("pre_norm", 2.0, 2.1)
LOWEST = "pre_norm at rate 1e-3 has the lowest mean loss, 2.050, "
CASES: dict[str, tuple[list[Record], str]] = {
    "nothing": ([], "No run has finished: there is nothing to compare yet."),
    "told from all": (
        [*BEST, *runs("post_norm", 3.0, 3.1), *runs("deep_norm", 4.0, 4.1)],
        LOWEST + "and 2 paired seeds tell it from every other variant, each taken by itself.",
    ),
    "told from the other": (
        [*BEST, *runs("post_norm", 3.0, 3.1, lr=4e-3)],
        LOWEST + "and 2 paired seeds tell it from the other variant.",
    ),
    "tied": (
        [*BEST, *runs("post_norm", 2.0, 2.3), *runs("deep_norm", 3.0, 3.1)],
        LOWEST + "but 2 paired seeds do not tell it from 1 of 2 others: post_norm.",
    ),
    "tied with the other": (
        [*BEST, *runs("post_norm", 2.0, 2.3)],
        LOWEST + "but 2 paired seeds do not tell it from the other variant, post_norm.",
    ),
    "one seed in common": (
        [*BEST, record("post_norm", 1, 2.5), record("post_norm", 7, 2.5),
         record("deep_norm", 1, 2.5), record("deep_norm", 8, 2.5)],
        LOWEST + "but 1 paired seed does not tell it from 2 of 2 others: post_norm; deep_norm.",
    ),
    "many tied": (
        [*BEST, *(r for w in range(5) for r in runs("post_norm", 2.0, 2.3, warmup=w))],
        LOWEST.replace("pre_norm", "pre_norm, warm-up 150") + "but 2 paired seeds do not tell it "
        "from 5 of 5 others: post_norm, warm-up 0; post_norm, warm-up 1; post_norm, warm-up 2 and "
        "2 more.",
    ),
    "paired on fewer seeds than the lowest has": (
        [*runs("pre_norm", 2.0, 2.1, 2.05, 2.05), *runs("post_norm", 3.0, 3.1),
         *runs("deep_norm", 4.0, 4.1, 4.2)],
        LOWEST + "and 2 to 3 paired seeds tell it from every other variant, each taken by itself.",
    ),
    "another diverged": (
        [*BEST, *runs("post_norm", 3.0, 3.1), *runs("deep_norm", 1.0, None)],
        LOWEST + "and 2 paired seeds tell it from the 1 of 2 others that can be paired with it.",
    ),
    "all others diverged": (
        [*BEST, *runs("deep_norm", 1.0, None)],
        LOWEST + "and no other variant has a seed to pair with its own.",
    ),
    "alone": (
        runs("pre_norm", 2.0, 2.0),
        "pre_norm at rate 1e-3 ends at 2.000 \u00b10.000; there is no other variant.",
    ),
    "lowest and stuck": (
        [*runs("pre_norm", 3.25, 3.2), *runs("post_norm", 4.25, 4.2)],
        "pre_norm at rate 1e-3 has the lowest mean loss, 3.225, and 2 paired seeds tell it from "
        "the other variant. It did not learn in 2 of 2 seeds.",
    ),
    "one seed": (
        [record("pre_norm", 0, 2.5), record("post_norm", 0, 2.25)],
        "2 of 2 variants have one seed only, which allows no ranking; the lowest loss so far, "
        "2.250, is that of post_norm at rate 1e-3.",
    ),
    "stopped in the middle": (
        [record("pre_norm", 0, 2.25), *runs("post_norm", 3.2, 3.3)],
        "1 of 2 variants has one seed only, which allows no ranking; the lowest loss so far, "
        "2.250, is that of pre_norm at rate 1e-3.",
    ),
    "every seed diverged": (
        [*runs("pre_norm", None, None), *runs("post_norm", None, None)],
        "Every variant diverged in every seed.",
    ),
    "a seed of each diverged": (
        [*runs("pre_norm", 2.0, None), *runs("post_norm", None, 2.0)],
        "In every variant a seed diverged: there is nothing to rank.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_verdict(case: str) -> None:
    records, sentence = CASES[case]
    assert verdict(comparison(records)) == sentence


def test_a_variant_that_did_not_learn_is_told_seed_by_seed() -> None:
    """Stuck and untrained seeds count together."""
    found = verdict(comparison(runs("pre_norm", 2.0, 3.25, 4.0)))
    assert found.endswith(" It did not learn in 2 of 3 seeds.")


def test_one_seed_names_the_lowest_that_did_not_diverge() -> None:
    records = [record("pre_norm", 0, None), record("post_norm", 0, 2.5, lr=0.02)]
    assert verdict(comparison(records)) == (
        "1 of 2 variants has one seed only, which allows no ranking; the lowest loss so far, "
        "2.500, is that of post_norm at rate 0.02."
    )


def test_tied_and_diverged_are_not_mixed_up() -> None:
    records = [*BEST, *runs("post_norm", 2.0, 2.3), *runs("deep_norm", 1.0, None)]
    assert verdict(comparison(records)) == (
        LOWEST + "but 2 paired seeds do not tell it from 1 of 2 others: post_norm."
    )


def test_three_ties_are_all_named() -> None:
    records = [*BEST, *(r for w in range(3) for r in runs("post_norm", 2.0, 2.3, warmup=w))]
    assert verdict(comparison(records)).endswith(
        "do not tell it from 3 of 3 others: post_norm, warm-up 0; post_norm, warm-up 1; "
        "post_norm, warm-up 2."
    )


def test_a_variant_on_other_seeds_is_not_said_to_have_diverged() -> None:
    """It finished what it had, and shares no seed with the lowest."""
    found = verdict(comparison([*BEST, record("post_norm", 7, 9.0), record("post_norm", 8, 9.0)]))
    assert "no other variant finished every seed" not in found
