"""What a report says, in order, as data. How it looks is for `terminal`, `page` and `export`.

A cell or a point holds a value and never its text; the kind of a column tells a renderer how to
spell it, and the kind of a figure which chart to draw.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Spread:
    """A mean with half of its interval; None where there are too few values for one."""

    mean: float
    half_width: float | None


@dataclass(frozen=True)
class Column:
    """A column: its title, and the kind of its cells, a key of `spelling.KINDS`."""

    title: str
    kind: str = "name"


@dataclass(frozen=True)
class Table:
    """Rows of cells; None is an empty cell.

    Args:
        name: of the exported file.
        columns: one for each cell of a row.
        rows: the cells.
        title: of the table, where its section's does not say it.
        marked: index of the row to look at first.
    """

    name: str
    columns: list[Column]
    rows: list[tuple[Any, ...]]
    title: str = ""
    marked: int | None = None


@dataclass(frozen=True)
class Legend:
    """How lines are told apart: values of one axis by colour, of another by dash.

    Args:
        title: of the axis, as a reader knows it.
        values: in the order of their colours or dashes.
    """

    title: str
    values: list[str]


@dataclass(frozen=True)
class Axis:
    """An axis: its title, and whether it is logarithmic, counts in whole numbers, begins at 0."""

    title: str
    log: bool = False
    whole: bool = False
    zero: bool = False


@dataclass(frozen=True)
class Figure:
    """Points to be drawn, each a row with `label`, `colour`, `dash` and the chart's own fields.

    Args:
        name: of the exported file.
        kind: a key of `charts.CHARTS`.
        title: what is to be seen.
        rows: the points.
        colour, dash: what the two channels stand for; None where nothing does.
        level: a loss to compare with, drawn as a line across.
        caption: what the marks mean.
        x, y: the axes, of a chart that has none of its own.
        half: stands beside another one where there is room for two.
    """

    name: str
    kind: str
    title: str
    rows: list[dict[str, Any]]
    colour: Legend | None = None
    dash: Legend | None = None
    level: float | None = None
    caption: str = ""
    x: "Axis | None" = None
    y: "Axis | None" = None
    half: bool = False


@dataclass(frozen=True)
class Note:
    """A sentence or more. An alert is about something that went wrong, a strong one the result."""

    text: str
    alert: bool = False
    strong: bool = False


@dataclass(frozen=True)
class Prose:
    """Paragraphs in Markdown with formulas in dollars, for a page."""

    markdown: str


@dataclass(frozen=True)
class Command:
    """A line to type."""

    line: str


Block: TypeAlias = Table | Figure | Note | Prose | Command


@dataclass(frozen=True)
class Section:
    """Blocks under a title.

    Args:
        title: none for what needs none.
        blocks: in order.
        detail: for a page, and left out in a terminal.
        level: of the title: 3 for a part of the section before it.
        anchor: a name under which cells of kind "anchor" lead here.
        folded: shown when its title is clicked, for what is long.
    """

    title: str
    blocks: list[Block]
    detail: bool = False
    level: int = 2
    anchor: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Document:
    """The whole report: the verdict first, then what it rests on."""

    title: str
    verdict: str
    sections: list[Section] = field(default_factory=list)
    language: str = "en"

    def tables(self) -> Iterator[Table]:
        """All tables, in order."""
        return (block for section in self.sections for block in section.blocks
                if isinstance(block, Table))  # fmt: skip

    def figures(self) -> Iterator[Figure]:
        """All figures, in order."""
        return (block for section in self.sections for block in section.blocks
                if isinstance(block, Figure))  # fmt: skip
