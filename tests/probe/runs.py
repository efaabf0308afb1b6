"""Records and runs made by hand, for checks that look at a training."""

from collections.abc import Sequence
from typing import Any

from normwise.probe.findings import Check, Reading, Unmeasured
from normwise.probe.record import (
    Attention,
    Connection,
    Output,
    ParameterUpdate,
    Record,
    Run,
    Signal,
    Stack,
    StreamPoint,
)


def point(rms: float = 1.0, **fields: Any) -> StreamPoint:
    """A normally distributed point of the stream."""
    known = {"kurtosis": 3.0, "largest": 4.0 * rms, "median": 0.67 * rms}
    return StreamPoint(1e4, 0.0, rms, **{**known, **fields})


def stack(
    points: Sequence[StreamPoint | None] = (point(), point(), point()), **connection: Any
) -> Stack:
    """A stack of these points, attention and feed-forward by turns."""
    fields = {"skip": 1.0, "branch": Signal(1e4, 0.0, 1.0, largest=4.0), **connection}
    return Stack("", list(points), [
        Connection("feed_forward" if c % 2 else "attention", c // 2, **fields)
        for c in range(len(points) - 1)
    ])  # fmt: skip


def attention(largest: Sequence[float], **fields: Any) -> Attention:
    """An attention of layer 0, a number for each head."""
    known: dict[str, Any] = {
        "layer": 0, "stack": 0, "bound": [2.0 * one for one in largest],
        "entropy": [0.9] * len(largest), "skipped": 0.0, "exact": True,
    }  # fmt: skip
    return Attention(largest=list(largest), **{**known, **fields})


def update(name: str = "layers.0.weight", **fields: Any) -> ParameterUpdate:
    """A matrix that learns well."""
    known: dict[str, Any] = {
        "matrix": True, "embedding": False, "rms": 0.02, "gradient": 1e-4, "floor": 1e4,
        "surprise": 1.0, "relative": 1e-3, "vanishing": 0.0,
    }  # fmt: skip
    return ParameterUpdate(name, **{**known, **fields})


def output(largest: float = 8.0, log_z: float = 3.0, dtype: str = "bfloat16") -> Output:
    return Output(largest, largest / 4.0, log_z, dtype)


def record(step: int = 0, **fields: Any) -> Record:
    """A pre-norm record of a training."""
    known: dict[str, Any] = {
        "stage": "training", "placement": "pre", "parallel": False, "stacks": [stack()],
    }  # fmt: skip
    return Record(step=step, **{**known, **fields})


def told(check: Check, *records: Record, **run: Any) -> list[Reading | Unmeasured]:
    """All that a check says of these records."""
    return list(check.measure(Run(list(records), **run)))


def readings(check: Check, *records: Record, **run: Any) -> list[Reading]:
    return [one for one in told(check, *records, **run) if isinstance(one, Reading)]


def severity(check: Check, *records: Record, **run: Any) -> str:
    """Of the only reading that is not in order; "ok" where all are."""
    found = [one.severity for one in readings(check, *records, **run) if one.severity != "ok"]
    assert len(found) <= 1, found
    return found[0] if found else "ok"
