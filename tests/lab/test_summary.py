"""Statistics over seeds, against numbers worked by hand."""

from typing import Any

import pytest

from normwise.lab.summary import interval_half_width, summarize


def record(seed: int, loss: float | None, lr: float = 1e-3, step: int | None = None) -> Any:
    return {
        "settings": {
            "norm": "layer_norm", "placement": "pre_norm", "init": "gpt2", "warmup": 0,
            "optimizer": "adamw", "depth": 2, "lr": lr, "seed": seed,
        },
        "validation_loss": loss,
        "diverged_at": step,
        "parameters": 10,
        "tokens_per_second": 100.0 + seed,
        "peak_memory_bytes": 1000 * (1 + seed),
    }  # fmt: skip


def test_the_interval_is_student_s() -> None:
    assert interval_half_width([1.0, 2.0]) == pytest.approx(12.7062 * 0.5, rel=1e-5)
    assert interval_half_width([1.0, 2.0, 3.0]) == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
    assert interval_half_width([1.0]) is None


def test_seeds_make_one_variant() -> None:
    (variant,) = summarize([record(0, 2.0), record(1, 2.5)], unigram_loss=3.0)
    assert variant.axes["placement"] == "pre_norm"
    assert variant.best.mean == 2.25
    assert variant.best.losses == {0: 2.0, 1: 2.5}
    assert (variant.seeds, variant.parameters) == (2, 10)
    assert variant.tokens_per_second == 100.5
    assert variant.peak_memory_bytes == 2000


def test_stuck_is_at_the_unigram_level() -> None:
    runs = [record(seed, loss) for seed, loss in enumerate([2.89, 2.91, 3.09, 3.11])]
    (variant,) = summarize(runs, unigram_loss=3.0)
    assert variant.best.stuck == [1, 2]
    assert variant.best.untrained == [3]


def test_a_diverged_seed_counts_before_the_loss() -> None:
    runs = [record(0, 1.0), record(1, None, step=41), record(0, 2.0, 1e-4), record(1, 2.0, 1e-4)]
    (variant,) = summarize(runs, unigram_loss=3.0)
    assert variant.best.lr == 1e-4
    assert [rate.lr for rate in variant.rates] == [1e-4, 1e-3]
    assert variant.rates[1].diverged == {1: 41}
    assert variant.rates[1].half_width is None


def test_a_variant_that_always_diverges_has_no_loss() -> None:
    (variant,) = summarize([record(0, None, step=3)], unigram_loss=3.0)
    assert variant.best.mean is None
    assert variant.best.diverged == {0: 3}
