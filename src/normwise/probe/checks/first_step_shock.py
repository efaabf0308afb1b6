"""`first-step-shock`: what one step of the optimizer at its peak rate does on the same batch.

A step that raises the loss it was computed from is too long. Logits begin near zero, so that a
sound step may well double them: their change is shown and never judged.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import Run, Trial

NAME = "first-step-shock"
REMEDY = Remedy("Warm up for longer, lower the rate, or put the norms before the branches.")
BEFORE = ("pre-norm", "peri-norm")  # what is tried where a norm follows the sum
ROUNDING = 1e-6  # of the loss in fp32
LOSS = Standard(NAME, Limits(0.0, None, "C", "a step along the gradient lowers the loss"), REMEDY)
FINITE = Standard(NAME, Limits(None, 0.0, "B", "no step leads back from NaN"), REMEDY)
MOVED = Standard(
    NAME,
    Limits(0.999, None, "B", "an optimizer has to change something"),
    Remedy("Check that the optimizer was given this model's parameters, and its rate."),
)
LOGITS = Standard(
    NAME,
    Limits(None, None, "C", "healthy models pass it: logits begin near zero", info=1.0),
    REMEDY,
)


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """The trial step, where one was taken."""
    trial = run.now.trial
    if trial is None:
        yield Unmeasured(NAME, "no step was tried: that takes an optimizer and a loss")
        return
    remedy = replace(REMEDY, tries=BEFORE) if "post" in run.now.placement else REMEDY
    for reading in _readings(trial):
        ours = reading.remedy is not None and reading.remedy.text == REMEDY.text
        yield replace(reading, remedy=remedy) if ours else reading


def _readings(trial: Trial) -> Iterator[Reading]:
    where, rate = "the first step", f"At a rate of {trial.rate:.3g}"
    yield MOVED.reading(
        where, "share of the trained tensors that it left as they were", 1.0 - trial.changed,
        at_most="ok" if trial.changed else "warn",
    )  # fmt: skip
    if not math.isfinite(trial.after):
        yield FINITE.reading(
            where, "the loss after it (not finite)", math.inf,
            note=f"{rate}, the loss was {trial.before:.4g} before.",
        )  # fmt: skip
        return
    rise = trial.after - trial.before
    yield LOSS.reading(
        where, "rise of the loss", 0.0 if abs(rise) <= ROUNDING * abs(trial.before) else rise,
        note=f"{rate}, the loss goes from {trial.before:.4g} to {trial.after:.4g}.",
    )  # fmt: skip
    yield LOGITS.reading(
        where, "RMS of the change of the output over its RMS", trial.logits_change,
        at_most="info", note=f"{rate}.",
    )  # fmt: skip


CHECK = Check(
    NAME, "what one optimizer step at the peak rate does", measure, training=False
)  # fmt: skip
