"""`norm-gain`: gains of norms of which some are far larger than the others, or nothing.

    max|g|/median|g|,  share of |g| < 0.01

g is what a norm multiplies with: 1 + weight, where it adds 1. Channels of a large gain are those of
massive activations; channels without are switched off.
"""

import math
from collections.abc import Iterator

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard
from normwise.probe.record import SMALL_GAIN, Norm, Run

NAME = "norm-gain"
LARGE = Limits(10.0, None, "C", "ours")
SMALL = Limits(0.5, None, "C", "ours")
REMEDY = Remedy("Leave gains out of the weight decay, or lower their learning rate.")
SPREAD = Standard(NAME, LARGE, REMEDY)
OFF = Standard(NAME, SMALL, REMEDY)


def measure(run: Run) -> Iterator[Reading]:
    """Every norm with a gain."""
    for norm in run.now.norms:
        if not math.isnan(norm.gain_largest):
            where = norm.name or f"a {norm.place} norm"
            yield SPREAD.reading(
                f"{where}, largest", "largest gain over the median", _spread(norm), layer=norm.layer
            )
            yield OFF.reading(
                f"{where}, smallest", f"share of the gains below {SMALL_GAIN}", norm.gain_small,
                layer=norm.layer,
            )  # fmt: skip


def _spread(norm: Norm) -> float:
    return norm.gain_largest / norm.gain_median if norm.gain_median else math.inf


CHECK = Check(NAME, "gains that are far larger than the others, or nothing", measure, default=False)
