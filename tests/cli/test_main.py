"""The command line as a user meets it: one line for a mistake, and an exit code."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normwise.cli.main import main
from normwise.norms.registry import NORMS
from normwise.residual.registry import PLACEMENTS
from normwise.weight_init import INITS

SMALL = [
    "compare", "--placements", "pre_norm", "--warmup", "0", "--depth", "1", "--width", "16",
    "--heads", "2", "--seq-len", "16", "--batch-size", "4", "--steps", "2", "--seeds", "1",
    "--workers", "1",
]  # fmt: skip


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(words)
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "no.txt"], "The text must exist. There is no file no.txt. Check the path."),
        (
            ["--norms", "layernom"],
            f"Unknown norm 'layernom'. Did you mean layer_norm? Known: {', '.join(sorted(NORMS))}.",
        ),
        (
            ["--placements", "posst_norm"],
            "Unknown placement 'posst_norm'. Did you mean post_norm? "
            f"Known: {', '.join(sorted(PLACEMENTS))}.",
        ),
        (
            ["--inits", "xaver"],
            f"Unknown init 'xaver'. Did you mean xavier? Known: {', '.join(sorted(INITS))}.",
        ),
        (["--lr", "1e-3,-1"], "lr must be positive. It is -1.0."),
        (["--lr", "fast"], "Invalid value for '--lr': 'fast' is not a list of float values"),
        (["--warm-up", "3"], "No such option '--warm-up'. Did you mean '--warmup'?"),
        (["--steps", "many"], "Invalid value for '--steps': 'many' is not a valid integer."),
        (["--device", "tpu"], "device must be one of cpu, cuda, mps. It is tpu."),
    ],
)
def test_a_mistake_gets_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*SMALL, *words, "--out", "none", capsys=capsys)
    assert (code, out, err) == (2, "", f"normwise: {message}\n")
    assert not (tmp_path / "none").exists()


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run("compar", capsys=capsys)
    assert (code, err) == (2, "normwise: No such command 'compar'. Did you mean 'compare'?\n")


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys=capsys)
    assert code == 0
    assert "compare" in out and "list" in out


def test_a_comparison_and_its_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(*SMALL, "--out", str(tmp_path), capsys=capsys)
    assert code == 0
    assert "pre_norm" in out and "RMS of the stream at initialisation" in out
    assert err.startswith("1 runs to train, 0 stored already\n")
    assert "1/1 layer_norm pre_norm xavier_packed, lr 0.001, warm-up 0" in err
    code, out, err = run(*SMALL, "--out", str(tmp_path), "--json", capsys=capsys)
    assert code == 0 and err == f"Page: {tmp_path / 'page.html'}\n"
    assert json.loads(out)["variants"][0]["axes"]["placement"] == "pre_norm"


def test_other_data_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("other text " * 200)
    folder = str(tmp_path / "run")
    assert run(*SMALL, "--out", folder, capsys=capsys)[0] == 0
    data = str(tmp_path / "text.txt")
    code, _, err = run(*SMALL, "--out", folder, "--data", data, capsys=capsys)
    assert code == 2
    assert err.startswith("normwise: A run folder holds runs on one text.")
    assert err.count("\n") == 1


def test_a_failed_run_gives_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = ["--builder", "tests.lab.models:failing", "--placements", "post_norm"]
    code, out, err = run(*SMALL, *failing, "--out", str(tmp_path), capsys=capsys)
    assert code == 1
    assert "ArithmeticError: no such model" in out
    assert "failed" in err


def test_a_dry_run_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "none"
    code, out, _ = run(*SMALL, "--out", str(folder), "--dry-run", capsys=capsys)
    assert code == 0 and not folder.exists()
    for words in ("Runs: 1,", "Tokens to train on: 128", "Parameters: 1", "Time:", "Memory:"):
        assert words in out
    code, out, _ = run(*SMALL, "--out", str(folder), "--dry-run", "--json", capsys=capsys)
    assert json.loads(out)["runs"] == 1


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("norms", ["layer_norm", "rms_norm", "no_norm", "rms"]),
        (
            "placements",
            ["x + F(norm(x))", "norm(x + F(x))", "norm(alpha x + F(x))", "required", *PLACEMENTS],
        ),
        ("inits", ["xavier_packed", "gpt2", "deep_norm", *INITS]),
        ("schedules", ["constant", "cosine", "linear", "inverse_sqrt"]),
        ("roundings", ["fp32", "llama", "native"]),
    ],
)
def test_names_are_listed(what: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("list", what, capsys=capsys)
    assert code == 0
    assert all(word in out for word in words)


def test_help_answers_at_once() -> None:
    """0.3 s by the issue; the fastest of five, since the machine is shared."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "normwise", "--help"], check=True,
                       capture_output=True, timeout=60)  # fmt: skip
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.3


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version", capsys=capsys)[1] == "normwise 0.1.0\n"
