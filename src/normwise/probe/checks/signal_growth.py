"""`signal-growth`: how much the stream, and its gradient on the way back, grow over the depth.

    G = RMS(h_M)/RMS(h_0) forward,  RMS(g_0)/RMS(g_M) backward

A pre-norm stream grows by the root of the depth, and from a small embedding it grows a hundredfold
over the first layers; that is sound. So G is judged by its distance from the prediction, where the
initialisation is known: G/G_pred, either way. The growth of the second half of the depth needs no
prediction: it is 1.4 for a pre-norm stream of any depth and width, and exponential in a broken one.
Where a norm stands behind the first branch, G starts there: what is before it is normed away.

A value that is not finite is a failure at the first place that has one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from normwise.probe.findings import Check, Limits, Reading, Remedy, Standard, Unmeasured, either_way
from normwise.probe.record import Expected, Record, Run, Stack

NAME = "signal-growth"
LIMITS = Limits(10.0, 100.0, "C", "our zoo: at most 5.4 in a healthy model")
REMEDY = Remedy(
    "Scale the last matrix of every branch by 1/sqrt(2L), or use peri-norm.",
    ("depth-scaled-init", "peri-norm", "depth-scaled-norm"),
)
STANDARD = Standard(NAME, LIMITS, REMEDY)
FINITE = Standard(
    NAME,
    Limits(None, 0.0, "B", "a sum with NaN or inf is NaN or inf"),
    Remedy("Do not train. Look at this place first; in fp16, try bf16.", ("pre-norm",)),
)
KNOWN = (
    "pre",
    "post",
    "output",
    "sandwich",
    "none",
    "not told",
)  # one stream, and it is seen whole
PEAKED = 20.0  # largest gradient over the RMS at the end: 5 where every token has a loss
NORMED = ("post", "output", "sandwich")  # placements whose first branch has a norm behind it


def measure(run: Run) -> Iterator[Reading | Unmeasured]:
    """Growth forward and backward of every stack, over its depth and over each layer."""
    record = run.now
    broken = _first_not_finite(record)
    if broken is not None:
        where, layer, what, _ = broken
        yield FINITE.reading(where, f"{what} (not finite)", math.inf, layer=layer)
        return
    for stack, expected in record.with_expected():
        for what in ("stream", "gradient"):
            yield from _Growth(record, stack, expected, what).readings()


@dataclass(frozen=True)
class _Growth:
    """Of the stream or of its gradient, in one stack."""

    record: Record
    stack: Stack
    expected: Expected | None
    what: str

    def readings(self) -> Iterator[Reading | Unmeasured]:
        seen = [at for at, value in enumerate(self.values) if not math.isnan(value)]
        inside = [at for at in seen if at >= self.start]
        if len(inside) < 2:
            yield Unmeasured(NAME, self.stack.where(f"no {self.what} was seen over the depth"))
            return
        first, last = inside[0], inside[-1]
        yield self._half(last)
        if self.predicted:
            yield STANDARD.reading(
                self._where, f"growth of the {self.what} over the depth against the prediction",
                self._grown(first, last), at_most=self._most("fail"),
                note=self._rate(first, last),
            )  # fmt: skip
        yield from self._layers(first)

    def _half(self, last: int) -> Reading:
        return STANDARD.reading(
            self._where, f"growth of the {self.what} over the second half of the depth",
            either_way(_ratio(self.values[last], self.values[len(self.values) // 2])),
            at_most=self._most("fail" if self._initial else "warn"),
            note=self._rate(self.start, last),
        )  # fmt: skip

    def _layers(self, first: int) -> Iterator[Reading]:
        """Over each layer; without a prediction only those of the second half are judged."""
        layers = [connection.layer for connection in self.stack.connections]
        starts = [at for at, one in enumerate(layers) if not at or one != layers[at - 1]]
        against = " against the prediction" if self.predicted else ""
        for begin, end in zip(starts, [*starts[1:], len(layers)], strict=True):
            grown = self._grown(max(begin, first), end)
            if math.isnan(grown):
                continue
            known = bool(self.predicted) or begin >= len(layers) // 2
            yield STANDARD.reading(
                self.stack.where(f"layer {layers[begin]}, {self.what}"),
                f"growth of the {self.what} over this layer{against}", grown,
                layer=layers[begin],
                at_most=self._most("fail") if known and self._initial else "ok",
            )  # fmt: skip

    @property
    def values(self) -> list[float]:
        return [_value(point, self.what) for point in self.stack.points]

    @property
    def predicted(self) -> list[float]:
        if self.expected is None:
            return []
        return self.expected.stream if self.what == "stream" else self.expected.gradient

    @property
    def start(self) -> int:
        return int(any(word in self.record.placement for word in NORMED))

    def _most(self, severity: str) -> str:
        """A gradient is not judged where it is not the whole stream's, or that of a few tokens,
        from which it spreads on its way back.
        """
        last = self.stack.points[-1]
        known = set(self.record.placement.split("+")) <= set(KNOWN)
        few = last is not None and last.gradient_largest > PEAKED * last.gradient
        sound = self.what == "stream" or (not few and (known or bool(self.predicted)))
        return severity if sound else "info"

    @property
    def _initial(self) -> bool:
        return self.record.stage == "initial"

    @property
    def _where(self) -> str:
        return self.stack.where(f"the {self.what}")

    def _grown(self, first: int, last: int) -> float:
        """Growth between two points, over the predicted one where there is one; either way."""
        grown = _ratio(self.values[last], self.values[first])
        if self.predicted:
            grown = _ratio(grown, _ratio(self.predicted[last], self.predicted[first]))
        return either_way(grown)

    def _rate(self, first: int, last: int) -> str:
        grown = _ratio(self.values[last], self.values[first])
        layers = max(1, len({connection.layer for connection in self.stack.connections}))
        if not grown or not math.isfinite(grown):
            return ""
        forward = grown if self.what == "stream" else 1.0 / grown
        return (
            f"ln(G)/L = {math.log(forward) / layers:+.3f} over all layers. OLMo 2 (2501.00656, "
            f"section 3.2) reports 0.09 of an unstable trained model and -0.03 of a stable one, "
            f"of vectors averaged over tokens."
        )


def _value(point: object, what: str) -> float:
    name = "rms" if what == "stream" else "gradient"
    return float(getattr(point, name, math.nan))


def _ratio(over: float, under: float) -> float:
    """NaN of nothing over nothing."""
    return over / under if under else (math.inf if over > 0.0 else math.nan)


_Spot = tuple[str, int | None, str, bool]  # where, of which layer, what is there, is it finite


def _first_not_finite(record: Record) -> _Spot | None:
    """The first place of the pass, forward and then backward."""
    forward = [spot for stack in record.stacks for spot in _forward(stack)]
    backward = [spot for stack in reversed(record.stacks) for spot in _backward(stack)]
    after: list[_Spot] = []
    if record.output is not None:
        after.append(("the output", None, "RMS of the logits", math.isfinite(record.output.rms)))
    if not (record.stage == "training" and math.isnan(record.loss)):  # a monitor was told none
        after.append(("the loss", None, "its value", math.isfinite(record.loss)))
    return next((spot for spot in (*forward, *after, *backward) if not spot[-1]), None)


def _forward(stack: Stack) -> Iterator[_Spot]:
    entry = stack.points[0]
    if entry is not None:
        yield stack.where("the entry"), None, "RMS of the stream", math.isfinite(entry.rms)
    for connection, point in zip(stack.connections, stack.points[1:], strict=True):
        where = stack.where(connection.name)
        if connection.branch is not None:
            finite = math.isfinite(connection.branch.rms)
            yield where, connection.layer, "RMS of the branch", finite
        if point is not None:
            yield where, connection.layer, "RMS of the stream", math.isfinite(point.rms)


def _backward(stack: Stack) -> Iterator[_Spot]:
    """Gradients from the end on, each by the connection it has come back through; NaN means that
    none was seen, infinity that one is not finite.
    """
    for at in reversed(range(len(stack.points))):
        point = stack.points[at]
        if point is not None:
            by = stack.connections[at] if at < len(stack.connections) else None
            where = stack.where(by.name if by else "the end of the stack")
            finite = not math.isinf(point.gradient)
            yield where, by.layer if by else None, "RMS of the gradient behind it", finite


CHECK = Check(NAME, "growth of stream and gradient over the depth", measure)
