"""`normwise list placements --explain NAME`, as a reader in 80 columns sees it."""

import io

import pytest
from rich.console import Console

from normwise.cli.main import main
from normwise.report.explain import explain_placement
from normwise.residual.registry import PLACEMENTS


def shown(name: str, depth: int = 12) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(explain_placement(name, depth))
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", list(PLACEMENTS))
def test_every_placement_is_explained(name: str) -> None:
    text = shown(name)
    assert text.startswith(f"{name} formula {PLACEMENTS[name].formula[:20]}")
    for title in ("about", "warm-up", "initialisation", "at 12 layers", "mean square"):
        assert title in text
    assert any(f"{year}" in text for year in range(2018, 2027)), "no source"


@pytest.mark.parametrize(
    ("name", "depth", "part"),
    [
        ("deepnorm", 12, "alpha=2.2134; Xavier times 0.3195 for value attention_output ff_in"),
        ("deep_norm", 100, "alpha=3.7606; Xavier times 0.1880"),
        ("keel", 6, "alpha=1 (first branch); alpha=12 (last)"),
        ("lns", 4, "scale=1.0000 (first branch); scale=0.5000 (last)"),
        ("output_norm", 12, "inside branches norms of queries and keys (full)"),
        ("b2t", 12, "No prediction where it says -: the entry of a layer has two ways up"),
        ("peri_norm", 12, "25"),
    ],
)
def test_constants_and_reasons(name: str, depth: int, part: str) -> None:
    assert part in shown(name, depth)


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main(["list", "placements", "--explain", "Pre-LN", "--depth", "2"])
    assert stop.value.code in (0, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "pre_norm"
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["norms", "--explain", "x"], "--explain is for placements. It came with norms."),
        (["placements", "--explain", "pre_nrom"], "Did you mean pre_norm?"),
        (["placements", "--explain", "keel", "--depth", "0"], "depth must be at least 1. It is 0."),
    ],
)
def test_a_mistake_gets_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["list", *words])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1
