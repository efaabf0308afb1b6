"""Charts as pictures, tables as text files."""

import csv
import io
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from normwise.errors import StoreError
from normwise.report.comparison import document
from normwise.report.document import Column, Spread, Table
from normwise.report.export import comma_separated, export, markdown
from tests.report.comparisons import comparison

TABLE = Table(
    "t",
    [Column("a|b"), Column("loss", "loss"), Column("n", "count"), Column("why", "text")],
    [("x", Spread(1 / 3, 0.1), 12345, "a <b>\nc"), ("y", Spread(2.0, None), 1, "p|q"),
     ("z", None, None, "\\")],
)  # fmt: skip


def test_a_csv_holds_all_digits() -> None:
    rows = list(csv.reader(io.StringIO(comma_separated(TABLE))))
    assert rows[0] == ["a|b", "loss", "loss, half width", "n", "why"]
    assert float(rows[1][1]) == 1 / 3
    assert rows[1:] == [
        ["x", str(1 / 3), "0.1", "12345", "a <b>\nc"], ["y", "2.0", "", "1", "p|q"],
        ["z", "", "", "", "\\"],
    ]  # fmt: skip


def test_markdown_is_what_people_read() -> None:
    assert markdown(TABLE).splitlines() == [
        "| a\\|b | loss | n | why |",
        "| --- | ---: | ---: | --- |",
        "| x | 0.333 \u00b10.100 | 12.3k | a \\<b> c |",
        "| y | 2.000 | 1 | p\\|q |",
        "| z | - | - | \\\\ |",
    ]


def test_every_chart_and_table_becomes_files(tmp_path: Path) -> None:
    report = document(comparison())
    files = export(report, tmp_path / "new" / "folder")
    assert sorted(files) == sorted((tmp_path / "new" / "folder").iterdir())
    names = {path.name for path in files}
    assert {f"{table.name}.{kind}" for table in report.tables() for kind in ("csv", "md")} <= names
    for figure in report.figures():
        png = (tmp_path / "new" / "folder" / f"{figure.name}.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        root = ElementTree.parse(tmp_path / "new" / "folder" / f"{figure.name}.svg").getroot()
        assert root.tag.endswith("svg")


def test_an_export_says_what_stood_in_its_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as caught:
        export(document(comparison()), tmp_path / "file")
    assert str(caught.value).startswith("The report must be written somewhere. ")
    assert str(caught.value).endswith("/curves.svg cannot be: File exists. Name another place.")
    assert (tmp_path / "file").read_text() == ""


def test_an_exported_table_holds_the_comparison_s_own_numbers(tmp_path: Path) -> None:
    """Every digit of them, an empty cell where there is none, and an overflow as infinity."""
    result = comparison()
    export(document(result), tmp_path)
    with (tmp_path / "losses.csv").open(newline="") as file:
        lowest, other, diverged = csv.DictReader(file)
    best = result.variants[0].best
    assert float(lowest["loss"]) == best.mean and lowest["above lowest"] == ""
    assert float(lowest["loss, half width"]) == best.half_width
    assert result.ranking is not None and (found := result.ranking.differences[1]) is not None
    assert float(other["above lowest"]) == found.mean
    assert float(other["above lowest, half width"]) == found.half_width
    assert (other["apart"], diverged["loss, half width"], diverged["apart"]) == ("True", "", "")
    with (tmp_path / "gradient.csv").open(newline="") as file:
        assert math.isinf(float(next(csv.DictReader(file))["entry"]))


def test_pictures_are_black_on_white(tmp_path: Path) -> None:
    """A paper lets no colour of its own through."""
    export(document(comparison()), tmp_path)
    for path in tmp_path.glob("*.svg"):
        drawn = path.read_text()
        assert 'fill="white"' in drawn and "currentColor" not in drawn


def test_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "losses.csv").write_text("before")
    files = export(document(comparison()), tmp_path)
    assert "before" not in (tmp_path / "losses.csv").read_text()
    assert len(files) == len(set(files)) == len(list(tmp_path.iterdir()))
