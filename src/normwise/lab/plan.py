"""What a comparison asks for: its runs, the pairs it leaves out and why, the line that asks again.

Imports nothing heavy: a stored comparison is read without torch.
"""

import dataclasses
import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normwise.lab.settings import RunSettings, SharedSettings

SHARED = tuple(field.name for field in dataclasses.fields(SharedSettings))


@dataclass(frozen=True)
class Skipped:
    """A pair of choices that is not run."""

    what: str
    reason: str


@dataclass(frozen=True)
class Failure:
    """A run that ended without a result; the same command tries it again."""

    run: RunSettings
    reason: str


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison in the order in which they start.

    Args:
        runs: every point of the grid that makes sense.
        skipped: the others.
        command: what a user types to ask for it again; None where the text was a Python object.
    """

    runs: tuple[RunSettings, ...]
    skipped: tuple[Skipped, ...] = ()
    command: str | None = None

    @property
    def id(self) -> str:
        """Hash of what is asked for, however it was typed."""
        asked = [run.id for run in self.runs], [dataclasses.asdict(item) for item in self.skipped]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]

    def within(self, folder: str | Path) -> "Plan":
        """The plan with a command that goes on in this run folder."""
        command = self.command and f"{self.command} --out {shlex.quote(str(folder))}"
        return dataclasses.replace(self, command=command)

    def to_json(self) -> dict[str, Any]:
        """Plain values; what all runs have in common is written once."""
        runs = [dataclasses.asdict(run) for run in self.runs]
        return {
            "command": self.command,
            "skipped": [dataclasses.asdict(item) for item in self.skipped],
            "shared": {name: runs[0][name] for name in SHARED} if runs else {},
            "runs": [{k: v for k, v in run.items() if k not in SHARED} for run in runs],
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Plan":
        """A plan back from its file."""
        return cls(
            runs=tuple(
                RunSettings.from_json({**content["shared"], **run}) for run in content["runs"]
            ),
            skipped=tuple(Skipped(**item) for item in content["skipped"]),
            command=content["command"],
        )
