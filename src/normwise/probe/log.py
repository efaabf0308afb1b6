"""The records of a training as lines of JSON, one a record, and read back."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from normwise.errors import StoreError
from normwise.files import plain, write_result
from normwise.probe.causes import Story
from normwise.probe.findings import Reading
from normwise.probe.record import Record

FORMAT = 1


class RunLog:
    """Appends to a file: a line is there whole, or is the last one and is left out when read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(
        self, record: Record, findings: Sequence[Reading], story: Story | None,
        losses: Sequence[tuple[int, float]],
    ) -> None:  # fmt: skip
        """A line for a record: what the checks found in it, the story of the training so far, and
        the losses that are new.

        Raises:
            StoreError: the file cannot be written.
        """
        line = {
            "format": FORMAT, "step": record.step, "record": asdict(record),
            "findings": [asdict(one) for one in findings],
            "story": None if story is None else asdict(story), "losses": list(losses),
        }  # fmt: skip
        text = json.dumps(plain(line), allow_nan=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            raise StoreError(
                f"A log must be written somewhere. {self.path} cannot be: {error.strerror}. "
                f"Name another place with log."
            ) from error

    def dump(self, step: int, records: Sequence[Record]) -> None:
        """The last records before a loss that is no number, beside the log."""
        path = self.path.with_name(f"{self.path.stem}-nan-{step}.json")
        write_result(path, {"step": step, "records": [plain(asdict(one)) for one in records]})


def read_lines(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a log in order of their steps; of a step that was made again, the later one.

    Raises:
        StoreError: there is no such file, or it is no log.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"A log is a file that a monitor wrote. {path} cannot be read: {error.strerror}."
        ) from error
    found: dict[int, dict[str, Any]] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.strip():
            try:
                one = json.loads(line)
                found[one["step"]] = one
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines) - 1:
                    break  # of a training that was ended while it wrote
                raise StoreError(
                    f"A log has a record in each line. Line {number + 1} of {path} is none."
                ) from error
    return [found[step] for step in sorted(found)]
