"""`theory-gap`: how far stream and branches lie from what the declared initialisation predicts.

    max(|ln RMS(h)/RMS(h)_pred|, |ln RMS(f)/RMS(f)_pred|)   of each connection's sum and branch

The prediction is of the recipe that is declared, and not of the weights that are there. A branch is
looked at beside the stream because an initialisation that is too small does not show on a stream
that hardly grows: with 1/sqrt(2L) applied twice it loses its growth, less than a factor of 2.
"""

import math
from collections.abc import Iterator

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import Expected, Run, Stack

NAME = "theory-gap"
LIMITS = Limits(math.log(2.0), math.log(4.0), "C", "a factor of 2 and of 4; our zoo: at most 0.35")
REMEDY = Remedy(
    "This is not initialised as declared: look for a framework's default left in place, a scale "
    "applied twice, or a tied head.",
    ("declared-init",),
)
STANDARD = Standard(NAME, LIMITS, REMEDY)
NOTHING = 1e-6  # of the stream: a branch this small, measured and predicted, is none


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """The gap at the entry and at every connection of each stack that has a prediction."""
    for stack, expected in run.now.with_expected():
        if expected is None:
            yield Unmeasured(NAME, stack.where(
                run.now.why_not_expected or "no initialisation is declared for it"
            ))  # fmt: skip
        else:
            yield from _gaps(stack, expected)


def _gaps(stack: Stack, expected: Expected) -> Iterator[Reading]:
    streams = [
        _gap(point.rms if point else math.nan, predicted)
        for point, predicted in zip(stack.points, expected.stream, strict=True)
    ]  # fmt: skip
    if not math.isnan(streams[0]):
        yield _reading(stack, "the entry", None, {"stream": streams[0]}, expected)
    for at, connection in enumerate(stack.connections):
        size = expected.stream[at]
        gaps = {"stream": streams[at + 1]}
        if connection.branch is not None and expected.branch:
            gaps["branch"] = _gap(connection.branch.rms, expected.branch[at], NOTHING * size)
        gaps = {what: gap for what, gap in gaps.items() if not math.isnan(gap)}
        if gaps:
            yield _reading(stack, connection.name, connection.layer, gaps, expected)


def _reading(
    stack: Stack, words: str, layer: int | None, gaps: dict[str, float], expected: Expected
) -> Reading:
    worst = max(gaps, key=lambda what: abs(gaps[what]))
    times = math.exp(gaps[worst])
    return STANDARD.reading(
        stack.where(words), f"|ln(RMS/predicted RMS)| of the {worst}", abs(gaps[worst]),
        layer=layer,
        note=f"The {worst} has {times:.3g} times the RMS that is expected of: {expected.recipe}. "
        f"Chance makes up to {expected.tolerance:.2f}.",
    )  # fmt: skip


def _gap(measured: float, predicted: float, nothing: float = 0.0) -> float:
    """ln of measured over predicted; 0 where both are nothing."""
    if not math.isfinite(measured):
        return math.nan
    if max(measured, predicted) <= nothing:
        return 0.0
    if not measured or not predicted:
        return math.copysign(math.inf, measured - predicted)
    return math.log(measured / predicted)


CHECK = Check(
    NAME, "distance of stream and branches from the declared initialisation", measure,
    training=False,
)  # fmt: skip
