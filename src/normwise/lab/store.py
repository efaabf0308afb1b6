"""A run folder: what it is about, its tokens, and one file for each finished run.

    runs/NAME/manifest.json   the data this folder belongs to
    runs/NAME/tokens.npy      the data itself, mapped by every worker
    runs/NAME/results/ID.json one finished run, ID being the hash of its settings

A file appears whole or not at all. A result carries a checksum; one that does not match, or
cannot be read, is reported and never used.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from normwise.errors import StoreError
from normwise.lab.data import Corpus

Record = dict[str, Any]


@dataclass(frozen=True)
class Damaged:
    """A result file that cannot be used, and why."""

    path: Path
    reason: str


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
            self._check(_read_json(manifest), described)
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

    def corpus(self) -> Corpus:
        """The data, mapped from disk."""
        manifest = _read_json(self.folder / "manifest.json")
        tokens = np.load(self.folder / "tokens.npy", mmap_mode="r")
        names = ("vocab_size", "source", "tokenizer", "sha256")
        return Corpus(tokens, *(manifest[name] for name in names))

    def write(self, record: Record) -> None:
        """Stores a finished run under the id of its settings."""
        _write_json(self.results / f"{record['id']}.json", {**record, "checksum": _digest(record)})

    def read(self) -> tuple[dict[str, Record], list[Damaged]]:
        """The finished runs by id, and the files that cannot be used."""
        records: dict[str, Record] = {}
        damaged: list[Damaged] = []
        for path in sorted(self.results.glob("*.json")):
            try:
                record = _verified(path)
            except StoreError as error:
                damaged.append(Damaged(path, str(error)))
            else:
                records[record["id"]] = record
        return records, damaged


def _verified(path: Path) -> Record:
    record = _read_json(path)
    checksum = record.pop("checksum", None)
    if checksum != _digest(record):
        raise StoreError("its checksum does not match its content")
    if record.get("id") != path.stem:
        raise StoreError("its name is not the id of its settings")
    return record


def _digest(record: Record) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _read_json(path: Path) -> Record:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise StoreError(f"{path} cannot be read: it is not an object")
    return content


def _write_json(path: Path, content: Record) -> None:
    text = json.dumps(content, indent=1, allow_nan=False)
    write_whole(path, lambda file: file.write(text.encode()))


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes beside the target, then renames: the file is there whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
