"""The table of losses and the points of its figures."""

from typing import Any

import pytest

from normwise.lab.comparison import Comparison
from normwise.lab.store import Record
from normwise.report.document import Figure, Note, Spread
from normwise.report.losses import (
    LINES_SHOWN,
    loss_figures,
    loss_notes,
    loss_table,
    shown_variants,
)
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


@pytest.mark.parametrize(
    ("records", "outcome"),
    [
        ([record("pre_norm", 0, 2.0)], "trained"),
        ([record("pre_norm", 0, 3.25), record("pre_norm", 1, 4.0)], "stuck 1/2; untrained 1/2"),
        (
            [record("pre_norm", 0, None, step=41), record("pre_norm", 1, None, step=3),
             record("pre_norm", 2, 3.2)],
            "diverged at 3, 41; stuck 1/3",
        ),
        (
            [record("pre_norm", 0, 2.0), record("pre_norm", 0, None, lr=4e-3),
             record("pre_norm", 0, None, lr=0.02)],
            "diverged at rate 4e-3, 0.02",
        ),
    ],
)  # fmt: skip
def test_the_outcome_says_what_went_wrong(records: list[Record], outcome: str) -> None:
    (row,) = rows(comparison(records))
    assert row["outcome"] == outcome


def test_a_variant_without_a_loss_has_empty_cells() -> None:
    (row,) = rows(comparison([record("pre_norm", 0, None)]))
    assert (row["loss"], row["above lowest"], row["apart"]) == (None, None, None)


def notes(result: Comparison) -> list[str]:
    return [block.text for block in loss_notes(result) if isinstance(block, Note)]


@pytest.mark.parametrize(
    ("seeds", "words"),
    [((1,), "over 1 seed,"), ((2, 2), "over 2 seeds,"), ((2, 3), "over 2 to 3 seeds,"),
     ((1, 2, 3), "over 1 to 3 seeds,")],
)  # fmt: skip
def test_the_notes_say_how_many_seeds_there_are(seeds: tuple[int, ...], words: str) -> None:
    runs = [
        record("pre_norm", seed, 2.0 + seed / 100, warmup=warmup)
        for warmup, count in enumerate(seeds)
        for seed in range(count)
    ]
    assert words in notes(comparison(runs))[0]


def test_differences_are_explained_where_there_are_any() -> None:
    assert [text.split(":")[0] for text in notes(comparison())] == ["Loss", "Above lowest"]
    assert len(notes(comparison(RECORDS[:2]))) == 1
    assert len(notes(comparison([RECORDS[0], RECORDS[2]]))) == 1


def test_a_seed_that_diverged_at_once_is_a_point_at_the_edge() -> None:
    points = figure(comparison([record("pre_norm", 0, None, step=1)]), "curves").rows
    assert points == [{"label": "pre_norm", "colour": "pre_norm", "step": 1, "lost": True}]


def test_one_seed_has_an_interval_of_no_width() -> None:
    points = figure(comparison([record("pre_norm", 0, 2.0)]), "finals").rows
    assert [(p["low"], p["mean"], p["high"]) for p in points if "mean" in p] == [(2.0, 2.0, 2.0)]


def test_a_rate_that_diverged_has_crosses_and_no_mean() -> None:
    runs = [*RECORDS[:2], *(record("pre_norm", seed, None, lr=4e-3) for seed in (0, 1))]
    points = [p for p in figure(comparison(runs), "rates").rows if p["lr"] == 4e-3]
    assert [p["seed"] for p in points if p["diverged"]] == [0, 1] and len(points) == 2
