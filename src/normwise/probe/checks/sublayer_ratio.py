"""`sublayer-ratio`: how large each branch is beside the stream that it is added to.

    r_l = RMS(f_l)/RMS(h_l)   attention and feed-forward branches apart

r_l above 1 is usual where a stream begins small, and it falls with the root of the depth in a
pre-norm stack. So it is judged against the prediction; without one, against the median of its kind
in the stack, behind the first layer, whose stream is the embedding's. By the median a model with
the same small LayerScale everywhere is sound. In a trained model layers legitimately differ.
"""

import math
from collections.abc import Iterator
from statistics import median

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, either_way
from normwise.probe.record import Run, Stack

NAME = "sublayer-ratio"
LIMITS = Limits(10.0, 100.0, "C", "our zoo: at most 5.5 in a healthy model")
REMEDY = Remedy(
    "Look at how this branch is initialised; a factor on the branches or peri-norm evens them out.",
    ("declared-init", "layer-scale", "peri-norm"),
)
STANDARD = Standard(NAME, LIMITS, REMEDY)


def measure(run: Run) -> Iterator[Reading]:
    """The ratio of every connection."""
    initial = run.now.stage == "initial"
    for stack, expected in run.now.with_expected():
        predicted = stack.expected_ratios(expected)
        typical = _typical(stack)
        first = stack.connections[0].layer
        for at, connection in enumerate(stack.connections):
            ratio = connection.ratio
            if math.isnan(ratio):
                continue
            usual = predicted[at] if predicted else typical[connection.kind]
            judged = initial and (bool(predicted) or connection.layer != first)
            against = "the prediction" if predicted else "the median of its kind"
            yield STANDARD.reading(
                stack.where(connection.name),
                f"RMS of the branch over that of the stream, r_l, against {against}, either way,",
                _apart(ratio, usual), layer=connection.layer,
                at_most="fail" if judged else "info",
                note=f"r_l is {ratio:.3g}, {against} {usual:.3g}.",
            )  # fmt: skip


def _typical(stack: Stack) -> dict[str, float]:
    """The median ratio of each kind of connection."""
    ratios: dict[str, list[float]] = {}
    for connection in stack.connections:
        if not math.isnan(connection.ratio):
            ratios.setdefault(connection.kind, []).append(connection.ratio)
    return {kind: median(values) for kind, values in ratios.items()}


def _apart(ratio: float, usual: float) -> float:
    """1 where both are nothing."""
    if not ratio and not usual:
        return 1.0
    return either_way(ratio / usual) if usual else math.inf


CHECK = Check(NAME, "size of each branch beside the stream", measure)
