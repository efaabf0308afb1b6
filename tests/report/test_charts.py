"""Charts: valid, themed, and with only those layers that have points."""

import dataclasses
from typing import Any

import altair as alt
import pytest

from normwise.report.charts import COLOURS, DASHES, SCHEME, spec
from normwise.report.comparison import document
from normwise.report.document import Figure, Legend
from normwise.report.naming import DASHES_AT_MOST
from normwise.report.vega import svg
from tests.report.comparisons import RECORDS, comparison, record

FIGURES = {
    figure.kind: figure
    for records in (RECORDS, [*RECORDS, record("pre_norm", 0, 4.0, lr=4e-3, warmup=0)])
    for figure in document(comparison(records)).figures()
}


def marks(content: dict[str, Any]) -> list[str]:
    """Kinds of marks, layer by layer."""
    if "layer" in content:
        return [mark for layer in content["layer"] for mark in marks(layer)]
    return [content["mark"]["type"]]


@pytest.mark.parametrize("kind", ["curves", "finals", "rates", "stream", "gradient"])
def test_a_chart_is_valid_and_drawn(kind: str) -> None:
    content = spec(FIGURES[kind], width=500)
    alt.LayerChart.from_dict(content)
    drawn = svg(content)
    assert drawn.startswith("<svg") and "pre_norm" in drawn and "currentColor" in drawn


@pytest.mark.parametrize("kind", FIGURES)
def test_axes_have_titles_with_units(kind: str) -> None:
    drawn = svg(spec(FIGURES[kind], width=500))
    words = {"stream": ["RMS", "branches"], "gradient": ["RMS", "branches"],
             "curves": ["nats a token", "optimizer step"], "finals": ["nats a token"],
             "rates": ["nats a token", "learning rate"]}  # fmt: skip
    assert all(word in drawn for word in words[kind])


@pytest.mark.parametrize("kind", FIGURES)
def test_all_charts_have_one_look(kind: str) -> None:
    content = spec(FIGURES[kind], ink="navy")
    assert content["config"]["background"] == "transparent"
    assert content["config"]["axis"]["labelColor"] == "navy"
    assert content["width"] == "container"


def test_points_are_written_once() -> None:
    """In the named data set, whatever the number of layers."""
    for figure in FIGURES.values():
        content = spec(figure)
        assert content["datasets"]["points"] == figure.rows
        assert sum(len(rows) for rows in content["datasets"].values()) <= len(figure.rows) + 1


def test_a_layer_without_points_is_left_out() -> None:
    whole = FIGURES["curves"]
    rows = [row for row in whole.rows if "diverged" not in row]
    assert marks(spec(whole)) == ["rule", "area", "line", "point"]
    assert marks(spec(dataclasses.replace(whole, rows=rows))) == ["rule", "area", "line"]
    unpredicted = [row for row in FIGURES["stream"].rows if "predicted" not in row]
    assert marks(spec(dataclasses.replace(FIGURES["stream"], rows=unpredicted))) == ["line"]


def test_a_seed_that_finished_is_no_cross() -> None:
    rows = [row for row in FIGURES["finals"].rows if row.get("diverged") is not True]
    assert len(marks(spec(FIGURES["finals"]))) == 5
    assert len(marks(spec(dataclasses.replace(FIGURES["finals"], rows=rows)))) == 4


def test_no_figure_has_more_dashes_than_there_are() -> None:
    assert len(DASHES) == DASHES_AT_MOST


def test_there_are_colours_for_any_number_of_values() -> None:
    names = [str(i) for i in range(20)]
    figure = dataclasses.replace(FIGURES["stream"], colour=Legend("x", names))
    scale = spec(figure)["layer"][0]["encoding"]["color"]["scale"]
    assert scale["domain"] == names
    assert "range" not in scale and scale["scheme"] == SCHEME
    few = dataclasses.replace(FIGURES["stream"], colour=Legend("x", names[:8]))
    assert spec(few)["layer"][0]["encoding"]["color"]["scale"]["range"] == list(COLOURS)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.15, 3.0], [0.1, 0.2, 0.5, 1.0, 2.0, 5.0]),
        ([1e-5, 1e-1], [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]),
    ],
)
def test_logarithmic_axes_have_round_ticks(values: list[float], ticks: list[float]) -> None:
    rows = [{"label": "a", "colour": "a", "at": i, "measured": v} for i, v in enumerate(values)]
    figure = Figure("stream", "stream", "", rows)
    found = spec(figure)["layer"][0]["encoding"]["y"]["axis"]["values"]
    assert [tick for tick in found if tick in ticks] == ticks


@pytest.mark.parametrize("kind", FIGURES)
def test_every_value_of_a_legend_is_drawn(kind: str) -> None:
    figure = FIGURES[kind]
    drawn = svg(spec(figure, width=700))
    names = {row["colour"] for row in figure.rows}
    assert len(names) == 3 and all(f">{name}" in drawn for name in names)


def test_a_chart_of_final_losses_names_its_rows_and_grows_with_them() -> None:
    figure = FIGURES["finals"]
    two = [row for row in figure.rows if row["label"] != "deep_norm"]
    tall, low = spec(figure)["height"], spec(dataclasses.replace(figure, rows=two))["height"]
    assert tall * 2 == low * 3


@pytest.mark.parametrize("step", [1, 41])
def test_a_comparison_that_only_diverged_is_drawn(step: int) -> None:
    runs = [record("pre_norm", 0, None, step=step), record("pre_norm", 0, None, step=step, lr=0.02)]
    figures = {figure.kind: figure for figure in document(comparison(runs)).figures()}
    assert marks(spec(figures["rates"])) == ["rule", "point"]
    assert all(svg(spec(figure, width=500)).startswith("<svg") for figure in figures.values())


def test_one_value_has_no_legend() -> None:
    (figure, *_) = document(comparison(RECORDS[:2])).figures()
    assert spec(figure)["layer"][1]["encoding"]["color"] == {
        "field": "colour", "legend": None, "type": "nominal"
    }  # fmt: skip


def test_a_level_is_drawn_where_it_lies() -> None:
    content = spec(FIGURES["curves"])
    level = content["layer"][0]
    assert level["mark"]["type"] == "rule"
    assert content["datasets"][level["data"]["name"]] == [{"level": 3.25}]
