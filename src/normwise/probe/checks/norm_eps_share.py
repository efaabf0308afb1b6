"""`norm-eps-share`: how much of a norm's root is its eps.

    s = eps/(v + eps),  RMS of the result sqrt(1 - s)

v is the mean square that an RMSNorm divides by, or a LayerNorm's variance; eps the norm's own. At
s = 0.25 the result is 13 % too small, and rows differ in size again.
"""

import math
from collections.abc import Iterator

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import Run

NAME = "norm-eps-share"
LIMITS = Limits(0.05, 0.25, "B", "RMS of the result is sqrt(1 - s): 0.975 and 0.87")
REMEDY = Remedy(
    "Lower eps to 1e-6 or 1e-8 with statistics in fp32, or scale the embedding up.",
    ("small-eps", "embedding-scale"),
)
STANDARD = Standard(NAME, LIMITS, REMEDY)


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """The mean share at every norm; more than half of its rows must be beyond a limit to count."""
    for norm in run.now.norms:
        if norm.eps is None:
            yield Unmeasured(NAME, f"{norm.name or norm.place}: its eps could not be told")
        elif math.isnan(norm.share):
            continue
        else:
            at_most = "fail" if norm.above_fail > 0.5 else "warn" if norm.above_warn > 0.5 else "ok"
            zero = f" {norm.zero_rows:.1%} of the rows are zero." if norm.zero_rows else ""
            yield STANDARD.reading(
                norm.name or f"a {norm.place} norm", "eps/(v + eps), mean over tokens",
                norm.share, layer=norm.layer, at_most=at_most,
                note=f"eps {norm.eps:.3g}; above 5 % in {norm.above_warn:.0%} of the rows.{zero}",
            )  # fmt: skip


CHECK = Check(NAME, "how much of each norm's root is its eps", measure)
