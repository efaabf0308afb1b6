"""The claims' result as it is shown: every figure, word and line, in both languages."""

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from normwise.claims.registry import CLAIMS
from normwise.claims.run import ClaimsResult, stored_claims
from normwise.claims.texts import LANGUAGES, read_text
from normwise.report.charts import spec
from normwise.report.claims import document, measured, stated, statements
from normwise.report.document import Command, Document, Note, Prose, Section, Table
from normwise.report.page import page
from normwise.report.prose import html
from normwise.report.terminal import table, write
from tests.browser import browser, opened
from tests.report.test_page import Text, luminance

STORED = Path(__file__).parents[2] / "benchmarks" / "2026-11-30-epyc-avx512-claims.json"
languages = pytest.mark.parametrize("language", LANGUAGES)
headless = pytest.mark.headless


@pytest.fixture(autouse=True)
def _needs_a_browser(request: pytest.FixtureRequest) -> None:
    if "headless" in request.keywords and browser() is None:
        pytest.skip("no Chromium on the path, and none named in NORMWISE_BROWSER")


@pytest.fixture(scope="module")
def result() -> ClaimsResult:
    return stored_claims(STORED)


def written(result: ClaimsResult, language: str, folder: Path) -> Path:
    path = folder / f"page.{language}.html"
    path.write_text(page(document(result, language)), encoding="utf-8")
    return path


def claim_sections(report: Document) -> list[Section]:
    return [section for section in report.sections if section.anchor]


def test_the_stored_verdicts_follow_from_the_stored_measurements(result: ClaimsResult) -> None:
    content = json.loads(STORED.read_text())
    assert [claim["verdict"] for claim in content["claims"]] == [c.verdict for c in result.claims]
    assert [claim.id for claim in result.claims] == list(CLAIMS)


@languages
def test_each_claim_has_all_its_parts(result: ClaimsResult, language: str) -> None:
    report = document(result, language)
    assert [section.anchor for section in claim_sections(report)] == list(CLAIMS)
    for section in claim_sections(report):
        kinds = [type(block) for block in section.blocks]
        assert kinds[0] is Prose and kinds[-1] is Command
        assert Table in kinds
        (line,) = [block for block in section.blocks if isinstance(block, Command)]
        assert line.line == f"normwise claims run {section.anchor}"
        strong = [b for b in section.blocks if isinstance(b, Note) and b.strong]
        assert len(strong) == 1
    assert len(list(report.figures())) == len(CLAIMS)
    headings = [s.title for s in report.sections if s.level == 2 and not s.blocks]
    assert headings == list(read_text("page", language).lists["sections"].values())


@languages
def test_what_is_not_as_stated_is_said(result: ClaimsResult, language: str) -> None:
    report = document(result, language)
    for claim, section in zip(result.claims, claim_sections(report), strict=True):
        otherwise = [n for n in claim.numbers if n.answer in ("partly", "no", "unclear")]
        notes = [block.text for block in section.blocks if isinstance(block, Note)]
        names = read_text(claim.id, language).lists["numbers"]
        assert all(any(names[n.key] in note for note in notes) for n in otherwise)


@languages
def test_every_chart_is_one(result: ClaimsResult, language: str) -> None:
    for figure in document(result, language).figures():
        made = spec(figure)
        assert made["layer"] and made["datasets"]["points"]
        assert figure.title and figure.y is not None and figure.y.title


@languages
def test_a_terminal_of_80_columns_shows_all(result: ClaimsResult, language: str) -> None:
    out = StringIO()
    write(document(result, language), Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    for claim in CLAIMS:
        assert any(line.startswith(claim) for line in lines), claim
    assert not any("$" in line for line in lines)


@languages
def test_the_list_has_every_statement(language: str) -> None:
    out = StringIO()
    Console(file=out, width=80).print(table(statements(language)))
    words = " ".join(out.getvalue().split())
    assert all(name in words for name in CLAIMS)


def test_a_failed_claim_is_named(result: ClaimsResult) -> None:
    failed = replace(result, failed={"rms-cast": "the disk is full"})
    out = StringIO()
    write(document(failed), Console(file=out, width=80))
    assert "rms-cast has no result: the disk is full" in out.getvalue()


def test_bands_and_numbers_are_spelled(result: ClaimsResult) -> None:
    english = read_text("page", "en")
    asked = ("rms-invariance", "post-expansion", "rms-offset")
    numbers = [n for c in result.claims if c.id in asked for n in c.numbers]
    found = {n.key: (stated(n.expected, english), measured(n)) for n in numbers}
    assert found["layer_scale"][0] == "below 1e-12"
    assert found["rms_shift"][0] == "above 0.1"
    assert found["x0"] == ("-12.2 to -11.8", "-12.01 \u00b10.11")
    assert found["trap"] == ("0", "0")


def test_formulas_become_mathml_and_html_becomes_text() -> None:
    made = html("a $x^2$ and\n\n$$\\frac{1}{2}$$\n\n<script>alert(1)</script>")
    assert "<msup><mi>x</mi><mn>2</mn></msup>" in made
    assert 'display="block"' in made
    assert "<script>" not in made and "&lt;script&gt;" in made


@languages
def test_no_formula_is_left_in_dollars(result: ClaimsResult, language: str) -> None:
    text = Text(page(document(result, language)))
    assert "$" not in text.text and "\\frac" not in text.text
    assert text.tags.count("math") > 50


@languages
def test_the_page_names_nothing_elsewhere(result: ClaimsResult, language: str) -> None:
    """Links lead into the page itself."""
    found = Text(page(document(result, language)))
    assert not {"link", "img", "iframe", "object"} & set(found.tags)
    links = [value for name, value in found.attributes if name in ("src", "href", "srcset")]
    assert links == [f"#{name}" for name in CLAIMS]
    assert not [value for _, value in found.attributes if value and "http:" in value]
    assert dict(found.attributes)["lang"] == language


@headless
@languages
@pytest.mark.parametrize("width", [400, 1200])
def test_every_chart_is_drawn_quietly(
    result: ClaimsResult, language: str, width: int, tmp_path: Path
) -> None:
    path = written(result, language, tmp_path)
    with opened(path, width=width) as found:
        found.wait_for_charts()
        assert found.page.locator("[data-chart]").count() == len(CLAIMS)
        assert (found.messages, found.dialogs) == ([], [])
        assert found.requests == [path.as_uri()]
        assert found.page.evaluate("document.documentElement.scrollWidth") == width


@headless
@languages
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(result: ClaimsResult, language: str, scheme: str, tmp_path: Path) -> None:
    with opened(written(result, language, tmp_path), scheme=scheme) as found:
        found.wait_for_charts()
        paper = luminance(found.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert (paper < 0.1) == (scheme == "dark")
        for place in (".verdict", ".strong", ".prose p", "td a", "svg .role-axis-label text"):
            style: Any = f"getComputedStyle(document.querySelector({json.dumps(place)}))"
            name = "fill" if place.startswith("svg") else "color"
            assert abs(luminance(found.page.evaluate(f"{style}.{name}")) - paper) > 0.7, place


@headless
def test_a_claim_in_the_table_leads_to_its_part(result: ClaimsResult, tmp_path: Path) -> None:
    with opened(written(result, "en", tmp_path)) as found:
        found.page.click("td a >> text=rms-cast")
        top = found.page.evaluate("document.getElementById('rms-cast').getBoundingClientRect().top")
        assert abs(top) < 900


@headless
def test_it_prints(result: ClaimsResult, tmp_path: Path) -> None:
    with opened(written(result, "zh", tmp_path), scheme="dark") as found:
        found.wait_for_charts()
        found.page.emulate_media(media="print")
        found.page.set_viewport_size({"width": 700, "height": 900})
        ink = "getComputedStyle(document.querySelector('.verdict')).color"
        assert luminance(found.page.evaluate(ink)) < 0.1
        assert found.page.evaluate("document.documentElement.scrollWidth") <= 700


def test_the_page_is_small_enough(result: ClaimsResult) -> None:
    assert len(page(document(result)).encode()) < 2_500_000
    assert re.search(r"<h3>In post-norm, each connection", page(document(result)))
