"""The verdict, whole sentences for every case."""

import pytest

from normwise.lab.store import Record
from normwise.report.verdict import verdict
from tests.report.comparisons import comparison, record


def runs(placement: str, *losses: float | None, **changes: float) -> list[Record]:
    return [record(placement, seed, loss, **changes) for seed, loss in enumerate(losses)]


BEST = runs("pre_norm", 2.0, 2.1)
CASES: dict[str, tuple[list[Record], str]] = {
    "nothing": ([], "No run has finished: there is nothing to compare yet."),
    "told from all": (
        [*BEST, *runs("post_norm", 3.0, 3.1), *runs("deep_norm", 4.0, 4.1)],
        "pre_norm at rate 1e-3 has the lowest mean loss, 2.050, and 2 seeds tell it from every "
        "other variant.",
    ),
    "told from the other": (
        [*BEST, *runs("post_norm", 3.0, 3.1, lr=4e-3)],
        "pre_norm at rate 1e-3 has the lowest mean loss, 2.050, and 2 seeds tell it from the other "
        "variant.",
    ),
    "tied": (
        [*BEST, *runs("post_norm", 2.0, 2.3), *runs("deep_norm", 3.0, 3.1)],
        "pre_norm at rate 1e-3 has the lowest mean loss, 2.050, but 2 seeds do not tell it from "
        "1 of 2 others: post_norm.",
    ),
    "many tied": (
        [*BEST, *(r for w in range(5) for r in runs("post_norm", 2.0, 2.3, warmup=w))],
        "pre_norm, warm-up 150 at rate 1e-3 has the lowest mean loss, 2.050, but 2 seeds do not "
        "tell it from 5 of 5 others: post_norm, warm-up 0; post_norm, warm-up 1; post_norm, "
        "warm-up 2 and 2 more.",
    ),
    "another diverged": (
        [*BEST, *runs("post_norm", 3.0, 3.1), *runs("deep_norm", 1.0, None)],
        "pre_norm at rate 1e-3 has the lowest mean loss, 2.050, and 2 seeds tell it from the 1 of "
        "2 others that finished every seed.",
    ),
    "all others diverged": (
        [*BEST, *runs("deep_norm", 1.0, None)],
        "pre_norm at rate 1e-3 has the lowest mean loss, 2.050, and no other variant finished "
        "every seed.",
    ),
    "alone": (
        runs("pre_norm", 2.0, 2.0),
        "pre_norm at rate 1e-3 ends at 2.000 \u00b10.000; there is no other variant.",
    ),
    "lowest and stuck": (
        [*runs("pre_norm", 3.25, 3.2), *runs("post_norm", 4.25, 4.2)],
        "pre_norm at rate 1e-3 has the lowest mean loss, 3.225, and 2 seeds tell it from the other "
        "variant. It did not learn in 2 of 2 seeds.",
    ),
    "one seed": (
        [record("pre_norm", 0, 2.5), record("post_norm", 0, 2.25)],
        "One seed a variant allows no ranking; the lowest loss, 2.250, is that of post_norm at "
        "rate 1e-3. More seeds: --seeds 3.",
    ),
    "every seed diverged": (
        [*runs("pre_norm", None, None), *runs("post_norm", None, None)],
        "Every variant diverged in every seed.",
    ),
    "a seed of each diverged": (
        [*runs("pre_norm", 2.0, None), *runs("post_norm", None, 2.0)],
        "No variant has two seeds of which none diverged: there is nothing to rank.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict(case: str) -> None:
    records, sentence = CASES[case]
    assert verdict(comparison(records)) == sentence
