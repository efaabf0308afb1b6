"""Documentation that runs, and words that we do not use."""

import doctest
import importlib
import importlib.metadata
import pkgutil
import re
from pathlib import Path

import pytest
import torch

import normwise as nw
from tests.cli_page import PAGE, page

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
MODULES = [
    name for _, name, _ in pkgutil.walk_packages(nw.__path__, "normwise.") if "__" not in name
]
SLOP = re.compile(
    r"\b(comprehensive|robust(ly)?|seamless(ly)?|powerful|blazing|cutting-edge|state-of-the-art"
    r"|effortless(ly)?)\b",
    re.IGNORECASE,
)
EMOJI = re.compile("[\U0001f300-\U0001faff\u2705\u274c\u26a0]")


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module: str, tmp_path: Path) -> None:
    names = {"nw": nw, "torch": torch, "folder": str(tmp_path)}
    result = doctest.testmod(importlib.import_module(module), extraglobs=names)
    assert result.failed == 0


def test_the_examples_are_found() -> None:
    finder = doctest.DocTestFinder()
    with_examples = [
        module
        for module in MODULES
        if any(test.examples for test in finder.find(importlib.import_module(module)))
    ]
    assert len(with_examples) >= 5


def code_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("number", range(3))
def test_the_readme_s_examples_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The comparison runs with fewer steps of a smaller model."""
    block = code_blocks(ROOT / "README.md")[number]
    (tmp_path / "notes.txt").write_text("some notes " * 500)
    monkeypatch.chdir(tmp_path)
    small = 'steps=2, depth=1, width=16, heads=2, seq_len=16, seeds=1, warmup=(0,), out="run"'
    exec(compile(block.replace("steps=500", small), "README.md", "exec"), {})


def test_every_readme_example_is_tried() -> None:
    assert len(code_blocks(ROOT / "README.md")) == 3


def test_the_command_line_page_is_the_program_s() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.cli_page"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_words_and_signs_that_we_do_not_use(path: Path) -> None:
    text = path.read_text()
    assert not SLOP.search(text) and not EMOJI.search(text)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


def test_the_changelog_names_the_version() -> None:
    version = importlib.metadata.version("normwise")
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text()
