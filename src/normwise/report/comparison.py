"""A comparison as a document."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from normwise.lab.comparison import Comparison
from normwise.lab.data import VALIDATION_SHARE
from normwise.lab.progress import describe_run
from normwise.lab.settings import RunSettings
from normwise.lab.store import Damaged, Record
from normwise.lab.summary import VARIANT_AXES
from normwise.report.document import Block, Column, Command, Document, Note, Section, Table
from normwise.report.losses import loss_figures, loss_notes, loss_table
from normwise.report.naming import axis_title, label, varying
from normwise.report.signal import signal_blocks
from normwise.report.verdict import verdict

FAULTS_SHOWN = 10
# What is lost with a file that is no result, by the folder it lies in.
LOST_WITH = {
    "plans": "which runs it asked for is not known", "failures": "why its run failed is not known",
}  # fmt: skip
ID_SHOWN = 8


def document(comparison: Comparison) -> Document:
    """The verdict and what it rests on. A section that has nothing to say is left out."""
    trained, recorded = bool(comparison.variants), bool(comparison.profiles)
    sections = [
        Section("", _context(comparison)),
        Section("Loss", [loss_table(comparison), *loss_notes(comparison)] if trained else []),
        Section("What went wrong", _faults(comparison)),
        Section("Training", loss_figures(comparison) if trained else []),
        Section("Signal by depth", signal_blocks(comparison) if recorded else []),
        Section("Cost", [_costs(comparison)] if trained else []),
        Section("Conditions", _conditions(comparison), detail=True),
    ]
    return Document(
        title=f"Norms and placements on {comparison.data['source']}",
        verdict=verdict(comparison),
        sections=[section for section in sections if section.blocks],
    )


def _context(comparison: Comparison) -> list[Block]:
    """What was compared: the text, the model, and what it has in common on the grid."""
    data, common = comparison.data, comparison.settings
    lines = [
        f"Text: {data['source']}, {data['tokens']:,} tokens ({data['tokenizer']}), "
        f"sha256 {data['sha256'][:12]}"
    ]
    if comparison.records:
        lines.append(_model(comparison))
    if shared := [axis for axis in (*VARIANT_AXES, "lr") if axis in common]:
        lines.append(f"All runs: {label(common, shared)}")
    return [*map(Note, lines)]


def _model(comparison: Comparison) -> str:
    """What all runs have in common, in a sentence; what differs is in the table."""
    common = comparison.settings
    shown = {name: common.get(name, "varying") for name in comparison.records[0]["settings"]}
    model = "{builder}" if common.get("builder") else (
        "width {width}, {heads} heads, {positions} positions, {activation}"
    )  # fmt: skip
    batch = "{batch_size}" if common.get("accumulate") == 1 else "{batch_size} x {accumulate}"
    steps = f"{{steps}} steps of {batch} x {{seq_len}} tokens, {{precision}} on {{device}}"
    return f"Model: {model}; {steps}".format(**shown)


def _faults(comparison: Comparison) -> list[Block]:
    """Diverged, failed, unfinished, damaged and contested runs, each by name."""
    kinds: list[tuple[str, list[str]]] = [
        ("Diverged", [
            f"{named(RunSettings.from_json(record['settings']))}: "
            f"loss not finite at step {record['diverged_at']}"
            for record in comparison.records if record["diverged_at"]
        ]),
        ("Failed", [f"{named(f.run)}: {f.reason.strip()}" for f in comparison.failed]),
        ("Unfinished", [named(run) for run in comparison.unfinished]),
        ("Damaged", [_damage(item, comparison.records) for item in comparison.damaged]),
        ("Stored twice with different losses, the first one counts", comparison.contested),
    ]  # fmt: skip
    return [
        Note(text, alert=True)
        for kind, lines in kinds
        for text in [
            *(f"{kind}: {line}" for line in lines[:FAULTS_SHOWN]),
            *([f"{kind}: {len(lines) - FAULTS_SHOWN} more"] if len(lines) > FAULTS_SHOWN else []),
        ]
    ]


def named(run: RunSettings) -> str:
    """A run in a few words, and the beginning of its id, which tells it from all others."""
    return f"{run.id[:ID_SHOWN]} {describe_run(run)}"


def _damage(item: Damaged, records: Sequence[Record]) -> str:
    """What is wrong with a file, and what is lost with it."""
    if not item.is_result:
        lost = LOST_WITH[item.path.parent.name]
    elif any(record["id"] == item.path.stem for record in records):
        lost = "its run has been made again"
    else:
        lost = f"left out, {named(item.run)}" if item.run else "left out"
    return f"{item.path.parent.name}/{item.path.name}: {item.reason}; {lost}"


def _costs(comparison: Comparison) -> Table:
    axes = varying([variant.axes for variant in comparison.variants])
    return Table(
        name="costs",
        columns=[
            *(Column(axis_title(axis)) for axis in axes), Column("parameters", "count"),
            Column("tokens a second", "count"), Column("peak MiB", "mebibytes"),
        ],
        rows=[
            (*(str(variant.axes[axis]) for axis in axes), variant.parameters,
             variant.tokens_per_second, variant.peak_memory_bytes)
            for variant in comparison.variants
        ],
    )  # fmt: skip


def _conditions(comparison: Comparison) -> list[Block]:
    """All that a reader needs to believe the figures, and to make them again."""
    rows = [*_data_rows(comparison.data), *_run_rows(comparison.records)]
    if comparison.settings:
        rows.append(("common settings", _settings(comparison.settings)))
    table = Table("conditions", [Column("what"), Column("value", "text")], [*rows])
    if not comparison.commands():
        return [table]
    return [table, Note("To run it again, or to go on:"), *map(Command, comparison.commands())]


def _data_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    held_out = f"the last {100 * VALIDATION_SHARE:.0f} % for validation"
    return [
        ("text", data["source"]),
        ("sha256 of the text", data["sha256"]),
        ("tokens", f"{data['tokens']:,} ({data['tokenizer']}), {held_out}"),
    ]


def _run_rows(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Seeds, dates, machine and versions of the finished runs."""
    if not records:
        return []
    seeds = sorted({record["settings"]["seed"] for record in records})
    dates = sorted(record["conditions"]["date"] for record in records)
    machine = [name for name in records[0]["conditions"] if name != "date"]
    return [
        ("finished runs", str(len(records))),
        ("seeds", ", ".join(map(str, seeds))),
        ("trained", f"{dates[0]} to {dates[-1]}"),
        *((name, _counted([record["conditions"].get(name) for record in records]))
          for name in machine),
    ]  # fmt: skip


def _counted(values: Sequence[object]) -> str:
    """One value as it is; of several, each with the number of runs that have it."""
    counts = Counter(map(str, values))
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} ({count} runs)" for value, count in counts.items())


def _settings(values: dict[str, Any]) -> str:
    """Name and value of each; several values of one setting stand in a bracket."""
    plain = {k: v if not isinstance(v, list) else tuple(v) for k, v in values.items()}
    return ", ".join(f"{axis_title(name)} {value}" for name, value in plain.items())
