"""The log of a monitored training as a document: what went wrong, and what moved first."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from normwise.errors import StoreError
from normwise.probe.findings import SEVERITIES
from normwise.probe.log import read_lines
from normwise.report.document import (
    Axis,
    Block,
    Column,
    Document,
    Figure,
    Legend,
    Note,
    Section,
    Table,
)

STEP = Axis("optimizer step")
Line = dict[str, Any]


def worst_of(lines: Sequence[Line]) -> str:
    """The severest finding of a training."""
    found = (one["severity"] for line in lines for one in line["findings"])
    return max(found, key=SEVERITIES.index, default="ok")


def read_training(path: Path) -> list[Line]:
    """The lines of a log, one at least.

    Raises:
        StoreError: it is no log, or an empty one.
    """
    lines = read_lines(path)
    if not lines:
        raise StoreError(f"A log has a line for each record. {path} has none.")
    return lines


def document(lines: Sequence[Line]) -> Document:
    """The report of a training as far as its log goes."""
    story = lines[-1]["story"]
    first, last = lines[0]["step"], lines[-1]["step"]
    healthy = f"The signal was healthy in {len(lines)} records of the steps {first} to {last}."
    verdict = f"{story['cause']['title']}. {story['cause']['action']}" if story else healthy
    sections = [
        Section("What moved first", _story(story) if story else []),
        Section("Over the steps", list(_figures(lines))),
        Section("Findings", [_findings(lines)] if worst_of(lines) != "ok" else []),
        Section("Not measured", [Note(line) for line in lines[-1]["record"]["missing"]]),
    ]
    return Document(
        title="A training's signal", verdict=verdict,
        sections=[section for section in sections if section.blocks],
    )  # fmt: skip


def _story(story: dict[str, Any]) -> list[Block]:
    return [Note(story["line"], strong=True), *map(Note, story["events"])]


def _findings(lines: Sequence[Line]) -> Table:
    """Each check's first finding of each severity."""
    found: dict[tuple[str, str], tuple[Any, ...]] = {}
    for line in lines:
        for one in line["findings"]:
            key = one["check"], one["severity"]
            found.setdefault(key, (line["step"], *key, _number(one["value"]), one["where"]))
    return Table(
        "findings",
        [Column("step"), Column("check"), Column("verdict"), Column("value", "reading"),
         Column("where")],
        [(str(step), *rest) for step, *rest in sorted(found.values(), key=lambda row: row[0])],
    )  # fmt: skip


def _figures(lines: Sequence[Line]) -> Iterator[Figure]:
    losses = [(step, loss) for line in lines for step, loss in line["losses"]]
    curves = {
        "loss": ("Loss", Axis("loss"), {"loss": losses}),
        "stream": ("RMS of the stream", Axis("RMS", log=True), _streams(lines, "rms")),
        "gradient": ("RMS of its gradient", Axis("RMS", log=True), _streams(lines, "gradient")),
        "logits": ("Largest attention logit", Axis("logit", log=True), _logits(lines)),
    }
    for name, (title, axis, told) in curves.items():
        rows = [
            {"label": label, "colour": label, "x": step, "y": number}
            for label, points in told.items() for step, value in points
            if math.isfinite(number := _number(value)) and (number > 0 or not axis.log)
        ]  # fmt: skip
        if rows:
            legend = Legend("at", list(dict.fromkeys(str(row["label"]) for row in rows)))
            yield Figure(name, "lines", title, rows, colour=legend, x=STEP, y=axis)


def _streams(lines: Sequence[Line], field: str) -> dict[str, list[tuple[int, Any]]]:
    """The stream of every stack at its entry, its middle and its end."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for line in lines:
        for stack in line["record"]["stacks"]:
            points = stack["points"]
            for label, at in (("entry", 0), ("middle", len(points) // 2), ("end", -1)):
                name = f"{stack['name']}, {label}" if stack["name"] else label
                if points[at] is not None:
                    found.setdefault(name, []).append((line["step"], points[at][field]))
    return found


def _logits(lines: Sequence[Line]) -> dict[str, list[tuple[int, Any]]]:
    """Of all attentions, of the first and of the last."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for line in lines:
        sizes = [max(map(_number, one["largest"])) for one in line["record"]["attentions"]]
        for label, size in (("first", sizes[:1]), ("last", sizes[-1:]), ("largest", sizes)):
            if size:
                found.setdefault(label, []).append((line["step"], max(size)))
    return found


def _number(value: Any) -> float:
    """A number as it was before it became JSON."""
    return math.nan if value is None else float(value)
