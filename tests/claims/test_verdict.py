"""The rule from numbers to a word."""

import math
from typing import Any

import pytest

from normwise.claims.verdict import (
    HOLDS,
    IN_PART,
    NEEDS_FULL,
    NOT_HERE,
    NOT_SEPARABLE,
    Expectation,
    Number,
    above,
    below,
    between,
    near,
    numbers_of,
    verdict,
)

SLOPE = near(-0.5, 0.1, in_part=(-0.8, -0.2))


def answer(values: list[float], expected: Expectation | None) -> str:
    return Number("x", values, expected).answer


@pytest.mark.parametrize(
    ("values", "expected", "word"),
    [
        ([-0.52, -0.5, -0.48], SLOPE, "yes"),
        ([-0.63, -0.5, -0.5], SLOPE, "yes"),  # the interval leaves the band, not the direction
        ([-0.7, -0.7, -0.7], SLOPE, "partly"),
        ([0.0, 0.0, 0.0], SLOPE, "no"),
        ([-0.9, -0.5, -0.1], SLOPE, "unclear"),
        ([1.0, 1.1, 0.9], above(0.0), "yes"),
        ([-1.0, -1.1, -0.9], above(0.0), "no"),
        ([1.0, -1.0], above(0.0), "unclear"),
        ([0.3], above(0.0), "yes"),
        ([0.3], above(0.0, one_seed=0.5), "unclear"),
        ([0.6], above(0.0, one_seed=0.5), "yes"),
        ([-0.6], above(0.0, one_seed=0.5), "no"),
        ([0.0, 0.0], near(0.0, 0.0), "yes"),
        ([1e-9, 1e-9], near(0.0, 0.0), "no"),
        ([2.0], below(1.0, in_part=(-math.inf, 3.0)), "partly"),
        ([math.inf], above(0.0), "no"),
        ([math.nan, 1.0], above(0.0), "no"),
        ([0.2, 0.5, 0.25], above(1.0, in_part=(0.3, math.inf)), "unclear"),
        ([], above(0.0), "missing"),
        ([1.0], None, "not asked"),
        ([5.0], between(0.0, 1.0), "no"),
        ([-10.0, 10.0], near(0.0, 0.1), "unclear"),  # both ends outside, the band between them
    ],
)
def test_an_answer(values: list[float], expected: Expectation | None, word: str) -> None:
    assert answer(values, expected) == word


def word(*answers: str, quick: bool = False) -> str:
    """The verdict on numbers with these answers."""
    made: dict[str, tuple[list[float], Expectation | None]] = {
        "yes": ([1.0, 1.0], above(0.0)), "no": ([-1.0, -1.0], above(0.0)),
        "partly": ([-1.0, -1.0], above(0.0, in_part=(-2.0, math.inf))),
        "unclear": ([1.0, -1.0], above(0.0)), "missing": ([], above(0.0)),
        "open": ([0.1], above(0.0, one_seed=0.2)),
        "not asked": ([1.0], None),
    }  # fmt: skip
    numbers = [Number(name, *made[name]) for name in answers]
    shown = ["unclear" if answer == "open" else answer for answer in answers]
    assert [number.answer for number in numbers] == shown
    return verdict(numbers, quick=quick)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["yes", "yes"], HOLDS), (["yes", "not asked"], HOLDS), (["yes", "no"], IN_PART),
        (["yes", "partly"], IN_PART), (["partly"], IN_PART), (["partly", "no"], IN_PART),
        (["yes", "unclear"], IN_PART), (["no", "no"], NOT_HERE), (["no", "unclear"], NOT_HERE),
        (["unclear"], NOT_SEPARABLE), (["unclear", "unclear"], NOT_SEPARABLE),
    ],
)  # fmt: skip
def test_a_verdict(answers: list[str], expected: str) -> None:
    assert word(*answers) == expected


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["yes", "missing"], NEEDS_FULL), (["open"], NEEDS_FULL), (["yes", "yes"], HOLDS),
        (["yes", "open"], NEEDS_FULL), (["no", "open"], NEEDS_FULL), (["yes", "unclear"], IN_PART),
        (["yes", "no", "open"], IN_PART), (["partly", "open"], IN_PART), (["no"], NOT_HERE),
    ],
)  # fmt: skip
def test_a_quick_verdict_says_only_what_more_seeds_cannot_change(
    answers: list[str], expected: str
) -> None:
    assert word(*answers, quick=True) == expected


def test_numbers_keep_the_order_of_what_is_expected() -> None:
    found = numbers_of({"c": [1.0], "a": [2.0]}, {"a": above(0.0), "b": above(0.0)})
    assert [(n.key, n.answer) for n in found] == [
        ("a", "yes"), ("b", "missing"), ("c", "not asked"),
    ]  # fmt: skip


def test_a_number_has_its_interval() -> None:
    number = Number("x", [1.0, 2.0, 3.0], None)
    assert number.mean == 2.0
    assert number.half_width == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    none: Any = Number("x", [1.0], None).half_width
    assert none is None
