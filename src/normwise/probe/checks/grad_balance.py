"""`grad-balance`: whether all layers get gradients of one order.

    RMS of the gradient of each layer's parameters, largest over smallest, and each over the median

Layers that are frozen are left out. One whose gradient is exactly zero, or that has none, is told
as such and not divided by. In a stack whose stream grows, gradients fall with it, so that where
gradients are predicted the parameters' are divided by the one at their branch as it is added, to
which they are proportional.

A loss that is mathematically flat, such as the sum of a LayerNorm, leaves gradients that are
rounding errors; no layer is judged by them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured, either_way
from normwise.probe.record import Expected, Record, Run, Stack

NAME = "grad-balance"
LIMITS = Limits(30.0, 300.0, "C", "our zoo: at most 22 in a healthy model")
REMEDY = Remedy(
    "Scale the branches with the depth or change the placement; a learning rate for each layer "
    "hides it.",
    ("depth-scaled-init", "peri-norm"),
)
STANDARD = Standard(NAME, LIMITS, REMEDY)
DEAD = Standard(
    NAME,
    Limits(0.0, None, "B", "a gradient of exactly zero trains nothing"),
    Remedy("Look for a detached branch, a zero factor, or a layer that is never called."),
)
ROUNDING = 1e-5  # of what reaches the stack: 84 steps of fp32


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """The balance between the layers of every stack."""
    record = run.now
    for stack, expected in record.with_expected():
        why = _flat(record, stack)
        if why is not None:
            yield Unmeasured(NAME, stack.where(why))
        else:
            yield from _balance(record, stack, expected)


def _balance(
    record: Record, stack: Stack, expected: Expected | None
) -> Iterator[Reading | Unmeasured]:
    sizes, frozen = _layers(record, stack, expected)
    alive = {layer: size for layer, size in sizes.items() if size}
    if not alive:
        yield Unmeasured(NAME, stack.where("no layer has parameters with a gradient"))
        return
    note = f"Frozen: layers {', '.join(map(str, frozen))}." if frozen else ""
    for layer in sorted(sizes.keys() - alive.keys()):
        yield DEAD.reading(
            stack.where(f"layer {layer}"), "number of branches without a gradient",
            sum(one.layer == layer for one in stack.connections), layer=layer, note=note,
        )  # fmt: skip
    yield from _spread(record, stack, alive, note)


def _spread(
    record: Record, stack: Stack, alive: Mapping[int, float], note: str
) -> Iterator[Reading]:
    at_most = "fail" if record.stage == "initial" else "warn"
    usual = median(alive.values())
    smallest, largest = (each(alive, key=lambda layer: alive[layer]) for each in (min, max))
    yield STANDARD.reading(
        stack.where(f"layers {largest} and {smallest}"),
        "RMS of the parameters' gradient, largest layer over smallest,",
        alive[largest] / alive[smallest], at_most=at_most, note=note,
    )  # fmt: skip
    for layer, size in alive.items():
        yield STANDARD.reading(
            stack.where(f"layer {layer}"),
            "RMS of the parameters' gradient over the median layer's, either way,",
            either_way(size / usual), layer=layer, at_most=at_most,
        )  # fmt: skip


def _layers(
    record: Record, stack: Stack, expected: Expected | None
) -> tuple[dict[int, float], list[int]]:
    """RMS of the gradient of each layer's parameters, over the prediction where there is one, 0 for
    none; and the layers that are frozen.
    """
    predicted = _predicted(record, expected)
    squares: dict[int, list[float]] = {}
    for at, connection in enumerate(stack.connections):
        if not connection.frozen:
            size = connection.parameter_gradient or 0.0
            usual = predicted[at] if predicted else 1.0
            squares.setdefault(connection.layer, []).append((size / usual) ** 2)
    trained = {layer: math.sqrt(fmean(values)) for layer, values in squares.items()}
    return trained, sorted({one.layer for one in stack.connections} - trained.keys())


def _predicted(record: Record, expected: Expected | None) -> Sequence[float]:
    """The gradient at each branch as it is added. A norm behind the branch divides its gradient by
    its size, which its parameters' does not show.
    """
    if expected is None or not all(expected.branch_gradient):
        return []
    behind = any(word in record.placement for word in ("output", "sandwich"))
    return expected.gradient[1:] if behind else expected.branch_gradient


def _flat(record: Record, stack: Stack) -> str | None:
    """Why the gradients mean nothing; None where they do."""
    sizes = [one.parameter_gradient or 0.0 for one in stack.connections]
    if not all(map(math.isfinite, sizes)):
        return "a gradient is not finite"
    last, output = stack.points[-1], record.output
    if last is None or output is None or math.isnan(last.gradient * output.gradient):
        return None
    if last.gradient * last.rms > ROUNDING * output.gradient * output.rms:
        return None
    return (
        "the loss is flat: of its gradient at the output, rounding errors alone reach the stream, "
        "as for the sum of a LayerNorm. Pass another loss_fn"
    )


CHECK = Check(NAME, "whether all layers get gradients of one order", measure)
