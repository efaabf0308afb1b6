"""The tables: everything said, in 80 columns."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from normwise.lab.compare import Comparison
from normwise.lab.grid import Skipped, expand
from normwise.lab.launch.local import Failure
from normwise.lab.settings import CompareSettings
from normwise.lab.store import Damaged
from normwise.lab.summary import InitialProfile, summarize
from normwise.report.terminal import show


def record(placement: str, seed: int, loss: float | None, lr: float = 1e-3) -> dict[str, Any]:
    return {
        "settings": {
            "norm": "layer_norm", "placement": placement, "init": "xavier_packed", "warmup": 150,
            "optimizer": "adamw", "depth": 12, "lr": lr, "seed": seed,
        },
        "validation_loss": loss,
        "diverged_at": None if loss else 41,
        "parameters": 628_000,
        "tokens_per_second": 6100.0,
        "peak_memory_bytes": 400 * 2**20,
    }  # fmt: skip


RECORDS = [
    record("pre_norm", 0, 2.35), record("pre_norm", 1, 2.37),
    record("post_norm", 0, 3.25), record("post_norm", 1, 3.26),
    record("deep_norm", 0, None), record("deep_norm", 1, 2.2),
]  # fmt: skip


def comparison(**changes: Any) -> Comparison:
    content: dict[str, Any] = {
        "settings": CompareSettings(),
        "data": {
            "source": "a text", "sha256": "0123456789abcdef", "tokenizer": "bytes",
            "tokens": 466195, "unigram_loss": 3.25,
        },
        "variants": summarize(RECORDS, unigram_loss=3.25),
        "profiles": [
            InitialProfile(
                axes={"norm": "layer_norm", "placement": "pre_norm", "init": "gpt2", "depth": 12},
                stream=[float(i) for i in range(25)],
                branch=[1.0] * 24,
                stream_gradient=[None] + [1.5e-4] * 24,
                predicted=[2.0 * i for i in range(25)],
            )
        ],
    }  # fmt: skip
    return Comparison(**{**content, **changes})


def shown(result: Comparison, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    show(result, console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def row(lines: list[str], start: str) -> str:
    return next(" ".join(line.split()) for line in lines if line.startswith(start))


def test_a_variant_is_one_row() -> None:
    lines = shown(comparison())
    assert row(lines, "pre_norm") == "pre_norm 2.360 \u00b10.13 1e-3 trained 628k 6.1k 400"
    assert row(lines, "post_norm").startswith("post_norm 3.255 \u00b10.06 1e-3 stuck 2/2")
    assert row(lines, "deep_norm").startswith("deep_norm 2.200 1e-3 diverged at 41")


def test_a_model_that_has_not_learnt_anything_is_no_stuck_one() -> None:
    variants = summarize([record("pre_norm", 0, 4.0)], unigram_loss=3.25)
    assert "untrained 1/1" in row(shown(comparison(variants=variants)), "pre_norm")


def test_a_model_of_one_s_own_is_named() -> None:
    text = " ".join(shown(comparison(settings=CompareSettings(builder="mine:build"))))
    assert "Model: mine:build; 300 steps" in text and "width" not in text


def test_axes_that_do_not_vary_are_left_out() -> None:
    heading = row(shown(comparison()), "placement")
    assert heading == "placement loss rate outcome params tok/s MiB"


def test_an_axis_that_varies_is_shown() -> None:
    other = record("pre_norm", 0, 2.4)
    other["settings"]["warmup"] = 0
    result = comparison(variants=summarize([RECORDS[0], other], unigram_loss=3.25))
    assert row(shown(result), "warm-up").startswith("warm-up loss")


def test_a_rate_that_diverged_is_told() -> None:
    runs = [record("pre_norm", 0, 2.3), record("pre_norm", 0, None, lr=1e-2)]
    lines = shown(comparison(variants=summarize(runs, unigram_loss=3.25)), width=200)
    assert "diverged at rate 0.01" in row(lines, "pre_norm")


def test_the_profile_shows_five_layers_and_the_prediction() -> None:
    lines = shown(comparison(), width=120)
    assert "pre_norm stream 0.00 6.00 12.00 18.00 24.00" in [" ".join(x.split()) for x in lines]
    assert any("predicted 0.00 12.00 24.00" in " ".join(line.split()) for line in lines)
    assert any("gradient overflow 1.5e-4" in " ".join(line.split()) for line in lines)


def test_what_is_missing_is_told() -> None:
    run = expand(CompareSettings()).runs[0]
    lines = shown(
        comparison(
            skipped=[Skipped("a with b", "they do not fit")],
            failed=[Failure(run, "ArithmeticError: no such model")],
            damaged=[Damaged(Path("results/abc.json"), "its checksum does not match")],
        ),
        width=200,
    )
    assert "Skipped a with b: they do not fit." in lines
    left_out = (
        "Left out abc.json: its checksum does not match. Its run, if asked for, was made again."
    )
    assert left_out in lines
    failed = "Failed layer_norm pre_norm xavier_packed, lr 0.001, warm-up 0, depth 12, seed 0: "
    assert f"{failed}ArithmeticError: no such model" in lines


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_at_this_width(width: int) -> None:
    lines = shown(comparison(), width)
    assert all(len(line) <= width for line in lines)
    assert not any("\u2026" in line for line in lines)


def test_the_level_of_being_stuck_is_explained() -> None:
    text = " ".join(shown(comparison()))
    assert "Stuck: within 0.1 of 3.25, the loss of" in text
    assert "95 % Student-t interval over 2 seed(s)" in text
