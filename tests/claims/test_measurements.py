"""What the experiments give: names that the texts know, and other numbers for other models."""

import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import normwise as nw
from normwise.claims import batch, rms, signal, why
from normwise.claims.claim import Measurement
from normwise.claims.initial import r1
from normwise.claims.registry import CLAIMS
from normwise.claims.run import judge
from normwise.claims.settings import Effort
from normwise.claims.texts import LANGUAGES, read_text
from normwise.claims.trained import Trained, training_run
from normwise.claims.verdict import HOLDS, IN_PART, NEEDS_FULL, NOT_HERE
from normwise.lab.data import Corpus, load_corpus
from normwise.lab.settings import RunSettings
from normwise.lab.train import build_model
from normwise.norms.batch_norm import BatchNormTokens
from normwise.theory.rounding import double_rounding_share

FULL, QUICK = Effort(2), Effort(1, quick=True)
EXPENSIVE = ("rms-faster", "bn-devices")  # a compiler; processes


class Untrained(Trained):
    """Runs of which nothing is known but a loss by rule, and whose models are as they started."""

    def __init__(self, rule: Callable[[RunSettings], float] = lambda run: 2.0) -> None:
        self.rule = rule
        self.store: Any = self

    def corpus(self) -> Corpus:
        return load_corpus()

    unigram = 3.25

    def loss(self, run: RunSettings) -> float:
        return self.rule(run)

    def model(self, run: RunSettings) -> nn.Module:
        return build_model(run, self.corpus().vocab_size)


@cache
def measured(name: str, effort: Effort = QUICK) -> Measurement:
    return CLAIMS[name].measure(effort, Untrained())


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("effort", [QUICK, FULL], ids=["quick", "full"])
@pytest.mark.parametrize("name", [name for name in CLAIMS if name not in EXPENSIVE])
def test_everything_has_words(name: str, effort: Effort, language: str) -> None:
    text, page = read_text(name, language), read_text("page", language)
    found = measured(name, effort)
    assert list(text.lists["numbers"]) == list(found.numbers)
    picture = {point.get(key) for point in found.points for key in ("label", "mark")} - {None}
    assert picture <= set(text.lists["picture"])
    assert set(found.conditions) <= set(page.lists["conditions"])
    assert {key for row in found.rows for key in row} <= set(text.lists.get("table", {}))
    assert all(math.isfinite(point["y"]) for point in found.points)


@pytest.mark.parametrize("name", [n for n in CLAIMS if not CLAIMS[n].runs(FULL)])
def test_a_quick_measurement_without_training_is_the_full_one(name: str) -> None:
    if name not in EXPENSIVE:
        assert measured(name, QUICK).numbers == measured(name, Effort(3)).numbers


def placed(instead: str, name: str, *rest: Any) -> Any:
    return nw.make_placement(instead, *rest)


def ignoring_rounding(*args: Any, rounding: str = "fp32", **options: Any) -> Any:
    return nw.rms_norm(*args, **options)


def as_deep_norm(**changes: Any) -> Any:
    return r1(**{**changes, "placement": "deep_norm"})


def with_wrong_gains(run: RunSettings, vocab_size: int) -> nn.Module:
    return build_model(run, vocab_size).apply(shifted)


class Deaf(BatchNormTokens):
    def forward(self, x: Any, mask: Any = None) -> Any:
        return super().forward(x)


def ignoring_the_mask(width: int, **options: Any) -> nn.Module:
    return Deaf(width, **options)


def over_the_batch(width: int) -> nn.Module:
    return BatchNormTokens(width, track_running_stats=False)


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "post-expansion": (signal, "make_placement", partial(placed, "pre_norm")),
    "last-layer-gradient": (signal, "r1", as_deep_norm),
    "why-token": (why, "build_model", with_wrong_gains),
    "ln-independent": (batch, "LayerNorm", over_the_batch),
    "bn-padding": (batch, "BatchNormTokens", ignoring_the_mask),
    "rms-is-ln": (rms, "rms_norm", nw.layer_norm),
    "rms-cast": (rms, "rms_norm", ignoring_rounding),
    "rms-offset": (rms, "RMSNorm", lambda width, **options: nw.RMSNorm(width, unit_offset=True)),
}


def shifted(module: nn.Module) -> None:
    if isinstance(module, nw.LayerNorm) and module.bias is not None:
        nn.init.constant_(module.bias, 0.1)
    elif isinstance(module, nw.LayerNorm):
        nn.init.constant_(module.weight, 1.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_changes_the_verdict(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(name, QUICK, measured(name)).verdict == HOLDS
    monkeypatch.setattr(*FAULTS[name])
    found = CLAIMS[name].measure(QUICK, Untrained())
    monkeypatch.undo()
    assert judge(name, QUICK, found).verdict in (IN_PART, NOT_HERE)


def by_placement(run: RunSettings) -> float:
    return {"pre_norm": 2.3, "post_norm": 3.2, "deep_norm": 2.1}[run.placement] - run.seed / 100


@pytest.mark.parametrize(
    ("name", "rule", "numbers"),
    [
        ("pre-easy", by_placement, {"xavier": 0.9, "fast": 0.9}),
        ("post-warmup", lambda run: 3.2 - run.warmup / 100, {"normal": 1.0, "fast": 1.0}),
        ("post-better", by_placement, {"difference": -0.9}),
        ("post-better", lambda run: 2.0 + run.warmup, {"difference": 0.0}),
        ("deep-norm", by_placement, {"fast": 1.1, "deep": 1.1}),
        ("rms-quality", lambda run: 2.0 + (run.norm == "rms_norm"), {"difference": 1.0}),
        (
            "bn-worse-text",
            lambda run: 2.0 + (run.builder is not None),
            {"unmasked": 1, "masked": 0},
        ),
        (
            "bn-batch-size",
            lambda run: 2.0 + (run.norm == "batch_norm_tokens") / run.batch_size,
            {"gap": 1 / 2 - 1 / 32},
        ),
    ],
)
def test_losses_become_differences(
    name: str, rule: Callable[[RunSettings], float], numbers: dict[str, float]
) -> None:
    found = CLAIMS[name].measure(FULL, Untrained(rule)).numbers
    for key, expected in numbers.items():
        assert found[key] == pytest.approx([expected] * FULL.seeds)


def test_layers_that_were_not_trained_are_as_at_their_start() -> None:
    found = measured("pre-shallow", FULL).numbers
    assert found["angle"] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert all(abs(value) < 0.2 for value in found["cosine"])


def test_claims_share_their_training_runs() -> None:
    effort = Effort()
    runs = [run for name in CLAIMS for run in CLAIMS[name].runs(effort)]
    assert len({run.id for run in runs}) == len(set(runs)) < 0.8 * len(runs)
    without_weights = {(run.placement, run.norm, run.init, run.lr, run.warmup, run.depth, run.seed,
                        run.objective, run.batch_size, run.builder) for run in runs}  # fmt: skip
    assert len(without_weights) == len(set(runs))


def test_five_claims_wait_for_the_full_run_and_no_more() -> None:
    waiting = {n for n in CLAIMS if CLAIMS[n].runs(FULL) and not CLAIMS[n].runs(QUICK)}
    waiting |= {n for n in CLAIMS if CLAIMS[n].timed}
    assert len(waiting) == 5
    for name in waiting:
        assert judge(name, QUICK, measured(name)).verdict == NEEDS_FULL


def test_a_diverged_run_counts_as_one_that_knows_nothing(tmp_path: Path) -> None:
    class Diverged(Trained):
        def record(self, run: RunSettings) -> Any:
            return {"validation_loss": None, "data": {"vocab_size": 256}}

    assert Diverged(tmp_path).loss(training_run(QUICK)) == math.log(256)


def test_the_share_that_a_second_rounding_changes() -> None:
    """Against a count: 8-bit values rounded once and twice."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=(400, 500))
    factors = 1.0 + 0.2 * generator.normal(size=500)

    def rounded(x: Any) -> Any:
        mantissa, power = np.frexp(x)
        return np.ldexp(np.round(mantissa * 256) / 256, power)

    twice = rounded(rounded(values) * factors) != rounded(values * factors)
    assert double_rounding_share(values, factors) == pytest.approx(twice.mean(), abs=0.01)
