"""What a comparison would cost, from a few measured steps."""

import dataclasses
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from normwise.errors import SettingError
from normwise.lab.compare import prepare, train_all
from normwise.lab.plan import Skipped
from normwise.lab.settings import CompareSettings, RunSettings
from normwise.lab.store import Store

PROBE_STEPS = 6


@dataclass(frozen=True)
class Estimate:
    """What `compare` would do.

    Args:
        runs: number of runs in the grid, stored ones included.
        stored: how many of them the run folder holds already.
        tokens: training tokens of the runs that are left.
        parameters: smallest and largest model.
        seconds: wall time of the runs that are left, with this many workers.
        peak_memory_bytes: of all workers together.
        skipped: pairs that make no sense.
    """

    runs: int
    stored: int
    tokens: int
    parameters: tuple[int, int]
    seconds: float
    peak_memory_bytes: int
    skipped: list[Skipped]


@dataclass
class _Records:
    """A watcher that keeps the records of the probes."""

    records: dict[int, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)

    def step(self, run: RunSettings, done: int) -> None: ...

    def finished(self, run: RunSettings, record: dict[str, Any]) -> None:
        self.records.setdefault(run.depth, []).append(record)

    def failed(self, run: RunSettings, reason: str) -> None:
        raise SettingError(f"A probe of {PROBE_STEPS} steps failed: {reason}")


def estimate(settings: CompareSettings) -> Estimate:
    """Trains a few steps of one variant at each depth, `workers` at a time, and extrapolates.

    Leaves no trace in the run folder.
    """
    corpus, plan = prepare(settings)
    stored = Store(settings.out).read().records
    missing = Store(settings.out).missing(plan.runs, stored)
    probes = _Records()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        store.open(corpus)
        train_all(_probe_runs(missing, settings.workers), store, settings.workers, probes)
    at_once = min(settings.workers, max(len(missing), 1))
    seconds = sum(_run_seconds(run, probes.records[run.depth]) for run in missing) / at_once
    records = [record for at_depth in probes.records.values() for record in at_depth]
    parameters = [record["parameters"] for record in records] or [0]
    return Estimate(
        runs=len(plan.runs),
        stored=len(plan.runs) - len(missing),
        tokens=sum(run.steps * run.batch_size * run.accumulate * run.seq_len for run in missing),
        parameters=(min(parameters), max(parameters)),
        seconds=seconds,
        peak_memory_bytes=at_once * max((r["peak_memory_bytes"] for r in records), default=0),
        skipped=list(plan.skipped),
    )


def _probe_runs(missing: Sequence[RunSettings], workers: int) -> list[RunSettings]:
    """One short run at each depth for every worker: they disturb each other as they will."""
    by_depth = {run.depth: run for run in reversed(missing)}
    return [
        dataclasses.replace(run, steps=PROBE_STEPS, warmup=0, seed=seed)
        for run in by_depth.values()
        for seed in range(workers)
    ]


def _run_seconds(run: RunSettings, probes: list[dict[str, Any]]) -> float:
    """Start and validation as in the probe, the steps at the probe's pace."""
    pace = statistics.median(record["tokens_per_second"] for record in probes)
    tokens = run.batch_size * run.accumulate * run.seq_len
    around = statistics.median(
        record["seconds"] - PROBE_STEPS * tokens / record["tokens_per_second"] for record in probes
    )
    return float(around + run.steps * tokens / pace)
