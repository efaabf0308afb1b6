"""A diagnosis as a document: what is wrong and what helps, then what it rests on.

The first screen has the verdict, three findings at most, the signal by depth and a grid of checks
by layers; below it stands everything that was read.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from normwise.probe.diagnosis import Diagnosis
from normwise.probe.findings import SEVERITIES, TIERS, Reading
from normwise.probe.record import Norm, Record, Stack, Trial
from normwise.report.document import (
    Axis,
    Block,
    Column,
    Command,
    Document,
    Figure,
    Note,
    Section,
    Table,
)
from normwise.report.measured import attention, branches, readings, updates
from normwise.report.profile import signal
from normwise.report.reading import (
    badness,
    held_back,
    limit_spelled,
    limit_words,
    rank,
    worst_by_check,
)
from normwise.report.spelling import rate, short, spell

FINDINGS_SHOWN = 3
WHYS_SHOWN = 3
WARN = SEVERITIES.index("warn")
NOT_MEASURED = "not measured"
WHOLE = "all"  # the column of a grid for what belongs to no layer


def document(result: Diagnosis, before: Diagnosis | None = None) -> Document:
    """The report of a check.

    Args:
        result: what was found.
        before: what had been found without the remedy that was tried.
    """
    sections = [
        Section("", _findings(result)),
        Section(f"Before and after {result.remedy}", _compared(result, before)),
        Section("Signal by depth", signal(result, before)),
        Section("Checks by layer", _checks(result) if result.checks else []),
        Section("The model as it was found", [_card(result)]),
        Section("Not measured", _unmeasured(result)),
        Section("Branches", branches(result.record), detail=True),
        Section("Attention", attention(result.record), detail=True),
        Section("Conditions", _conditions(result), detail=True),
        Section("Parameters", updates(result.record), detail=True, folded=True),
        Section("All readings", list(readings(result)), detail=True, folded=True),
    ]
    return Document(
        title=f"Signal of {result.model}",
        verdict=_verdict(result),
        sections=[section for section in sections if section.blocks],
    )


def _verdict(result: Diagnosis) -> str:
    return f"With {result.remedy}: {result.summary}" if result.remedy else result.summary


def _findings(result: Diagnosis) -> list[Block]:
    """The worst reading of each of the worst checks: what, number against limit, remedy."""
    worst = sorted(worst_by_check(result.findings), key=lambda one: -rank(one))
    bad = [one for one in worst if rank(one) >= WARN]
    blocks = [block for one in bad[:FINDINGS_SHOWN] for block in _finding(one, result.findings)]
    if result.trials:
        blocks += [Note("To try a remedy and measure again:"), *map(Command, result.trials)]
    rest = [*bad[FINDINGS_SHOWN:], *(one for one in worst if one.severity == "info")]
    if rest:
        told = "; ".join(f"{one.severity} {one.check}, {one.where}" for one in rest)
        blocks.append(Note(f"See the table below: {told}."))
    return blocks


def _finding(one: Reading, findings: Sequence[Reading]) -> list[Block]:
    places = sum(other.check == one.check and rank(other) >= WARN for other in findings)
    more = f", and {places - 1} more" if places > 1 else ""
    limits = one.limits
    text = (
        f"{one.quantity.rstrip(',')}: {spell('reading', one.value)}; {limit_words(limits)}. "
        f"Tier {limits.tier}, {TIERS[limits.tier]}: {limits.source}."
    )
    remedy = [Note(one.remedy.text)] if one.remedy else []
    return [Note(f"{one.severity}: {one.check} at {one.where}{more}", strong=True), Note(text),
            *remedy]  # fmt: skip


def _compared(result: Diagnosis, before: Diagnosis | None) -> list[Block]:
    """Every check with a finding before or after the remedy."""
    if before is None:
        return []
    then, now = (
        {one.check: one for one in worst_by_check(side.readings)} for side in (before, result)
    )
    bad = {one.check for side in (before, result) for one in side.findings}
    rows = [
        (name, *_value_and_verdict(then.get(name)), *_value_and_verdict(now.get(name)),
         limit_spelled(now.get(name) or then[name]))
        for name in result.checks if name in bad
    ]  # fmt: skip
    if not rows:
        return [Note("Neither has a finding.")]
    columns = [
        Column("check"), Column("before", "reading"), Column("verdict"), Column("after", "reading"),
        Column("verdict"), Column("warn / fail"),
    ]  # fmt: skip
    return [Table("before-after", columns, rows)]


def _value_and_verdict(one: Reading | None) -> tuple[float | None, str]:
    return (one.value, one.severity) if one else (None, NOT_MEASURED)


def _checks(result: Diagnosis) -> list[Block]:
    """The worst of each check: in each layer, and of all."""
    held = any(map(held_back, worst_by_check(result.readings)))
    told = "A limit in brackets did not decide there; the remark under All readings says why."
    return [_grid(result), _overview(result), *([Note(told)] if held else [])]


def _grid(result: Diagnosis) -> Figure:
    """The worst of each check in each layer."""
    layers = sorted(
        {one.layer for one in result.readings if one.layer is not None}
        | {c.layer for stack in result.record.stacks for c in stack.connections}
    )
    cells = [(WHOLE, None), *((str(layer), layer) for layer in layers)]
    rows: list[dict[str, Any]] = [{"label": name, "column": WHOLE} for name in result.checks]
    rows += [{"label": name, "column": column} for name in result.checks[:1] for column, _ in cells]
    for check in result.checks:
        own = [one for one in result.readings if one.check == check]
        rows += [
            _cell(check, column, max(here, key=badness))
            for column, layer in cells if (here := [one for one in own if one.layer == layer])
        ] or [{"label": check, "column": WHOLE, "state": NOT_MEASURED}]  # fmt: skip
    return Figure(
        "grid", "grid", "The worst of each check, by layer", rows, x=Axis("layer"),
        caption=f"\u201c{WHOLE}\u201d: what belongs to no layer. The table has the numbers.",
    )  # fmt: skip


def _cell(check: str, column: str, one: Reading) -> dict[str, Any]:
    told = f"{one.quantity}: {spell('reading', one.value)}"
    return {"label": check, "column": column, "state": one.severity, "where": one.where,
            "told": told}  # fmt: skip


def _overview(result: Diagnosis) -> Table:
    """Each check: its worst value beside its limits."""
    worst = {one.check: one for one in worst_by_check(result.readings)}
    rows: list[tuple[Any, ...]] = []
    for name in result.checks:
        one = worst.get(name)
        rows.append(
            (name, one.severity, one.value, limit_spelled(one), one.where)
            if one else (name, NOT_MEASURED, None, None, "")
        )  # fmt: skip
    columns = [
        Column("check"), Column("verdict"), Column("worst", "reading"), Column("warn / fail"),
        Column("where", "text"),
    ]  # fmt: skip
    return Table("checks", columns, rows)


def _card(result: Diagnosis) -> Table:
    """The model in a few lines."""
    record = result.record
    connections = [c for stack in record.stacks for c in stack.connections]
    layers = " + ".join(str(_layers(stack)) for stack in record.stacks)
    parallel = ", attention and feed-forward in parallel" if record.parallel else ""
    rows = [
        ("model", f"{result.model}, {short(result.parameters)} parameters, {layers} layers"),
        ("placement", f"{record.placement}{parallel}, {len(connections)} connections"),
        *(("norms", words) for words in _norms(record.norms)),
        ("initialisation", _initialisation(record)),
        ("batch", f"{result.tokens} tokens, loss {record.loss:.3f}, trained in {record.dtype}"),
        *([("trial step", _trial(record.trial))] if record.trial else []),
        *(("remark", words) for words in result.remarks),
    ]  # fmt: skip
    return Table("model", [Column("what"), Column("value", "text")], rows)


def _layers(stack: Stack) -> int:
    return len({connection.layer for connection in stack.connections})


def _norms(norms: Sequence[Norm]) -> Iterator[str]:
    """Norms of one kind in a line: how many, where, eps, rounding."""
    kinds: dict[tuple[str, float | None, str], list[Norm]] = {}
    for norm in norms:
        kinds.setdefault((norm.formula, norm.eps, norm.semantics), []).append(norm)
    for (formula, eps, semantics), own in kinds.items():
        places = {place: sum(n.place == place for n in own) for place in dict.fromkeys(
            norm.place for norm in own)}  # fmt: skip
        where = ", ".join(f"{count} {place}" for place, count in places.items())
        small = "eps unknown" if eps is None else f"eps {spell('number', eps)}"
        yield ", ".join(filter(None, (f"{where}: {formula}", small, semantics)))


def _initialisation(record: Record) -> str:
    if record.stage != "initial":
        return "trained" if record.stage == "trained" else f"in training, at step {record.step}"
    told = [one.recipe for one in record.expected if one]
    return "; ".join(dict.fromkeys(told)) or f"not known: {record.why_not_expected}"


def _trial(step: Trial) -> str:
    return (
        f"rate {rate(step.rate)}: loss {step.before:.3f} to {step.after:.3f} on the same batch, "
        f"taken back"
    )


def _unmeasured(result: Diagnosis) -> list[Block]:
    """What could not be told, and why."""
    whys: dict[str, list[str]] = {}
    for one in result.unmeasured:
        whys.setdefault(one.check, []).append(one.why)
    rows = [
        *((check, why) for check, own in whys.items() for why in _some(own)),
        *(("measurement", line) for line in _some(result.record.missing)),
    ]
    return [Table("not-measured", [Column("check"), Column("why", "text")], rows)] if rows else []


def _some(lines: Sequence[str]) -> list[str]:
    """The first lines, each once, and how many there are beside."""
    told = list(dict.fromkeys(lines))
    more = [f"and {len(told) - WHYS_SHOWN} more"] if len(told) > WHYS_SHOWN else []
    return [*told[:WHYS_SHOWN], *more]


def _conditions(result: Diagnosis) -> list[Block]:
    """Under what the figures hold, and the line that makes them again."""
    rows = [*((name, str(value)) for name, value in result.conditions.items()),
            ("seconds", f"{result.seconds:.1f}")]  # fmt: skip
    table = Table("conditions", [Column("what"), Column("value", "text")], rows)
    if not result.command:
        return [table]
    return [table, Note("To measure it again:"), Command(result.command)]
