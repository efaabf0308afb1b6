"""The checks during a training: a record at every so many steps, and what moved first.

A sampled step adds its statistics on the device; they are read at the step after it, so that
nothing waits. In a training of several processes the records are those of all of them together, and
all sample the same steps.
"""

import logging
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from normwise.anatomy.points import Points
from normwise.errors import SettingError
from normwise.probe.alarms import Alarms
from normwise.probe.causes import Story, story
from normwise.probe.checks.registry import CHECKS, apply
from normwise.probe.checks.spike_score import leaves_band
from normwise.probe.findings import Reading, Sheet, lines
from normwise.probe.hook import Hook
from normwise.probe.log import RunLog
from normwise.probe.measured import record
from normwise.probe.pace import Pace
from normwise.probe.points import arguments, find_points
from normwise.probe.record import Record, Run
from normwise.probe.recorder import Recorder
from normwise.probe.sinks import Sink, check_sink, metrics, send
from normwise.probe.tally import Collected
from normwise.probe.updates import FIELDS, UpdateWatch, frozen, gradient_sums

STRIDE = 16  # tokens: the first and every sixteenth are looked at
CLEAR = 100.0  # a bound of attention's logits below which none of them is worth a look
KEPT_LOSSES = 4096
KEPT_RECORDS = 512
UNSEEN = (
    "no pass to be seen at this step: the model that is trained is not the one that the monitor "
    "was given, or was compiled before it"
)
TOO_LATE = (
    "The points of a compiled or sharded model must be found before. Pass batch to the monitor, "
    "and make it before torch.compile and fully_shard."
)
LOGGER = logging.getLogger("normwise")

_Told = tuple[int, Any, Any]  # a step, its loss and its gradient norm


class Monitor:
    """Watches a training.

        monitor = nw.Monitor(model, optimizer, every=50)
        for batch in batches:
            loss = ...
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss=loss)
        monitor.close()

    The first forward pass in training finds the points to measure, from a pass of its own. Steps
    are sampled one in `every`, and each of the first 20 and of the 20 after a new alarm. Outputs,
    gradients and random state are those of a training without it; nothing is kept alive. Under a
    gradient scaler the stream's gradients are those of the scaled loss, and a step that it skips
    has none.

    A model that will be compiled, or sharded by `fully_shard`, must be given here before that,
    with a `batch`; its optimizer can follow by `watch`.

    Args:
        model: any Transformer; of DistributedDataParallel the module in it is watched.
        optimizer: for what is told of updates; None for what needs none.
        every: optimizer steps from sample to sample; widened where they cost more than
            `max_overhead`.
        batch: to find the points with at once, as the model is called with.
        checks: names from `normwise list checks`; None for the default ones.
        steps: of the training, where it is known.
        warmup: steps of its warm-up, where they are known.
        log: a file for a line of JSON for every record.
        sinks: objects with `log(values, step=...)`, as of Accelerate, W&B and trackio, or with
            `add_scalar`, as of TensorBoard.
        max_overhead: largest share of the training's time.
        pattern: a regular expression for the paths of the blocks, where the stream is not found.
        dtype: that it is trained in, "fp32", "bf16" or "fp16".
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        every: int = 50,
        *,
        batch: Any = None,
        checks: Sequence[str] | None = None,
        steps: int | None = None,
        warmup: int | None = None,
        log: str | Path | None = None,
        sinks: Sequence[Sink] = (),
        max_overhead: float = 0.01,
        pattern: str | None = None,
        dtype: str = "fp32",
    ) -> None:
        if hasattr(model, "_orig_mod"):
            raise SettingError(
                "A compiled model calls no hooks that come later. This one is compiled. Make the "
                "monitor before torch.compile, with batch."
            )
        for name in checks or ():
            CHECKS.resolve(name)
        self.model = model.module if isinstance(model, DistributedDataParallel) else model
        self.checks = checks
        self.pattern = pattern
        self.dtype = dtype
        self.pace = Pace(every, max_overhead)
        self.run = Run([], steps=steps, warmup=warmup)
        self._alarms = Alarms()
        self.last: deque[Record] = deque(maxlen=3)
        self.log = RunLog(log) if log is not None else None
        self.sinks = list(sinks)
        for sink in sinks:
            check_sink(sink)
        self.taken = 0
        self._recorder: Recorder | None = None
        self._updates: UpdateWatch | None = None
        self._watching: list[RemovableHandle] = []
        self._pending: _Pending | None = None
        self._gradients: Tensor | None = None
        self._overflowed: Tensor | None = None
        self._closed = False
        self._outside = False  # the last loss was out of its band
        self._told: list[_Told] = []
        self._dumped = False
        self._written = -1
        self._failed: set[str] = set()
        self._unseen: list[str] = []
        self._random = random.Random(0)  # not torch's: its state is the training's
        self._frozen: dict[tuple[int, int], bool] = {}
        self._first: RemovableHandle | None = None
        if batch is not None:
            self._begin(find_points(self.model, *arguments(batch), pattern))
        else:
            self._first = self.model.register_forward_pre_hook(Hook(self._find), with_kwargs=True)
        if optimizer is not None:
            self.watch(optimizer)

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Watches the steps of an optimizer that was made after the monitor."""
        for handle in self._watching:
            handle.remove()
        optimizer = getattr(optimizer, "optimizer", optimizer)  # in Accelerate's wrapper
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise SettingError(
                f"A monitor watches one optimizer of torch. It got a {type(optimizer).__name__}. "
                f"Of several, pass that of the matrices."
            )
        self._updates = UpdateWatch(self.model, optimizer)
        self._watching = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def step(self, loss: Any = None, grad_norm: Any = None) -> list[Reading]:
        """To be called once after every optimizer step.

        Args:
            loss: of this step, a number or a tensor; it is read one step later.
            grad_norm: of the gradient before clipping, likewise.

        Returns:
            Findings that are new, of the last sampled step.
        """
        new = self._read_pending()
        if _group() is None:
            self._read_told()
        self._told.append((self.taken, _kept(loss), _kept(grad_norm)))
        if self._recorder is None:
            raise SettingError(f"A monitor must see the passes of a training. There was {UNSEEN}.")
        sampled = self._recorder.recording
        if sampled:
            self._collect()
        self.pace.stepped(sampled=sampled)
        self.taken += 1
        self._arm()
        return new

    def _check_fired(self, recorder: Recorder, sums: dict[Any, Any], step: int) -> None:
        """Points at which nothing passed are told once; where nothing passed anywhere, the monitor
        is not where the training is.
        """
        unseen = recorder.unseen(sums)
        streams = [key for key in sums if key[0] == "stream"]
        if not any(sums[key][0] for key in streams) and not self.run.records:
            raise SettingError(f"A monitor must see the passes of a training. There was {UNSEEN}.")
        if unseen and unseen != self._unseen:
            LOGGER.warning("step %d, nothing passed at: %s", step, ", ".join(unseen))
        self._unseen = unseen

    def close(self) -> None:
        """Reads what is left and leaves no trace in model and optimizer; twice is once."""
        self._closed = True
        try:
            self._read_pending()
            if _group() is None:
                self._read_told()
        finally:
            self._detach()

    def _detach(self) -> None:
        for handle in (*self._watching, *((self._first,) if self._first else ())):
            handle.remove()
        self._watching.clear()
        if self._recorder is not None:
            self._recorder.recording = False
            self._recorder.detach()

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        self._closed = True
        self._detach()

    @property
    def points(self) -> Points | None:
        """What is measured where; None before the first pass."""
        return self._recorder.points if self._recorder else None

    @property
    def alarms(self) -> list[tuple[int, Reading]]:
        """Findings with the steps at which they were new."""
        return self._alarms.history

    @property
    def story(self) -> Story | None:
        """The one cause of what went wrong, and what moved first; None where nothing did."""
        return story(self.run, self.alarms)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training goes on with: the step, and when it is sampled."""
        return {"taken": self.taken, "pace": self.pace.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with the steps of another one."""
        self.taken = state["taken"]
        self.pace.load_state_dict(state["pace"])
        self._arm()

    def _find(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Finds the points with the first batch of the training, before it passes."""
        if torch.compiler.is_compiling():
            raise SettingError(TOO_LATE)
        if not (module.training and torch.is_grad_enabled()) or self._first is None:
            return
        if any(hasattr(p, "to_local") for p in module.parameters()):
            raise SettingError(TOO_LATE)
        self._first.remove()
        self._first = None
        self._begin(find_points(module, args, options, self.pattern))
        if self._recorder is not None:
            self._recorder.begin(module, args)

    def _begin(self, points: Points) -> None:
        self._recorder = Recorder(
            self.model, points, stride=STRIDE, exact_attention=False, strict=False,
            training_only=True, gains="norm-gain" in (self.checks or ()),
        )  # fmt: skip
        self._frozen = frozen(self.model, points)
        self._arm()

    def _arm(self) -> None:
        """Hooks for the next step, if it is sampled. Those of a compiled graph stay, switched off:
        it would not see them come back.
        """
        recorder = self._recorder
        if recorder is None or self._closed:
            return
        recorder.recording = self.pace.samples(self.taken)
        if recorder.recording:
            if not recorder.compiled:
                recorder.offset = self._random.randrange(STRIDE)
            recorder.choose = self._choose
            recorder.attach()
        elif not recorder.compiled:
            recorder.detach()

    def _choose(self, queries: int) -> list[int]:
        """Queries of an attention, the last among them, which sees most keys: 32, and 64 where the
        bound of a logit was above 100.
        """
        bounds = [bound for one in self.last for a in one.attentions for bound in a.bound]
        rows = 64 if max(bounds, default=0.0) > CLEAR else 32
        chosen = self._random.sample(range(queries), min(queries, rows))
        return sorted({*chosen, queries - 1})

    def _before_step(self, optimizer: Any, args: Any, options: Any) -> None:
        if self._recorder is not None and self._recorder.recording and self._updates is not None:
            self._safely("updates", self._updates.before)

    def _after_step(self, optimizer: Any, args: Any, options: Any) -> None:
        """The gradients are those that the optimizer was given: clipped, where they are clipped."""
        recorder, updates = self._recorder, self._updates
        if recorder is None or not recorder.recording or updates is None:
            return
        self._safely("updates", updates.after)
        self._gradients = gradient_sums(self.model, recorder.points)[1]
        # of a fused optimizer, that skips the step by itself
        self._overflowed = getattr(optimizer, "found_inf", None)

    def _collect(self) -> None:
        """Sends the statistics of this step to the host."""
        recorder = self._recorder
        if recorder is None:
            return
        tally, group = recorder.tally, _group()
        if self._gradients is None:
            self._gradients = gradient_sums(self.model, recorder.points)[1]
        tally.send("parameters", self._gradients)
        if self._updates is not None:
            stepped = self._updates.rows is not None or "updates" in self._failed
            skipped = _number(0.0 if stepped else 1.0, tally.device)
            if self._overflowed is not None:
                skipped = skipped + self._overflowed.to(skipped).sum()
            tally.send("skipped", skipped)
            if self._updates.rows is not None:
                tally.send("updates", self._updates.rows)
            self._updates.rows, self._overflowed = None, None
        tally.send("pace", self.pace.sums(tally.device))
        told: list[_Told] = []
        if group is not None:  # the losses since the last sample, whose mean all processes go by
            told, self._told = self._told, []
            tally.send("losses", torch.stack([_number(loss, tally.device) for _, loss, _ in told]))
        self._gradients = None
        collected = tally.collect(group)
        recorder.renew()
        self._pending = _Pending(self.taken, collected, dict(recorder.dtypes), told)

    def _read_pending(self) -> list[Reading]:
        """The record of the sampled step before, and the checks on it."""
        pending, self._pending = self._pending, None
        if pending is None or self._recorder is None:
            return []
        sums, maxima = pending.collected.values()
        self.pace.merge(sums.pop("pace"))
        if "losses" in sums:
            means = [total / dist.get_world_size() for total in sums.pop("losses")]
            for (step, _, norm), mean in zip(pending.told, means, strict=True):
                self._take(step, mean, norm)
        else:
            self._read_told()
        self._check_fired(self._recorder, sums, pending.step)
        made = self._record(self._recorder, pending, sums, maxima)
        self.run.records.append(made)
        self.last.append(made)
        _thin(self.run.records)
        sheet = Sheet()
        self._safely("checks", lambda: sheet.take(apply(self.run, self.checks)[0]))
        new = self._new(sheet.findings, pending.step)
        if _is_first():
            self._safely("log", lambda: self._write(made, sheet.findings))
            values = metrics(made, sheet.readings)
            self._safely("sinks", lambda: send(self.sinks, values, pending.step))
        return new

    def _write(self, made: Record, findings: list[Reading]) -> None:
        """A line of the log."""
        if self.log is not None:
            losses = [one for one in self.run.losses if one[0] > self._written]
            self._written = losses[-1][0] if losses else self._written
            self.log.write(made, findings, self.story, losses)

    def _safely(self, what: str, work: Callable[[], object]) -> None:
        """Work that must not end a training: an error is told with its trace, and it is left out
        from then on.
        """
        if what in self._failed:
            return
        try:
            work()
        except Exception:
            self._failed.add(what)
            LOGGER.exception("the monitor goes on without its %s", what)

    def _record(
        self, recorder: Recorder, pending: "_Pending", sums: dict[Any, Any], maxima: dict[Any, Any]
    ) -> Record:
        parameters, updates = sums.pop("parameters"), sums.pop("updates", [])
        factor = 1.0 / dist.get_world_size() if _group() else 1.0
        if sums.pop("skipped", [0.0])[0]:  # a gradient scaler found an overflow: they mean nothing
            factor, updates, parameters = math.nan, [], [0.0] * len(parameters)
        pairs = zip(parameters[::2], parameters[1::2], strict=True)
        fields = len(FIELDS)
        rows = [updates[at : at + fields] for at in range(0, len(updates), fields)]
        missing = [*recorder.points.missing, *recorder.unseen(sums), *recorder.broken.values()]
        losses = dict(self.run.losses[-8:])
        return record(
            recorder.points, sums, maxima, pending.dtypes, exact_attention=False,
            # every process has the gradients of the mean over its own part of the batch
            gradient_factor=factor,
            parameters={
                key: ((square / n) ** 0.5 if n else None, still)
                for (key, still), (n, square) in zip(self._frozen.items(), pairs, strict=True)
            },
            updates=self._updates.read(rows) if self._updates is not None and rows else [],
            step=pending.step, stage="training", loss=losses.get(pending.step, math.nan),
            dtype=self.dtype, missing=missing,
        )  # fmt: skip

    def _new(self, findings: list[Reading], step: int) -> list[Reading]:
        """Findings that are new, each told once; a check that alarms worse than ever is looked at
        closely.
        """
        new, worse = self._alarms.take(findings, step)
        for line in lines(new):
            LOGGER.warning("step %d, %s", step, line)
        if worse:
            self.pace.alarmed(self.taken)
        return new

    def _read_told(self) -> None:
        """Losses of the steps before, which have long been computed."""
        told, self._told = self._told, []
        for step, loss, norm in told:
            self._take(step, loss, norm)

    def _take(self, step: int, loss: Any, norm: Any) -> None:
        """A loss that leaves its band is looked at closely; one that is no number is kept with the
        records before it.
        """
        if norm is not None:
            self.run.gradient_norms.append((step, float(norm)))
            del self.run.gradient_norms[:-KEPT_LOSSES]
        if loss is None:
            return
        value = float(loss)
        self.run.losses.append((step, value))
        del self.run.losses[:-KEPT_LOSSES]
        outside = leaves_band(self.run.losses)
        if outside and not self._outside:
            self.pace.alarmed(self.taken)
        self._outside = outside
        if not math.isfinite(value) and not self._dumped and self.log is not None and _is_first():
            log, last = self.log, list(self.last)
            self._safely("dump", lambda: log.dump(step, last))
            self._dumped = True


@dataclass
class _Pending:
    """A sampled step whose statistics are on their way to the host."""

    step: int
    collected: Collected
    dtypes: dict[Any, str]
    told: list[_Told]


def _kept(value: Any) -> Any:
    """A number, or a tensor without its graph."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def _number(loss: Any, device: torch.device) -> Tensor:
    """A loss on the device; one that was not told is no number."""
    value = math.nan if loss is None else loss
    return torch.as_tensor(value, dtype=torch.float32, device=device).reshape(())


def _group() -> dist.ProcessGroup | None:
    """The processes of a training, where there are several."""
    there = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return dist.group.WORLD if there else None


def _is_first() -> bool:
    """Whether this process writes for all."""
    return _group() is None or dist.get_rank() == 0


def _thin(records: list[Record]) -> None:
    """Half of the records between the first and the last ones, where there are too many."""
    if len(records) > KEPT_RECORDS:
        del records[32:-64:2]
