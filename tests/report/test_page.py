"""The page as its reader's browser sees it, and what is in it however it is opened."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from normwise.lab.comparison import Comparison
from normwise.report.comparison import document
from normwise.report.page import page as render
from normwise.report.page import write_page
from tests.browser import browser, opened
from tests.report.comparisons import RECORDS, comparison, record

HOSTILE = "</script><script>alert(1)</script>"
BYTES_AT_MOST = 2_000_000


@pytest.fixture(autouse=True)
def _needs_a_browser(request: pytest.FixtureRequest) -> None:
    if "headless" in request.keywords and browser() is None:
        pytest.skip("no Chromium on the path, and none named in NORMWISE_BROWSER")


headless = pytest.mark.headless


def written(result: Comparison, folder: Path) -> Path:
    path = folder / "page.html"
    write_page(result, path)
    return path


def two_rates() -> Comparison:
    """Two rates, one of which diverged in a seed."""
    faster = [
        record(placement, seed, None if (placement, seed) == ("post_norm", 1) else 2.1, lr=4e-3)
        for placement in ("pre_norm", "post_norm")
        for seed in (0, 1)
    ]
    return comparison([*RECORDS, *faster])


def hostile() -> Comparison:
    """Names that end the script element where they stand unescaped."""
    records = [
        record("pre_norm", seed, 2.3 + seed / 100, builder=f"{HOSTILE}:{name}")
        for seed in (0, 1)
        for name in ("one", "two")
    ]
    return comparison(records, data={"source": HOSTILE})


COMPARISONS = {
    "one rate": comparison, "two rates": two_rates, "hostile": hostile,
    "nothing finished": lambda: comparison([]),
    "one seed": lambda: comparison(RECORDS[:1]),
    "diverged at once": lambda: comparison([record("pre_norm", 0, None, step=1)]),
}  # fmt: skip


@headless
@pytest.mark.parametrize("name", [name for name in COMPARISONS if name != "nothing finished"])
def test_every_chart_is_drawn_quietly(name: str, tmp_path: Path) -> None:
    """No word on the console, no dialog, no request but the page itself."""
    path = written(COMPARISONS[name](), tmp_path)
    with opened(path) as found:
        found.wait_for_charts()
        assert found.page.locator("[data-chart]").count() == 4
        assert found.page.locator(".vega-actions").count() == 0
        assert (found.messages, found.dialogs) == ([], [])
        assert found.requests == [path.as_uri()]


@headless
def test_a_page_without_a_result_is_a_page(tmp_path: Path) -> None:
    with opened(written(comparison([]), tmp_path)) as found:
        assert "No run has finished" in found.page.inner_text("main")
        assert found.messages == []


@headless
def test_a_hostile_name_is_text(tmp_path: Path) -> None:
    with opened(written(hostile(), tmp_path)) as found:
        found.wait_for_charts()
        assert HOSTILE in found.page.inner_text("h1")
        assert f"{HOSTILE}:one" in found.page.inner_text("table >> nth=0")
        assert HOSTILE[:15] in found.page.text_content("[data-chart=finals] svg")  # type: ignore[operator]
        found.page.hover("[data-chart=finals] svg .mark-symbol path >> nth=0", force=True)
        assert f"{HOSTILE}:" in found.page.inner_text("#vg-tooltip-element")
        assert found.page.locator("script").count() == 3
        assert found.dialogs == []


@headless
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(scheme: str, tmp_path: Path) -> None:
    with opened(written(comparison(), tmp_path), scheme=scheme) as found:
        found.wait_for_charts()
        paper = luminance(found.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert (paper < 0.1) == (scheme == "dark")
        for place in (".verdict", "td", "svg .role-axis-label text", "svg .role-legend text"):
            style = f"getComputedStyle(document.querySelector({json.dumps(place)}))"
            name = "fill" if place.startswith("svg") else "color"
            assert abs(luminance(found.page.evaluate(f"{style}.{name}")) - paper) > 0.7, place


def luminance(colour: str) -> float:
    """Of rgb(r, g, b), between 0 and 1."""
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@headless
@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_is_wider_than_the_window(width: int, tmp_path: Path) -> None:
    with opened(written(two_rates(), tmp_path), width=width) as found:
        found.wait_for_charts()
        assert found.page.evaluate("document.documentElement.scrollWidth") == width
        for box in ("table", "svg.marks"):
            widest = f"Math.max(...[...document.querySelectorAll('{box}')].map(e => e.scrollWidth))"
            assert found.page.evaluate(widest) <= width


@headless
def test_it_prints(tmp_path: Path) -> None:
    """Dark on white whatever the screen's scheme, and nothing cut at the right edge."""
    with opened(written(comparison(), tmp_path), scheme="dark") as found:
        found.wait_for_charts()
        found.page.emulate_media(media="print")
        found.page.set_viewport_size({"width": 700, "height": 900})
        ink = "getComputedStyle(document.querySelector('.verdict')).color"
        assert luminance(found.page.evaluate(ink)) < 0.1
        assert found.page.evaluate("document.documentElement.scrollWidth") <= 700
        assert found.page.pdf(format="A4").startswith(b"%PDF")


@headless
def test_a_chart_that_cannot_be_drawn_says_so(tmp_path: Path) -> None:
    path = written(comparison(), tmp_path)
    path.write_text(path.read_text().replace('"type": "area"', '"type": "none"'))
    with opened(path) as found:
        place = found.page.locator("[data-chart=curves]")
        found.page.wait_for_function("!!document.querySelector('[data-chart=stream] svg path')")
        assert "This chart could not be drawn: " in place.inner_text()
        assert found.messages


def test_continuous_integration_skips_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NORMWISE_BROWSER set there is always a browser to take, be it there or not."""
    monkeypatch.setenv("NORMWISE_BROWSER", "/nowhere/chromium")
    monkeypatch.setenv("PATH", "")
    assert browser() == "/nowhere/chromium"
    monkeypatch.delenv("NORMWISE_BROWSER")
    assert browser() is None


class Text(HTMLParser):
    """The elements of a page, and the text outside scripts and styles."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.tags[-1:]):
            self.text += data


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield written(comparison(), tmp_path_factory.mktemp("page")).read_text(encoding="utf-8")


def test_the_verdict_comes_first_and_the_conditions_last(page: str) -> None:
    text = Text(page).text
    order = [
        "pre_norm at rate 1e-3 has the lowest mean loss", "Training loss by step",
        "Validation loss", "RMS of the stream by depth", "RMS of the gradient", "tokens a second",
        "sha256 of the text", "torch",
    ]  # fmt: skip
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_the_page_names_nothing_elsewhere(page: str) -> None:
    """No element and no attribute that loads something."""
    found = Text(page)
    assert not {"link", "img", "iframe", "object", "a"} & set(found.tags)
    assert not {"src", "href", "srcset"} & {name for name, _ in found.attributes}
    policy = next(value for _, value in found.attributes if value and "default-src" in value)
    assert "default-src 'none'" in policy and "http" not in policy


def test_the_page_is_small_enough(page: str) -> None:
    """Under 2 MB also for 200 variants of 48 layers, of which the lowest are drawn."""
    assert len(page.encode()) < BYTES_AT_MOST
    many = [
        wide(record("pre_norm", seed, 2 + warmup / 1000, warmup=warmup))
        for warmup in range(200)
        for seed in (0, 1)
    ]
    assert len(render(document(comparison(many))).encode()) < BYTES_AT_MOST


def wide(run: dict[str, object]) -> dict[str, object]:
    """The run as one of 48 layers."""
    signal = [1.0 + i / 96 for i in range(97)]
    names = ("stream", "branch", "stream_gradient", "branch_gradient")
    return {**run, "initial": dict.fromkeys(names, signal), "predicted_stream": signal}


def test_chart_data_ends_no_script() -> None:
    content = render(document(hostile()))
    assert HOSTILE not in content
    scripts = re.findall(r"<script[^>]*>", content)
    assert len(scripts) == 3
    charts = json.loads(content.split('id="charts">')[1].split("</script>")[0])
    assert HOSTILE in json.dumps(charts)
