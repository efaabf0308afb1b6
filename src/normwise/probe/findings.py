"""What a check says: a value beside its limits, and how bad it is."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from normwise.probe.record import Run

SEVERITIES = ("ok", "info", "warn", "fail")
TIERS = {"A": "published number", "B": "numerical fact", "C": "our heuristic"}


@dataclass(frozen=True)
class Remedy:
    """What to change.

    Args:
        text: one sentence.
        tries: remedies of `normwise check --try` that do it, the first one best.
    """

    text: str
    tries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Where a value stops being healthy.

    Args:
        warn: above it is a warning; None where nothing is.
        fail: above it is a failure; None where nothing is.
        tier: a key of `TIERS`.
        source: of the numbers.
        info: above it is worth a look.
        below: a value below them is bad, not one above.
    """

    warn: float | None
    fail: float | None
    tier: str
    source: str
    info: float | None = None
    below: bool = False

    def severity(self, value: float) -> str:
        """How bad a value is; one that is not a number is a failure where anything is."""
        if math.isnan(value):
            return "fail" if self.fail is not None else "warn"
        for name, limit in (("fail", self.fail), ("warn", self.warn), ("info", self.info)):
            if limit is not None and (value < limit if self.below else value > limit):
                return name
        return "ok"


@dataclass(frozen=True)
class Reading:
    """One value of a check. Those that are not "ok" are findings.

    Args:
        check: its name.
        where: the place in the model, for a reader.
        layer: of it, for the grid; None for what belongs to no layer.
        quantity: what was measured, in words with its unit.
        value: the number that is compared with the limits; in either direction where a ratio is.
        limits: what it is compared with.
        severity: one of `SEVERITIES`.
        remedy: what to change; None for a value in order.
        note: what else a reader must know.
        step: when it was measured.
    """

    check: str
    where: str
    layer: int | None
    quantity: str
    value: float
    limits: Limits
    severity: str
    remedy: Remedy | None = None
    note: str = ""
    step: int = 0

    @property
    def line(self) -> str:
        """The finding in one line."""
        limit = getattr(self.limits, self.severity, None)
        beyond = f", limit {limit:.3g}" if limit is not None else ""
        action = f" {self.remedy.text}" if self.remedy else ""
        return (
            f"{self.severity}: {self.check} at {self.where}: {self.quantity} "
            f"{self.value:.3g}{beyond}.{action}"
        )


@dataclass(frozen=True)
class Unmeasured:
    """A check that had nothing to read, and why."""

    check: str
    why: str


Measure = Callable[[Run], Iterator[Reading | Unmeasured]]


@dataclass(frozen=True)
class Check:
    """A check as the registry knows it.

    Args:
        name: with hyphens.
        summary: what it tells, one line.
        measure: from a run to readings.
        initial: asked of a model before training or of a checkpoint.
        training: asked at every sampled step of a training.
        default: asked unless others are named.
    """

    name: str
    summary: str
    measure: Measure
    initial: bool = True
    training: bool = True
    default: bool = True


@dataclass(frozen=True)
class Standard:
    """What a check holds a value against, and what it says beyond.

    Args:
        check: its name.
        limits: of the value.
        remedy: what to change beyond them.
    """

    check: str
    limits: Limits
    remedy: Remedy

    def reading(
        self,
        where: str,
        quantity: str,
        value: float,
        *,
        layer: int | None = None,
        note: str = "",
        at_most: str = "fail",
    ) -> Reading:
        """A value with the severity that its limits give it, `at_most` one of `SEVERITIES`."""
        found = min(self.limits.severity(value), at_most, key=SEVERITIES.index)
        remedy = None if found == "ok" else self.remedy
        return Reading(self.check, where, layer, quantity, value, self.limits, found, remedy, note)


def either_way(ratio: float) -> float:
    """A ratio or its inverse, whichever is larger; infinite for one of nothing."""
    return max(ratio, 1.0 / ratio) if ratio > 0.0 else (math.nan if math.isnan(ratio) else math.inf)


def worst(readings: Iterable[Reading]) -> str:
    """The severest of all, "ok" of none."""
    return max((one.severity for one in readings), key=SEVERITIES.index, default="ok")


def lines(found: Iterable[Reading]) -> list[str]:
    """A line for each check and severity: its first place, and at how many more it is."""
    groups: dict[tuple[str, str], list[Reading]] = {}
    for one in found:
        groups.setdefault((one.check, one.severity), []).append(one)
    return [
        first.line + (f" And at {len(rest)} more place{'s' * (len(rest) > 1)}." if rest else "")
        for first, *rest in groups.values()
    ]


@dataclass
class Sheet:
    """All that the checks said about one run.

    Args:
        readings: in the order of the checks.
        unmeasured: the checks that had nothing to read.
    """

    readings: list[Reading] = field(default_factory=list)
    unmeasured: list[Unmeasured] = field(default_factory=list)

    def take(self, other: "Sheet") -> None:
        """Adds what another one has."""
        self.readings += other.readings
        self.unmeasured += other.unmeasured

    @property
    def findings(self) -> list[Reading]:
        """Warnings and failures first, then what is worth a look."""
        bad = [one for one in self.readings if one.severity != "ok"]
        return sorted(bad, key=lambda one: -SEVERITIES.index(one.severity))
