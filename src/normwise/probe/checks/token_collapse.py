"""`token-collapse`: whether the tokens of a sequence are all alike behind the last layer.

    cos = mean over pairs of tokens of h_i.h_j / mean |h|^2

Attention averages, so tokens grow alike with the depth; where they are one vector nothing of their
order and content is left. At the start it says that the entry does not tell them apart, or that the
branches have no share in the stream.
"""

import math
from collections.abc import Iterator

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import Run

NAME = "token-collapse"
LIMITS = Limits(0.9, None, "C", "ours; 0.25 in a healthy model of ours at its start")
REMEDY = Remedy(
    "Scale the embedding up beside what all tokens share, and use pre- or peri-norm.",
    ("embedding-scale", "pre-norm", "peri-norm"),
)
STANDARD = Standard(NAME, LIMITS, REMEDY)


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """Entry and last point of every stack."""
    for stack in run.now.stacks:
        ends = {
            "the entry": (stack.overlap, stack.points[0]),
            "the last point": (stack.overlap_last, stack.points[-1]),
        }
        for words, (overlap, point) in ends.items():
            if point is None or not point.rms or math.isnan(overlap):
                yield Unmeasured(NAME, f"{stack.where(words)} was not seen, or is zero")
                continue
            yield STANDARD.reading(
                stack.where(words), "mean cosine of two tokens of a sequence",
                overlap / point.rms**2, at_most="warn" if words == "the last point" else "info",
            )  # fmt: skip


CHECK = Check(NAME, "tokens that are all alike", measure, default=False)
