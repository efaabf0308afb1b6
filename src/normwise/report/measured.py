"""What a check measured in each place of a model: branches, attention, tensors, all readings."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from normwise.probe.diagnosis import Diagnosis
from normwise.probe.findings import Limits, Reading
from normwise.probe.record import Attention, Connection, Record
from normwise.report.document import Axis, Block, Column, Figure, Legend, Table
from normwise.report.reading import limit_words

Read = Callable[[Connection], float]
QUANTITIES: tuple[tuple[str, str, str, Read], ...] = (
    ("ratios", "Branch over the stream it is added to", "ratio of their RMS",
     lambda connection: connection.ratio),
    ("parameter-gradients", "Gradient of the branch's parameters", "RMS",
     lambda connection: connection.parameter_gradient or math.nan),
)  # fmt: skip


def branches(record: Record) -> list[Block]:
    """What the branches add, and how large the gradients of their parameters are."""
    return [
        _by_place(name, title, rows, Axis(words, log=True), "layer")
        for name, title, words, read in QUANTITIES
        if (rows := [
            {"label": label, "colour": label, "x": connection.layer, "y": read(connection)}
            for label, connection in _labelled(record)
            if math.isfinite(read(connection)) and read(connection) > 0
        ])
    ]  # fmt: skip


def _by_place(
    name: str, title: str, rows: list[dict[str, Any]], y: Axis, x: str, caption: str = ""
) -> Figure:  # fmt: skip
    labels = list(dict.fromkeys(row["label"] for row in rows))
    return Figure(
        name, "lines", title, rows, Legend("", labels), x=Axis(x, whole=True), y=y, caption=caption,
        half=True,
    )  # fmt: skip


def _labelled(record: Record) -> Iterator[tuple[str, Connection]]:
    """Connections, each with the name of its stack and its kind."""
    for stack in record.stacks:
        for connection in stack.connections:
            yield stack.where(connection.kind.replace("_", "-")), connection


def attention(record: Record) -> list[Block]:
    """Largest logit and entropy by attention, and a table of both by head."""
    if not record.attentions:
        return []
    exact = all(one.exact for one in record.attentions)
    lower = "" if exact else " Of 64 queries, so the true one may be larger."
    x = "attention, in the order of the pass"
    largest = _attended(record, (("largest", max),), "largest")
    entropy = _attended(record, (("mean over heads", _mean), ("lowest head", min)), "entropy")
    blocks: list[Block] = [
        _by_place("logits", "Largest attention logit", largest, Axis("magnitude", log=True), x,
                  f"Of all heads and valid pairs.{lower}"),
    ] if largest else []  # fmt: skip
    if entropy:
        blocks.append(
            _by_place("entropy", "Entropy of attention, 1 for uniform", entropy,
                      Axis("entropy over ln of the keys", zero=True), x,
                      "Without the first key, of queries with 32 keys or more.")
        )  # fmt: skip
    return blocks


def _attended(
    record: Record, what: Sequence[tuple[str, Any]], field: str
) -> list[dict[str, Any]]:  # fmt: skip
    rows = []
    counted: dict[int, int] = {}
    for one in record.attentions:
        at = counted.get(one.stack, 0)
        counted[one.stack] = at + 1
        values = [v for v in getattr(one, field) if math.isfinite(v)]
        for words, of in what:
            label = _stack_name(record, one, words)
            if values and (field != "largest" or of(values) > 0):
                rows.append({"label": label, "colour": label, "x": at, "y": of(values)})
    return rows


def _stack_name(record: Record, one: Attention, words: str) -> str:
    return record.stacks[one.stack].where(words) if one.stack < len(record.stacks) else words


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def updates(record: Record) -> list[Block]:
    """Every trained tensor at the trial step."""
    columns = [
        Column("tensor"), Column("RMS", "reading"), Column("gradient", "reading"),
        Column("step/RMS", "reading"), Column("step below 2^-9", "reading"), Column("dtype"),
    ]  # fmt: skip
    rows = [
        (one.name, one.rms, one.gradient, one.relative, one.vanishing, one.dtype)
        for one in record.updates
    ]
    return [Table("parameters", columns, rows)] if rows else []


def readings(result: Diagnosis) -> Iterator[Block]:
    """All values, a table for each quantity with its limits as title."""
    groups: dict[tuple[str, str, Limits], list[Reading]] = {}
    for one in result.readings:
        groups.setdefault((one.check, one.quantity, one.limits), []).append(one)
    columns = [
        Column("where"), Column("value", "reading"), Column("verdict"), Column("remark", "text")
    ]  # fmt: skip
    for number, ((check, quantity, limits), own) in enumerate(groups.items()):
        yield Table(
            f"readings-{number}", columns,
            [(one.where, one.value, one.severity, one.note) for one in own],
            title=f"{check}: {quantity}; {limit_words(limits)} ({limits.tier}, {limits.source})",
        )  # fmt: skip
