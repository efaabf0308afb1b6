"""A run folder: what it is about, its tokens, and one file for each finished run.

    runs/NAME/manifest.json   the data this folder belongs to
    runs/NAME/tokens.npy      the data itself, mapped by every worker
    runs/NAME/results/ID.json one finished run, ID being the hash of its settings
    runs/NAME/weights/ID.pt   its trained weights, a state dict, where it was asked to keep them
    runs/NAME/failures/ID.json why a run ended without a result, until it has one
    runs/NAME/plans/ID.json   what was asked for, so that what is unfinished is known

A file appears whole or not at all. A result carries a checksum; one that does not match, or
cannot be read, is reported and never used.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from normwise.errors import SettingError, StoreError
from normwise.files import write_whole
from normwise.lab.data import Corpus
from normwise.lab.plan import Failure, Plan
from normwise.lab.settings import RunSettings

Record = dict[str, Any]
Kind = TypeVar("Kind")
# Of a result file. A change of what a record holds raises it, and older results are made again.
FORMAT = 1
MANIFEST = {
    "source": str, "sha256": str, "tokenizer": str, "tokens": int, "vocab_size": int,
    "unigram_loss": float, "collision": float,
}  # fmt: skip


@dataclass(frozen=True)
class Damaged:
    """A file that cannot be used, and why; of a result file also the run, where a plan knows it."""

    path: Path
    reason: str
    run: RunSettings | None = None

    @property
    def is_result(self) -> bool:
        """Whether a run is lost with it, and no plan or note of a failure."""
        return self.path.parent.name == "results"


@dataclass(frozen=True)
class Contents:
    """What a run folder holds.

    Args:
        records: the finished runs by id.
        damaged: files that cannot be used.
        failures: runs that were tried and have no result.
        plans: what was asked for.
    """

    records: dict[str, Record]
    damaged: list[Damaged]
    failures: list[Failure]
    plans: list[Plan]


class Store:
    """A run folder opened for one corpus.

    Raises:
        StoreError: the folder holds runs on other data, or cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.results = self.folder / "results"

    def open(self, corpus: Corpus) -> None:
        """Makes the folder, or checks that it belongs to this corpus."""
        manifest = self.folder / "manifest.json"
        described = corpus.describe()
        if manifest.exists():
            self._check(self.manifest(), described)
        try:
            self.results.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"The run folder must be writable. {self.folder} is not: {error.strerror}. "
                f"Name another with out."
            ) from error
        if not (self.folder / "tokens.npy").exists():
            write_whole(self.folder / "tokens.npy", lambda file: np.save(file, corpus.tokens))
        if not manifest.exists():
            _write_json(manifest, described)

    def _check(self, found: Record, wanted: Record) -> None:
        for key in ("sha256", "tokenizer"):
            if found.get(key) != wanted[key]:
                raise StoreError(
                    f"A run folder holds runs on one text. {self.folder} was made for "
                    f"{found.get('source')} ({key} {str(found.get(key))[:12]}), this is "
                    f"{wanted['source']} ({key} {wanted[key][:12]}). Name another folder with out."
                )

    def manifest(self) -> Record:
        """What the text is: source, sha256, tokens, unigram level.

        Raises:
            StoreError: the file is not there or not whole.
        """
        path = self.folder / "manifest.json"
        try:
            content = _read_json(path)
            for name, kind in MANIFEST.items():
                if not isinstance(content.get(name), kind):
                    raise StoreError(f"{name} is {content.get(name)!r}")
        except StoreError as error:
            raise StoreError(
                f"The manifest of a run folder must be whole. In {path} {error}. "
                f"Name another folder, or restore the file."
            ) from error
        return content

    def corpus(self) -> Corpus:
        """The data, mapped from disk."""
        manifest = self.manifest()
        tokens = np.load(self.folder / "tokens.npy", mmap_mode="r")
        names = ("vocab_size", "source", "tokenizer", "sha256")
        return Corpus(tokens, *(manifest[name] for name in names))

    def write(self, record: Record) -> None:
        """Stores a finished run under the id of its settings."""
        content = {"format": FORMAT, **record, "checksum": _digest(record)}
        _write_json(self.results / f"{record['id']}.json", content)
        self._failure(record["id"]).unlink(missing_ok=True)

    def weights(self, run: RunSettings) -> Path:
        """Where a run's weights are, or would be."""
        return self.folder / "weights" / f"{run.id}.pt"

    def result(self, run: RunSettings) -> Record:
        """A finished run.

        Raises:
            StoreError: it has not finished, or its file is damaged.
        """
        path = self.results / f"{run.id}.json"
        try:
            return read_result(path)
        except StoreError as error:
            raise StoreError(
                f"A finished run must be whole. {path} is not usable: {error}. "
                f"Run the same command again."
            ) from error

    def missing(self, runs: Iterable[RunSettings], records: Container[str]) -> list[RunSettings]:
        """Those of the runs that have no result, or not the weights that they were to keep."""
        return [
            run for run in runs
            if run.id not in records or (run.keep_weights and not self.weights(run).exists())
        ]  # fmt: skip

    def write_failure(self, failure: Failure) -> None:
        """Stores why a run has no result."""
        content = {"settings": dataclasses.asdict(failure.run), "reason": failure.reason}
        _write_json(self._failure(failure.run.id), content)

    def write_plan(self, plan: Plan) -> None:
        """Stores what is asked for."""
        _write_json(self.folder / "plans" / f"{plan.id}.json", plan.to_json())

    def _failure(self, run_id: str) -> Path:
        return self.folder / "failures" / f"{run_id}.json"

    def read(self) -> Contents:
        """Everything but the text."""
        damaged: list[Damaged] = []
        records = _each(self.results, read_result, damaged)
        failures = _each(self.folder / "failures", _read_failure, damaged)
        plans = _each(self.folder / "plans", _read_plan, damaged)
        return Contents(
            records={record["id"]: record for record in records},
            damaged=damaged,
            failures=failures,
            plans=plans,
        )


def read_result(path: Path) -> Record:
    """One finished run from its file.

    Raises:
        StoreError: with what is wrong about the file.
    """
    content = _read_json(path)
    checksum, version = content.pop("checksum", None), content.pop("format", None)
    if checksum is None:
        raise StoreError("it is no result of a run")
    if checksum != _digest(content):
        raise StoreError("its checksum does not match its content")
    if version != FORMAT:
        raise StoreError(f"it has format {version}, and this version reads format {FORMAT}")
    if content["id"] != path.stem:
        raise StoreError("its name is not the id of its settings")
    return content


def _read_failure(path: Path) -> Failure:
    content = _read_json(path)
    if not isinstance(content["reason"], str):
        raise StoreError("its reason is no text")
    failure = Failure(RunSettings.from_json(content["settings"]), content["reason"])
    hash(failure)
    return failure


def _read_plan(path: Path) -> Plan:
    plan = Plan.from_json(_read_json(path))
    hash(plan)
    return plan


def _each(folder: Path, read: Callable[[Path], Kind], damaged: list[Damaged]) -> list[Kind]:
    """What can be read of a folder's files; the others are added to `damaged`."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(read(path))
        except (StoreError, SettingError) as error:
            damaged.append(Damaged(path, str(error)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            damaged.append(Damaged(path, f"it was not written by this version: {error}"))
    return found


def _digest(record: Record) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _read_json(path: Path) -> Record:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError(f"it cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise StoreError("it cannot be read: it is not an object")
    return content


def _write_json(path: Path, content: Record) -> None:
    text = json.dumps(content, indent=1, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: file.write(text.encode()))
