"""Findings of a training that are new: each place and severity once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from normwise.probe.findings import SEVERITIES, Reading


@dataclass
class Alarms:
    """What was found so far.

    Args:
        history: findings with the steps at which they were new.
    """

    history: list[tuple[int, Reading]] = field(default_factory=list)
    _places: dict[tuple[str, str], str] = field(default_factory=dict)
    _checks: dict[str, str] = field(default_factory=dict)

    def take(self, findings: Sequence[Reading], step: int) -> tuple[list[Reading], bool]:
        """Those at places where there was none as severe; and whether one is of a check that had
        none as severe anywhere.
        """
        new = [
            one for one in findings
            if _is_worse(one.severity, self._places.get((one.check, one.where), "info"))
        ]  # fmt: skip
        worse = [one for one in new if _is_worse(one.severity, self._checks.get(one.check, "ok"))]
        self.history += [(step, one) for one in new]
        self._places |= {(one.check, one.where): one.severity for one in new}
        for one in worse:
            if _is_worse(one.severity, self._checks.get(one.check, "ok")):
                self._checks[one.check] = one.severity
        return new, bool(worse)


def _is_worse(severity: str, than: str) -> bool:
    return SEVERITIES.index(severity) > SEVERITIES.index(than)
