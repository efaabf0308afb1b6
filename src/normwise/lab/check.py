"""`normwise check`: a target, its batch and one step of AdamW; and a remedy, where one is tried."""

from dataclasses import dataclass, replace

import torch

from normwise.errors import NormwiseError, SettingError
from normwise.lab.check_settings import CheckSettings
from normwise.lab.remedy import changed, changing
from normwise.lab.targets import Target, build_own, load_target
from normwise.probe.diagnosis import Diagnosis
from normwise.probe.findings import SEVERITIES
from normwise.probe.points import arguments
from normwise.probe.preflight import check
from normwise.schedules import parameter_groups

WEIGHT_DECAY = 0.1


@dataclass(frozen=True)
class Checked:
    """What a check found, and what it found without the remedy where one was tried."""

    result: Diagnosis
    before: Diagnosis | None = None

    def to_json(self) -> dict[str, object]:
        """The result as plain values, with the one before it under "before"."""
        before = {} if self.before is None else {"before": self.before.to_json()}
        return {**self.result.to_json(), **before}

    def reaches(self, severity: str) -> bool:
        """Whether the result has a finding of this severity or worse."""
        return SEVERITIES.index(self.result.verdict) >= SEVERITIES.index(severity)


def run_check(settings: CheckSettings) -> Checked:
    """Checks a target; with a remedy, once more with it applied.

    Raises:
        SettingError, UnknownName: no such target, check or remedy, or nothing for the remedy to
            change.
        AnatomyUnknown: the residual stream was not found.
    """
    target = load_target(settings)
    if settings.remedy is None:
        return Checked(_diagnosed(target, settings))
    if target.config is None:
        raise SettingError(
            f"A remedy is tried by building the model again, which can be done for own:FIELD=VALUE,"
            f"... and a .json file of TransformerConfig. {settings.target} is neither."
        )
    other = build_own(changed(target.config, settings.remedy), settings)
    before = _diagnosed(target, replace(settings, remedy=None))
    return Checked(_diagnosed(other, settings), before)


def _diagnosed(target: Target, settings: CheckSettings) -> Diagnosis:
    trained = any(p.requires_grad for p in target.model.parameters())
    groups = parameter_groups(target.model, WEIGHT_DECAY)
    optimizer = torch.optim.AdamW(groups, lr=settings.lr) if settings.lr and trained else None
    try:
        found = check(
            target.model, target.batch, optimizer=optimizer, dtype=settings.dtype,
            checks=settings.checks, stage=settings.stage or target.stage, pattern=settings.pattern,
        )  # fmt: skip
    except NormwiseError:
        raise
    except Exception:
        _must_run(target)
        raise
    record = replace(found.record, missing=[*target.missing, *found.record.missing])
    return replace(
        found, record=record, command=settings.command, remedy=settings.remedy or "",
        remarks=target.remarks, trials=_trials(target, found, settings),
    )  # fmt: skip


@torch.no_grad()
def _must_run(target: Target) -> None:
    """Raises `SettingError` for a model that does not run on its batch: then that is the fault."""
    args, options = arguments(target.batch)
    try:
        target.model(*args, **options)
    except Exception as error:
        first = (str(error).strip() or "no message").splitlines()[0]
        raise SettingError(
            f"A model must run on its batch. It gave {type(error).__name__}: {first}. Pass "
            f"--batch MODULE:FUNCTION, or another --seq-len."
        ) from error


def _trials(target: Target, found: Diagnosis, settings: CheckSettings) -> list[str]:
    """The lines that try what helps against the cause; none for a model that is not rebuilt."""
    if target.config is None or found.cause is None or settings.remedy is not None:
        return []
    names = changing(target.config, found.cause.tries)
    return [replace(settings, remedy=name).command for name in names]
