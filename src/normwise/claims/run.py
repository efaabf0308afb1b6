"""Runs claims: what needs no training first, then the training that they share, then the rest, and
at last, alone, what measures time. Everything that ends is kept, and never made twice.

    OUT/measured/ID-HASH.json   a measurement, by claim and effort
    OUT/results, OUT/weights    the training runs, as in any run folder
    OUT/claims.json             the result of the last call
"""

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch

from normwise.claims.claim import Measurement
from normwise.claims.registry import CLAIMS
from normwise.claims.settings import ClaimSettings, Effort
from normwise.claims.trained import Trained
from normwise.claims.verdict import Number, numbers_of, verdict
from normwise.conditions import conditions
from normwise.errors import StoreError
from normwise.files import write_result
from normwise.lab.compare import train_all
from normwise.lab.data import load_corpus
from normwise.lab.launch.local import Step, Watcher, launch
from normwise.lab.settings import RunSettings
from normwise.lab.store import Store

FORMAT = 2
"""Of a measurement's file. A change of what is measured raises it; older ones are made again."""


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict.

    Args:
        id: a row of `CLAIMS`.
        verdict: one of `VERDICTS`.
        numbers: measured beside expected.
        measurement: what the verdict was computed from.
        seconds: that the measurement took, without the training runs.
    """

    id: str
    verdict: str
    numbers: list[Number]
    measurement: Measurement
    seconds: float


@dataclass(frozen=True)
class ClaimsResult:
    """What a call came to.

    Args:
        settings: what was asked for.
        conditions: machine, versions and date.
        claims: those that were measured, in the order of the notes.
        failed: why the others have no result.
    """

    settings: ClaimSettings
    conditions: dict[str, Any]
    claims: list[Judged]
    failed: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the folder, which may be moved. An open end of a range is None."""
        asked = {name: value for name, value in asdict(self.settings).items() if name != "out"}
        content = {
            "settings": asked, "conditions": self.conditions, "failed": self.failed,
            "claims": [asdict(claim) for claim in self.claims],
        }  # fmt: skip
        return {key: _finite(value) for key, value in content.items()}


def stored_claims(path: Path) -> ClaimsResult:
    """The result of a `claims.json`, judged anew from its measurements.

    Raises:
        StoreError: the file cannot be read.
    """
    try:
        content = json.loads(path.read_bytes())
        asked = content["settings"]
        settings = ClaimSettings(**{**asked, "ids": tuple(asked["ids"]), "out": path.parent})
        claims = [
            judge(one["id"], settings.effort, measurement_of(one["measurement"]), one["seconds"])
            for one in content["claims"]
        ]
        return ClaimsResult(settings, content["conditions"], claims, content["failed"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"A result must be the claims.json of a run. {path} is not: {error}. Pass another file."
        ) from error


class Listener(Protocol):
    """Whoever wants to know how it goes."""

    def begins(self, claims: int, stored: int, runs: int) -> None: ...
    def measured(self, claim: Judged) -> None: ...
    def failed(self, claim: str, reason: str) -> None: ...
    def training(
        self, runs: Sequence[RunSettings], stored: int
    ) -> AbstractContextManager[Watcher[RunSettings]]: ...


def run_claims(settings: ClaimSettings, listener: Listener) -> ClaimsResult:
    """Measures and judges claims, in processes of one torch thread each.

    Raises:
        UnknownName: an id that is none.
        StoreError: the folder cannot be written.
    """
    chosen = {CLAIMS.resolve(name) for name in settings.ids or CLAIMS}
    ids = [name for name in CLAIMS if name in chosen]
    session = _Session(settings, listener)
    session.open(ids)
    trained = [name for name in ids if CLAIMS[name].runs(settings.effort)]
    timed = [name for name in ids if CLAIMS[name].timed]
    session.measure([name for name in ids if name not in (*trained, *timed)])
    session.train(trained)
    session.measure(trained)
    session.measure(timed, workers=1)
    result = ClaimsResult(
        settings, conditions(), [session.judged[name] for name in ids if name in session.judged],
        session.failures,
    )  # fmt: skip
    write_result(settings.out / "claims.json", result.to_json())
    return result


class _Session:
    """One call: what it has and what it lacks."""

    def __init__(self, settings: ClaimSettings, listener: Listener) -> None:
        self.settings = settings
        self.effort = settings.effort
        self.listener = listener
        self.store = Store(settings.out)
        self.judged: dict[str, Judged] = {}
        self.failures: dict[str, str] = {}

    def open(self, ids: Sequence[str]) -> None:
        """Makes the folder, and reads what is there."""
        self.store.open(load_corpus())
        for name in ids:
            stored = _read(self._path(name))
            if stored is not None:
                self.judged[name] = judge(name, self.effort, stored[0], stored[1])
        missing = [name for name in ids if name not in self.judged]
        self.listener.begins(len(ids), len(self.judged), len(self._missing_runs(missing)[0]))

    def _missing_runs(self, names: Iterable[str]) -> tuple[list[RunSettings], int]:
        """Training runs that these claims need and the folder has not, and how many it has."""
        runs = list(dict.fromkeys(r for name in names for r in CLAIMS[name].runs(self.effort)))
        missing = self.store.missing(runs, self.store.read().records)
        return missing, len(runs) - len(missing)

    def train(self, names: Sequence[str]) -> None:
        """The training runs of the claims that are not measured yet, each once."""
        missing, stored = self._missing_runs(name for name in names if name not in self.judged)
        if missing:
            with self.listener.training(missing, stored) as watcher:
                train_all(missing, self.store, self.settings.workers, watcher)

    def measure(self, names: Sequence[str], workers: int | None = None) -> None:
        """Measures and judges what is not there yet."""
        tasks = {
            name: partial(measure_into, self._path(name), self.settings.out, name, self.effort)
            for name in names
            if name not in self.judged
        }
        launch(tasks, workers or self.settings.workers, self, preload=["normwise.claims.registry"])

    def _path(self, name: str) -> Path:
        asked = json.dumps(
            [FORMAT, asdict(self.effort), torch.__version__, version("normwise")], sort_keys=True
        )
        known = hashlib.sha256(asked.encode()).hexdigest()[:12]
        return self.settings.out / "measured" / f"{name}-{known}.json"

    def step(self, name: str, done: int, /) -> None: ...

    def finished(self, name: str, result: tuple[dict[str, Any], float], /) -> None:
        self.judged[name] = judge(name, self.effort, measurement_of(result[0]), result[1])
        self.listener.measured(self.judged[name])

    def failed(self, name: str, reason: str, /) -> None:
        self.failures[name] = reason.strip()
        self.listener.failed(name, reason.strip())


def judge(name: str, effort: Effort, measurement: Measurement, seconds: float = 0.0) -> Judged:
    """A verdict on a measurement."""
    numbers = numbers_of(measurement.numbers, CLAIMS[name].expect(effort))
    return Judged(name, verdict(numbers, quick=effort.quick), numbers, measurement, seconds)


def measurement_of(content: Mapping[str, Any]) -> Measurement:
    """A measurement from its plain values, in which what is not finite is None."""
    numbers = {
        key: [math.nan if value is None else value for value in values]
        for key, values in content["numbers"].items()
    }
    return Measurement(**{**content, "numbers": numbers})


def measure_into(
    path: Path, folder: Path, name: str, effort: Effort, step: Step
) -> tuple[dict[str, Any], float]:
    """Measures a claim and stores it; its plain values, and the seconds it took."""
    started = time.perf_counter()
    measurement = CLAIMS[name].measure(effort, Trained(folder))
    seconds = time.perf_counter() - started
    content: dict[str, Any] = _finite(asdict(measurement))
    write_result(path, {"measurement": content, "seconds": seconds})
    return content, seconds


def _read(path: Path) -> tuple[Measurement, float] | None:
    """A stored measurement; None where there is none, or it is damaged and has to be made again."""
    try:
        content = json.loads(path.read_bytes())
        return measurement_of(content["measurement"]), float(content["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _finite(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
