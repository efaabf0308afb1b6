"""Stream and gradient by depth."""

import math

from normwise.lab.comparison import Comparison
from normwise.report.document import Figure, Table
from normwise.report.losses import LINES_SHOWN
from normwise.report.signal import POINTS_SHOWN, signal_blocks
from tests.report.comparisons import comparison, record


def parts(result: Comparison) -> tuple[list[Figure], list[Table]]:
    blocks = signal_blocks(result)
    figures = [block for block in blocks if isinstance(block, Figure)]
    return figures, [block for block in blocks if isinstance(block, Table)]


def test_the_prediction_stands_behind_the_stream() -> None:
    (stream, gradient), _ = parts(comparison())
    assert [row["measured"] for row in stream.rows if "measured" in row][:3] == [1.0, 2.0, 3.0]
    assert [row["predicted"] for row in stream.rows if "predicted" in row][:3] == [2.0, 4.0, 6.0]
    assert "predicted by theory" in stream.caption
    assert not any("predicted" in row for row in gradient.rows)


def test_an_overflow_is_no_point_and_said_in_the_table() -> None:
    (_, gradient), (_, table) = parts(comparison())
    assert {row["at"] for row in gradient.rows} == set(range(1, 25))
    assert table.rows[0][2:] == (math.inf, 1.5e-4, 1.5e-4, 1.5e-4, 1.5e-4)


def test_a_model_without_a_prediction() -> None:
    run = {**record("pre_norm", 0, 2.0), "predicted_stream": None}
    (stream, _), (table, _) = parts(comparison([run]))
    assert "predicted" not in stream.caption
    assert [row[1] for row in table.rows] == ["measured"]


def test_deep_models_are_thinned_and_keep_both_ends() -> None:
    run = record("pre_norm", 0, 2.0)
    run["initial"]["stream"] = run["predicted_stream"] = [float(i + 1) for i in range(1001)]
    (stream, _), _ = parts(comparison([run]))
    at = [row["at"] for row in stream.rows if "measured" in row]
    assert len(at) <= POINTS_SHOWN + 1 and (at[0], at[-1]) == (0, 1000)


def test_a_zero_is_no_point_of_a_logarithmic_axis() -> None:
    run = record("pre_norm", 0, 2.0)
    run["initial"]["stream_gradient"] = [1.0, *([0.0] * 24)]
    (_, gradient), (_, table) = parts(comparison([run]))
    assert [row["at"] for row in gradient.rows] == [0]
    assert table.rows[0][2:] == (1.0, 0.0, 0.0, 0.0, 0.0)


def test_a_quantity_that_overflows_everywhere_has_a_table_and_no_figure() -> None:
    run = record("pre_norm", 0, None)
    run["initial"]["stream_gradient"] = [None] * 25
    figures, tables = parts(comparison([run]))
    assert [figure.name for figure in figures] == ["stream"] and len(tables) == 2


def test_models_of_variants_that_are_not_shown_have_no_line() -> None:
    """Of 40 models those with the lowest losses; 24 have lost too much."""
    runs = [record("pre_norm", 0, 3.0 - depth / 100, depth=depth) for depth in range(1, 41)]
    (stream, _), (table, _) = parts(comparison(runs))
    shown = [str(depth) for depth in range(41 - LINES_SHOWN, 41)]
    assert list(dict.fromkeys(row["colour"] for row in stream.rows)) == shown
    assert f"{LINES_SHOWN} of 40 models" in stream.caption
    assert len({row[0] for row in table.rows}) == 40


def test_a_model_is_one_line_whatever_it_was_trained_with() -> None:
    runs = [record("pre_norm", 0, 2.0, warmup=warmup) for warmup in (0, 150)]
    (stream, _), (table, _) = parts(comparison(runs))
    assert {row["label"] for row in stream.rows} == {"pre_norm"}
    assert [row[:2] for row in table.rows] == [("pre_norm", "measured"), ("pre_norm", "predicted")]


def test_the_five_depths_are_entry_quarters_and_end() -> None:
    """25 points: 1, 7, 13, 19 and 25, with the kind that spells them."""
    _, (stream, gradient) = parts(comparison())
    assert stream.rows[0][2:] == (1.0, 7.0, 13.0, 19.0, 25.0)
    assert [column.title for column in stream.columns][2:] == ["entry", "1/4", "1/2", "3/4", "last"]
    assert {column.kind for column in stream.columns[2:]} == {"rms"}
    assert {column.kind for column in gradient.columns[2:]} == {"gradient"}


def test_seeds_are_averaged_and_an_overflow_in_one_is_an_overflow() -> None:
    runs = [record("pre_norm", 0, 2.0), record("pre_norm", 1, 2.0)]
    runs[1]["initial"]["stream"] = [3.0, None, *([3.0] * 23)]
    (stream, _), _ = parts(comparison(runs))
    measured = {row["at"]: row["measured"] for row in stream.rows if "measured" in row}
    assert measured[0] == 2.0 and 1 not in measured and measured[2] == 3.0
