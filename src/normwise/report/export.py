"""Charts as pictures and tables as text files, for a paper or a spreadsheet."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from normwise.report.charts import spec
from normwise.report.document import Document, Spread, Table
from normwise.report.files import save
from normwise.report.spelling import KINDS, spell
from normwise.report.vega import png, svg

WIDTH = 700


def export(report: Document, folder: Path) -> list[Path]:
    """Writes every figure as PNG and SVG, every table as CSV and Markdown; returns the files.

    Raises:
        StoreError: a file cannot be written.
    """
    files = {folder / name: content for name, content in [*_pictures(report), *_texts(report)]}
    for path, content in files.items():
        save(path, content)
    return list(files)


def _pictures(report: Document) -> Iterator[tuple[str, bytes]]:
    for figure in report.figures():
        chart = {**spec(figure, ink="black", width=WIDTH), "background": "white"}
        yield f"{figure.name}.svg", svg(chart).encode()
        yield f"{figure.name}.png", png(chart)


def _texts(report: Document) -> Iterator[tuple[str, bytes]]:
    for table in report.tables():
        yield f"{table.name}.csv", comma_separated(table).encode()
        yield f"{table.name}.md", markdown(table).encode()


def comma_separated(table: Table) -> str:
    """Full numbers; an interval has a column of its own, an empty cell nothing."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    spreads = [column.kind in ("loss", "difference") for column in table.columns]
    writer.writerow(
        title
        for column, two in zip(table.columns, spreads, strict=True)
        for title in ([column.title, f"{column.title}, half width"] if two else [column.title])
    )
    for row in table.rows:
        cells = zip(row, spreads, strict=True)
        writer.writerow(
            value for cell, two in cells for value in (_pair(cell) if two else [_plain(cell)])
        )
    return file.getvalue()


def _pair(cell: Spread | None) -> list[float | None]:
    return [None, None] if cell is None else [cell.mean, cell.half_width]


def _plain(cell: object) -> object:
    """A text that a spreadsheet would read as a formula gets the sign that keeps it text."""
    formula = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@"))
    return f"'{cell}" if formula else cell


def markdown(table: Table) -> str:
    """As people read it."""
    marks = ["---:" if KINDS[column.kind].numeric else "---" for column in table.columns]
    rows = [
        [spell(column.kind, cell) for column, cell in zip(table.columns, row, strict=True)]
        for row in table.rows
    ]
    lines = [[column.title for column in table.columns], marks, *rows]
    return "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in lines)


def _escaped(text: str) -> str:
    """Text that ends no cell, starts no line, and is neither markup nor a link."""
    return re.sub(r"([\\|`*\[\]<&])", r"\\\1", re.sub(r"\s", " ", text))
