"""`precision-headroom`: what the format of a tensor does not hold.

    fp16     log2(65504/max|x|) bits are left before an activation becomes inf
    bf16     a sum does not see a branch below 2^-9 of the stream, a weight no step below 2^-9 of
             it, and a logit of 64 has neighbours at a distance of 0.5, one of 256 at 2

What counts is the dtype that a tensor has, also under autocast: a stream in fp32 loses nothing.
Gradients under a loss scaler are not judged: it drives them to the limit on purpose.
"""

import math
from collections.abc import Iterator

from normwise.probe.checks.tensors import by_layer
from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured
from normwise.probe.record import Record, Run

NAME = "precision-headroom"
UNSEEN = "share of the entries with |f| < 2^-9 |h|"
LARGEST = 65504.0  # of fp16
BITS = Limits(3.0, 1.0, "B", "the largest number of fp16 is 65504", below=True)
SWALLOWED = Limits(0.5, None, "B", "bf16 has 8 bits: a sum ignores less than 2^-9 of it")
VANISHED = Limits(0.9, None, "B", "bf16 has 8 bits: a weight ignores less than 2^-9 of it")
LOGITS = Limits(64.0, 256.0, "B", "bf16 has steps of 0.5 from 64 on, and of 2 from 256 on")
RANGE = Standard(
    NAME, BITS, Remedy("Train in bf16, or norm the result of every sublayer.", ("peri-norm",))
)
STREAM = Standard(
    NAME, SWALLOWED,
    Remedy("Keep the residual stream in fp32, or scale the branches down less.", ("peri-norm",)),
)  # fmt: skip
WEIGHTS = Standard(NAME, VANISHED, Remedy("Keep the weights in fp32 and train under autocast."))
HEAD = Standard(
    NAME, LOGITS, Remedy("Compute logits in fp32, and add a z-loss.")
)  # fmt: skip


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """Every tensor that is in half precision."""
    now = run.now
    moving = not run.training or now.step >= run.settled_at
    told = [*_streams(now), *_output(now), *(_weights(now) if moving else ())]
    yield from told
    if not told:
        yield Unmeasured(NAME, "no stream, logit or weight is in half precision")


def _streams(record: Record) -> Iterator[Reading]:
    for stack in record.stacks:
        for connection, point in zip(stack.connections, stack.points[1:], strict=True):
            where = stack.where(connection.name)
            halves = [
                signal.largest for signal in (point, connection.branch)
                if signal is not None and signal.dtype == "float16"
            ]  # fmt: skip
            if halves:
                yield _bits(where, max(halves), connection.layer)
            if connection.sum_dtype == "bfloat16" and not math.isnan(connection.swallowed):
                yield STREAM.reading(
                    f"{where}, sum", UNSEEN, connection.swallowed, layer=connection.layer
                )  # fmt: skip


def _bits(where: str, largest: float, layer: int | None = None) -> Reading:
    bits = math.log2(LARGEST) - math.log2(largest) if largest else math.inf
    return RANGE.reading(
        where, "log2(65504/max|x|), bits of fp16 that are left", bits, layer=layer,
        note=f"Largest magnitude {largest:.4g}.",
    )  # fmt: skip


def _output(record: Record) -> Iterator[Reading]:
    output = record.output
    if output is not None and output.dtype == "float16":
        yield _bits("the output logits", output.largest)
    if output is not None and output.dtype == "bfloat16":
        yield HEAD.reading("the output logits", "largest output logit in bf16", output.largest)


def _weights(record: Record) -> Iterator[Reading]:
    """Of each layer the matrix most of which does not move. Gains of 1 stand still at most rates,
    and so do rows of an embedding that have no gradient.
    """
    halves = (
        one for one in record.updates
        if one.dtype == "bfloat16" and one.matrix and not one.embedding
    )  # fmt: skip
    for where, tensors in by_layer(halves).items():
        most = max(tensors, key=lambda one: one.vanishing)
        yield WEIGHTS.reading(
            f"{where}, weights", "share of the weights with |step| < 2^-9 |weight|",
            most.vanishing, layer=most.layer, note=f"Most in {most.name}.",
        )  # fmt: skip


CHECK = Check(NAME, "what half precision does not hold", measure)
