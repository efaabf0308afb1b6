"""The registries as tables for a terminal."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich import box
from rich.table import Table as Grid

from normwise.lab.remedy import REMEDIES
from normwise.norms.registry import NORMS
from normwise.ops.dispatch import BACKENDS
from normwise.ops.rounding import ROUNDINGS
from normwise.probe.checks.registry import CHECKS
from normwise.probe.findings import Check
from normwise.residual.registry import PLACEMENTS
from normwise.schedules import SCHEDULES
from normwise.table import Table
from normwise.weight_init import INITS


def _grid(titles: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, title in enumerate(titles):
        grid.add_column(title, no_wrap=index != 1, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _norms() -> Grid:
    rows = ((_with_aliases(NORMS, name), row.formula) for name, row in NORMS.items())
    return _grid(("norm", "formula"), rows)


def _placements() -> Grid:
    rows = (
        (_with_aliases(PLACEMENTS, name), row.formula, row.warm_up, row.init)
        for name, row in PLACEMENTS.items()
    )
    return _grid(("placement", "formula", "warm-up", "init"), rows)


def _inits() -> Grid:
    return _grid(("init", "what it draws"), ((n, row.summary) for n, row in INITS.items()))


def _schedules() -> Grid:
    rows = ((name, summary) for name, (_, summary) in SCHEDULES.items())
    return _grid(("schedule", "after warm-up and hold the rate"), rows)


def _roundings() -> Grid:
    return _grid(("rounding", "where it rounds"), ROUNDINGS.items())


def _backends() -> Grid:
    return _grid(("backend", "what runs a norm"), BACKENDS.items())


def _checks() -> Grid:
    rows = ((name, check.summary, _asked(check)) for name, check in CHECKS.items())
    return _grid(("check", "what it tells", "asked"), rows)


def _asked(check: Check) -> str:
    """When a check is asked, unless checks are named."""
    if not check.default:
        return "by name"
    if check.initial and check.training:
        return "always"
    return "before training" if check.initial else "in training"


def _remedies() -> Grid:
    rows = ((name, row.summary) for name, row in REMEDIES.items())
    return _grid(("remedy", "what it changes"), rows)


def _with_aliases(table: Table[Any], name: str) -> str:
    """A name, and in the next line the others under which it is found."""
    return "\n  ".join([name, *table.aliases(name)])


TABLES_OF_NAMES: Mapping[str, Callable[[], Grid]] = {
    "norms": _norms,
    "placements": _placements,
    "inits": _inits,
    "schedules": _schedules,
    "roundings": _roundings,
    "backends": _backends,
    "checks": _checks,
    "remedies": _remedies,
}
