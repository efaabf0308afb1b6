"""`normwise claims`: the list, a run, its page, and what comes of wrong words."""

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from normwise.claims.registry import CLAIMS
from normwise.claims.texts import read_text
from normwise.cli.main import main

IDS = ("rms-offset", "ln-formula")


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    returncode: int
    stdout: str
    stderr: str


def run(*words: str) -> Said:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main(words)
    return Said(int(end.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two claims, measured."""
    folder = tmp_path_factory.mktemp("claims")
    found = run("claims", "run", *IDS, "--quick", "--out", str(folder))
    assert found.returncode == 0
    assert "2 claims to measure, 0 measured already" in found.stderr
    assert "rms-offset: holds" in found.stderr and "2/2 " in found.stderr
    assert "2 statements. Holds: 1, holds in part: 1" in found.stdout
    assert found.stdout.splitlines()[-1] == f"Page: {folder / 'page.en.html'}"
    return folder


def test_it_lists_the_statements() -> None:
    found = run("claims")
    assert found.returncode == 0
    words = " ".join(found.stdout.split())
    for name in CLAIMS:
        assert name in words
    assert read_text("rms-is-ln", "en").title in words
    assert read_text("rms-is-ln", "zh").title in " ".join(
        run("claims", "--lang", "zh").stdout.split()
    )


def test_the_same_run_measures_nothing_and_speaks_chinese(folder: Path) -> None:
    found = run("claims", "run", *IDS, "--quick", "--out", str(folder), "--lang", "zh")
    assert found.returncode == 0
    assert "0 claims to measure, 2 measured already" in found.stderr
    assert "\u6210\u7acb" in found.stdout
    page = (folder / "page.zh.html").read_text(encoding="utf-8")
    assert '<html lang="zh">' in page and "normwise claims run rms-offset --quick" in page


def test_json_goes_to_standard_output_alone(folder: Path) -> None:
    found = run("claims", "run", *IDS, "--quick", "--out", str(folder), "--json")
    content = json.loads(found.stdout)
    assert [claim["id"] for claim in content["claims"]] == ["ln-formula", "rms-offset"]
    assert content == json.loads((folder / "claims.json").read_text())
    assert str(folder) not in found.stdout
    assert "Page: " in found.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("rms-cats",), "normwise: Unknown claim 'rms-cats'. Did you mean rms-cast?"),
        (("--seeds", "0"), "normwise: seeds must be at least 1. It is 0."),
        (("--workers", "0"), "normwise: workers must be at least 1. It is 0."),
        (("--lang", "de"), "normwise: Invalid value for '--lang'"),
    ],
)
def test_a_wrong_word_is_one_line(words: tuple[str, ...], line: str, tmp_path: Path) -> None:
    found = run("claims", "run", *words, "--out", str(tmp_path / "none"))
    assert found.returncode == 2
    assert found.stderr.startswith(line) and len(found.stderr.splitlines()) == 1
    assert not (tmp_path / "none").exists()
