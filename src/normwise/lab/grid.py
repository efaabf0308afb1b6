"""The runs of a comparison: every point of its grid that makes sense, and why the others do not."""

import itertools
from collections.abc import Callable, Iterable
from typing import TypeVar

from normwise.lab.objective import OBJECTIVES
from normwise.lab.plan import SHARED, Plan, Skipped
from normwise.lab.settings import OWN, CompareSettings, RunSettings
from normwise.lab.train import OPTIMIZERS
from normwise.model.config import init_mismatch
from normwise.norms.registry import NORMS
from normwise.residual.registry import PLACEMENTS
from normwise.schedules import RISES, SCHEDULES
from normwise.weight_init import INITS

Value = TypeVar("Value")


def expand(settings: CompareSettings) -> Plan:
    """Every run of a comparison, seeds outermost, so that a stopped one has whole seeds first."""
    skipped: list[Skipped] = []
    shared = {name: getattr(settings, name) for name in SHARED}
    shared["schedule"] = SCHEDULES.resolve(settings.schedule)
    shared["rise"] = RISES.resolve(settings.rise)
    shared["objective"] = OBJECTIVES.resolve(settings.objective)
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
            **shared, norm=norm if PLACEMENTS[placement].has_norms else "no_norm",
            placement=placement, init=init, lr=lr, warmup=warmup,
            optimizer=optimizer, depth=depth, seed=seed,
        )  # fmt: skip
        reason = next(filter(None, (rule(run) for rule in RULES)), None)
        if reason is None:
            runs.append(run)
        elif reason not in skipped:
            skipped.append(reason)
    return Plan(tuple(_unique(runs)), tuple(skipped), settings.command)


def _placements_with_inits(
    settings: CompareSettings, skipped: list[Skipped]
) -> list[tuple[str, str]]:
    """The pairs that belong together. A placement left without any gets its own initialisation."""
    pairs: list[tuple[str, str]] = []
    for placement in _unique(PLACEMENTS.resolve(name) for name in settings.placements):
        row = PLACEMENTS[placement]
        inits = _unique(row.init if name == OWN else INITS.resolve(name) for name in settings.inits)
        fitting = [init for init in inits if _unfit(placement, init) is None]
        skipped += [s for init in inits if (s := _unfit(placement, init)) is not None]
        pairs += [(placement, init) for init in fitting or [row.init]]
    return pairs


def _unfit(placement: str, init: str) -> Skipped | None:
    """Why an initialisation does not go with a placement."""
    reason = init_mismatch(placement, init)
    if reason is None:
        return None
    instead = ", which runs instead" if PLACEMENTS[placement].only_own_init else ""
    return Skipped(f"{placement} with {init}", reason + instead)


def _norm_without_use(run: RunSettings) -> Skipped | None:
    if NORMS[run.norm].normalizes or run.placement == "pre_norm":
        return None
    if not PLACEMENTS[run.placement].has_norms:
        return None
    reason = (
        "without a norm every placement is the plain sum x + F(x), which pre_norm stands for"
        if run.norm == "no_norm"
        else "a curve by entry does not bring the stream back to one size; its place is pre_norm"
    )
    return Skipped(f"{run.placement} with {run.norm}", reason)


def _batch_norm_out_of_place(run: RunSettings) -> Skipped | None:
    kind = NORMS[run.norm].batch
    if kind == "tokens" and OBJECTIVES[run.objective].causal:
        return Skipped(
            run.norm, "a token would be normalized with the ones after it, which it has to predict"
        )
    axis = PLACEMENTS[run.placement].inside.query_key
    if run.query_key_norm != OWN:
        axis = run.query_key_norm
    if kind and (axis == "head" or PLACEMENTS[run.placement].inside.value):
        return Skipped(f"{run.placement} with {run.norm}", "it has norms over heads, not channels")
    return None


def _warmup_without_end(run: RunSettings) -> Skipped | None:
    if run.warmup <= run.steps:
        return None
    return Skipped(f"warm-up {run.warmup}", f"a run has {run.steps} steps, fewer than the warm-up")


RULES: tuple[Callable[[RunSettings], Skipped | None], ...] = (
    _norm_without_use,
    _batch_norm_out_of_place,
    _warmup_without_end,
)


def _unique(values: Iterable[Value]) -> list[Value]:
    """The values in order, each once."""
    return list(dict.fromkeys(values))
