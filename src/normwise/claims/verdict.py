"""From numbers to a verdict. The rule is fixed in the code: where a number must lie for the
statement to be right, and where only its direction is.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from normwise.lab.summary import interval_half_width

Band = tuple[float, float]
EVERYTHING: Band = (-math.inf, math.inf)

HOLDS = "holds"
IN_PART = "holds in part"
NOT_HERE = "does not hold here"
NOT_SEPARABLE = "not separable here"
NEEDS_FULL = "needs the full run"
VERDICTS = (HOLDS, IN_PART, NOT_HERE, NOT_SEPARABLE, NEEDS_FULL)


@dataclass(frozen=True)
class Expectation:
    """What a statement says of one number.

    Args:
        holds: where it is right.
        in_part: where its direction is right, and its size not; holds is inside.
        predicted: the number itself, where theory or the statement gives it.
        one_seed: half of the interval that is assumed where there is one seed only.
    """

    holds: Band
    in_part: Band
    predicted: float | None = None
    one_seed: float = 0.0


Expectations = Mapping[str, Expectation]
"""What a statement says of each number that is judged."""


def near(
    predicted: float, within: float, *, in_part: Band | None = None, one_seed: float = 0.0
) -> Expectation:
    """The predicted number, give or take `within`."""
    band = (predicted - within, predicted + within)
    return Expectation(band, in_part or band, predicted, one_seed)


def between(
    low: float, high: float, *, in_part: Band | None = None, one_seed: float = 0.0
) -> Expectation:
    """A number in a range."""
    return Expectation((low, high), in_part or (low, high), None, one_seed)


def above(limit: float, *, in_part: Band | None = None, one_seed: float = 0.0) -> Expectation:
    """A number above a limit."""
    return between(limit, math.inf, in_part=in_part, one_seed=one_seed)


def below(limit: float, *, in_part: Band | None = None, one_seed: float = 0.0) -> Expectation:
    """A number below a limit."""
    return between(-math.inf, limit, in_part=in_part, one_seed=one_seed)


@dataclass(frozen=True)
class Number:
    """A measured number beside what is said of it.

    Args:
        key: its name in the claim's text.
        values: by seed; none where it was not measured.
        expected: None for a number that is shown, and not judged.
    """

    key: str
    values: list[float]
    expected: Expectation | None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def half_width(self) -> float | None:
        """Of the 95 % Student-t interval of the mean; None below two seeds, or for a NaN."""
        finite = all(map(math.isfinite, self.values))
        return interval_half_width(self.values) if finite else None

    @property
    def answer(self) -> str:
        """yes, partly or no; unclear where the interval contains no and another; missing, and not
        asked. A value that is not finite is a no.
        """
        if self.expected is None:
            return "not asked"
        if not self.values:
            return "missing"
        if not all(map(math.isfinite, self.values)):
            return "no"
        half = self.half_width
        half = self.expected.one_seed if half is None else half
        low, high = self.mean - half, self.mean + half
        right = self.expected.in_part
        if _overlaps(low, high, right) and not _inside(low, high, right):
            return "unclear"
        if _inside(self.mean, self.mean, self.expected.holds):
            return "yes"
        return "partly" if _inside(self.mean, self.mean, self.expected.in_part) else "no"


def _overlaps(low: float, high: float, band: Band) -> bool:
    return low <= band[1] and high >= band[0]


def _inside(low: float, high: float, band: Band) -> bool:
    return band[0] <= low and high <= band[1]


def numbers_of(
    values: Mapping[str, Sequence[float]], expectations: Mapping[str, Expectation]
) -> list[Number]:
    """What is judged, in the order of the expectations, then what is only shown."""
    shown = [key for key in values if key not in expectations]
    return [
        Number(key, list(values.get(key, ())), expectations.get(key))
        for key in [*expectations, *shown]
    ]


def verdict(numbers: Iterable[Number], *, quick: bool) -> str:
    """One word for all numbers of a claim.

    All right: holds. None right: does not hold, unless every interval contains both answers. What
    was not measured needs the full run, and so does what one seed of a quick run leaves open, if
    another word could come of it.
    """
    asked = [number for number in numbers if number.expected is not None]
    answers = {number.answer for number in asked}
    if "missing" in answers:
        return NEEDS_FULL
    opened = [n for n in asked if quick and n.answer == "unclear" and len(n.values) == 1]
    if opened:
        others = {number.answer for number in asked if number not in opened}
        words = {_word(others | more) for more in ({"yes"}, {"no"}, {"yes", "no"})}
        return words.pop() if len(words) == 1 else NEEDS_FULL
    return _word(answers)


def _word(answers: Set[str]) -> str:
    if answers == {"yes"}:
        return HOLDS
    if answers & {"yes", "partly"}:
        return IN_PART
    return NOT_SEPARABLE if answers == {"unclear"} else NOT_HERE
