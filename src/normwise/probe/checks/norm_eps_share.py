"""`norm-eps-share`: how much of a norm's root is its eps.

    s = eps/(v + eps),  RMS of the result sqrt(1 - s)

v is the mean square that an RMSNorm divides by, or a LayerNorm's variance; eps the norm's own. At
s = 0.25 the result is 13 % too small, and rows differ in size again. Rows that are exactly zero are
counted apart: under eps = 0 they have no share. Where all rows are, as in queries that start at
zero, eps is all of the root.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import EPS_SHARES, Norm, Run

NAME = "norm-eps-share"
LIMITS = Limits(*EPS_SHARES, "B", "RMS of the result is sqrt(1 - s): 0.975 and 0.87")
REMEDY = Remedy(
    "Lower eps to 1e-6 or 1e-8 with statistics in fp32, or scale the embedding up.",
    ("small-eps", "embedding-scale"),
)
ZERO = Remedy("Start what this norm is given away from zero: no weight matrix before it is 0.")
STANDARD = Standard(NAME, LIMITS, REMEDY)
MANY, FEW = 0.5, 0.05  # of the rows: beyond a limit at the median, at the 95th percentile


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """The mean share at every norm; more than half of its rows must be beyond a limit to count. At
    initialisation a norm behind a branch is only told of: there, eps makes the branch smaller.
    """
    initial = run.now.stage == "initial"
    for norm in run.now.norms:
        name = norm.name or f"a {norm.place} norm"
        if norm.eps is None:
            yield Unmeasured(NAME, f"{name}: its eps could not be told")
        elif norm.zero_rows == 1.0:
            yield _of_nothing(norm, name)
        elif not math.isnan(norm.share):
            yield _of_rows(norm, name, judged=not (initial and norm.place == "output"))


def _of_rows(norm: Norm, name: str, *, judged: bool) -> Reading:
    at_most = "fail" if norm.above_fail > MANY else "warn" if norm.above_warn > MANY else "ok"
    at_most = at_most if judged else "ok"
    zero = f" {norm.zero_rows:.1%} of the rows are zero." if norm.zero_rows else ""
    reading = STANDARD.reading(
        name, "eps/(v + eps), mean over tokens", norm.share, layer=norm.layer, at_most=at_most,
        note=f"eps {norm.eps:.3g}; above 5 % in {norm.above_warn:.0%} of the rows.{zero}",
    )  # fmt: skip
    if reading.severity == "ok" and norm.above_warn > FEW:
        return replace(reading, severity="info", remedy=REMEDY)
    return reading


def _of_nothing(norm: Norm, name: str) -> Reading:
    """All rows are zero. Under eps = 0 that is the norm's to answer for, and no share of eps."""
    reading = STANDARD.reading(
        name, "eps/(v + eps), of rows that are all zero,", 1.0 if norm.eps else 0.0,
        layer=norm.layer, note=f"eps {norm.eps:.3g}; every row is zero.",
    )  # fmt: skip
    return replace(reading, remedy=ZERO) if reading.remedy else reading


CHECK = Check(NAME, "how much of each norm's root is its eps", measure)
