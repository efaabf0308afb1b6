"""A monitor beside a training: what it records, and that the training does not notice."""

import gc
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normwise as nw
from normwise.errors import SettingError, StoreError
from normwise.probe.log import read_lines
from normwise.probe.monitor import KEPT_RECORDS, Monitor, _thin
from normwise.probe.pace import Pace
from normwise.probe.record import Record
from tests.probe.models import WIDTH, Tiny, ids, loss_of

RATE = 1e-2
DYNAMO = "ignore:The .grad attribute of a Tensor that is not a leaf"  # of its own bookkeeping


def train(
    model: nn.Module,
    steps: int,
    monitor: Monitor | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    called: nn.Module | None = None,
) -> list[float]:
    """Losses of a few steps."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=RATE)
    losses = []
    for step in range(steps):
        loss = loss_of(model if called is None else called, ids(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if monitor is not None:
            monitor.step(loss=loss)
    return losses


def watched(
    steps: int, model: nn.Module | None = None, **options: Any
) -> tuple[Monitor, nn.Module, list[float]]:
    """A training of `steps` with a monitor that samples every fifth of them, and the first two."""
    model = model or Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    monitor = Monitor(model, optimizer, every=5, max_overhead=100.0, **options)
    monitor.pace.dense_until = 2
    losses = train(model, steps, monitor, optimizer)
    monitor.close()
    return monitor, model, losses


def hooks(model: nn.Module) -> int:
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
        for m in model.modules()
    )


def test_P59_the_training_is_the_same_to_the_last_bit() -> None:
    """P59: with dropout: losses, weights and random state."""
    # TransformerLens PR#1722
    plain = Tiny(dropout=0.1)
    torch.manual_seed(3)
    expected = train(plain, 12)
    state = torch.get_rng_state()
    model = Tiny(dropout=0.1)
    torch.manual_seed(3)
    monitor, _, losses = watched(12, model)
    assert losses == expected
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, plain.parameters(), model.parameters()))
    assert [record.step for record in monitor.run.records] == [0, 1, 5, 10]


def test_the_steps_that_are_sampled() -> None:
    """Every step of the first 20, then one in `every`; and each of the 20 after an alarm."""
    pace = Pace(50, 0.01)
    assert [step for step in range(160) if pace.samples(step)] == [*range(20), 50, 100, 150]
    pace.alarmed(60)
    assert [step for step in range(50, 101) if pace.samples(step)] == [50, *range(51, 80), 100]


def test_a_resumed_training_goes_on_with_the_same_steps() -> None:
    """The phase is the monitor's own, not that of a counter that starts anew."""
    monitor, model, _ = watched(13)
    later = Monitor(model, every=5, batch=ids())
    later.load_state_dict(json.loads(json.dumps(monitor.state_dict())))
    train(model, 5, later)
    later.close()
    assert [record.step for record in later.run.records] == [15]


def test_the_period_is_widened_to_keep_the_overhead() -> None:
    """A sample of 10 ms on top of steps of 10 ms is 1 % of every hundredth step."""
    pace = Pace(50, 0.01)
    pace.merge([2.0, 0.04, 0.02])  # two processes
    assert pace.every == 100
    assert pace.overhead == pytest.approx(0.01)
    pace.merge([1.0, 0.011, 0.01])
    assert pace.every == 100, "a period is never narrowed"


def test_evaluation_between_steps_is_not_recorded() -> None:
    model = Tiny()
    monitor = Monitor(model, every=1, batch=ids())
    train(model, 1, monitor)
    loss_of(model, ids()).backward()
    model.eval()(ids(rows=8))
    with torch.no_grad():
        model.train()(ids(rows=8))
    monitor.step(loss=1.0)
    monitor.close()
    first, second = (record.stacks[0].points[0] for record in monitor.run.records)
    assert first is not None and second is not None
    most = 4 * 4 * WIDTH  # rows, tokens (the first and every sixteenth of 40)
    assert max(first.count, second.count) <= most


def test_close_leaves_no_trace() -> None:
    monitor, model, _ = watched(3)
    assert hooks(model) == 0
    monitor.close()
    assert hooks(model) == 0


def test_an_exception_leaves_no_trace() -> None:
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(ZeroDivisionError), Monitor(model, optimizer) as monitor:
        train(model, 2, monitor, optimizer)
        assert hooks(model) > 0
        1 / 0  # noqa: B018
    assert hooks(model) == 0
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_P56_a_long_training_holds_no_tensors() -> None:
    """P56: the number of live tensors is flat from sample to sample."""
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = Monitor(model, optimizer, every=1, max_overhead=100.0)
    train(model, 5, monitor, optimizer)
    counts = []
    gc.collect()
    gc.freeze()
    for _ in range(3):
        train(model, 5, monitor, optimizer)
        gc.collect()
        counts.append(sum(issubclass(type(one), Tensor) for one in gc.get_objects()))
    gc.unfreeze()
    monitor.close()
    assert len(set(counts)) == 1


def test_records_are_thinned_in_the_middle() -> None:
    records = [Record(step, "training", "pre", False, []) for step in range(KEPT_RECORDS + 1)]
    _thin(records)
    steps = [record.step for record in records]
    assert len(steps) < KEPT_RECORDS
    assert steps[:32] == list(range(32)) and steps[-64:] == list(range(449, 513))


@pytest.mark.filterwarnings(DYNAMO)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_P61_a_compiled_model_is_recorded(backend: str) -> None:
    """P61: hooks that were there before the compilation fire in one graph without a break, switch
    off and on, and stop at the end.
    """
    # pytorch#117758, #115750, #91665
    torch._dynamo.reset()
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    monitor = Monitor(model, optimizer, every=5, batch=ids(), max_overhead=100.0)
    monitor.pace.dense_until = 2
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    losses = train(model, 11, monitor, optimizer, compiled)
    monitor.close()
    assert [record.step for record in monitor.run.records] == [0, 1, 5, 10]
    assert losses == pytest.approx(train(Tiny(), 11), rel=1e-5)
    eager, _, _ = watched(11, batch=ids())
    for one, other in zip(monitor.run.records, eager.run.records, strict=True):
        assert one.missing == []
        for p, q in zip(one.stacks[0].points, other.stacks[0].points, strict=True):
            assert p is not None and q is not None
            assert p.largest == pytest.approx(q.largest, rel=1e-3)
            assert p.gradient == pytest.approx(q.gradient, rel=0.2)  # other tokens
    assert hooks(model) == 0
    before = monitor._recorder.tally.sums["stream", 0, 0].clone()  # type: ignore[union-attr]
    compiled(ids())
    assert torch.equal(monitor._recorder.tally.sums["stream", 0, 0], before)  # type: ignore[union-attr]


@pytest.mark.filterwarnings(DYNAMO)
def test_P61_a_monitor_that_came_after_the_first_compiled_pass() -> None:
    """A compiled graph ignores hooks that come later, and the monitor says so."""
    torch._dynamo.reset()
    model = Tiny()
    compiled = torch.compile(model, backend="eager")
    loss_of(compiled, ids()).backward()
    model.zero_grad()
    monitor = Monitor(model, every=1, batch=ids())
    with pytest.raises(SettingError, match="was compiled before it"):
        train(model, 2, monitor, called=compiled)
    monitor.close()


def test_P61_a_monitor_of_another_model_says_so() -> None:
    monitor = Monitor(Tiny(), every=1, batch=ids())
    with pytest.raises(SettingError, match="is not the one that the monitor was given"):
        train(Tiny(), 2, monitor)
    monitor.close()


def test_P61_a_compiled_model_is_refused() -> None:
    with pytest.raises(SettingError, match=r"Make the monitor before torch\.compile"):
        Monitor(torch.compile(Tiny(), backend="eager"))


def test_points_are_asked_for_before_compilation() -> None:
    torch._dynamo.reset()
    model = Tiny()
    monitor = Monitor(model)
    with pytest.raises(Exception, match="must be found before"):
        torch.compile(model, backend="eager", fullgraph=True)(ids())
    monitor.close()


def test_a_hook_that_fails_does_not_end_the_training(caplog: pytest.LogCaptureFixture) -> None:
    """That point is switched off, told once, and the rest goes on."""
    model = Tiny()
    monitor = Monitor(model, every=1, batch=ids())
    recorder = monitor._recorder
    assert recorder is not None
    at, _ = recorder._actions["blocks.0"]["out"][0]

    def broken(x: Tensor) -> None:
        raise RuntimeError("no room")

    recorder._actions["blocks.0"]["out"][0] = (at, broken)
    with pytest.warns(UserWarning, match="not measured any more") as told:
        train(model, 3, monitor)
    monitor.close()
    assert len(told) == 1
    points = monitor.run.records[-1].stacks[0].points
    assert points[2] is None and all(point for i, point in enumerate(points) if i != 2)
    assert any("no room" in line for line in monitor.run.records[-1].missing)


class Tracker:
    """What a tracker is: something with `log`."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, Mapping[str, Any]]] = []

    def log(self, values: Mapping[str, Any], step: int) -> None:
        self.lines.append((step, values))


class Writer:
    """What TensorBoard's writer has."""

    def __init__(self) -> None:
        self.scalars: dict[str, list[int]] = {}

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.setdefault(name, []).append(step)


def test_what_trackers_are_given() -> None:
    tracker, writer = Tracker(), Writer()
    watched(6, sinks=[tracker, writer])
    assert [step for step, _ in tracker.lines] == [0, 1, 5]
    values = tracker.lines[-1][1]
    assert values["normwise/stream_rms_last"] > values["normwise/stream_rms_first"] > 0.0
    assert all(math.isfinite(value) for value in values.values())
    assert writer.scalars["normwise/stream_rms_last"] == [0, 1, 5]
    with pytest.raises(SettingError, match="str has neither"):
        Monitor(Tiny(), sinks=["runs"])  # type: ignore[list-item]


def test_what_fails_beside_the_training_does_not_end_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A tracker that is gone, and a log in a file's place: told once each."""

    class Gone(Tracker):
        def log(self, values: Mapping[str, Any], step: int) -> None:
            raise ConnectionError("no tracker")

    (tmp_path / "file").write_text("")
    monitor, _, losses = watched(7, sinks=[Gone()], log=tmp_path / "file" / "run.jsonl")
    assert losses == train(Tiny(), 7)
    assert len(monitor.run.records) == 3
    told = [line for line in caplog.messages if "goes on without" in line]
    assert [line.rpartition(" ")[2] for line in told] == ["log", "sinks"]


def test_the_log_has_a_line_for_each_record(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.jsonl"
    monitor, _, losses = watched(7, log=path)
    lines = read_lines(path)
    assert [line["step"] for line in lines] == [0, 1, 5]
    assert lines[-1]["record"]["loss"] == pytest.approx(losses[5])
    assert [tuple(one) for line in lines for one in line["losses"]] == list(enumerate(losses[:6]))
    assert lines[-1]["story"] is None and lines[-1]["findings"] == []
    point = monitor.run.records[-1].stacks[0].points[-1]
    assert point is not None
    assert lines[-1]["record"]["stacks"][0]["points"][-1]["rms"] == point.rms
    with path.open("a") as file:
        file.write('{"step": 6, "rec')
    assert len(read_lines(path)) == 3, "a line that was cut off is left out"
    path.write_text("loss,step\n1,2\n")
    with pytest.raises(StoreError, match="Line 1"):
        read_lines(path)


def test_a_loss_that_is_no_number_leaves_the_records_before_it(tmp_path: Path) -> None:
    model = Tiny()
    monitor = Monitor(model, every=1, log=tmp_path / "run.jsonl")
    train(model, 5, monitor)
    monitor.step(loss=math.nan)
    monitor.step(loss=math.nan)
    monitor.close()
    (path,) = tmp_path.glob("run-nan-*.json")
    kept = json.loads(path.read_text())
    assert kept["step"] == 5 and [one["step"] for one in kept["records"]] == [2, 3, 4]


def test_findings_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Attention logits beyond 1e3 and then 1e4 are two alarms of one place."""
    model = Tiny()
    monitor = Monitor(model, every=1, batch=ids(), checks=["attn-logit-max"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    nn.init.zeros_(model.blocks[0].attention.inner.bias)
    told = []
    with caplog.at_level(logging.WARNING, "normwise"):
        for wanted in (None, None, 3e3, None, None, 1e5, None, None):
            if wanted is not None:
                now = max(monitor.run.records[-1].attentions[0].largest)
                with torch.no_grad():
                    model.blocks[0].attention.inner.weight[:16] *= wanted / now
            loss_of(model, ids()).backward()
            optimizer.step()
            told += monitor.step(loss=1.0)
    monitor.close()
    assert [one.severity for one in told] == ["warn", "fail"]
    assert len([line for line in caplog.messages if "attn-logit-max" in line]) == 2


def test_unknown_checks_are_named() -> None:
    with pytest.raises(ValueError, match=r"Unknown check 'signal-growht'. Did you mean"):
        nw.Monitor(Tiny(), checks=["signal-growht"])


@pytest.mark.parametrize(("options", "match"), [
    ({"every": 0}, "every must be at least 1"), ({"max_overhead": 0.0}, "max_overhead must be"),
])  # fmt: skip
def test_settings_that_cannot_be(options: dict[str, Any], match: str) -> None:
    with pytest.raises(SettingError, match=match):
        Monitor(Tiny(), **options)
