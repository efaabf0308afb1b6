"""Numbers for whatever tracker a training has."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from normwise.errors import SettingError
from normwise.probe.findings import SEVERITIES, Reading, worst
from normwise.probe.record import Record


class Sink(Protocol):
    """Anything with `log(values, step=...)`; or with `add_scalar(name, value, step)`, as
    TensorBoard's writer has it.
    """

    def log(self, values: Mapping[str, Any], step: int) -> Any: ...


def check_sink(sink: Any) -> None:
    """Raises `SettingError` unless numbers can be sent there."""
    if not callable(getattr(sink, "log", None)) and not callable(getattr(sink, "add_scalar", None)):
        raise SettingError(
            f"A sink needs log(values, step=...) or add_scalar(name, value, step). "
            f"{type(sink).__name__} has neither."
        )


def send(sinks: Sequence[Any], values: Mapping[str, float], step: int) -> None:
    """Gives the values to every sink."""
    for sink in sinks:
        if hasattr(sink, "add_scalar"):
            for name, value in values.items():
                sink.add_scalar(name, value, step)
        else:
            sink.log(dict(values), step=step)


def metrics(record: Record, readings: Sequence[Reading]) -> dict[str, float]:
    """The numbers of one record that are worth a curve: the severest value of each check, and the
    ends of the stream.
    """
    values: dict[str, float] = {"normwise/severity": float(SEVERITIES.index(worst(readings)))}
    for one in readings:
        name = f"normwise/{one.check}"
        if math.isfinite(one.value):
            values[name] = max(values.get(name, -math.inf), one.value)
    for stack in record.stacks:
        prefix = f"normwise/{stack.name}_" if stack.name else "normwise/"
        for end, point in (("first", stack.points[0]), ("last", stack.points[-1])):
            if point is not None and math.isfinite(point.rms):
                values[f"{prefix}stream_rms_{end}"] = point.rms
            if point is not None and math.isfinite(point.gradient):
                values[f"{prefix}stream_gradient_{end}"] = point.gradient
    return values
