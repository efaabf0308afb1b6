"""`attn-entropy`: whether heads collapse onto single keys.

    Hn = H/ln(n)  of a query's weights over its n keys, without the first one and renormalised

0 is one key, 1 all alike. Many a healthy head puts nearly all its weight on the first token, which
says that it has nothing to do; so that key is left out. A head that looks at one key by its nature,
such as the token before, does so from early on: few of them, or low ones that do not fall, are no
warning.
"""

import math
from collections.abc import Iterator

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import Run

NAME = "attn-entropy"
ZHAI = "ours; Zhai et al. (2303.06296) give the pattern and no number"
COLLAPSED = 0.05  # of ln n
HEADS = Limits(0.25, None, "C", ZHAI)
MEAN = Limits(None, 0.02, "C", ZHAI, below=True)
RECENT, FEWEST = 5, 3  # records that a head falls over
FALLEN = 0.8  # of what it was at the first of them
REMEDY = Remedy(
    "Norm queries and keys over each head, or cap the logits, and lower the learning rate.",
    ("query-key-norm",),
)
SHARE = Standard(NAME, HEADS, REMEDY)
LAYER = Standard(NAME, MEAN, REMEDY)


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """Of each attention, the heads that have collapsed, and the mean over its heads."""
    for number, attention in enumerate(run.now.attentions):
        heads = [h for h, value in enumerate(attention.entropy) if not math.isnan(value)]
        where = run.now.attended(number)
        if not heads:
            yield Unmeasured(NAME, f"{where}: no query had 32 keys besides the first with weight")
            continue
        low = [h for h in heads if attention.entropy[h] < COLLAPSED]
        falling = bool(low) and _falls(run, number, low)
        trend = "They are falling. " if falling else "They are not falling. " if low else ""
        yield SHARE.reading(
            f"{where}, heads", f"share of the heads with Hn < {COLLAPSED}", len(low) / len(heads),
            layer=attention.layer, at_most="warn" if falling else "info",
            note=f"{trend}Queries that see only the first key: {attention.skipped:.0%}.",
        )  # fmt: skip
        yield LAYER.reading(
            where, "Hn = H/ln(keys) without the first key, mean over heads",
            sum(attention.entropy[h] for h in heads) / len(heads), layer=attention.layer,
        )  # fmt: skip


def _falls(run: Run, number: int, heads: list[int]) -> bool:
    """Whether the mean of these heads has fallen by a fifth over the last records."""
    told = [one.attentions[number] for one in run.records[-RECENT:] if number < len(one.attentions)]
    means = [sum(one.entropy[h] for h in heads) / len(heads) for one in told]
    return len(means) >= FEWEST and means[-1] < FALLEN * means[0]


CHECK = Check(NAME, "heads that collapse onto single keys", measure, initial=False)
