"""`adam-eps-floor`: whether Adam's eps is small beside the gradients.

    e = RMS(g)/eps,  Adam's step: lr m/(sqrt(v) + eps)

sqrt(v) is about RMS(g). At e = 1 the step is half of what it should be, and below it shrinks with
the gradient: learning slows down without a sign in the loss. Entries without any gradient, such as
those of tokens that did not occur, are left out, and so are vectors: the gradient of a key's bias
is zero but for rounding. While attention logits are small, so are the gradients of the matrices of
queries and keys, to e = 0.5 in a healthy training of ours; so the median matrix of a layer counts.
At initialisation it is told and no fault: branches that begin as nearly nothing, and an encoder
behind an attention that is still even, have small gradients until they have grown.
"""

from collections.abc import Iterator
from statistics import median_high

from normwise.probe.checks.tensors import by_layer
from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import Run

NAME = "adam-eps-floor"
LIMITS = Limits(
    10.0, 1.0, "A",
    "Wortsman et al. (2309.14322), section 3.4: at an RMS near eps the update falls", below=True,
)  # fmt: skip
REMEDY = Remedy("Lower Adam's eps: to 1e-15 in fp32, or to 1e-8.")
STANDARD = Standard(NAME, LIMITS, REMEDY)


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """Of each layer its median matrix."""
    told = [one for one in run.now.updates if one.matrix and one.floor is not None]
    if not told:
        yield Unmeasured(NAME, "no optimizer with an eps has taken a step on a matrix")
    at_most = "info" if run.now.stage == "initial" else "fail"
    for where, tensors in by_layer(told).items():
        floors = {one.name: one.floor for one in tensors if one.floor is not None}
        least = min(floors, key=floors.__getitem__)
        yield STANDARD.reading(
            where, "e = RMS(g)/eps, of the median matrix", median_high(floors.values()),
            layer=tensors[0].layer, at_most=at_most,
            note=f"Least in {least}: {floors[least]:.3g}.",
        )  # fmt: skip


CHECK = Check(NAME, "the gradients beside Adam's eps", measure)
