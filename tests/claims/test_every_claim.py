"""Every claim: its verdict can change, and its texts say what it measures, in both languages."""

import math
import re

import pytest

from normwise.claims.claim import Measurement
from normwise.claims.registry import CLAIMS, ORDER
from normwise.claims.run import judge
from normwise.claims.settings import Effort
from normwise.claims.texts import LANGUAGES, TEXTS, read_text
from normwise.claims.verdict import (
    HOLDS,
    IN_PART,
    NEEDS_FULL,
    NOT_HERE,
    NOT_SEPARABLE,
    VERDICTS,
    Band,
    Expectation,
)

FULL, QUICK = Effort(), Effort(1, quick=True)
every_claim = pytest.mark.parametrize("name", CLAIMS)


def doctored(name: str, effort: Effort, **values: list[float]) -> str:
    """The verdict on a measurement in which every number is as stated, but for these."""
    expected = CLAIMS[name].expect(effort)
    numbers = {key: [inside(one.holds)] * 3 for key, one in expected.items()} | values
    return judge(name, effort, Measurement(numbers, [], {})).verdict


def inside(band: Band) -> float:
    low, high = band
    if math.isinf(low):
        return high - 1.0
    return low + 1.0 if math.isinf(high) else (low + high) / 2


def outside(band: Band) -> float:
    low, high = band
    return high + 1.0 if math.isfinite(high) else low - 1.0


def width(expected: Expectation) -> float:
    """Enough to reach from what holds to what does not."""
    return 2.0 + abs(inside(expected.holds)) + abs(outside(expected.in_part))


@every_claim
def test_its_verdict_can_change(name: str) -> None:
    expected = CLAIMS[name].expect(FULL)
    against = {key: [outside(one.in_part)] * 3 for key, one in expected.items()}
    torn = {
        key: [inside(one.holds) - 9 * width(one), inside(one.holds) + 9 * width(one)]
        for key, one in expected.items()
    }
    assert doctored(name, FULL) == HOLDS
    assert doctored(name, FULL, **against) == NOT_HERE
    assert doctored(name, FULL, **torn) == NOT_SEPARABLE
    assert doctored(name, QUICK, **{key: [] for key in expected}) == NEEDS_FULL


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name in CLAIMS for key in CLAIMS[name].expect(FULL)]
)
def test_every_number_counts(name: str, key: str) -> None:
    expected = CLAIMS[name].expect(FULL)[key]
    alone = len(CLAIMS[name].expect(FULL)) == 1
    wrong = {key: [outside(expected.in_part)] * 3}
    assert doctored(name, FULL, **wrong) == (NOT_HERE if alone else IN_PART)


@every_claim
def test_quick_and_full_ask_the_same(name: str) -> None:
    assert CLAIMS[name].expect(QUICK) == CLAIMS[name].expect(FULL)


@every_claim
def test_what_holds_is_part_of_what_holds_in_part(name: str) -> None:
    for expected in CLAIMS[name].expect(FULL).values():
        assert expected.in_part[0] <= expected.holds[0] <= expected.holds[1] <= expected.in_part[1]
        if expected.predicted is not None:
            assert expected.holds[0] <= expected.predicted <= expected.holds[1]


def test_the_order_is_that_of_the_notes() -> None:
    sections = [CLAIMS[name].section for name in ORDER]
    assert sections == sorted(sections)
    assert len(set(ORDER)) == len(ORDER) == 26


@every_claim
def test_both_languages_say_the_same_things(name: str) -> None:
    english, chinese = (read_text(name, language) for language in ("en", "zh"))
    assert english.title != chinese.title
    assert list(english.prose) == list(chinese.prose)
    assert {key: list(words) for key, words in english.lists.items()} == {
        key: list(words) for key, words in chinese.lists.items()
    }
    formulas = [re.findall(r"\$\$.*?\$\$", text.body) for text in (english, chinese)]
    assert formulas[0] == formulas[1] != []


@every_claim
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_text_says_what_is_measured_and_not_what_came_out(name: str, language: str) -> None:
    text = read_text(name, language)
    expected = list(CLAIMS[name].expect(FULL))
    assert set(expected) <= set(text.lists["numbers"])
    assert {"title", "y"} <= set(text.lists["picture"])
    assert ("x" in text.lists["picture"]) == (CLAIMS[name].picture.kind == "lines")
    verdicts = read_text("page", language).lists["verdicts"].values()
    whole = text.body + "".join(text.prose.values())
    assert not [word for word in verdicts if len(word) > 5 and word in whole]


def test_the_page_has_the_same_words_in_both_languages() -> None:
    english, chinese = (read_text("page", language) for language in ("en", "zh"))
    assert list(english.lists) == list(chinese.lists)
    for section, words in english.lists.items():
        assert list(words) == list(chinese.lists[section])
        for key, word in words.items():
            holes = [re.findall(r"\{\w+\}", line) for line in (word, chinese.lists[section][key])]
            assert sorted(holes[0]) == sorted(holes[1])
    assert list(english.lists["verdicts"]) == list(VERDICTS)


def test_there_is_a_text_for_every_claim_and_no_other() -> None:
    names = {f"{name}.{language}.md" for name in [*CLAIMS, "page"] for language in LANGUAGES}
    assert {path.name for path in TEXTS.iterdir()} == names
