"""A comparison as a whole: worker processes, the run folder, interruption."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import normwise as nw
from normwise.errors import SettingError, StoreError, UnknownName
from normwise.lab.compare import compare
from normwise.lab.comparison import Comparison
from normwise.lab.estimate import estimate
from normwise.lab.objective import OBJECTIVES, token_loss
from normwise.lab.settings import CompareSettings, RunSettings
from normwise.lab.store import Store
from normwise.lab.train import build_model
from tests.lab import models

TINY: dict[str, Any] = {
    "placements": ("pre_norm", "post_norm"), "warmup": (0,), "depth": (1,), "width": 16,
    "heads": 2, "seq_len": 16, "batch_size": 4, "steps": 4, "seeds": 2,
}  # fmt: skip


class Silent:
    """A watcher that counts."""

    def __init__(self) -> None:
        self.steps = 0
        self.ended: list[str] = []

    def step(self, run: RunSettings, done: int) -> None:
        self.steps += 1

    def finished(self, run: RunSettings, record: dict[str, Any]) -> None:
        self.ended.append(run.id)

    def failed(self, run: RunSettings, reason: str) -> None:
        self.ended.append(run.id)


def run(folder: Path, **changes: Any) -> tuple[Comparison, Silent]:
    watcher = Silent()
    settings = CompareSettings(**{**TINY, "out": str(folder), **changes})
    return compare(settings, watcher=watcher), watcher


def numbers(comparison: Comparison) -> Any:
    """Everything in the table that does not depend on the machine's speed."""
    content = comparison.to_json()
    for variant in content["variants"]:
        del variant["tokens_per_second"], variant["peak_memory_bytes"]
    return content["variants"], content["profiles"]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison, Silent]:
    folder = tmp_path_factory.mktemp("runs") / "first"
    return folder, *run(folder)


def test_every_variant_has_its_seeds(first: tuple[Path, Comparison, Silent]) -> None:
    _, comparison, watcher = first
    assert [variant.axes["placement"] for variant in comparison.variants] == [
        "pre_norm",
        "post_norm",
    ]
    assert all(variant.seeds == 2 for variant in comparison.variants)
    assert watcher.steps == 4 * 4
    assert not comparison.failed and not comparison.damaged


def test_the_same_command_repeats_nothing(first: tuple[Path, Comparison, Silent]) -> None:
    folder, comparison, _ = first
    again, watcher = run(folder)
    assert watcher.ended == []
    assert again.to_json() == comparison.to_json()


def test_a_wider_grid_only_adds(first: tuple[Path, Comparison, Silent]) -> None:
    folder, comparison, _ = first
    wider, watcher = run(folder, seeds=3)
    assert len(watcher.ended) == 2
    narrow = {record["id"] for record in comparison.records}
    assert narrow.isdisjoint(watcher.ended)
    assert {record["id"] for record in wider.records} == narrow | set(watcher.ended)


def test_a_damaged_record_is_named_and_made_again(
    first: tuple[Path, Comparison, Silent], tmp_path: Path
) -> None:
    folder, comparison, _ = first
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    broken = tmp_path / "results" / f"{comparison.records[0]['id']}.json"
    broken.write_text(broken.read_text()[:-100])
    again, watcher = run(tmp_path)
    assert watcher.ended == [comparison.records[0]["id"]]
    assert [item.path for item in again.damaged] == [broken]
    assert numbers(again) == numbers(comparison)


def test_another_text_is_refused(first: tuple[Path, Comparison, Silent]) -> None:
    with pytest.raises(StoreError, match="A run folder holds runs on one text"):
        run(first[0], data=["another text " * 100])


def test_json_is_complete(first: tuple[Path, Comparison, Silent]) -> None:
    content = json.loads(json.dumps(first[1].to_json(), allow_nan=False))
    assert set(content) == {
        "settings", "data", "variants", "ranking", "profiles", "commands", "skipped", "failed",
        "unfinished", "damaged", "contested", "conditions",
    }  # fmt: skip
    assert content["conditions"]["threads"] == 1


def test_theory_stands_beside_the_measured_stream(first: tuple[Path, Comparison, Silent]) -> None:
    for profile in first[1].profiles:
        assert profile.predicted is not None
        assert len(profile.predicted) == len(profile.stream) == 3


def test_a_diverging_run_is_a_result_and_stops_nobody(tmp_path: Path) -> None:
    comparison, watcher = run(tmp_path, builder="tests.lab.models:exploding")
    assert len(watcher.ended) == 4 and not comparison.failed
    for variant in comparison.variants:
        assert variant.best.diverged == {0: 4, 1: 4}
        assert variant.best.mean is None


@pytest.mark.parametrize(
    ("builder", "reason"),
    [("failing", "ArithmeticError: no such model"), ("dying", "ended with code -9 and no word")],
)
def test_a_failing_run_stops_nobody(builder: str, reason: str, tmp_path: Path) -> None:
    comparison, _ = run(tmp_path, builder=f"tests.lab.models:{builder}")
    assert [variant.axes["placement"] for variant in comparison.variants] == ["pre_norm"]
    assert [failure.run.placement for failure in comparison.failed] == ["post_norm", "post_norm"]
    assert all(reason in failure.reason for failure in comparison.failed)


def test_bf16_and_accumulation_run_in_workers(tmp_path: Path) -> None:
    comparison, _ = run(tmp_path, precision="bf16", accumulate=2, seeds=1)
    assert not comparison.failed
    assert all(variant.best.mean is not None for variant in comparison.variants)


def test_kept_weights_are_the_trained_ones(tmp_path: Path) -> None:
    asked = {"placements": ("pre_norm",), "seeds": 1, "keep_weights": True}
    result, first = run(tmp_path, **asked)
    assert len(first.ended) == 1
    settings = RunSettings.from_json(result.records[0]["settings"])
    store = Store(tmp_path)
    corpus = store.corpus()
    model = build_model(settings, corpus.vocab_size)
    model.load_state_dict(torch.load(store.weights(settings)))
    objective = OBJECTIVES[settings.objective](settings, corpus)
    with torch.no_grad():
        losses = [token_loss(model(b.inputs), b.targets).item() for b in objective.validation()]
    assert result.records[0]["validation_loss"] == pytest.approx(sum(losses) / len(losses))
    store.weights(settings).unlink()
    assert len(run(tmp_path, **asked)[1].ended) == 1
    assert len(run(tmp_path, **asked)[1].ended) == 0


def test_a_model_builder_from_python(tmp_path: Path) -> None:
    settings = CompareSettings(**{**TINY, "out": str(tmp_path), "seeds": 1})
    comparison = nw.compare(settings, build=models.bigram, watcher=Silent())
    assert comparison.variants[0].parameters == 256 * 256
    assert comparison.settings["builder"] == "tests.lab.models:bigram"


def test_a_builder_that_workers_cannot_import(tmp_path: Path) -> None:
    settings = CompareSettings(**{**TINY, "out": str(tmp_path)})
    with pytest.raises(SettingError, match="build must be a function of a file that worker"):
        compare(settings, build=lambda run, vocab_size: models.Bigram(vocab_size))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"norms": ("layernom",)}, UnknownName),
        ({"activation": "tanh"}, UnknownName),
        ({"heads": 3}, SettingError),
        ({"optimizer": ("adam",)}, UnknownName),
        ({"schedule": "cosin"}, UnknownName),
    ],
)
def test_bad_settings_leave_no_folder(
    change: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        run(tmp_path / "none", **change)
    assert not (tmp_path / "none").exists()


def test_an_estimate_trains_nothing(tmp_path: Path) -> None:
    settings = CompareSettings(**{**TINY, "out": str(tmp_path / "none")})
    found = estimate(settings)
    assert (found.runs, found.stored) == (4, 0)
    assert found.tokens == 4 * 4 * 4 * 16
    assert found.parameters[0] == found.parameters[1] > 0
    assert found.seconds > 0 and found.peak_memory_bytes > 1e6
    assert not (tmp_path / "none").exists()


def test_an_estimate_counts_what_is_stored(first: tuple[Path, Comparison, Silent]) -> None:
    settings = CompareSettings(**{**TINY, "out": str(first[0])})
    found = estimate(settings)
    assert (found.runs, found.stored, found.tokens) == (4, 4, 0)


COMMAND = [
    sys.executable, "-m", "normwise", "compare", "--placements", "pre_norm,post_norm",
    "--warmup", "0", "--depth", "1", "--width", "16", "--heads", "2", "--seq-len", "16",
    "--batch-size", "4", "--steps", "40", "--seeds", "3", "--workers", "2", "--json",
]  # fmt: skip


def finished_runs(folder: Path) -> int:
    return len(list(folder.glob("results/*.json")))


def wait_for_runs(folder: Path, process: "subprocess.Popen[str]", count: int) -> None:
    deadline = time.monotonic() + 120
    while finished_runs(folder) < count:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def start(folder: Path) -> "subprocess.Popen[str]":
    """The comparison as from a terminal: a shell that starts tests in the background has them, and
    what they start, ignore SIGINT.
    """
    return subprocess.Popen(
        [*COMMAND, "--out", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def table(output: str) -> Any:
    content = json.loads(output)
    for variant in content["variants"]:
        del variant["tokens_per_second"], variant["peak_memory_bytes"]
    return content["variants"], content["profiles"]


def test_killed_in_the_middle_and_run_again_gives_the_same_table(tmp_path: Path) -> None:
    killed = start(tmp_path / "killed")
    wait_for_runs(tmp_path / "killed", killed, 2)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert 2 <= finished_runs(tmp_path / "killed") < 6
    resumed, whole = start(tmp_path / "killed"), start(tmp_path / "whole")
    (second, _), (undisturbed, _) = resumed.communicate(), whole.communicate()
    assert (resumed.returncode, whole.returncode) == (0, 0)
    assert table(second) == table(undisturbed)


def test_interrupted_it_says_how_to_go_on(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for_runs(tmp_path, process, 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == (
        f"normwise: stopped. Finished runs are kept in {tmp_path}; "
        f"the same command goes on from there."
    )
    assert "Traceback" not in errors
