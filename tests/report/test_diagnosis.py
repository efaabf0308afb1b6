"""A diagnosis as it is shown: the order, every number, 80 columns, and the page in a browser."""

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import normwise as nw
from normwise.lab.check import Checked, run_check
from normwise.lab.check_settings import CheckSettings
from normwise.probe.checks.registry import CHECKS
from normwise.probe.diagnosis import Diagnosis
from normwise.probe.findings import Limits, Reading, Remedy, Unmeasured
from normwise.report.charts import CELLS, spec
from normwise.report.diagnosis import NOT_MEASURED, document
from normwise.report.document import Command, Document, Figure, Note, Table
from normwise.report.page import page
from normwise.report.terminal import show, write
from tests.browser import browser, opened
from tests.report.test_page import BYTES_AT_MOST, HOSTILE, luminance

BAD = "own:norm_eps=1e-3,depth=3,width=32"
headless = pytest.mark.headless


@pytest.fixture(autouse=True)
def _needs_a_browser(request: pytest.FixtureRequest) -> None:
    if "headless" in request.keywords and browser() is None:
        pytest.skip("no Chromium on the path, and none named in NORMWISE_BROWSER")


@pytest.fixture(scope="module")
def bad() -> Diagnosis:
    """Half of each norm's root is eps."""
    return run_check(CheckSettings(target=BAD)).result


@pytest.fixture(scope="module")
def tried() -> Checked:
    return run_check(CheckSettings(target=BAD, remedy="small-eps"))


@pytest.fixture(scope="module")
def healthy() -> Diagnosis:
    return run_check(CheckSettings(target="own:depth=3,width=32")).result


LIMITS = Limits(10.0, 100.0, "C", "a source")


def reading(check: str, value: float, layer: int | None = None, **changes: Any) -> Reading:
    made = Reading(
        check, f"layer {layer}", layer, "a ratio", value, LIMITS, LIMITS.severity(value),
        Remedy("Change it."),
    )  # fmt: skip
    return replace(made, **changes)


def large(base: Diagnosis) -> Diagnosis:
    """All checks in 48 layers, one in each of which is bad."""
    names = list(CHECKS)
    told = [
        reading(name, 200.0 if layer == at else 1.0, layer, note="what else there is to know")
        for at, name in enumerate(names)
        for layer in range(48)
    ]
    (stack,) = base.record.stacks
    updates = [replace(base.record.updates[0], name=f"layers.{i}.weight") for i in range(600)]
    deep = replace(
        stack,
        points=[stack.points[0]] * 97,
        connections=[replace(stack.connections[i % 2], layer=i // 2) for i in range(96)],
    )
    record = replace(base.record, stacks=[deep], updates=updates, expected=[])
    return replace(base, readings=told, checks=names, record=record, verdict="fail")


def printed(report: Document) -> list[str]:
    console = Console(width=80, file=io.StringIO())
    write(report, console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def notes(report: Document) -> list[Note]:
    return [b for section in report.sections for b in section.blocks if isinstance(b, Note)]


def named(report: Document, name: str) -> Table:
    return next(table for table in report.tables() if table.name == name)


def figure(report: Document, name: str) -> Figure:
    return next(figure for figure in report.figures() if figure.name == name)


def test_the_sections_come_in_the_order_of_a_reader_s_questions(tried: Checked) -> None:
    report = document(tried.result, tried.before)
    assert [section.title for section in report.sections] == [
        "", "Before and after small-eps", "Signal by depth", "Checks by layer",
        "The model as it was found", "Not measured", "Branches", "Attention", "Conditions",
        "Parameters", "All readings",
    ]  # fmt: skip
    assert [section.title for section in report.sections if section.folded] == [
        "Parameters", "All readings",
    ]  # fmt: skip


def test_the_verdict_is_the_summary(bad: Diagnosis, healthy: Diagnosis) -> None:
    assert document(bad).verdict == bad.summary
    assert "healthy" in document(healthy).verdict
    assert not any(note.strong for note in notes(document(healthy)))


def test_a_finding_has_place_number_limit_source_and_remedy(bad: Diagnosis) -> None:
    """One note for the check, with its worst place and how many others there are."""
    strong, text, remedy, *_ = notes(document(bad))
    worst = max((r for r in bad.findings if r.check == "norm-eps-share"), key=lambda r: r.value)
    assert strong.text == f"fail: norm-eps-share at {worst.where}, and 6 more"
    assert f"{worst.value:.3g}; warn above 0.05, fail above 0.25. Tier B, numerical" in text.text
    assert worst.limits.source in text.text
    assert worst.remedy is not None and remedy.text == worst.remedy.text


def test_remedies_are_lines_to_type(bad: Diagnosis) -> None:
    first = document(bad).sections[0].blocks
    lines = [block.line for block in first if isinstance(block, Command)]
    assert f"normwise check {BAD} --try small-eps" in lines


def test_three_findings_are_shown_the_worst_first_and_the_others_named(healthy: Diagnosis) -> None:
    told = [
        reading(name, value) for name, value in zip(CHECKS, (20, 200, 50, 900, 5), strict=False)
    ]
    told.append(reading("attn-entropy", 3, limits=Limits(None, None, "C", "", 1), severity="info"))
    names = list(CHECKS)
    report = document(replace(healthy, readings=told, checks=names))
    strong = [note.text.split(" at ")[0] for note in notes(report) if note.strong]
    assert strong == [f"fail: {names[1]}", f"fail: {names[3]}", f"warn: {names[0]}"]
    rest = next(note.text for note in notes(report) if note.text.startswith("See the table"))
    assert (
        rest == f"See the table below: warn {names[2]}, layer None; info attn-entropy, layer None."
    )


def test_each_check_stands_beside_its_limits(bad: Diagnosis) -> None:
    rows = {row[0]: row[1:] for row in named(document(bad), "checks").rows}
    assert list(rows) == bad.checks
    assert rows["norm-eps-share"][0] == "fail" and rows["norm-eps-share"][2] == "> 0.05 / 0.25"
    assert rows["adam-eps-floor"][2] == "< 10 / 1"
    assert rows["precision-headroom"] == (NOT_MEASURED, None, None, "")


def test_the_worst_of_a_lower_limit_is_the_smallest(healthy: Diagnosis) -> None:
    below = Limits(10.0, 1.0, "A", "a source", below=True)
    told = [
        reading("adam-eps-floor", value, limits=below, severity="warn") for value in (9.0, 2.0, 5.0)
    ]
    report = document(replace(healthy, readings=told, checks=["adam-eps-floor"]))
    assert named(report, "checks").rows[0][:3] == ("adam-eps-floor", "warn", 2.0)
    assert "warn below 10, fail below 1" in notes(report)[1].text


def test_a_value_that_is_no_number_is_the_worst(healthy: Diagnosis) -> None:
    told = [reading("signal-growth", value) for value in (500.0, math.nan, math.inf)]
    report = document(replace(healthy, readings=told, checks=["signal-growth"]))
    assert math.isnan(named(report, "checks").rows[0][2])
    assert any("nan" in line for line in printed(report))
    json.dumps(spec(figure(report, "grid")), allow_nan=False)


def test_a_limit_that_did_not_decide_stands_in_brackets(healthy: Diagnosis) -> None:
    """A check may let a value beyond its limits pass, as of a placement that is made so."""
    told = [reading("signal-growth", 20.0, severity="info"), reading("theory-gap", 20.0)]
    report = document(replace(healthy, readings=told, checks=["signal-growth", "theory-gap"]))
    assert [row[3] for row in named(report, "checks").rows] == ["(> 10 / 100)", "> 10 / 100"]
    assert any("in brackets" in note.text for note in notes(report))
    assert not any("in brackets" in note.text for note in notes(document(healthy)))


def test_no_check_is_a_report_too(healthy: Diagnosis) -> None:
    report = document(replace(healthy, readings=[], checks=[], unmeasured=[]))
    assert "Checks by layer" not in [section.title for section in report.sections]
    assert page(report) and printed(report)


def test_a_cell_of_the_grid_is_the_worst_of_its_layer(bad: Diagnosis) -> None:
    rows = [row for row in figure(document(bad), "grid").rows if "state" in row]
    cells = {(row["label"], row["column"]): row["state"] for row in rows}
    assert cells["norm-eps-share", "2"] == "fail" and cells["norm-eps-share", "all"] == "fail"
    assert cells["sublayer-ratio", "0"] == "ok"
    assert cells["precision-headroom", "all"] == NOT_MEASURED
    assert {row["state"] for row in rows} <= set(CELLS)


def test_no_two_states_share_a_colour_or_a_form() -> None:
    colours, forms = zip(*CELLS.values(), strict=True)
    assert len(set(colours)) == len(set(forms)) == len(CELLS) == 5


def test_before_and_after_stand_side_by_side(tried: Checked) -> None:
    report = document(tried.result, tried.before)
    assert report.verdict.startswith("With small-eps: The signal of this Transformer is healthy")
    rows = {row[0]: row[1:] for row in named(report, "before-after").rows}
    value, verdict, *after = rows["norm-eps-share"]
    assert (round(value, 1), verdict, after[1:]) == (0.6, "fail", ["ok", "> 0.05 / 0.25"])
    labels = figure(report, "stream").colour
    assert labels is not None and labels.values == ["before", "with small-eps"]


def test_what_was_measured_lies_beside_what_was_predicted(healthy: Diagnosis) -> None:
    (stack,), (expected,) = healthy.record.stacks, healthy.record.expected
    assert expected is not None
    points = figure(document(healthy), "stream").rows
    assert [p["y"] for p in points if "y" in p] == [p.rms for p in stack.points if p]
    assert [p["predicted"] for p in points if "predicted" in p] == expected.stream
    backward = figure(document(healthy), "gradient").rows
    last = [p["y"] for p in backward if "y" in p][-1]
    assert [p["predicted"] for p in backward if "predicted" in p][-1] == pytest.approx(last)


def test_the_end_of_a_format_is_drawn_where_it_is_near(healthy: Diagnosis) -> None:
    def lines(rms: float, dtype: str = "fp32") -> dict[str, list[str]]:
        (stack,) = healthy.record.stacks
        points = [replace(p, rms=rms, gradient=1e-4) for p in stack.points if p]
        record = replace(healthy.record, dtype=dtype, expected=[],
                         stacks=[replace(stack, points=list(points))])  # fmt: skip
        report = document(replace(healthy, record=record))
        return {
            name: [row["label"] for row in figure(report, name).rows if "limit" in row]
            for name in ("stream", "gradient")
        }

    assert lines(1.0) == {"stream": [], "gradient": []}
    assert lines(1e4)["stream"] == ["fp16 overflows"]
    assert lines(1.0, "fp16")["gradient"] == ["fp16 loses digits below"]


def test_the_model_is_told_in_a_few_lines(bad: Diagnosis) -> None:
    rows = dict(named(document(bad), "model").rows)
    assert rows["model"].startswith("Transformer, ") and rows["model"].endswith("3 layers")
    assert rows["placement"] == "pre, 6 connections"
    assert rows["norms"] == "6 pre, 1 final: layer_norm, eps 1e-3, rounding fp32"
    assert "rate 3e-4: loss " in rows["trial step"]
    assert len(rows) <= 8


def test_a_step_that_was_not_tried_is_not_told() -> None:
    result = run_check(CheckSettings(target="own:depth=2,width=16", lr=0.0)).result
    assert "trial step" not in dict(named(document(result), "model").rows)
    assert all(section.title != "Parameters" for section in document(result).sections)


def test_what_was_not_measured_is_said_once_and_shortly(healthy: Diagnosis) -> None:
    many = [Unmeasured("norm-eps-share", f"norm {i}: its eps is unknown") for i in range(9)]
    record = replace(healthy.record, missing=["the loss", "the loss"])
    report = document(replace(healthy, unmeasured=many, record=record))
    assert named(report, "not-measured").rows == [
        *(("norm-eps-share", f"norm {i}: its eps is unknown") for i in range(3)),
        ("norm-eps-share", "and 6 more"),
        ("measurement", "the loss"),
    ]


@pytest.mark.parametrize("make", [lambda d: d, large], ids=["as found", "all checks, 48 layers"])
def test_a_terminal_has_80_columns(
    make: Callable[[Diagnosis], Diagnosis], bad: Diagnosis, tried: Checked
) -> None:
    for report in (document(make(bad)), document(make(tried.result), tried.before)):
        lines = printed(report)
        assert max(len(line) for line in lines if not line.startswith("normwise check")) <= 80
        assert any(line.startswith("norm-eps-share") for line in lines)
        assert not any("All readings" in line for line in lines)


def test_both_kinds_of_result_are_shown_and_no_other(bad: Diagnosis, tmp_path: Path) -> None:
    console = Console(width=80, file=io.StringIO())
    show(bad, console)
    nw.write_page(bad, tmp_path / "page.html")
    assert "Scale the embedding up first" in (tmp_path / "page.html").read_text()
    with pytest.raises(TypeError, match="needs a comparison or a diagnosis"):
        nw.write_page({}, tmp_path / "none.html")  # type: ignore[arg-type]
    assert not (tmp_path / "none.html").exists()


def test_all_checks_and_48_layers_fit_into_a_page(bad: Diagnosis) -> None:
    content = page(document(large(bad)))
    assert len(content.encode()) < BYTES_AT_MOST
    assert "layers.599.weight" in content


def test_a_name_ends_no_script(bad: Diagnosis) -> None:
    hostile = replace(bad, model=HOSTILE, remarks=[HOSTILE],
                      readings=[reading("signal-growth", 200.0, 1, where=HOSTILE)])  # fmt: skip
    content = page(document(hostile))
    assert HOSTILE not in content and content.count("<script") == 3


def written(result: Checked | Diagnosis, folder: Path) -> Path:
    path = folder / "page.html"
    pair = (result.result, result.before) if isinstance(result, Checked) else (result,)
    path.write_text(page(document(*pair)), encoding="utf-8")
    return path


@headless
@pytest.mark.parametrize("width", [400, 1200])
def test_the_page_fits_into_its_window_quietly(width: int, tried: Checked, tmp_path: Path) -> None:
    path = written(tried, tmp_path)
    with opened(path, width=width) as found:
        found.wait_for_charts()
        assert found.page.locator("[data-chart]").count() == 7
        assert (found.messages, found.dialogs) == ([], [])
        assert found.requests == [path.as_uri()]
        assert found.page.evaluate("document.documentElement.scrollWidth") == width
        assert found.page.locator("[data-chart=grid] svg").bounding_box()["width"] <= width  # type: ignore[index]


@headless
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_in_both_schemes(scheme: str, bad: Diagnosis, tmp_path: Path) -> None:
    with opened(written(bad, tmp_path), scheme=scheme) as found:
        found.wait_for_charts()
        paper = luminance(found.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        for place in (".verdict", "td", ".strong", "summary", "pre", "[data-chart=grid] svg text"):
            style = f"getComputedStyle(document.querySelector('{place}'))"
            name = "fill" if "svg" in place else "color"
            assert abs(luminance(found.page.evaluate(f"{style}.{name}")) - paper) > 0.7, place


@headless
def test_the_grid_has_a_mark_in_each_cell_and_a_form_for_each_state(
    bad: Diagnosis, tmp_path: Path
) -> None:
    with opened(written(bad, tmp_path), width=400) as found:
        found.wait_for_charts()
        marks = found.page.locator("[data-chart=grid] svg .mark-symbol.role-mark path")
        cells = [row for row in figure(document(bad), "grid").rows if "state" in row]
        assert marks.count() == len(cells)
        legend = found.page.locator("[data-chart=grid] svg .role-legend").first.text_content()
        assert legend and all(state in legend for state in CELLS)
        marks.first.hover(force=True)
        told = found.page.inner_text("#vg-tooltip-element")
        assert cells[0]["label"] in told and cells[0]["told"][:10] in told


@headless
def test_what_was_measured_is_a_line_in_front_of_the_prediction(
    bad: Diagnosis, tmp_path: Path
) -> None:
    """One path each. With the points of both in one table, a gap in one must not cut the other."""
    with opened(written(bad, tmp_path)) as found:
        found.wait_for_charts()
        lines = found.page.locator("[data-chart=stream] svg .mark-line.role-mark path")
        drawn = [str(line.get_attribute("d")) for line in lines.all()]
        assert [path.count("L") for path in drawn] == [6, 6] and all(
            path.count("M") == 1 for path in drawn
        )


@headless
def test_long_tables_open_at_a_click(bad: Diagnosis, tmp_path: Path) -> None:
    with opened(written(bad, tmp_path)) as found:
        found.wait_for_charts()
        inside = found.page.locator("details table").first
        assert not inside.is_visible()
        found.page.locator("summary").first.click()
        assert inside.is_visible() and "entry.embedding.weight" in inside.inner_text()
