"""A document in a terminal of 80 columns and more: its words and tables, without the pictures."""

import re
from collections.abc import Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from normwise.report.document import Block, Command, Document, Note, Prose, Section, Table
from normwise.report.documents import Result, document_of
from normwise.report.spelling import KINDS, spell

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def show(result: Result, console: Console | None = None) -> None:
    """Prints a comparison or a diagnosis to standard output, or to a console."""
    write(document_of(result), console)


def write(report: Document, console: Console | None = None) -> None:
    """Prints a document. A command stays in one line, so that it can be copied."""
    (console or Console()).print(render(report), crop=False)


def render(report: Document) -> RenderableType:
    """The verdict, then every section that is no detail."""
    sections = (section for section in report.sections if not section.detail)
    return Group(
        _text(report.verdict, "bold"), Text(),
        *(part for section in sections for part in _section(section)),
    )  # fmt: skip


def _section(section: Section) -> Iterator[RenderableType]:
    parts = [part for block in section.blocks for part in _block(block)]
    if parts and section.title:
        yield _text(section.title, "underline")
    yield from parts
    if parts:
        yield Text()


def _block(block: Block) -> Iterator[RenderableType]:
    if isinstance(block, Note):
        yield _text(block.text, "bold" if block.alert else "")
    elif isinstance(block, Prose):
        yield _text(block.markdown)
    elif isinstance(block, Command):
        line = _text(block.line)
        line.no_wrap, line.overflow = True, "ignore"
        yield line
    elif isinstance(block, Table):
        yield table(block)


def table(content: Table) -> Grid:
    """A table of the document as one of rich's."""
    title = _text(content.title) if content.title else None
    grid = Grid(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="none",
                padding=0, show_edge=False)  # fmt: skip
    for column in content.columns:
        kind = KINDS[column.kind]
        grid.add_column(
            _text(column.title),
            justify="right" if kind.numeric else "left",
            no_wrap=kind.numeric,
            overflow="fold",
        )
    for index, row in enumerate(content.rows):
        cells = (
            spell(column.kind, cell) for column, cell in zip(content.columns, row, strict=True)
        )
        grid.add_row(*map(_text, cells), style="bold" if index == content.marked else None)
    return grid


def _text(words: str, style: str = "") -> Text:
    """The words, without the control characters with which a name could steer a terminal."""
    return Text(CONTROL.sub("\ufffd", words), style=style)
