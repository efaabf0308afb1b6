"""A document in a terminal of 80 columns and more: its words and tables, without the pictures."""

from collections.abc import Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from normwise.lab.comparison import Comparison
from normwise.report.comparison import document
from normwise.report.document import Block, Command, Document, Note, Section, Table
from normwise.report.spelling import KINDS, spell


def show(comparison: Comparison, console: Console | None = None) -> None:
    """Prints a comparison to standard output, or to a console."""
    (console or Console()).print(render(document(comparison)))


def render(report: Document) -> RenderableType:
    """The verdict, then every section that is no detail."""
    sections = (section for section in report.sections if not section.detail)
    return Group(
        Text(report.verdict, style="bold"), Text(),
        *(part for section in sections for part in _section(section)),
    )  # fmt: skip


def _section(section: Section) -> Iterator[RenderableType]:
    parts = [part for block in section.blocks for part in _block(block)]
    if parts and section.title:
        yield Text(section.title, style="underline")
    yield from parts
    if parts:
        yield Text()


def _block(block: Block) -> Iterator[RenderableType]:
    if isinstance(block, Note):
        yield Text(block.text, style="bold" if block.alert else "")
    elif isinstance(block, Command):
        yield Text(block.line)
    elif isinstance(block, Table):
        yield table(block)


def table(content: Table) -> Grid:
    """A table of the document as one of rich's."""
    title = Text(content.title) if content.title else None
    grid = Grid(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="none",
                padding=0, show_edge=False)  # fmt: skip
    for column in content.columns:
        kind = KINDS[column.kind]
        grid.add_column(
            Text(column.title),
            justify="right" if kind.numeric else "left",
            no_wrap=not kind.wraps,
            min_width=len("untrained") if kind.wraps else None,
        )
    for index, row in enumerate(content.rows):
        cells = (
            spell(column.kind, cell) for column, cell in zip(content.columns, row, strict=True)
        )
        grid.add_row(*map(Text, cells), style="bold" if index == content.marked else None)
    return grid
