"""All checks, and what asks them."""

from collections.abc import Sequence
from dataclasses import replace

from normwise.probe.checks import norm_eps_share, signal_growth
from normwise.probe.findings import Check, Reading, Sheet, Unmeasured
from normwise.probe.record import Run
from normwise.table import Table

CHECKS: Table[Check] = Table(
    "check", {check.name: check for check in (signal_growth.CHECK, norm_eps_share.CHECK)}
)


def apply(run: Run, names: Sequence[str] | None = None) -> tuple[Sheet, list[str]]:
    """Asks the checks that are named, or the default ones of this stage; and their names."""
    chosen = [CHECKS[name] for name in names] if names is not None else [
        check for check in CHECKS.values()
        if check.default and (check.training if run.training else check.initial)
    ]  # fmt: skip
    sheet = Sheet()
    for check in chosen:
        told = list(check.measure(run))
        sheet.readings += [
            replace(one, step=run.now.step) for one in told if isinstance(one, Reading)
        ]  # fmt: skip
        sheet.unmeasured += [one for one in told if isinstance(one, Unmeasured)]
        if not told:
            sheet.unmeasured.append(Unmeasured(check.name, "nothing of the kind was recorded"))
    return sheet, [check.name for check in chosen]
