"""The table of losses and the points of its figures."""

from typing import Any

from normwise.lab.comparison import Comparison
from normwise.report.document import Figure, Spread
from normwise.report.losses import LINES_SHOWN, loss_figures, loss_table, shown_variants
from tests.report.comparisons import RECORDS, comparison, record


def rows(result: Comparison) -> list[dict[str, Any]]:
    table = loss_table(result)
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, row, strict=True)) for row in table.rows]


def figure(result: Comparison, name: str) -> Figure:
    return next(f for f in loss_figures(result) if isinstance(f, Figure) and f.name == name)


def test_a_row_holds_numbers() -> None:
    lowest, stuck, diverged = rows(comparison())
    assert isinstance(lowest["loss"], Spread) and abs(lowest["loss"].mean - 2.36) < 1e-9
    assert (lowest["above lowest"], lowest["apart"]) == (None, None)
    assert stuck["apart"] is True and abs(stuck["above lowest"].mean - 0.895) < 1e-9
    assert diverged["above lowest"] is None and diverged["rate"] == 1e-3


def test_the_lowest_is_marked_and_nobody_without_a_ranking() -> None:
    assert loss_table(comparison()).marked == 0
    assert loss_table(comparison(RECORDS[::-1])).marked == 2
    assert loss_table(comparison(RECORDS[:1])).marked is None


def test_seeds_have_a_column_where_their_number_differs() -> None:
    assert "seeds" not in rows(comparison())[0]
    result = comparison([*RECORDS, record("pre_norm", 2, 2.36)])
    assert [row["seeds"] for row in rows(result)] == [3, 2, 2]


def test_the_lowest_variants_are_shown_in_the_grid_s_order() -> None:
    runs = [record("pre_norm", 0, 3.0 - warmup / 100, warmup=warmup) for warmup in range(40)]
    result = comparison([record("pre_norm", 0, None, warmup=99), *runs])
    assert shown_variants(result.variants) == list(range(41 - LINES_SHOWN, 41))
    curves = figure(result, "curves")
    assert len({row["label"] for row in curves.rows}) == LINES_SHOWN
    assert f"The {LINES_SHOWN} lowest of 41 variants." in curves.caption


def test_a_diverged_seed_is_a_point_at_the_end_of_its_curve() -> None:
    (cross,) = [row for row in figure(comparison(), "curves").rows if "diverged" in row]
    assert cross["step"] == 41 and cross["label"] == "deep_norm"


def test_one_rate_is_shown_by_variant() -> None:
    points = figure(comparison(), "finals").rows
    means = [row for row in points if "mean" in row]
    assert [row["label"] for row in means] == ["pre_norm", "post_norm", "deep_norm"]
    assert abs(means[0]["high"] - means[0]["mean"] - 0.127) < 1e-3
    assert sorted(row["loss"] for row in points if row.get("loss")) == [
        2.2, 2.35, 2.37, 3.25, 3.26
    ]  # fmt: skip
    assert [row["seed"] for row in points if row.get("diverged")] == [0]


def test_several_rates_are_shown_by_rate() -> None:
    """Every rate of every variant, not only the best."""
    result = comparison([*RECORDS, record("pre_norm", 0, 4.0, lr=4e-3)])
    means = [(row["lr"], row["mean"]) for row in figure(result, "rates").rows if "mean" in row]
    assert len(means) == 4 and (4e-3, 4.0) in means


def test_the_unigram_level_is_drawn() -> None:
    assert {f.level for f in loss_figures(comparison()) if isinstance(f, Figure)} == {3.25}
