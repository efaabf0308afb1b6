"""Values as text."""

import math

import pytest

from normwise.report.document import Spread
from normwise.report.spelling import KINDS, spell


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("loss", Spread(2.2489, 0.0769), "2.249 \u00b10.077"),
        ("loss", Spread(2.2489, None), "2.249"),
        ("difference", Spread(0.05, 0.046), "+0.050 \u00b10.046"),
        ("difference", Spread(-0.05, None), "-0.050"),
        ("separable", True, "yes"),
        ("separable", False, "no"),
        ("rate", 0.001, "1e-3"),
        ("rate", 0.00025, "2.5e-4"),
        ("rate", 0.02, "0.02"),
        ("count", 999, "999"),
        ("count", 6100.0, "6.1k"),
        ("count", 628_288, "628k"),
        ("count", 99_960, "100k"),
        ("count", 999_960, "1.0M"),
        ("count", 999.6, "1.0k"),
        ("count", 12_345_678, "12.3M"),
        ("count", 2.5e9, "2.5G"),
        ("mebibytes", 400 * 2**20, "400"),
        ("rms", 2.996, "3.00"),
        ("rms", math.inf, "overflow"),
        ("gradient", 7.2e-4, "7.2e-4"),
        ("gradient", math.inf, "overflow"),
        ("name", "pre_norm", "pre_norm"),
        ("seeds", 3, "3"),
        ("loss", None, "-"),
        ("name", None, "-"),
    ],
)
def test_a_value_is_spelled(kind: str, value: object, text: str) -> None:
    assert spell(kind, value) == text


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_a_hyphen(kind: str) -> None:
    assert spell(kind, None) == "-"


def test_zero_is_not_nothing() -> None:
    assert spell("loss", Spread(0.0, 0.0)) == "0.000 \u00b10.000"
    assert (spell("seeds", 0), spell("count", 0), spell("rms", 0.0)) == ("0", "0", "0.00")


def test_two_rates_are_never_spelled_alike() -> None:
    """Rates are settings: one that is rounded names another run."""
    rates = [1e-3, 1.2e-3, 1.25e-3, 1.3e-3, 3.1e-4, 3.125e-4]
    assert len({spell("rate", rate) for rate in rates}) == len(rates)


def test_numbers_stand_on_the_right_and_long_text_wraps() -> None:
    numeric = {name for name, kind in KINDS.items() if kind.numeric}
    assert {name for name, kind in KINDS.items() if kind.wraps} == {"text"}
    assert numeric == KINDS.keys() - {"name", "text", "anchor", "separable"}
