"""The tables: everything said, in 80 columns."""

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from normwise.lab.comparison import Comparison
from normwise.lab.plan import Failure, Plan, Skipped
from normwise.lab.store import Damaged
from normwise.report.document import Column, Command, Document, Section, Table
from normwise.report.terminal import render, show, write
from tests.report.comparisons import RECORDS, comparison, damaged_file, record, settings


def shown(result: Comparison, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    show(result, console)
    return printed(console)


def printed(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def row(lines: list[str], start: str) -> str:
    return next(" ".join(line.split()) for line in lines if line.startswith(start))


def test_the_verdict_comes_first() -> None:
    assert shown(comparison())[0].startswith("pre_norm at rate 1e-3 has the lowest mean loss, 2.36")


def test_a_variant_is_one_row() -> None:
    lines = shown(comparison())[2:]
    assert row(lines, "pre_norm") == "pre_norm 2.360 \u00b10.127 - - 1e-3 trained"
    assert row(lines, "post_norm") == (
        "post_norm 3.255 \u00b10.064 +0.895 \u00b10.064 yes 1e-3 stuck 2/2"
    )
    assert row(lines, "deep_norm") == "deep_norm 2.200 - - 1e-3 diverged at 41"


def test_cost_has_a_table_of_its_own() -> None:
    lines = shown(comparison())
    cost = lines[lines.index("Cost") :]
    assert row(cost, "placement") == "placement parameters tokens a second peak MiB"
    assert row(cost, "pre_norm") == "pre_norm 628k 6.1k 400"


def test_a_model_that_has_not_learnt_anything_is_no_stuck_one() -> None:
    lines = shown(comparison([record("pre_norm", 0, 4.0)]))
    assert "untrained 1/1" in row(lines[2:], "pre_norm")


def test_a_model_of_one_s_own_is_named() -> None:
    text = " ".join(shown(comparison([record("pre_norm", 0, 2.3, builder="mine:build")])))
    assert "Model: mine:build; 300 steps" in text and "width" not in text


def test_what_differs_outside_the_grid_is_said_to_vary() -> None:
    runs = [record("pre_norm", 0, 2.3), record("pre_norm", 0, 2.2, steps=600)]
    lines = shown(comparison(runs), width=120)
    assert any("varying steps of 16 x 64 tokens" in line for line in lines)
    assert row(lines, "steps").startswith("steps loss")


def test_axes_that_do_not_vary_are_left_out() -> None:
    assert row(shown(comparison()), "placement") == (
        "placement loss above lowest apart rate outcome"
    )


def test_what_all_runs_share_is_told() -> None:
    assert (
        "All runs: layer_norm, init xavier_packed, warm-up 150, adamw, layers 12, rate 1e-3"
        in shown(comparison(), width=120)
    )


def test_an_axis_that_varies_is_shown() -> None:
    lines = shown(comparison([RECORDS[0], record("pre_norm", 0, 2.4, warmup=0)]))
    assert row(lines, "warm-up").startswith("warm-up loss")


def test_a_rate_that_diverged_is_told() -> None:
    runs = [record("pre_norm", 0, 2.3), record("pre_norm", 0, None, lr=1e-2)]
    assert "diverged at rate 0.01" in row(shown(comparison(runs), width=200)[2:], "pre_norm")


def test_the_signal_is_shown_at_five_depths_beside_its_prediction() -> None:
    lines = [" ".join(line.split()) for line in shown(comparison(), width=120)]
    assert "pre_norm measured 1.00 7.00 13.00 19.00 25.00" in lines
    assert "pre_norm predicted 2.00 14.00 26.00 38.00 50.00" in lines
    assert "pre_norm measured overflow 1.5e-4 1.5e-4 1.5e-4 1.5e-4" in lines


def test_what_is_missing_is_told() -> None:
    failed, open_ = settings("pre_norm", 7), settings("pre_norm", 8)
    result = comparison(
        failures=[Failure(failed, "ArithmeticError: no such model\n")],
        damaged=[damaged_file()],
        plan=Plan((failed, open_), (Skipped("a with b", "they do not fit"),)),
    )
    lines = shown(result, width=200)
    run = "layer_norm pre_norm xavier_packed, lr 0.001, warm-up 150, depth 12, seed"
    assert "Skipped a with b: they do not fit." in lines
    assert f"Failed: {failed.id[:8]} {run} 7: ArithmeticError: no such model" in lines
    assert f"Unfinished: {open_.id[:8]} {run} 8" in lines
    damaged = "Damaged: results/abc.json: its checksum does not match its content; left out"
    assert damaged in lines
    diverged = f"{settings('deep_norm', 0).id[:8]} {run.replace('pre_norm', 'deep_norm')} 0"
    assert f"Diverged: {diverged}: loss not finite at step 41" in lines


@pytest.mark.parametrize(
    ("path", "lost"),
    [
        ("plans/a.json", "which runs it asked for is not known"),
        ("failures/a.json", "why its run failed is not known"),
        ("results/a.json", "left out"),
        (f"results/{RECORDS[0]['id']}.json", "its run has been made again"),
    ],
)
def test_what_is_lost_with_a_damaged_file_is_told(path: str, lost: str) -> None:
    result = comparison(damaged=[Damaged(Path(path), "it is cut")])
    assert f"Damaged: {path}: it is cut; {lost}" in shown(result, width=200)


def test_of_many_faults_the_first_are_named() -> None:
    open_ = tuple(settings("pre_norm", seed) for seed in range(2, 20))
    lines = shown(comparison(plan=Plan(open_)), width=200)
    assert sum(line.startswith("Unfinished: ") for line in lines) == 11
    assert "Unfinished: 8 more" in lines


def test_runs_that_two_sources_hold_differently_are_told() -> None:
    result = dataclasses.replace(comparison(), contested=["0123"])
    assert "Stored twice with different losses, the first one counts: 0123" in shown(result)


def test_an_incomplete_comparison_fits_into_80_columns() -> None:
    """With a column for the number of seeds and long names, no outcome is cut."""
    runs = [record(place, seed, 3.25, init="xavier_packed" if place == "pre_norm" else "deep_norm",
                   warmup=warmup) for place in ("pre_norm", "post_norm") for warmup in (0, 150)
            for seed in range(3 if place == "pre_norm" else 2)]  # fmt: skip
    lines = shown(comparison(runs))
    assert all(len(line) <= 80 for line in lines)
    text = "".join("".join(lines).split())
    assert text.count("3/3") == 2 and text.count("2/2") == 2


def test_control_characters_do_not_reach_the_terminal() -> None:
    lines = shown(comparison(data={"source": "a\x1b[31mb\x9b\r"}))
    assert any("a\ufffd[31mb\ufffd\ufffd" in line for line in lines)


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_at_this_width(width: int) -> None:
    runs = [record(place, seed, 2.0 + seed / 9, init=init, warmup=warmup)
            for place in ("post_norm", "deep_norm") for init in ("xavier_packed", "gpt2")
            for warmup in (0, 150) for seed in (0, 1)]  # fmt: skip
    lines = shown(comparison(runs), width)
    assert all(len(line) <= width for line in lines)
    assert not any("\u2026" in line for line in lines)


def test_the_level_of_being_stuck_is_explained() -> None:
    text = " ".join(shown(comparison()))
    assert "Stuck: within 0.1 of 3.25, the loss of" in text
    assert "95 % Student-t interval over 2 seeds, without those that diverged, at" in text


def test_the_number_of_intervals_is_told() -> None:
    text = " ".join(shown(comparison()))
    assert "None of the 1 intervals is widened for there being 1," in text


def test_a_best_rate_at_the_edge_is_told() -> None:
    runs = [record("pre_norm", seed, 2.0 + lr, lr=lr) for seed in (0, 1) for lr in (0.1, 0.2, 0.3)]
    text = " ".join(shown(comparison(runs)))
    assert "The best rate of 1 of 1 variants is the lowest or the highest that was tried" in text
    inner = [record("pre_norm", s, loss, lr=lr) for s in (0, 1)
             for lr, loss in ((0.1, 3.0), (0.2, 2.0), (0.3, 2.5))]  # fmt: skip
    assert "best rate of" not in " ".join(shown(comparison(inner))).replace("best rate of each", "")


def test_conditions_are_left_to_the_page() -> None:
    assert not any("x86_64" in line for line in shown(comparison()))


def test_a_command_stays_in_one_line() -> None:
    line = "normwise compare " + "--option value " * 20
    console = Console(width=80, file=io.StringIO())
    write(Document("", "", [Section("", [Command(line.strip())])]), console)
    assert line.strip() in printed(console)


def test_markup_in_a_name_is_text() -> None:
    """rich's own markup, [bold] and the like, is not read."""
    table = Table("t", [Column("[red]what"), Column("n", "count")], [("[bold]x[/]", 1)])
    blocks: list[Any] = [table, Command("run [1]")]
    console = Console(width=80, file=io.StringIO())
    console.print(render(Document("", "[i]verdict", [Section("[u]title", blocks)])))
    text = "\n".join(printed(console))
    for words in ("[i]verdict", "[u]title", "[red]what", "[bold]x[/]", "run [1]"):
        assert words in text
