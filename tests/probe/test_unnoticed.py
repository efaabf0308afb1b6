"""A check and a monitor are not noticed by models and trainings of any kind."""

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import _get_current_function_mode_stack

import normwise as nw
from normwise.errors import SettingError
from normwise.probe.monitor import Monitor
from normwise.probe.pace import Pace
from normwise.probe.record import Record
from tests.probe.models import WIDTH, Tiny, ids, loss_of


class Flat(Tiny):
    """Its attention has heads and sequences in one axis, as BART's once had."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.attention.forward = self._attend(block.attention)

    def _attend(self, branch: Any) -> Any:
        def forward(x: Tensor) -> Tensor:
            q, k, v = (
                part.unflatten(-1, (2, -1)).transpose(1, 2).flatten(0, 1)
                for part in branch.inner(x).chunk(3, dim=-1)
            )
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
            joined = mixed.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)
            out: Tensor = branch.outer(joined)
            return out

        return forward


def monitored(model: nn.Module, batches: list[Tensor], **options: Any) -> list[Record]:
    optimizer = options.pop("optimizer", None) or torch.optim.AdamW(model.parameters())
    with Monitor(model, optimizer, every=1, **options) as monitor:
        for batch in batches:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.step(loss=loss)
    return monitor.run.records


def gradients(record: Record) -> list[float]:
    return [point.gradient for point in record.stacks[0].points if point]


def test_a_last_batch_that_is_smaller() -> None:
    """Queries (B*H, T, K) change their first axis with the batch."""
    records = monitored(Flat(), [ids(rows=4), ids(rows=2)])
    assert [len(record.attentions) for record in records] == [3, 3]
    assert all(record.missing == [] for record in records)


def test_a_model_in_fp64() -> None:
    model, plain = Tiny().double(), Tiny()
    wide, narrow = (nw.check(m, ids()).record for m in (model, plain))
    for one, other in zip(wide.attentions, narrow.attentions, strict=True):
        assert one.largest == pytest.approx(other.largest, rel=1e-5)
        assert one.bound == pytest.approx(other.bound, rel=1e-5)


def test_an_optimizer_whose_eps_are_two() -> None:
    model = Tiny()
    adafactor = torch.optim.Adafactor(model.parameters())
    records = monitored(model, [ids(), ids()], optimizer=adafactor)
    assert all(one.floor is None and one.relative > 0 for one in records[-1].updates)


def test_the_tried_step_is_seen_under_autocast() -> None:
    """autocast keeps bf16 copies of the weights, which must not be those of before the step."""
    after = []
    for dtype in ("fp32", "bf16"):
        model = Tiny()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        trial = nw.check(model, ids(), optimizer=optimizer, dtype=dtype).record.trial
        assert trial is not None
        after.append(trial.before - trial.after)
    assert after[1] == pytest.approx(after[0], rel=0.1)


def test_a_step_that_a_gradient_scaler_skips_alarms_nobody() -> None:
    """At a scale of 2^40 the gradients in fp16 are infinite, as they may be at the start."""
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    with Monitor(model, optimizer, every=1, dtype="fp16") as monitor:
        for _ in range(2):
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(model, ids())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            monitor.step(loss=loss)
    assert [one.line for _, one in monitor.alarms] == []
    assert all(math.isnan(gradient) for gradient in gradients(monitor.run.records[0]))
    assert monitor.run.records[0].updates == []


def test_a_pass_without_gradients_between_forward_and_backward() -> None:
    """As of the reference of a preference loss, which is the same model."""
    model = Tiny()
    monitor = Monitor(model, every=1, batch=ids())
    for _ in range(2):
        loss = loss_of(model, ids())
        with torch.no_grad():
            model(ids(seed=2))
        model.zero_grad()
        loss.backward()
        monitor.step(loss=loss)
    monitor.close()
    (plain,) = monitored(Tiny(), [ids()], batch=ids())
    assert gradients(monitor.run.records[0]) == pytest.approx(gradients(plain), rel=1e-6)


class Counting(Tiny):
    """Puts another tensor in the place of a buffer, and has one whose entries share memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(1))
        self.register_buffer("shared", torch.ones(1).expand(5))

    def forward(self, batch: Tensor) -> Tensor:
        self.passes = self.passes + 1.0
        return super().forward(batch) * self.shared[0]


def test_buffers_that_are_replaced_are_put_back() -> None:
    model = Counting()
    nw.check(model, ids())
    assert model.passes.item() == 0.0
    monitored(model, [ids()] * 3)
    assert model.passes.item() == 3.0


def test_an_optimizer_that_steps_in_backward_does_not_in_a_check() -> None:
    model = Tiny()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda weight: optimizers[weight].step())
    before = [p.detach().clone() for p in model.parameters()]
    nw.check(model, ids())
    assert all(map(torch.equal, before, model.parameters()))
    loss_of(model, ids()).backward()
    assert not all(map(torch.equal, before, model.parameters()))


def test_hooks_of_an_optimizer_are_not_called_by_the_tried_step() -> None:
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    calls: list[object] = []
    optimizer.register_step_post_hook(lambda *rest: calls.append(rest))
    nw.check(model, ids(), optimizer=optimizer)
    assert calls == []
    optimizer.step()
    assert len(calls) == 1


def test_a_copy_of_a_watched_model_is_its_own() -> None:
    """deepcopy, as for an average of weights, and torch.save take no hooks along that do things."""
    model = Tiny()
    monitor = Monitor(model, every=1, batch=ids())
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    for other in (twin, read):
        assert torch.equal(other(ids()), model.eval()(ids()))
    assert not any(values[0] for values in monitor._recorder.tally.collect().values()[0].values())  # type: ignore[union-attr]
    monitor.close()


def test_queries_of_zeros_lose_no_attention() -> None:
    """As muP starts them: the logits of one layer, or of all, are zero."""
    model = Tiny()
    with torch.no_grad():
        model.blocks[0].attention.inner.weight[:WIDTH] = 0.0
        model.blocks[0].attention.inner.bias[:WIDTH] = 0.0
    found = nw.check(model, ids()).record.attentions
    assert [one.layer for one in found] == [0, 1, 2]
    assert max(found[0].largest) == 0.0 < max(found[1].largest)


def test_an_interrupt_leaves_no_mode_behind() -> None:
    model = Tiny()
    monitor = Monitor(model, every=1, batch=ids())

    def interrupt(*rest: object) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        handle = model.blocks[1].register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(ids())
        handle.remove()
    monitor.close()
    assert _get_current_function_mode_stack() == []


def test_a_training_that_alarms_all_the_time_is_not_sampled_all_the_time() -> None:
    pace = Pace(50, 0.01)
    sampled = 0
    for step in range(1000):
        pace.alarmed(step)
        sampled += pace.samples(step)
    assert sampled < 200


def test_a_monitor_that_is_closed_stays_closed() -> None:
    model = Tiny()
    monitor = Monitor(model, every=1, batch=ids())
    loss_of(model, ids()).backward()
    monitor.step(loss=1.0)
    monitor.close()
    monitor.step(loss=1.0)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_mask_is_no_batch_of_tokens() -> None:
    """A mask of integers, before the tokens by its name, is not what the loss is of."""

    class Masked(Tiny):
        def forward(self, attention_mask: Tensor, ids: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(ids)

    mask = torch.ones(4, 40, dtype=torch.long)
    loss = nw.check(Masked(), {"attention_mask": mask, "ids": ids()}).record.loss
    assert loss == pytest.approx(loss_of(Tiny(), ids()).item(), rel=1e-6)
    short = nw.check(Tiny(), ids().int()).record.loss
    assert short == pytest.approx(loss, rel=1e-6)


def test_what_cannot_be_checked_is_said() -> None:
    with pytest.raises(SettingError, match="A check needs a gradient of the loss"):
        nw.check(Tiny().requires_grad_(requires_grad=False), ids())
    with pytest.raises(SettingError, match="pattern must be a regular expression"):
        nw.check(Tiny(), ids(), pattern="blocks[")
    with pytest.raises(SettingError, match="watches one optimizer"):
        Monitor(Tiny(), [])  # type: ignore[arg-type]
