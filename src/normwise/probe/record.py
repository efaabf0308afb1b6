"""What was measured in a model at one moment, as plain numbers: what checks read.

A record is of one step; a `Run` is the records of a training so far. RMS runs over tokens and
channels. A stack of S connections has S + 1 points of its stream, from its entry on.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

UNSEEN_IN_BF16 = 2.0**-9  # of a number: what is added to it and smaller is lost, half of a step
EPS_SHARES = (0.05, 0.25)  # of eps in a norm's root: a result that is 2.5 % and 13 % too small
SMALL_GAIN = 0.01
MASSIVE, MASSIVE_TIMES = 100.0, 1000.0  # Sun et al. 2024 (2402.17762), section 2

SETTLED = 100  # steps


@dataclass(frozen=True)
class Signal:
    """Entries of a tensor, of all calls and processes together.

    Args:
        count: entries that the mean and the RMS are over.
        mean: their mean.
        rms: their root mean square.
        kurtosis: of the entries, sum of fourth powers over the square of the second: 3 for a normal
            distribution.
        largest: magnitude, in the stream and the output over all entries, also those that the mean
            leaves out.
        dtype: of the tensor, as in "bfloat16".
    """

    count: float
    mean: float
    rms: float
    kurtosis: float = math.nan
    largest: float = math.nan
    dtype: str = "float32"


@dataclass(frozen=True)
class StreamPoint(Signal):
    """The residual stream at one point.

    Args:
        gradient: RMS of the loss's gradient there; NaN where there was none, infinite where it was
            not finite.
        gradient_largest: its largest magnitude.
        median: of the magnitudes.
        massive: channels in which an entry is above 100 and 1000 times the median, largest first,
            16 at most, with that entry.
        angle: arccos(cosine)/pi between the point before and this one, mean over tokens.
    """

    gradient: float = math.nan
    gradient_largest: float = math.nan
    median: float = math.nan
    massive: tuple[tuple[int, float], ...] = ()
    angle: float = math.nan


@dataclass(frozen=True)
class Connection:
    """One residual add.

    Args:
        kind: "attention", "feed_forward" or "block".
        layer: within its stack, from 0.
        skip: RMS of what the branch is added to, with the factor on it.
        branch: what is added, with the factor on it; None where it was not seen.
        swallowed: share of the entries whose branch is below 2^-9 of the stream, so that a sum in
            bf16 does not see it.
        sum_dtype: of the sum.
        parameter_gradient: RMS of the gradient of the branch's parameters; None without one.
        frozen: none of its matrices is trained.
    """

    kind: str
    layer: int
    skip: float
    branch: Signal | None
    swallowed: float = math.nan
    sum_dtype: str = "float32"
    parameter_gradient: float | None = None
    frozen: bool = False

    @property
    def ratio(self) -> float:
        """r_l = RMS(f_l)/RMS(h_l), NaN where one of them was not seen."""
        return self.branch.rms / self.skip if self.branch and self.skip else math.nan

    @property
    def name(self) -> str:
        return f"layer {self.layer} {self.kind.replace('_', '-')}"


@dataclass(frozen=True)
class Stack:
    """One stream.

    Args:
        name: "" where there is one alone, "encoder" and "decoder" of a pair.
        points: S + 1, from the entry on; None for one that was not seen.
        connections: S residual adds.
        overlap: mean product of the entries of two tokens of one sequence, at the entry.
        overlap_last: at the last point.
    """

    name: str
    points: list[StreamPoint | None]
    connections: list[Connection]
    overlap: float = math.nan
    overlap_last: float = math.nan

    def expected_ratios(self, expected: "Expected | None") -> list[float]:
        """r_l as theory has it, with the factors on the skips; empty where it has no branches."""
        if expected is None or not expected.branch:
            return []
        found = []
        for at, (point, one) in enumerate(zip(self.points[:-1], self.connections, strict=True)):
            factor = one.skip / point.rms if point is not None and point.rms else 1.0
            skip = expected.stream[at] * factor
            found.append(expected.branch[at] / skip if skip else math.nan)
        return found

    def where(self, words: str) -> str:
        """A place in this stack, for a reader."""
        return f"{self.name}, {words}" if self.name else words


@dataclass(frozen=True)
class Norm:
    """A norm at work.

    Args:
        name: path of its module.
        place: "pre", "post", "output", "qk", "embed", "final", "inner".
        layer: it belongs to; None outside of the layers.
        formula: "layer_norm" or "rms_norm".
        eps: its own; None where it could not be told.
        semantics: rounding and offset, in words.
        share: eps/(v + eps), mean over rows that are not all zero; NaN where it was not measured.
        above_warn, above_fail: shares of these rows in which it is above 5 % and 25 %.
        zero_rows: share of all rows that are exactly zero.
        gain_largest: magnitude of its gain, which is 1 + weight in a norm that adds 1; NaN without.
        gain_median: of the magnitudes.
        gain_small: share of them below 0.01.
    """

    name: str
    place: str
    layer: int | None
    formula: str
    eps: float | None
    semantics: str
    share: float = math.nan
    above_warn: float = math.nan
    above_fail: float = math.nan
    zero_rows: float = 0.0
    gain_largest: float = math.nan
    gain_median: float = math.nan
    gain_small: float = math.nan


@dataclass(frozen=True)
class Attention:
    """One attention, head by head.

    Args:
        layer: of its connection; None where the two were not matched.
        stack: index of its stack.
        largest: largest magnitude of a logit among valid pairs, by head. A lower bound where
            `exact` is False: then of 32 queries, or of 64 where the bound is above 100.
        bound: max norm of a query times that of a key times the scale, by head; NaN where the
            logits themselves were given.
        entropy: of the keys' weights without the first, over ln of their number, mean over queries
            with 32 keys or more, by head; NaN without one.
        skipped: share of such queries whose weight lies all but 1e-3 on the first key.
        exact: over all queries.
    """

    layer: int | None
    stack: int
    largest: list[float]
    bound: list[float]
    entropy: list[float]
    skipped: float
    exact: bool


@dataclass(frozen=True)
class Output:
    """The model's output logits: largest magnitude, RMS, mean of log Z over tokens, dtype, and RMS
    of the loss's gradient there, NaN where none was seen.
    """

    largest: float
    rms: float
    log_z: float
    dtype: str
    gradient: float = math.nan


@dataclass(frozen=True)
class ParameterUpdate:
    """A trained tensor at one optimizer step; values over a sample of its entries.

    Args:
        name: in the model.
        matrix: it has two axes or more, and is no gain.
        embedding: rows are looked up by token.
        rms: of the weights.
        gradient: RMS of the gradient that the optimizer was given; None without one.
        floor: RMS of the gradient over Adam's eps; None for other optimizers.
        surprise: root of the mean of g^2/max(v, eps^2), v Adam's second moment after the step,
            corrected for its start; None for other optimizers.
        relative: RMS of the step over RMS of the weights; NaN before one was taken.
        vanishing: share of the entries whose step is below 2^-9 of the weight.
        dtype: of the weights.
    """

    name: str
    matrix: bool
    embedding: bool
    rms: float
    gradient: float | None
    floor: float | None = None
    surprise: float | None = None
    relative: float = math.nan
    vanishing: float = math.nan
    dtype: str = "float32"

    @property
    def layer(self) -> int | None:
        """The first number in its name; None for what stands outside of the layers."""
        return next((int(part) for part in self.name.split(".") if part.isdigit()), None)


@dataclass(frozen=True)
class Trial:
    """One optimizer step that was taken back.

    Args:
        before, after: the loss on one batch.
        logits_change: RMS of the change of the output over its RMS.
        changed: share of the trained tensors that changed.
        rate: the optimizer's.
    """

    before: float
    after: float
    logits_change: float
    changed: float
    rate: float


@dataclass(frozen=True)
class Expected:
    """What theory expects of a stack at initialisation; RMS by position.

    Args:
        recipe: the initialisation as declared, in words.
        stream: S + 1 values, each before a factor on the skip.
        branch: S values as added; empty where theory has none.
        gradient: S + 1 values over the last; empty where theory has none.
        branch_gradient: S values at the outputs of the branches, over the same.
        tolerance: largest factor between the two that is chance, at this width and length.
    """

    recipe: str
    stream: list[float]
    branch: list[float] = field(default_factory=list)
    gradient: list[float] = field(default_factory=list)
    branch_gradient: list[float] = field(default_factory=list)
    tolerance: float = 1.3


@dataclass(frozen=True)
class Record:
    """Everything measured at one step.

    Args:
        step: optimizer step, from 0; 0 before training.
        stage: "initial" (fresh weights), "trained" (a checkpoint) or "training".
        placement: "pre", "post", "output", "sandwich", "none", or several with a plus.
        parallel: attention and feed-forward start from one stream.
        stacks: one, or an encoder and a decoder.
        norms: all that were found.
        attentions: in the order of the pass.
        output: None where the model gives no logits.
        loss: of the batch.
        updates: of the trained tensors; empty without an optimizer.
        trial: a step that was taken back; None where none was taken.
        expected: by stack; None for one without a prediction.
        why_not_expected: why there is none.
        dtype: that the user trains in, "fp32", "bf16" or "fp16".
        missing: what could not be measured, a line each.
    """

    step: int
    stage: str
    placement: str
    parallel: bool
    stacks: list[Stack]
    norms: list[Norm] = field(default_factory=list)
    attentions: list[Attention] = field(default_factory=list)
    output: Output | None = None
    loss: float = math.nan
    updates: list[ParameterUpdate] = field(default_factory=list)
    trial: Trial | None = None
    expected: list[Expected | None] = field(default_factory=list)
    why_not_expected: str = ""
    dtype: str = "fp32"
    missing: list[str] = field(default_factory=list)

    def attended(self, number: int) -> str:
        """The place of an attention, by its number, for a reader."""
        attention = self.attentions[number]
        if attention.layer is None:
            return f"attention {number}"
        alike = [
            n for n, one in enumerate(self.attentions)
            if (one.stack, one.layer) == (attention.stack, attention.layer)
        ]  # fmt: skip
        which = f" {alike.index(number) + 1}" if len(alike) > 1 else ""  # to itself, and across
        return self.stacks[attention.stack].where(f"layer {attention.layer} attention{which}")

    def with_expected(self) -> Iterator[tuple[Stack, Expected | None]]:
        """Stacks, each with what is expected of it."""
        yield from zip(
            self.stacks, self.expected or [None] * len(self.stacks), strict=True
        )  # fmt: skip


@dataclass
class Run:
    """A training as far as it was recorded; one record alone is a pre-flight.

    Args:
        records: of the sampled steps, the last one is now.
        losses: of every step, as (step, value).
        gradient_norms: of every step that was told one, before clipping.
        steps: of the whole training, where it is known.
        warmup: steps of it; None where it is not known.
    """

    records: list[Record]
    losses: list[tuple[int, float]] = field(default_factory=list)
    gradient_norms: list[tuple[int, float]] = field(default_factory=list)
    steps: int | None = None
    warmup: int | None = None

    @property
    def now(self) -> Record:
        return self.records[-1]

    @property
    def training(self) -> bool:
        """Whether this is a training and not a pre-flight."""
        return self.now.stage == "training"

    @property
    def settled_at(self) -> int:
        """The step from which a training is held to what is usual after its warm-up: the end of
        that, and 100 steps at the least.
        """
        return max(SETTLED, self.warmup or 0)

    def second_half(self) -> list[Record]:
        """The records of the second half of the training so far."""
        return [one for one in self.records if 2 * one.step >= self.now.step]
