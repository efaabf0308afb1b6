"""From findings to one cause: the rules by which several of them are one fault."""

from collections.abc import Callable
from dataclasses import dataclass

from normwise.probe.findings import Reading, Sheet
from normwise.probe.record import Record


@dataclass(frozen=True)
class Cause:
    """What explains the findings.

    Args:
        title: the fault in one clause, without a full stop.
        action: the first thing to do, a sentence.
        checks: those whose findings it explains.
        tries: remedies of `normwise check --try`, best first.
    """

    title: str
    action: str
    checks: tuple[str, ...]
    tries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A pattern of findings.

    Args:
        holds: whether it is there, from the bad findings by check.
        title, action, checks, tries: of the cause.
    """

    holds: Callable[[dict[str, list[Reading]]], bool]
    title: str
    action: str
    checks: tuple[str, ...]
    tries: tuple[str, ...] = ()


def _all(*names: str) -> Callable[[dict[str, list[Reading]]], bool]:
    return lambda bad: all(name in bad for name in names)


RULES: list[Rule] = []


def cause_of(sheet: Sheet, record: Record) -> Cause | None:
    """The first rule that holds; without one, the severest finding is its own cause."""
    bad: dict[str, list[Reading]] = {}
    for one in sheet.findings:
        if one.severity in ("warn", "fail"):
            bad.setdefault(one.check, []).append(one)
    if not bad:
        return None
    for rule in RULES:
        if rule.holds(bad):
            return Cause(rule.title, rule.action, rule.checks, rule.tries)
    first = next(iter(bad.values()))[0]
    remedy = first.remedy
    return Cause(
        f"{first.check} at {first.where}: {first.quantity} is {first.value:.3g}",
        remedy.text if remedy else "", (first.check,), remedy.tries if remedy else (),
    )  # fmt: skip
