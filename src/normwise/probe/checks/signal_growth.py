"""`signal-growth`: how much the stream, and its gradient on the way back, grow over the depth.

A pre-norm stream grows by the root of the depth, and from a small embedding it grows a hundredfold
over the first layers; that is sound. So the growth is judged by its distance from the prediction,
where the initialisation is known. Elsewhere it is that of the second half of the depth, which is
1.4 for a pre-norm stream of any depth and width, and exponential in a broken one.
"""

import math
from collections.abc import Iterator

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured, either_way
from normwise.probe.record import Expected, Run, Stack

NAME = "signal-growth"
LIMITS = Limits(10.0, 100.0, "C", "our zoo: at most 3.2 in a healthy model")
REMEDY = Remedy(
    "Scale the last matrix of every branch by 1/sqrt(2L), or use peri-norm.",
    ("depth-scaled-init", "peri-norm", "depth-scaled-norm"),
)
STANDARD = Standard(NAME, LIMITS, REMEDY)


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """Growth forward and backward of every stack."""
    for stack, expected in run.now.with_expected():
        forward = [point.rms if point else math.nan for point in stack.points]
        backward = [point.gradient if point else math.nan for point in stack.points]
        yield from _grown(stack, expected, forward, "stream")
        yield from _grown(stack, expected, backward, "gradient")


def _grown(
    stack: Stack, expected: Expected | None, values: list[float], what: str
) -> Iterator[Reading | Unmeasured]:
    predicted = expected and (expected.stream if what == "stream" else expected.gradient)
    start, words = (0, "over the depth, against the prediction") if predicted else (
        len(values) // 2, "over the second half of the depth"
    )  # fmt: skip
    grown = values[-1] / values[start] if values[start] else math.nan
    if predicted:
        grown /= predicted[-1] / predicted[0]
    if math.isnan(grown):
        yield Unmeasured(NAME, f"no {what} was seen at the ends of the depth")
        return
    layers = max(1, len({connection.layer for connection in stack.connections}))
    rate = math.log(either_way(values[-1] / values[0])) / layers if values[0] else math.inf
    yield STANDARD.reading(
        stack.where(f"the {what}"), f"growth of the {what} {words}", either_way(grown),
        note=f"|ln G|/L = {rate:.3f} over all layers; OLMo 2 (2501.00656, section 3.2) calls 0.09 "
        f"of a trained model bad and 0.03 good.",
    )  # fmt: skip


CHECK = Check(NAME, "growth of stream and gradient over the depth", measure)
