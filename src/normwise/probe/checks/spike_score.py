"""`spike-score`: how often loss and gradient norm jump, and whether log Z drifts away.

    score = 100 * spikes/steps,  a spike: value >= mean + 7 sigma of the 1000 values before it

OLMo 2's score, in percent. A training of fewer than 1000 steps is judged by 6 sigma of the 128
values before, as OLMo-core's trainer does, and its spikes are counted against 1000 steps: one of
them alone is no finding. A gradient norm is beyond that in healthy trainings too, and is held to
the wide band from the start. Cross-entropy does not see what is added to all logits of a token, so
nothing but a z-loss keeps log Z, the log of the softmax's denominator, from drifting.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import linear_regression

import numpy as np
from numpy.typing import NDArray

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import Run

NAME = "spike-score"
STEPS = 1000  # that a share of spikes is over, at least
FEWEST = 32  # values before one that it can be held against
FLOOR = 0.005  # of the mean: sigma is not taken to be less, so that a smooth curve has no spikes
LARGE = 64.0  # a logit from which bf16 has steps of 0.5
POINTS = 5  # records for a trend

LIMITS = Limits(
    0.1, 0.4, "A",
    "OLMo 2 (2501.00656), section 3: 0.03, 0.069 and 0.092 of good runs; 0.108, 0.16, 0.40 of bad",
)  # fmt: skip
FINITE = Limits(None, 0.0, "B", "a loss that is no finite number has no gradient")
DRIFT = Limits(1.0, None, "C", "ours: a factor e in Z; bf16 has steps of 0.5 from 64 on")
BAND = Limits(None, None, "A", "OLMo-core leaves out steps 6 sigma above the 128 before")
JUMPS = Remedy(
    "Look at what moved first; go back 100 steps and leave out the batches of the spike.",
    ("query-key-norm", "peri-norm", "small-eps"),
)
STANDARD = Standard(NAME, LIMITS, JUMPS)
NUMBERS = Standard(
    NAME, FINITE,
    Remedy("Go back to a checkpoint before it, leave out the batch, and lower the learning rate."),
)  # fmt: skip
LOG_Z = Standard(
    NAME, DRIFT, Remedy("Add a z-loss, 1e-4 (log Z)^2, and compute logits in fp32."),
)  # fmt: skip


@dataclass(frozen=True)
class Band:
    """Where a value is expected: below mean + sigmas * sigma of those before it."""

    window: int
    sigmas: float

    def left(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which of the finite values are above it; none of the first 32."""
        if len(values) <= FEWEST:
            return np.zeros(len(values), dtype=np.bool_)
        middle = float(np.median(values))
        # beyond 1e6 times their size a running sum would forget the others
        most = 1e6 * max(float(np.median(np.abs(values))), 1e-30)
        x = np.clip(values - middle, -most, most)
        ends = np.arange(len(x))
        starts = np.maximum(0, ends - self.window)
        total, square = (np.concatenate(([0.0], np.cumsum(power))) for power in (x, x * x))
        count = np.maximum(1, ends - starts)
        mean = (total[ends] - total[starts]) / count
        variance = (square[ends] - square[starts]) / count - mean * mean
        sigma = np.maximum(np.sqrt(np.maximum(variance, 0.0)), FLOOR * np.abs(mean + middle))
        above: NDArray[np.bool_] = (count >= FEWEST) & (x - mean >= self.sigmas * sigma)
        return above


SHORT, LONG = Band(128, 6.0), Band(1000, 7.0)


def spike_score(values: Sequence[float], band: Band | None = None) -> float:
    """Spikes in percent of the values, or of 1000 where there are fewer.

    Args:
        values: of every step; those that are not finite are left out.
        band: that a spike leaves; None for 7 sigma of 1000, and for 6 of 128 where there are fewer.
    """
    finite = np.array([value for value in values if math.isfinite(value)])
    band = band or _band(len(finite))
    spikes = int(band.left(finite).sum())
    return 100.0 * spikes / max(len(finite), STEPS)


def left_band(losses: Sequence[tuple[int, float]]) -> int | None:
    """The first step whose loss is no finite number, or 6 sigma above the 128 before it."""
    steps = [step for step, value in losses if math.isfinite(value)]
    finite = np.array([value for _, value in losses if math.isfinite(value)])
    above = np.flatnonzero(SHORT.left(finite))
    found = [step for step, value in losses if not math.isfinite(value)][:1]
    found += [steps[above[0]]] if len(above) else []
    return min(found, default=None)


def leaves_band(losses: Sequence[tuple[int, float]]) -> bool:
    """Whether the last loss does; of those before it only the last 128 are looked at."""
    recent = losses[-SHORT.window - 1 :]
    if not recent:
        return False
    last = recent[-1][1]
    if not math.isfinite(last):
        return True
    finite = np.array([value for _, value in recent if math.isfinite(value)])
    return bool(SHORT.left(finite)[-1])


def jump(losses: Sequence[tuple[int, float]]) -> Reading | None:
    """The first step at which the loss leaves its band, as a finding of that step."""
    step = left_band(losses)
    if step is None:
        return None
    value = dict(losses)[step]
    severity = "warn" if math.isfinite(value) else "fail"
    return Reading(
        NAME, "the loss", None, "loss 6 sigma above the 128 before, or not finite", value, BAND,
        severity, JUMPS, step=step,
    )  # fmt: skip


def _band(count: int) -> Band:
    return LONG if count >= STEPS else SHORT


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """The score of the losses and of the gradient norms, losses that are none, and log Z."""
    if run.losses:
        broken = [step for step, value in run.losses if not math.isfinite(value)]
        yield NUMBERS.reading(
            "every loss", "losses that are not finite", float(len(broken)),
            note=f"The first one at step {broken[0]}." if broken else "",
        )  # fmt: skip
    losses = [value for _, value in run.losses if math.isfinite(value)]
    yield from _score("the loss", "loss", losses, _band(len(losses)))
    # a norm that overflows is a step that a loss scaler leaves out
    norms = [value for _, value in run.gradient_norms if math.isfinite(value)]
    if norms:
        yield from _score("the gradient", "gradient norm", norms, LONG)
    yield from _log_z(run)


def _score(
    where: str, what: str, values: list[float], band: Band
) -> Iterator[Reading | Unmeasured]:
    if len(values) <= FEWEST:
        yield Unmeasured(NAME, f"{len(values)} values of the {what} were told; it takes more than "
                         f"{FEWEST}")  # fmt: skip
        return
    yield STANDARD.reading(
        where,
        f"steps in percent whose {what} is {band.sigmas:.0f} sigma above the {band.window} before",
        spike_score(values, band),
        note="" if len(values) >= STEPS else f"{len(values)} steps, in percent of {STEPS}.",
    )  # fmt: skip


def _log_z(run: Run) -> Iterator[Reading]:
    told = [
        (one.step, one.output) for one in run.second_half()
        if one.output is not None and math.isfinite(one.output.log_z)
    ]  # fmt: skip
    if len(told) < POINTS or run.now.output is None:
        return
    steps = [step for step, _ in told]
    rise = linear_regression(steps, [output.log_z for _, output in told]).slope
    largest = run.now.output.largest
    yield LOG_Z.reading(
        "log Z", "rise of the mean log Z over the second half of the training so far",
        rise * (steps[-1] - steps[0]), at_most="warn" if largest > LARGE else "ok",
        note=f"{1000.0 * rise:.3g} per 1000 steps, now {run.now.output.log_z:.3g}; the largest "
        f"logit is {largest:.3g}, and up to {LARGE:.0f} nothing is wrong with it.",
    )  # fmt: skip


CHECK = Check(
    NAME, "how often loss and gradient norm jump, and the drift of log Z", measure, initial=False
)
