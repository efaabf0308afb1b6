"""`massive-activation`: single entries of the stream that are a thousand times the others.

    |h| > 100  and  |h| > 1000 median|h|

Large language models have them, in a few fixed channels of the first token and of delimiters, from
an early layer to one of the last; they are no fault. But formats of a narrow range do not hold them
beside the rest. A stream that is large as a whole has none: its median grows too.
"""

import math
from collections.abc import Iterator

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard
from normwise.probe.record import MASSIVE_TIMES, Run, Stack, StreamPoint

NAME = "massive-activation"
SUN = "Sun et al. (2402.17762), section 2: above 100 and 1000 times the median"
RATIO = Limits(None, None, "A", SUN, info=MASSIVE_TIMES)
RATIO_FP16 = Limits(MASSIVE_TIMES, None, "A", SUN)
SIZE = Limits(1e4, None, "C", "ours: a sixth of what fp16 holds")
REMEDY = Remedy(
    "Peri-norm, a gate on attention's output or register tokens keep them small; in bf16 and fp32 "
    "they do no harm.",
    ("peri-norm", "query-key-norm"),
)
SHOWN = 4  # channels


def measure(run: Run) -> Iterator[Reading]:
    """Of every stack, the entry farthest above the median, and its size where it is massive."""
    for stack in run.now.stacks:
        seen = [(i, point) for i, point in enumerate(stack.points) if point is not None]
        if seen:
            yield from _stack(stack, seen)


def _stack(stack: Stack, seen: list[tuple[int, StreamPoint]]) -> Iterator[Reading]:
    born, first = next(((i, point) for i, point in seen if point.massive), (None, None))
    where = stack.where("the stream")
    half = any(point.dtype == "float16" for _, point in seen)
    ratio = Standard(NAME, RATIO_FP16 if half else RATIO, REMEDY)
    farthest = max((_over_median(point) for _, point in seen), default=math.nan)
    yield ratio.reading(
        where, "largest |h| over the median |h|", farthest,
        layer=_layer(stack, born), at_most="fail" if first else "ok", note=_note(stack, seen),
    )  # fmt: skip
    if first:
        largest = max(point.massive[0][1] for _, point in seen if point.massive)
        yield Standard(NAME, SIZE, REMEDY).reading(
            f"{where}, massive entries", "|h| of the largest massive entry", largest,
            layer=_layer(stack, born),
        )  # fmt: skip


def _over_median(point: StreamPoint) -> float:
    return point.largest / point.median if point.median else math.inf


def _layer(stack: Stack, point: int | None) -> int | None:
    """The layer after whose connection a point is; None for the entry."""
    return stack.connections[point - 1].layer if point else None


def _note(stack: Stack, seen: list[tuple[int, StreamPoint]]) -> str:
    """Channels, from where to where, and the kurtosis."""
    tails = max(point.kurtosis for _, point in seen) - 3.0
    kurtosis = f"Excess kurtosis at most {tails:.3g}."
    massive = [i for i, point in seen if point.massive]
    if not massive:
        return kurtosis
    channels = {c: None for _, point in seen for c, _ in point.massive}
    some = ", ".join(map(str, [*channels][:SHOWN])) + (", ..." if len(channels) > SHOWN else "")
    ends = " to ".join(
        "the entry" if not i else f"after {stack.connections[i - 1].name}"
        for i in dict.fromkeys((massive[0], massive[-1]))
    )
    return f"{len(channels)} channels ({some}), {ends}. {kurtosis}"


CHECK = Check(NAME, "single entries of the stream that dwarf the others", measure)
