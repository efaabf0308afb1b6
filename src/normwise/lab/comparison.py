"""What a comparison came to, from stored runs. Reads and reckons; needs no torch."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from normwise.errors import StoreError
from normwise.lab.plan import Failure, Plan, Skipped
from normwise.lab.ranking import Ranking, rank
from normwise.lab.settings import RunSettings
from normwise.lab.store import Contents, Damaged, Record, Store, read_result
from normwise.lab.summary import (
    Axes,
    Curve,
    InitialProfile,
    VariantSummary,
    group,
    loss_curves,
    mean_profile,
    model_axes,
    summarize,
    varying,
)


@dataclass(frozen=True, repr=False)
class Comparison:
    """What a comparison came to, as data; `nw.show` prints it, `nw.write_page` makes its page.

    In a notebook it shows itself, by way of `view`, which `normwise.report` provides.

    Args:
        data: the text: source, sha256, tokens, unigram level.
        settings: those that all runs have in common.
        variants: one summary for each point of the grid but rate and seed.
        ranking: which of them is lowest and what the seeds can tell; None without spread.
        profiles: stream and gradients at initialisation, one for each model.
        curves: training loss of each variant at its best rate.
        plans: what was asked for, without what a wider plan asks for as well.
        skipped: pairs that make no sense.
        failed: runs that ended without a result.
        unfinished: runs that were asked for and have not ended.
        damaged: files that were found unusable; a run with such a result is not `unfinished`.
        contested: ids of runs that several sources hold with different losses; the first counts.
        records: the stored runs behind all this.
    """

    data: dict[str, Any]
    settings: dict[str, Any]
    variants: list[VariantSummary]
    ranking: Ranking | None
    profiles: list[InitialProfile]
    curves: list[Curve] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    unfinished: list[RunSettings] = field(default_factory=list)
    damaged: list[Damaged] = field(default_factory=list)
    contested: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    view: ClassVar[Callable[["Comparison"], str] | None] = None

    def commands(self, *, missing: bool = False) -> list[str]:
        """The lines that ask for these runs again, or only for those that are missing."""
        finished = {record["id"] for record in self.records}
        return list(dict.fromkeys(
            plan.command for plan in self.plans
            if plan.command and not (missing and finished.issuperset(run.id for run in plan.runs))
        ))  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"<Comparison of {len(self.variants)} variants in {len(self.records)} runs "
            f"on {self.data['source']}>"
        )

    def _repr_html_(self) -> str | None:
        view = type(self).view
        return None if view is None else view(self)

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the loss curves, which stay in the run folder."""
        content = dataclasses.asdict(dataclasses.replace(self, records=[], curves=[], plans=[]))
        del content["records"], content["curves"], content["plans"]
        content["commands"] = self.commands()
        content["damaged"] = [
            {"path": str(item.path), "reason": item.reason} for item in self.damaged
        ]
        content["conditions"] = self.records[0]["conditions"] if self.records else None
        return content


def stored_comparison(sources: str | Path | Sequence[str | Path]) -> Comparison:
    """The comparison of all runs in a run folder, or in several, or in result files.

    Raises:
        StoreError: no source, nothing in one, or runs on different texts.
    """
    if isinstance(sources, str | Path):
        sources = [sources]
    if not sources:
        raise StoreError(
            "A report needs stored runs. No source was named. Pass run folders or result files."
        )
    parts = [_contents(Path(source)) for source in sources]
    data = _one_text([text for text, _ in parts])
    contents = [part for _, part in parts]
    merged = Contents(
        records={key: r for part in reversed(contents) for key, r in part.records.items()},
        damaged=list(
            {item.path.resolve(): item for part in contents for item in part.damaged}.values()
        ),
        failures=[item for part in contents for item in part.failures],
        plans=[plan for part in contents for plan in part.plans],
    )
    comparison = compare_stored(data, merged)
    return dataclasses.replace(comparison, contested=_contested(contents))


def compare_stored(data: dict[str, Any], contents: Contents) -> Comparison:
    """The comparison of everything that a folder holds and was asked for."""
    plans = _widest(contents.plans)
    asked = {run.id: run for plan in plans for run in plan.runs}
    records = _in_order(contents.records, asked)
    lost = {failure.run.id: failure for failure in contents.failures}
    damaged = [_named(item, asked) for item in contents.damaged]
    known = {*contents.records, *lost, *(item.run.id for item in damaged if item.run)}
    variants = summarize(records, data["unigram_loss"])
    different = varying(records)
    common = records[0]["settings"] if records else {}
    return Comparison(
        data=data,
        settings={name: value for name, value in common.items() if name not in different},
        variants=variants,
        ranking=rank(variants),
        profiles=[
            _profile(axes, runs)
            for axes, runs in group(records, model_axes(records))
            if runs[0]["initial"]["stream"]
        ],
        curves=loss_curves(records, variants),
        plans=plans,
        skipped=list(dict.fromkeys(item for plan in plans for item in plan.skipped)),
        failed=[failure for key, failure in lost.items() if key not in contents.records],
        unfinished=[run for key, run in asked.items() if key not in known],
        damaged=damaged,
        records=records,
    )


def _named(item: Damaged, asked: dict[str, RunSettings]) -> Damaged:
    """The file with the run that is lost with it, which its name tells."""
    return dataclasses.replace(item, run=asked.get(item.path.stem) if item.is_result else None)


def _contents(source: Path) -> tuple[dict[str, Any], Contents]:
    """A source's text and what it holds."""
    if source.is_dir():
        store = Store(source)
        if not store.results.is_dir():
            raise StoreError(
                f"A run folder must hold results. {source} holds none. "
                f"Pass a folder that normwise compare wrote, or result files from one."
            )
        found = store.read()
        plans = [plan.within(source) for plan in found.plans]
        return store.manifest(), dataclasses.replace(found, plans=plans)
    try:
        record = read_result(source)
    except StoreError as error:
        raise StoreError(
            f"A result file must be whole. {source} is not usable: {error}. "
            f"Pass a file from the results of a run folder."
        ) from error
    return record["data"], Contents({record["id"]: record}, [], [], [])


def _one_text(texts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = texts[0]
    for other in texts[1:]:
        for key in ("sha256", "tokenizer"):
            if other[key] != first[key]:
                raise StoreError(
                    f"A report compares runs on one text. These were made on {first['source']} "
                    f"({key} {first[key][:12]}) and {other['source']} ({key} {other[key][:12]}). "
                    f"Report them apart."
                )
    return first


def _contested(contents: Iterable[Contents]) -> list[str]:
    """Runs that two sources hold with different losses: another machine, or another version."""
    losses: dict[str, set[float | None]] = {}
    for part in contents:
        for key, record in part.records.items():
            losses.setdefault(key, set()).add(record["validation_loss"])
    return [key for key, values in losses.items() if len(values) > 1]


def _widest(plans: Sequence[Plan]) -> list[Plan]:
    """Without those whose runs another plan asks for as well."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: -len(plan.runs)):
        runs = set(plan.runs)
        if not any(runs <= set(wider.runs) for wider in kept):
            kept.append(plan)
    return kept


def _in_order(records: dict[str, Record], asked: Iterable[str]) -> list[Record]:
    """As they were asked for, then the others by id."""
    order = [key for key in asked if key in records]
    return [records[key] for key in [*order, *sorted(records.keys() - set(order))]]


def _profile(axes: Axes, runs: Sequence[Record]) -> InitialProfile:
    return InitialProfile(
        axes=axes,
        stream=mean_profile(runs, "stream"),
        branch=mean_profile(runs, "branch"),
        stream_gradient=mean_profile(runs, "stream_gradient"),
        predicted=runs[0]["predicted_stream"],
    )
