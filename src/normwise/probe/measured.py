"""From a tally to a record: sums and maxima become RMS, shares and angles."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from normwise.anatomy.points import ConnectionPoints, NormPoint, Points, StackPoints
from normwise.probe.record import (
    MASSIVE,
    MASSIVE_TIMES,
    Attention,
    Connection,
    Norm,
    Output,
    Record,
    Signal,
    Stack,
    StreamPoint,
)

CHANNELS = 16
STACK_NAMES = {1: [""], 2: ["encoder", "decoder"]}

Values = Mapping[Any, list[float]]


def record(
    points: Points,
    sums: Values,
    maxima: Values,
    dtypes: Mapping[Any, str],
    *,
    exact_attention: bool,
    gradient_factor: float = 1.0,
    parameters: Mapping[tuple[int, int], tuple[float | None, bool]] | None = None,
    **rest: Any,
) -> Record:
    """The record of what a `Recorder` has added.

    Args:
        points: it was attached to.
        sums, maxima: as collected.
        dtypes: of the tensors, by key.
        exact_attention: all queries were seen.
        gradient_factor: what gradients are multiplied with.
        parameters: by stack and connection, RMS of the gradient and whether all is frozen.
        rest: the other fields of `Record`.
    """
    made = _Maker(sums, maxima, dtypes, gradient_factor, parameters or {})
    names = STACK_NAMES.get(len(points.stacks), [f"stack {n}" for n in range(len(points.stacks))])
    stacks = [
        Stack(name, made.points(s, stack), made.connections(s, stack), made.overlap(s, "entry"),
              made.overlap(s, "exit"))
        for s, (name, stack) in enumerate(zip(names, points.stacks, strict=True))
    ]  # fmt: skip
    return Record(
        placement=points.placement, parallel=points.parallel, stacks=stacks,
        norms=[made.norm(k, norm) for k, norm in enumerate(points.norms)],
        attentions=made.attentions(points, exact=exact_attention), output=made.output(), **rest,
    )  # fmt: skip


class _Maker:
    def __init__(
        self, sums: Values, maxima: Values, dtypes: Mapping[Any, str], gradient_factor: float,
        parameters: Mapping[tuple[int, int], tuple[float | None, bool]],
    ) -> None:  # fmt: skip
        self.sums = sums
        self.maxima = maxima
        self.dtypes = dtypes
        self.gradient_factor = gradient_factor
        self.parameters = parameters

    def points(self, s: int, stack: StackPoints) -> list[StreamPoint | None]:
        return [self._point(s, i) for i in range(len(stack.connections) + 1)]

    def _point(self, s: int, i: int) -> StreamPoint | None:
        key = "stream", s, i
        if not self.sums[key][0]:
            return None
        *powers, medians, median, tokens, angle = self.sums[key]
        channels = self.maxima[key]
        middle = _over(median, medians)
        floor = max(MASSIVE, MASSIVE_TIMES * middle)
        large = sorted(((c, v) for c, v in enumerate(channels) if v > floor), key=lambda at: -at[1])
        entries, square = self.sums["gradient", s, i]
        return StreamPoint(
            **_signal(powers), largest=max(channels), dtype=self.dtypes.get(key, "float32"),
            gradient=_size(square, entries) * self.gradient_factor,
            gradient_largest=self.maxima["gradient", s, i][0] * self.gradient_factor
            if entries else math.nan,
            median=middle, massive=tuple(large[:CHANNELS]), angle=_over(angle, tokens),
        )  # fmt: skip

    def overlap(self, s: int, end: str) -> float:
        count, products = self.sums[end, s]
        return _over(products, count)

    def connections(self, s: int, stack: StackPoints) -> list[Connection]:
        return [self._connection(s, c, points) for c, points in enumerate(stack.connections)]

    def _connection(self, s: int, c: int, points: ConnectionPoints) -> Connection:
        key = "branch", s, c
        *powers, compared, swallowed = self.sums[key]
        skip = self.sums["stream", s, c]
        branch = Signal(
            **_signal(powers), largest=self.maxima[key][0] or math.nan,
            dtype=self.dtypes.get(key, "float32"),
        ) if powers[0] else None  # fmt: skip
        factor = points.skip.factor if points.skip else 1.0
        gradient, frozen = self.parameters.get((s, c), (None, False))
        return Connection(
            points.kind, points.layer, _root(skip[2], skip[0]) * factor, branch,
            _over(swallowed, compared), self.dtypes.get(("stream", s, c + 1), "float32"),
            gradient, frozen,
        )  # fmt: skip

    def norm(self, k: int, point: NormPoint) -> Norm:
        known = Norm(point.name, point.place, point.layer, point.formula, point.eps,
                     point.semantics)  # fmt: skip
        rows, zero, share, warn, fail = self.sums.get(("norm", k), [0.0] * 5)
        told = rows - zero
        if not rows:
            return known
        entries, small = self.sums["gain", k]
        largest, middle = self.maxima["gain", k] if entries else (math.nan, math.nan)
        return replace(
            known, gain_largest=largest, gain_median=middle, gain_small=_over(small, entries),
            share=_over(share, told), above_warn=_over(warn, told),
            above_fail=_over(fail, told), zero_rows=zero / rows,
        )  # fmt: skip

    def attentions(self, points: Points, *, exact: bool) -> list[Attention]:
        seen = sorted(
            key[1] for key, (calls, *_) in self.sums.items() if key[0] == "attended" and calls
        )
        where = {
            number: (s, connection.layer)
            for s, stack in enumerate(points.stacks)
            for connection in stack.connections
            for number in connection.attention
        }
        matched = len(seen) == points.attentions  # by their number: a pass may have others
        return [
            self._attention(
                number, *(where.get(number, (0, None)) if matched else (0, None)), exact=exact
            )
            for number in seen
            if ("logit", number) in self.maxima
        ]

    def _attention(self, number: int, stack: int, layer: int | None, *, exact: bool) -> Attention:
        largest = self.maxima["logit", number]
        heads = len(largest)
        *both, skipped = self.sums["entropy", number]
        entropy, counts = both[:heads], both[heads:]
        bound = self.maxima.get(("bound", number), [math.nan] * heads)
        return Attention(
            layer, stack, largest, bound,
            [_over(one, count) for one, count in zip(entropy, counts, strict=True)],
            _over(skipped, skipped + sum(counts)), exact,
        )  # fmt: skip

    def output(self) -> Output | None:
        entries, square, tokens, log_z = self.sums.get(("output",), [0.0] * 4)
        if not entries:
            return None
        graded, slopes = self.sums.get(("output gradient",), [0.0] * 2)
        return Output(
            self.maxima["output",][0], _root(square, entries), log_z / tokens,
            self.dtypes["output"], _size(slopes, graded) * self.gradient_factor,
        )  # fmt: skip


def _signal(powers: list[float]) -> dict[str, float]:
    entries, total, square, fourth = powers
    second = _over(square, entries)
    return {
        "count": entries, "mean": _over(total, entries), "rms": _root(square, entries),
        "kurtosis": _over(_over(fourth, entries), second * second),
    }  # fmt: skip


def _over(value: float, count: float) -> float:
    return value / count if count else math.nan


def _size(square: float, count: float) -> float:
    """RMS of a gradient: infinite for one that is not finite, NaN for one that was not seen."""
    return math.inf if count and math.isnan(square) else _root(square, count)


def _root(square: float, count: float) -> float:
    return math.sqrt(square / count) if count else math.nan
