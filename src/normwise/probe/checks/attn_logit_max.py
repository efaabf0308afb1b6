"""`attn-logit-max`: how large the logits of attention become.

    S = max |q.k| * scale  over the pairs that no mask excludes

At S = 1000 softmax has long become a choice of one key, and its gradient is gone. Where only some
queries were seen, S is a lower bound: it can fail a model. max |q| max |k| * scale is an upper
bound: it can clear one. In between nothing is known.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import linear_regression

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard
from normwise.probe.record import Attention, Run

NAME = "attn-logit-max"
LARGE, TOO_LARGE, BROKEN = 100.0, 1e3, 1e4
LIMITS = Limits(
    TOO_LARGE, BROKEN, "A",
    "Wortsman et al. (2309.14322): worse from about 1e3 on, all runs above 1e4 diverged",
    info=LARGE,
)  # fmt: skip
AHEAD = Limits(BROKEN, None, "C", "ours; the number is that of Wortsman et al. (2309.14322)")
POINTS = 5  # records for a trend
REMEDY = Remedy(
    "Norm queries and keys over each head, or cap the logits, and lower the learning rate.",
    ("query-key-norm",),
)
STANDARD = Standard(NAME, LIMITS, REMEDY)
TREND = Standard(NAME, AHEAD, REMEDY)


def measure(run: Run) -> Iterator[Reading]:
    """S of every attention; where it is large, also what it will be if it goes on growing."""
    for number, attention in enumerate(run.now.attentions):
        where = run.now.attended(number)
        yield _size(where, attention)
        if LARGE < _largest(attention.largest) < math.inf:
            yield from _ahead(run, number, where)


def _size(where: str, attention: Attention) -> Reading:
    size, bound = _largest(attention.largest), _largest(attention.bound)
    head = max(range(len(attention.largest)), key=attention.largest.__getitem__)
    note = f"Head {head} of {len(attention.largest)}."
    unknown = not attention.exact and bound > TOO_LARGE >= size
    if unknown:
        note += f" Of a sample of the queries; the largest of all is unknown, at most {bound:.3g}."
    elif not attention.exact:
        note += " Of a sample of the queries" + (
            "." if math.isnan(bound) else f"; of all at most {bound:.3g}."
        )
    found = STANDARD.reading(
        where, "S = max |q.k| scale over valid pairs, of the largest head", size,
        layer=attention.layer, note=note,
    )  # fmt: skip
    return replace(found, severity="info") if unknown and found.severity == "ok" else found


def _ahead(run: Run, number: int, where: str) -> Iterator[Reading]:
    """ln S grows on along the line of the second half of the training so far: to its end, but no
    further than it has come.
    """
    told = [
        (one.step, math.log(size)) for one in run.second_half()
        if number < len(one.attentions)
        and 0.0 < (size := _largest(one.attentions[number].largest)) < math.inf
    ]  # fmt: skip
    if len(told) < POINTS or run.steps is None:
        return
    slope = linear_regression([step for step, _ in told], [size for _, size in told]).slope
    end = min(run.steps, 2 * run.now.step)
    here = run.now.attentions[number]
    ahead = math.log(_largest(here.largest)) + max(slope, 0.0) * (end - run.now.step)
    yield TREND.reading(
        f"{where}, extrapolated", f"S at step {end}, if ln S goes on growing as it does",
        math.exp(min(ahead, 700.0)), layer=here.layer,
        note=f"ln S grows by {1000.0 * slope:.3g} per 1000 steps.",
    )  # fmt: skip


def _largest(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)


CHECK = Check(NAME, "the largest logit of each attention, and its growth", measure)
