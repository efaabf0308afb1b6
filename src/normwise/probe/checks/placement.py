"""`placement`: what a placement needs beside its norms.

A stream that branches are added to without a norm of the sum, as in pre-norm, grows with the depth
and needs a last norm before the head; torch's TransformerEncoder(norm_first=True) has none unless
it is given one. Post-norm's first steps are large, and it needs a warm-up of the rate.
"""

import math
from collections.abc import Iterator

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import Record, Run, Stack

NAME = "placement"
OPEN = ("pre", "sandwich", "output")  # placements whose stream ends un-normed without a last norm
UNNORMED = Standard(
    NAME,
    Limits(0.5, None, "B", "pytorch#24930; NVIDIA-NeMo/Speech#2197"),
    Remedy("Put a norm behind the last layer."),
)
WARM_UP = Standard(
    NAME,
    Limits(None, None, "A", "Xiong et al. 2020 (2002.04745); pytorch#55270", info=0.0),
    Remedy("Warm the rate up, as nw.Schedule(..., warmup=W) does; or use pre-norm.", ("pre-norm",)),
)
COLD = Standard(NAME, Limits(0.5, None, "A", WARM_UP.limits.source), WARM_UP.remedy)


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """The end of every stack, and the warm-up of a post-norm one."""
    now = run.now
    if now.placement in OPEN:
        missing = len(now.stacks) - sum(norm.place == "final" for norm in now.norms)
        yield UNNORMED.reading(
            "the last layer", "stacks of layers without a last norm", float(max(0, missing)),
            note=f"RMS of the stream at the end {_end(now.stacks[-1]):.3g}.",
        )  # fmt: skip
    elif now.placement == "post":
        yield _warmed(run)
    else:
        yield Unmeasured(NAME, f"nothing more is known to be needed of placement {now.placement}")


def _warmed(run: Run) -> Reading:
    where, note = (
        "the first steps",
        f"Gradient of the parameters, last layer over first: {_slope(run.now)}.",
    )
    if run.warmup is None:
        return WARM_UP.reading(
            where, "post-norm, which needs a warm-up; whether there is one is not known", 1.0,
            note=note,
        )  # fmt: skip
    cold = float(run.warmup == 0)
    return COLD.reading(where, "post-norm without a warm-up", cold, note=note)


def _end(stack: Stack) -> float:
    last = stack.points[-1]
    return last.rms if last else math.nan


def _slope(record: Record) -> str:
    """Of the parameters' gradients by layer: flat or larger toward the output."""
    layers: dict[int, float] = {}
    for connection in record.stacks[-1].connections:
        square = (connection.parameter_gradient or 0.0) ** 2
        layers[connection.layer] = layers.get(connection.layer, 0.0) + square
    sizes = [square**0.5 for square in layers.values()]
    return f"{sizes[-1] / sizes[0]:.2g}" if sizes and sizes[0] else "not measured"


CHECK = Check(NAME, "a last norm where the stream is not normed, a warm-up for post-norm", measure)
