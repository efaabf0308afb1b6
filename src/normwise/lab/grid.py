"""The runs of a comparison: every point of its grid that makes sense, and why the others do not."""

import itertools
from collections.abc import Callable, Iterable
from typing import TypeVar

from normwise.lab.plan import SHARED, Plan, Skipped
from normwise.lab.settings import CompareSettings, RunSettings
from normwise.lab.train import OPTIMIZERS
from normwise.norms.registry import NORMS
from normwise.residual.registry import PLACEMENTS
from normwise.schedules import SCHEDULES
from normwise.weight_init import INITS

OWN_INIT = "default"

Value = TypeVar("Value")


def expand(settings: CompareSettings) -> Plan:
    """Every run of a comparison, seeds outermost, so that a stopped one has whole seeds first."""
    skipped: list[Skipped] = []
    shared = {name: getattr(settings, name) for name in SHARED}
    shared["schedule"] = SCHEDULES.resolve(settings.schedule)
    points = itertools.product(
        range(settings.seeds),
        _unique(settings.depth),
        _unique(OPTIMIZERS.resolve(name) for name in settings.optimizer),
        _unique(NORMS.resolve(name) for name in settings.norms),
        _placements_with_inits(settings, skipped),
        _unique(settings.lr),
        _unique(settings.warmup),
    )
    runs = []
    for seed, depth, optimizer, norm, (placement, init), lr, warmup in points:
        run = RunSettings(
            **shared, norm=norm, placement=placement, init=init, lr=lr, warmup=warmup,
            optimizer=optimizer, depth=depth, seed=seed,
        )  # fmt: skip
        reason = next(filter(None, (rule(run) for rule in RULES)), None)
        if reason is None:
            runs.append(run)
        elif reason not in skipped:
            skipped.append(reason)
    return Plan(tuple(runs), tuple(skipped), settings.command)


def _placements_with_inits(
    settings: CompareSettings, skipped: list[Skipped]
) -> list[tuple[str, str]]:
    """The pairs that belong together. A placement left without any gets its own initialisation."""
    pairs: list[tuple[str, str]] = []
    for placement in _unique(PLACEMENTS.resolve(name) for name in settings.placements):
        row = PLACEMENTS[placement]
        inits = _unique(
            row.init if name == OWN_INIT else INITS.resolve(name) for name in settings.inits
        )
        fitting = [init for init in inits if _unfit(placement, init) is None]
        skipped += [s for init in inits if (s := _unfit(placement, init)) is not None]
        pairs += [(placement, init) for init in fitting or [row.init]]
    return pairs


def _unfit(placement: str, init: str) -> Skipped | None:
    """Why an initialisation does not go with a placement."""
    row, owner = PLACEMENTS[placement], INITS[init].belongs_to
    if row.only_own_init and init != row.init:
        return Skipped(
            f"{placement} with {init}",
            f"its constants assume its own initialisation, {row.init}, which runs instead",
        )
    if owner is not None and owner != placement:
        return Skipped(f"{placement} with {init}", f"{init} belongs to the constants of {owner}")
    return None


def _norm_without_use(run: RunSettings) -> Skipped | None:
    if NORMS[run.norm].normalizes or run.placement == "pre_norm":
        return None
    reason = (
        "without a norm every placement is the plain sum x + F(x), which pre_norm stands for"
        if run.norm == "no_norm"
        else "a curve by entry does not bring the stream back to one size; its place is pre_norm"
    )
    return Skipped(f"{run.placement} with {run.norm}", reason)


def _warmup_without_end(run: RunSettings) -> Skipped | None:
    if run.warmup <= run.steps:
        return None
    return Skipped(f"warm-up {run.warmup}", f"a run has {run.steps} steps, fewer than the warm-up")


RULES: tuple[Callable[[RunSettings], Skipped | None], ...] = (
    _norm_without_use,
    _warmup_without_end,
)


def _unique(values: Iterable[Value]) -> list[Value]:
    """The values in order, each once."""
    return list(dict.fromkeys(values))
