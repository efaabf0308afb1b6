"""`effective-depth`: how many of the sublayers do something.

    c_l = r_l^2/sum r^2      D = exp(-sum c_l ln c_l)      of M sublayers

D is M where all branches are equally large beside the stream, and 1 where one does everything. A
healthy wide model has D/M of 0.2 by design, as its stream begins small, so D/M is judged by its
distance from the prediction. Without one, what counts is a second half of the depth whose branches
are lost: r_l below 0.02 and below a tenth of what is usual in the first half.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import Run, Stack

NAME = "effective-depth"
REMEDY = Remedy(
    "Scale the norms by 1/sqrt(l), or use peri-norm or mix-norm, or build fewer layers.",
    ("depth-scaled-norm", "peri-norm"),
)
SHALLOW = Standard(NAME, Limits(2.0, 4.0, "C", "our zoo: at most 1.2 in a healthy model"), REMEDY)
LOST = Standard(NAME, Limits(0.5, None, "C", "more than half of them"), REMEDY)
SMALL, TIMES_SMALLER = 0.02, 10.0


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """Effective depth of every stack, and what is lost in its second half."""
    record = run.now
    for stack, expected in record.with_expected():
        ratios = [connection.ratio for connection in stack.connections]
        if any(map(math.isnan, ratios)) or len(ratios) < 4:
            yield Unmeasured(NAME, stack.where("needs 4 branches or more, all of them seen"))
            continue
        if not any(ratios):
            yield Unmeasured(NAME, stack.where("every branch is zero"))
            continue
        predicted = stack.expected_ratios(expected)
        yield _shallow(stack, ratios, predicted)
        massive = any(point is not None and point.massive for point in stack.points)
        at_most = "fail" if record.stage == "initial" else "info" if massive else "warn"
        yield _lost(stack, ratios, predicted, at_most)


def _shallow(stack: Stack, ratios: Sequence[float], predicted: Sequence[float]) -> Reading:
    share = effective_depth(ratios) / len(ratios)
    angles = [p.angle for p in stack.points if p is not None and not math.isnan(p.angle)]
    turned = f" A sublayer turns a token by {fmean(angles):.3f} pi on average." if angles else ""
    known = any(predicted) and all(map(math.isfinite, predicted))
    usual = effective_depth(predicted) / len(predicted) if known else 1.0
    against = f", and {usual:.2f} as declared" if known else ""
    return SHALLOW.reading(
        stack.where("all layers"),
        f"{'predicted' if known else 'full'} over effective depth, D/M,", usual / share,
        at_most="fail" if known else "ok",
        note=f"D/M is {share:.2f} of {len(ratios)} sublayers{against}.{turned}",
    )  # fmt: skip


def _lost(
    stack: Stack, ratios: Sequence[float], predicted: Sequence[float], at_most: str
) -> Reading:
    """Of the second half. A tenth, as a stack under depth-scaled norms has r_l like 1/l."""
    half = len(ratios) // 2
    usual = _usual(stack, ratios[:half])
    lost = []
    for at in range(half, len(ratios)):
        one = stack.connections[at]
        known = [usual.get(one.kind, 0.0), *([predicted[at]] if predicted else [])]
        if ratios[at] < min(SMALL, *(value / TIMES_SMALLER for value in known)):
            lost.append(one.layer)
    return LOST.reading(
        stack.where("the second half"),
        "share of its branches below 0.02 of the stream, and below a tenth of the first half's,",
        len(lost) / (len(ratios) - half), layer=lost[0] if lost else None, at_most=at_most,
    )  # fmt: skip


def _usual(stack: Stack, ratios: Sequence[float]) -> dict[str, float]:
    """The median ratio of each kind of the first connections."""
    kinds: dict[str, list[float]] = {}
    for connection, ratio in zip(stack.connections, ratios, strict=False):
        kinds.setdefault(connection.kind, []).append(ratio)
    return {kind: median(values) for kind, values in kinds.items()}


def effective_depth(ratios: Sequence[float]) -> float:
    """D of the ratios r_l, not all of them zero."""
    squares = [ratio * ratio for ratio in ratios]
    shares = [square / sum(squares) for square in squares]
    return math.exp(-sum(share * math.log(share) for share in shares if share))


CHECK = Check(NAME, "how many of the sublayers do something", measure)
