"""All checks, and what asks them."""

from collections.abc import Sequence
from dataclasses import replace

from normwise.probe.checks import (
    adam_eps_floor,
    attn_entropy,
    attn_logit_max,
    effective_depth,
    embed_scale,
    first_step_shock,
    grad_balance,
    massive_activation,
    norm_eps_share,
    norm_gain,
    placement,
    precision_headroom,
    residual_drift,
    signal_growth,
    spike_score,
    sublayer_ratio,
    theory_gap,
    token_collapse,
    update_size,
)
from normwise.probe.findings import Check, Reading, Sheet, Unmeasured
from normwise.probe.record import Run
from normwise.table import Table

_MODULES = (
    signal_growth, theory_gap, norm_eps_share, embed_scale, sublayer_ratio, effective_depth,
    grad_balance, first_step_shock, attn_logit_max, attn_entropy, massive_activation,
    residual_drift, precision_headroom, adam_eps_floor, update_size, spike_score, placement,
    norm_gain, token_collapse,
)  # fmt: skip

CHECKS: Table[Check] = Table("check", {module.CHECK.name: module.CHECK for module in _MODULES})


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
