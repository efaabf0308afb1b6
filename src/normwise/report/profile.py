"""Stream and gradient of a model by depth, measured and as theory predicts them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from normwise.probe.diagnosis import Diagnosis
from normwise.probe.record import Record
from normwise.report.document import Axis, Block, Column, Figure, Legend, Table
from normwise.report.signal import DEPTHS_SHOWN, five

MEASURED = "measured"
# Where a float format ends, and where its lines are drawn: for every format, or for its own alone.
FORMAT_LIMITS = (
    (65504.0, "fp16 overflows", None), (2.0**-14, "fp16 loses digits below", "fp16"),
    (3.4e38, "bf16 and fp32 overflow", None), (1.2e-38, "bf16 and fp32 lose digits below", None),
)  # fmt: skip
NEAR = 100.0  # a limit is drawn when a value comes as near as this


def signal(result: Diagnosis, before: Diagnosis | None) -> list[Block]:
    """Stream and gradient by depth: a figure and five depths of each."""
    sides = [("", result)] if before is None else [
        ("before", before), (f"with {result.remedy}", result)
    ]  # fmt: skip
    lines = [line for label, side in sides for line in _lines(label, side.record)]
    predicted = any(line.predicted for line in lines)
    pale = " Broad pale line: predicted by theory for the initialisation as declared."
    return [
        *(
            _profile(name, title, [line for line in lines if line.of == name], result.record.dtype,
                     caption + (pale if predicted else ""))
            for name, title, caption in (
                ("stream", "RMS of the stream", "Forward, on one batch."),
                ("gradient", "RMS of its gradient", "Backward, of the loss on the same batch."),
            )
            if any(line.of == name and line.points() for line in lines)
        ),
        _depths(lines),
    ]  # fmt: skip


@dataclass(frozen=True)
class _Line:
    """A quantity along the stream of one stack: "stream" or "gradient"."""

    label: str
    of: str
    values: Sequence[float]
    predicted: Sequence[float]

    def points(self) -> list[dict[str, Any]]:
        """What can be drawn on a logarithmic axis."""
        drawn = (("y", self.values), ("predicted", self.predicted))
        return [
            {"label": self.label, "colour": self.label, "x": at, field: value}
            for field, values in drawn
            for at, value in enumerate(values)
            if math.isfinite(value) and value > 0
        ]


def _lines(label: str, record: Record) -> Iterator[_Line]:
    for stack, expected in record.with_expected():
        name = ", ".join(filter(None, (stack.name, label))) or MEASURED
        stream = [point.rms if point else math.nan for point in stack.points]
        gradient = [point.gradient if point else math.nan for point in stack.points]
        ahead = expected.gradient if expected else []
        yield _Line(name, "stream", stream, expected.stream if expected else [])
        yield _Line(name, "gradient", gradient, [gradient[-1] * share for share in ahead])


def _profile(
    name: str, title: str, lines: Sequence[_Line], dtype: str, caption: str
) -> Figure:  # fmt: skip
    points = [point for line in lines for point in line.points()]
    values = [point[field] for point in points for field in ("y", "predicted") if field in point]
    low, high = min(values) / NEAR, max(values) * NEAR
    limits = [
        {"label": words, "limit": at}
        for at, words, own in FORMAT_LIMITS if low < at < high and own in (None, dtype)
    ]  # fmt: skip
    return Figure(
        name, "lines", title, [*points, *limits], caption=caption, half=True,
        colour=Legend("", list(dict.fromkeys(line.label for line in lines))),
        x=Axis("connections added to the stream", whole=True), y=Axis("RMS", log=True),
    )  # fmt: skip


def _depths(lines: Sequence[_Line]) -> Table:
    rows = [
        (line.of, what if line.label == MEASURED else f"{line.label}, {what}", *five(values))
        for line in sorted(lines, key=lambda line: line.of, reverse=True)
        for what, values in ((MEASURED, line.values), ("predicted", line.predicted))
        if values
    ]
    depths = [Column(depth, "reading") for depth in DEPTHS_SHOWN]
    return Table("depths", [Column("RMS of"), Column(""), *depths], rows)
