"""`update-size`: whether Adam's second moment knows its gradients, and how far weights move.

    RMS_t = sqrt(mean(g^2/max(v, eps^2)))        rel = RMS(step)/RMS(weight)

v is the second moment, corrected for its start. RMS_t is about 1; where a gradient is larger than v
has seen, it is up to sqrt(1/(1 - beta2)), the step is too large, and the loss may jump within some
steps. Single layers of a healthy training reach 3 while they learn something new, their median does
not; so one layer is told, and the model is warned of. A weight that moves by a thousandth of itself
at a step learns well. The band around that is wide: matrices drawn with a standard deviation of
0.02 move by a few percent at first.
"""

import math
from collections.abc import Iterator
from statistics import median

from normwise.probe.checks.tensors import by_layer
from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import ParameterUpdate, Run

NAME = "update-size"
SURPRISE = "RMS_t = sqrt(mean(g^2/max(v, eps^2)))"
SURPRISED = Limits(2.3, None, "C", "ours, after StableAdamW (2304.13013); at most 1.9 in our runs")
SURPRISED_LAYER = Limits(None, None, "C", "ours, after StableAdamW (2304.13013)", info=2.3)
FAR = Limits(0.1, None, "C", "ours; about 1e-3 is usual (CS231n, neural networks 3)")
NEAR = Limits(1e-5, None, "C", "ours; about 1e-3 is usual (CS231n, neural networks 3)", below=True)
LOWER_BETA = Remedy("Set beta2 to 0.95, or clip the update.")
JUMP = Standard(NAME, SURPRISED, LOWER_BETA)
JUMP_LAYER = Standard(NAME, SURPRISED_LAYER, LOWER_BETA)
TOO_FAR = Standard(NAME, FAR, Remedy("Lower the learning rate."))
TOO_NEAR = Standard(NAME, NEAR, Remedy("Raise the learning rate."))


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """RMS_t of the model and of each layer, and the matrices of each that move most and least."""
    matrices = [one for one in run.now.updates if one.matrix and not one.embedding]
    if not matrices:
        yield Unmeasured(NAME, "no optimizer step on a matrix was seen")
    yield from _surprise(matrices, "warn" if run.now.step >= run.settled_at else "info")
    if run.now.step >= run.settled_at:
        yield from _relative(run, matrices)


def _surprise(matrices: list[ParameterUpdate], at_most: str) -> Iterator[Reading]:
    known = {one.name: one.surprise for one in matrices if one.surprise is not None}
    if not known:
        return
    yield JUMP.reading(
        "all layers, RMS_t", f"{SURPRISE}, median over matrices", median(known.values()),
        at_most=at_most, note=f"Most in {max(known, key=known.__getitem__)}.",
    )  # fmt: skip
    for where, tensors in by_layer(one for one in matrices if one.name in known).items():
        yield JUMP_LAYER.reading(
            f"{where}, RMS_t", f"{SURPRISE}, median over matrices",
            median(known[one.name] for one in tensors), layer=tensors[0].layer,
        )  # fmt: skip


def _relative(run: Run, matrices: list[ParameterUpdate]) -> Iterator[Reading]:
    """A rate that decays to nothing is sound: what counts as near is the farthest step so far."""
    farthest: dict[str, float] = {}
    for record in run.records:
        if record.step >= run.settled_at:
            for one in record.updates:
                if math.isnan(one.relative):
                    continue
                farthest[one.name] = max(farthest.get(one.name, 0.0), one.relative)
    told = [one for one in matrices if not math.isnan(one.relative)]
    for where, tensors in by_layer(told).items():
        most = max(tensors, key=lambda one: one.relative)
        least = min(tensors, key=lambda one: farthest[one.name])
        yield TOO_FAR.reading(
            f"{where}, steps", "RMS(step)/RMS(weight), of the matrix that moves most",
            most.relative, layer=most.layer, note=f"{most.name}.",
        )  # fmt: skip
        yield TOO_NEAR.reading(
            f"{where}, largest steps",
            "largest RMS(step)/RMS(weight) so far, of the matrix that moves least",
            farthest[least.name], layer=least.layer, note=f"{least.name}.",
        )  # fmt: skip


CHECK = Check(NAME, "steps beside Adam's second moment and the weights", measure, initial=False)
