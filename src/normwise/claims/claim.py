"""What a claim is: an expectation, fixed in the code, and a measurement."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from normwise.claims.settings import Effort
from normwise.claims.trained import Trained
from normwise.claims.verdict import Expectations
from normwise.lab.settings import RunSettings

Point = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """What an experiment gives, as plain values.

    Args:
        numbers: by seed, those that the verdict rests on and others that are shown beside them.
        points: of the picture: `label`, `x`, `y`, and for theory's line `predicted`.
        conditions: under which it was measured.
        rows: of a table that stands below the numbers, with the keys of its columns.
        level: a value to compare the points with, drawn as a line.
    """

    numbers: dict[str, list[float]]
    points: list[Point]
    conditions: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    level: float | None = None


@dataclass(frozen=True)
class Picture:
    """How the points are drawn.

    Args:
        kind: "lines", y over x, or "marks", y for each label with its seeds.
        x_log, y_log: logarithmic axes.
    """

    kind: str
    x_log: bool = False
    y_log: bool = False


def _no_runs(effort: Effort) -> Sequence[RunSettings]:
    return ()


@dataclass(frozen=True)
class Claim:
    """A statement as an experiment. Its sentences are in `claims/text`.

    Args:
        section: of the notes, 1 to 4.
        expect: what the statement says of each number that is judged.
        measure: the experiment.
        picture: how its points are drawn.
        runs: the training runs it reads.
        timed: it measures time, so nothing else may run.
    """

    section: int
    expect: Callable[[Effort], Expectations]
    measure: Callable[[Effort, Trained], Measurement]
    picture: Picture
    runs: Callable[[Effort], Sequence[RunSettings]] = _no_runs
    timed: bool = False
