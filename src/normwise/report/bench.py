"""The document of a benchmark: for each case a table of peers with their times and errors."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from normwise.report.document import Column, Document, Note, Section, Table

Entry = dict[str, Any]

SHORT = 0.01  # seconds below which a table's times are in microseconds, so that it fits 80 columns
LEGEND = (
    "Times are medians of interleaved calls, with the quartiles in brackets: forward alone without "
    "gradients, and forward and backward together (both). The column 'times' is how many times as "
    "long as normwise both take. Errors are the largest against float64: of y and dx in units in "
    "the last place at max(1, |right|), of the worse of dw and db over the sum of the sizes of its "
    "terms. 'kernel alone' writes into memory that it was given; 'clone' copies the input once."
)
MEMORY = {
    "reused": "Memory reused: the process keeps what it frees.",
    "default": "Default allocator: large tensors get fresh pages at each call.",
    "huge": "Default allocator with huge pages: fresh ones of 2 MiB.",
}


def document(result: dict[str, Any]) -> Document:
    """Every case of a result, grouped by allocator setting."""
    sections = [
        Section(MEMORY[memory], [_table(entry) for entry in entries])
        for memory, entries in groupby(result["cases"], lambda entry: entry["case"]["memory"])
    ]
    return Document(
        "normwise bench",
        f"{len(result['cases'])} case(s), {result['settings']['threads']} thread(s).",
        [*sections, Section("", [Note(LEGEND), Note(_conditions(result))])],
    )


def _table(entry: Entry) -> Table:
    case = entry["case"]
    title = f"{case['op']} ({case['rows']}, {case['width']}) {case['dtype']}"
    if entry["backend"] != "numba":
        title += f", normwise by the {entry['backend']}: {entry['reason']}"
    ours = next((p for p in entry["peers"] if p["peer"] == "normwise"), None)
    return Table(
        "-".join(map(str, case.values())), _columns(entry["peers"]),
        [*_rows(entry["peers"], ours)], title=title,
    )  # fmt: skip


def _columns(peers: list[Entry]) -> list[Column]:
    longest = max((peer["both"] or peer["forward"])["median"] for peer in peers)
    unit, kind = ("us", "microseconds") if longest < SHORT else ("ms", "milliseconds")
    return [
        Column("peer"),
        Column(f"forward {unit}", kind),
        Column(f"both {unit}", kind),
        Column("times", "times"),
        Column("y ulp", "ulps"),
        Column("dx ulp", "ulps"),
        Column("dw, db", "gradient"),
    ]


def _rows(peers: list[Entry], ours: Entry | None) -> Iterator[tuple[Any, ...]]:
    for peer in peers:
        both, errors = peer["both"], peer["errors"] or {}
        times = both["median"] / ours["both"]["median"] if both and ours else None
        yield (
            peer["peer"], peer["forward"], both, times,
            errors.get("y"), errors.get("dx"), _largest(errors),
        )  # fmt: skip


def _largest(errors: dict[str, float]) -> float | None:
    return max((errors[name] for name in ("dw", "db") if name in errors), default=None)


def _conditions(result: dict[str, Any]) -> str:
    found = result["conditions"]
    return (
        f"{found['processor']}, {found['cores']} cores, {found['system']}; Python "
        f"{found['python']}, torch {found['torch']}, numba {found['numba']}, transformers "
        f"{found['transformers']}, normwise {found['normwise']}; {found['date']}."
    )
