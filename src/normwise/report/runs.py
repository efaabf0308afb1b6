"""Runs as documents: all of a folder, how far they are, and one of them."""

from collections.abc import Sequence
from typing import Any

from normwise.errors import StoreError
from normwise.lab.comparison import Comparison
from normwise.lab.settings import RunSettings
from normwise.lab.store import Record
from normwise.report.comparison import ID_SHOWN
from normwise.report.document import Block, Column, Command, Document, Note, Section, Table
from normwise.report.naming import axis_title, varying
from normwise.report.spelling import spell

State = tuple[RunSettings, str]


def run_list(comparison: Comparison) -> Document:
    """Every run that is known, a row each."""
    found = _states(comparison)
    if not found:
        return Document("Runs", "No run is known here.")
    points = [vars(run) for run, _ in found]
    axes = [axis for axis in varying(points) if axis != "seed"]
    table = Table(
        name="runs",
        columns=[
            Column("run"), *(Column(axis_title(axis)) for axis in axes), Column("seed", "seeds"),
            Column("state", "text"),
        ],
        rows=[
            (run.id[:ID_SHOWN], *(str(getattr(run, axis)) for axis in axes), run.seed, state)
            for run, state in found
        ],
    )  # fmt: skip
    return Document("Runs", _counts(comparison), [Section("", [table])])


def run_status(comparison: Comparison) -> Document:
    """How many runs are there, why others are not, and how to go on."""
    blocks: list[Block] = [
        *(Note(f"{run.id[:ID_SHOWN]} {state}", alert=True)
          for run, state in [*_diverged(comparison), *_missing(comparison)]),
        *(Note(f"{item.path.parent.name}/{item.path.name} is damaged: {item.reason}", alert=True)
          for item in comparison.damaged),
    ]  # fmt: skip
    commands = comparison.commands(missing=True)
    if commands:
        blocks += [Note("To go on:"), *map(Command, commands)]
    elif comparison.unfinished or comparison.failed or comparison.damaged:
        blocks.append(Note("No command is known that goes on. Ask again as it was asked first."))
    return Document("Status", _counts(comparison), [Section("", blocks)])


def run_details(comparison: Comparison, name: str) -> Document:
    """One run: its outcome, its settings, its conditions; of a failed one, the whole reason.

    Raises:
        StoreError: no run's id begins so, or several do.
    """
    failed = {item.run.id: item for item in comparison.failed}
    known = {record["id"]: record for record in comparison.records}
    run_id = _one([*known, *failed], name)
    if run_id in failed:
        reason = Note(failed[run_id].reason.strip(), alert=True)
        return Document(f"Run {run_id}", f"{run_id}: failed", [Section("", [reason])])
    record = known[run_id]
    state = _outcome(record)
    rows: list[tuple[Any, ...]] = [
        *((axis_title(key), str(value)) for key, value in record["settings"].items()),
        ("parameters", spell("count", record["parameters"])),
        ("tokens a second", spell("count", record["tokens_per_second"])),
        ("seconds", f"{record['seconds']:.1f}"),
        *((key, str(value)) for key, value in record["conditions"].items()),
    ]
    table = Table("run", [Column("what"), Column("value", "text")], rows)
    return Document(f"Run {record['id']}", f"{record['id']}: {state}", [Section("", [table])])


def _one(ids: Sequence[str], name: str) -> str:
    found = [run_id for run_id in ids if run_id.startswith(name)]
    if len(found) != 1:
        known = ", ".join(run_id[:ID_SHOWN] for run_id in ids)
        count = "no run" if not found else f"{len(found)} runs"
        raise StoreError(
            f"RUN must be the beginning of one ended run's id. {name!r} begins {count}. "
            f"Known: {known or 'none'}."
        )
    return found[0]


def _states(comparison: Comparison) -> list[State]:
    """Every run with how it stands."""
    finished = {record["id"] for record in comparison.records}
    lost = (item.run for item in comparison.damaged if item.run and item.run.id not in finished)
    return [
        *((RunSettings.from_json(r["settings"]), _outcome(r)) for r in comparison.records),
        *_missing(comparison),
        *((run, "damaged") for run in lost),
    ]


def _diverged(comparison: Comparison) -> list[State]:
    records = (record for record in comparison.records if record["diverged_at"])
    return [(RunSettings.from_json(record["settings"]), _outcome(record)) for record in records]


def _missing(comparison: Comparison) -> list[State]:
    """Runs without a result file, and why."""
    return [
        *((item.run, f"failed: {_last_line(item.reason)}") for item in comparison.failed),
        *((run, "unfinished") for run in comparison.unfinished),
    ]


def _outcome(record: Record) -> str:
    if record["diverged_at"]:
        return f"diverged at step {record['diverged_at']}"
    return f"loss {record['validation_loss']:.3f}"


def _last_line(reason: str) -> str:
    """Of a traceback, what it ends with."""
    return (reason.strip() or "no reason given").splitlines()[-1]


def _counts(comparison: Comparison) -> str:
    diverged = sum(record["diverged_at"] is not None for record in comparison.records)
    counts = {
        "failed": len(comparison.failed),
        "unfinished": len(comparison.unfinished),
        "damaged": len(comparison.damaged),
    }
    finished = len(comparison.records)
    parts = [f"{finished} finished" + (f", {diverged} of them diverged" if diverged else "")]
    parts += [f"{count} {what}" for what, count in counts.items() if count]
    return "; ".join(parts) + "."
