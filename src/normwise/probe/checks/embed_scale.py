"""`embed-scale`: whether the embedding is large enough for the branches that are added to it.

    a_0 = RMS(f_0)/RMS(h_0)      drift = RMS of the embedding at the start over that now

With a_0 above 1 the first branch covers the tokens, and the norm's gradient, of order 1/RMS(h_0),
is large (Takase et al. 2023, 2312.16903; OLMo 2, 2501.00656, section 3.4.2). A wide model with unit
branches has a_0 of 4 by design, so a_0 counts by its distance from the prediction.
"""

import math
from collections.abc import Iterator

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import Expected, Run, Stack

NAME = "embed-scale"
REMEDY = Remedy(
    "Multiply the embedding by sqrt(d), or put a norm behind it.",
    ("embedding-scale", "embedding-norm"),
)
FIRST = Standard(NAME, Limits(3.0, None, "C", "our zoo: at most 1.2 in a healthy model"), REMEDY)
UNKNOWN = Standard(
    NAME, Limits(1.0, None, "C", "where the branch is as large as the stream"), REMEDY
)
SMALL = Standard(
    NAME, Limits(None, None, "C", "GPT-2 begins at 0.02 and 0.03, soundly", info=10.0), REMEDY
)
DRIFT = Standard(
    NAME,
    Limits(2.0, None, "C", "half of the embedding is gone"),
    Remedy("Take the embedding out of weight decay."),
)


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """Size of the entry and of the first branch of every stack, and drift in a training."""
    for stack, expected in run.now.with_expected():
        entry = stack.points[0]
        if entry is None or not math.isfinite(entry.rms):
            yield Unmeasured(NAME, stack.where("the entry of the stream was not seen"))
            continue
        yield SMALL.reading(
            stack.where("the entry"), "1/RMS of the stream's entry, 1/RMS(h_0)",
            1.0 / entry.rms if entry.rms else math.inf, layer=0,
        )  # fmt: skip
        yield from _first_branch(stack, expected)
    if run.training:
        yield from _drift(run)


def _first_branch(stack: Stack, expected: Expected | None) -> Iterator[Reading]:
    first = stack.connections[0]
    ratio = first.ratio
    if math.isnan(ratio):
        return
    where = stack.where(first.name)
    usual = next(iter(stack.expected_ratios(expected)), 0.0)
    if not usual or math.isnan(usual):
        yield UNKNOWN.reading(
            where, "RMS of the first branch over that of the entry, a_0", ratio, layer=first.layer,
            at_most="info",
        )  # fmt: skip
        return
    yield FIRST.reading(
        where, "RMS of the first branch over that of the entry, a_0, against the prediction",
        ratio / usual, layer=first.layer, at_most="warn" if ratio > 1.0 else "ok",
        note=f"a_0 is {ratio:.3g}, and {usual:.3g} as declared; up to 1 it is sound.",
    )  # fmt: skip


def _drift(run: Run) -> Iterator[Reading]:
    start = {one.name: one.rms for one in run.records[0].updates if one.embedding}
    for one in run.now.updates:
        before = start.get(one.name, 0.0)
        if one.embedding and before:
            yield DRIFT.reading(
                one.name, "RMS of the embedding at the start over that now",
                before / one.rms if one.rms else math.inf,
                note=f"It was {before:.3g} at step {run.records[0].step} and is {one.rms:.3g}.",
            )  # fmt: skip


CHECK = Check(NAME, "size of the embedding beside the first branch", measure)
