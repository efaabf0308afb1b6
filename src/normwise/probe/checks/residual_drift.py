"""`residual-drift`: how much the stream has grown since the end of the warm-up.

    RMS(h_l) now / RMS(h_l) then

In a healthy training the stream grows fast while the model learns its first things and slowly
after; where it goes on, the sublayers work on an ever smaller share of it, and gradients vanish as
one over its size.
"""

from collections.abc import Iterator

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import Record, Run, Stack

NAME = "residual-drift"
LIMITS = Limits(10.0, 100.0, "C", "ours; at most 2.2 in our healthy trainings")
REMEDY = Remedy(
    "Lower the learning rate, or norm the result of every sublayer before it is added.",
    ("peri-norm", "depth-scaled-norm"),
)
STANDARD = Standard(NAME, LIMITS, REMEDY)


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """Growth at the entry and behind every layer."""
    reference, words = _reference(run)
    if reference is None:
        yield Unmeasured(NAME, words)
        return
    for stack, before in zip(run.now.stacks, reference.stacks, strict=True):
        yield from _stack(stack, before, words)


def _reference(run: Run) -> tuple[Record | None, str]:
    """The record that the growth is from, and what it is; else why there is none."""
    start = run.settled_at
    found = next((one for one in run.records if one.step >= start), None)
    if found is None or found.step >= run.now.step:
        return None, f"step {start} is not over, and the stream is compared with that after it"
    known = f"step {start}" if run.warmup is None else "the warm-up"
    return found, f"the first record after {known}, of step {found.step}"


def _stack(now: Stack, before: Stack, words: str) -> Iterator[Reading]:
    last = {connection.layer: c + 1 for c, connection in enumerate(now.connections)}
    for layer, i in [(None, 0), *last.items()]:
        here, there = now.points[i], before.points[i]
        if here is None or there is None or not there.rms:
            continue
        yield STANDARD.reading(
            now.where("the entry" if layer is None else f"the stream after layer {layer}"),
            "RMS of the stream over that after the warm-up", here.rms / there.rms, layer=layer,
            note=f"RMS {here.rms:.3g} now, {there.rms:.3g} in {words}.",
        )  # fmt: skip


CHECK = Check(NAME, "growth of the stream since the end of the warm-up", measure, initial=False)
