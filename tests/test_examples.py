"""The examples run, and stay short."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def output(example: str, *words: str, cwd: Path | None = None) -> str:
    path = next(path for path in EXAMPLES if path.name == example)
    run = subprocess.run(
        [sys.executable, str(path), *words],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=cwd,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60


def test_a_loop_of_one_s_own() -> None:
    """DeepNorm's stream is at RMS 1 after every branch, and the loop learns the sentence."""
    text = output("own_loop.py", "100")
    stream = text.splitlines()[0].partition(": ")[2].split()
    assert len(stream) == 13 and set(stream[1:]) == {"1.00"}
    found = re.search(r"loss after 100 steps: ([0-9.]+)", text)
    assert found and float(found[1]) < 1.0


def test_a_model_of_one_s_own(tmp_path: Path) -> None:
    """Its builder stands in the script itself; norms and depths are told apart."""
    text = output("own_model.py", str(tmp_path))
    rows = [line.split()[:2] for line in text.splitlines() if "_norm" in line and "trained" in line]
    assert rows == [
        [norm, str(depth)] for depth in (4, 16) for norm in ("layer_norm", "rms_norm", "no_norm")
    ]


def test_a_model_that_is_watched(tmp_path: Path) -> None:
    """It is found healthy, and its log has a line for each sampled step."""
    text = output("watched_model.py", "40", cwd=tmp_path)
    assert text.startswith("The signal of this Model is healthy")
    assert text.endswith("No warning in 22 records.\n")
    assert len((tmp_path / "runs" / "watched.jsonl").read_text().splitlines()) == 22
