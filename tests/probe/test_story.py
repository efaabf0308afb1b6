"""What moved first in a training, and the one cause that it makes."""

import math
from dataclasses import replace

import numpy as np
import torch

import normwise as nw
from normwise.probe.causes import story
from normwise.probe.checks import (
    adam_eps_floor,
    attn_entropy,
    attn_logit_max,
    residual_drift,
    spike_score,
    update_size,
)
from normwise.probe.findings import Check, Reading
from normwise.probe.monitor import Monitor
from normwise.probe.record import Record, Run
from tests.probe.runs import attention, point, readings, record, stack, update

CHECKED = ("attn-logit-max", "attn-entropy", "residual-drift", "adam-eps-floor", "spike-score")
JUMP = 160  # the step at which the loss does


def losses(jump: int | None = JUMP, value: float = 9.0) -> list[tuple[int, float]]:
    values = 3.0 + 0.05 * np.random.default_rng(0).standard_normal(300)
    told = [(step, float(one)) for step, one in enumerate(values)]
    if jump is not None:
        told[jump] = (jump, value)
    return told


def alarm(check: Check, *records: Record, **run: int) -> tuple[int, Reading]:
    """The first finding of a check, with the step of its record."""
    bad = [one for one in readings(check, *records, **run) if one.severity in ("warn", "fail")]
    return records[-1].step, bad[0]


def logits(step: int, size: float = 2e3) -> tuple[int, Reading]:
    return alarm(attn_logit_max.CHECK, record(step, attentions=[attention([size])]))


def entropy(step: int) -> tuple[int, Reading]:
    fallen = [attention([1.0, 1.0], entropy=[e, e]) for e in (0.5, 0.2, 0.04)]
    return alarm(
        attn_entropy.CHECK, *(record(step, attentions=[one]) for one in fallen)
    )  # fmt: skip


def drift(step: int) -> tuple[int, Reading]:
    before, after = (stack([point(), point(size)]) for size in (1.0, 11.0))
    return alarm(
        residual_drift.CHECK, record(100, stacks=[before]), record(step, stacks=[after])
    )  # fmt: skip


def floor(step: int) -> tuple[int, Reading]:
    return alarm(adam_eps_floor.CHECK, record(step, updates=[update(floor=5.0)]))


def surprise(step: int) -> tuple[int, Reading]:
    return alarm(update_size.CHECK, record(step, updates=[update(surprise=3.0)]))


def run(jump: int | None = JUMP, sampled: tuple[int, ...] = (150, 155, 200)) -> Run:
    return Run([record(step) for step in sampled], losses=losses(jump))


def test_queries_and_keys_that_grow() -> None:
    told = story(run(), [logits(120), entropy(140)])
    assert told is not None
    assert told.cause.title == "Queries and keys have grown until attention sees single keys"
    assert told.cause.tries == ("query-key-norm",)
    assert told.line == (
        "attn-logit-max at layer 0 attention passed 1e+03 at step 120; "
        "the loss left its 6-sigma band at step 160"
    )
    assert told.events == (
        "attn-logit-max at layer 0 attention passed 1e+03 at step 120",
        "attn-entropy at layer 0 attention, heads passed 0.25 at step 140",
        "the loss left its 6-sigma band at step 160",
    )


def test_a_stream_that_starves_the_gradients() -> None:
    told = story(run(None), [drift(210), floor(250)])
    assert told is not None
    assert told.cause.checks == ("residual-drift", "adam-eps-floor")
    assert told.line == (
        "residual-drift at the stream after layer 0 passed 10 at step 210; the loss is in its band"
    )
    assert told.events[1] == "adam-eps-floor at layers.0 fell below 10 at step 250"


def test_a_second_moment_that_was_too_old() -> None:
    for before in (1, 8):
        told = story(run(), [surprise(JUMP - before)])
        assert told is not None
        assert told.cause.checks == ("update-size", "spike-score")
    for before in (0, 9):  # at the jump itself, or too early for it
        told = story(run(), [surprise(JUMP - before)])
        assert told is not None
        assert told.cause.checks == ("update-size",)


def test_a_rate_that_is_too_high() -> None:
    """Steps of a fifth of the weights come before all else; of one that comes later they are not
    the cause.
    """
    fast = alarm(update_size.CHECK, record(120, updates=[update(relative=0.2)]))
    told = story(run(), [fast, drift(130), logits(150)])
    assert told is not None
    assert told.cause.title.startswith("The learning rate is too high")
    assert told.line.startswith("update-size at layers.0, steps passed 0.1 at step 120; the loss")
    later = story(run(), [drift(110), floor(115), fast])
    assert later is not None
    assert later.cause.checks == ("residual-drift", "adam-eps-floor")


def test_places_of_one_check_are_one_event() -> None:
    step, one = logits(120)
    another = replace(one, where="layer 1 attention")
    told = story(run(), [(step, one), (130, another)])
    assert told is not None
    assert told.events[0].endswith("at step 120, and at 1 more place later")


def test_a_batch() -> None:
    told = story(run(), [])
    assert told is not None
    assert "it is the batch" in told.cause.title
    assert told.line == (
        "the loss left its 6-sigma band at step 160, and nothing had been found before it"
    )
    later = story(run(), [logits(170)])
    assert later is not None
    assert later.cause == told.cause
    assert later.events[1] == "attn-logit-max at layer 0 attention passed 1e+03 at step 170"


def test_what_was_not_sampled_is_not_claimed() -> None:
    told = story(run(sampled=(100, 150)), [])
    assert told is not None
    assert told.line.endswith(", but none of the 8 steps before it was sampled")


def test_the_first_and_not_the_worst() -> None:
    history = [logits(130, 2e4), entropy(180), drift(110), floor(120)]
    told = story(run(), history)
    assert told is not None
    assert told.cause.checks == ("residual-drift", "adam-eps-floor")
    assert told.line.startswith("residual-drift at the stream after layer 0 passed 10 at step 110")
    assert told.events[2:] == (
        "attn-logit-max at layer 0 attention passed 1e+04 at step 130",
        "the loss left its 6-sigma band at step 160",
        "attn-entropy at layer 0 attention, heads passed 0.25 at step 180",
    )
    assert story(run(), history[::-1]) == told


def test_without_a_rule_the_first_finding_is_the_cause() -> None:
    told = story(run(), [floor(150), logits(130)])
    assert told is not None
    assert told.cause.title.startswith("attn-logit-max at layer 0 attention: S = max |q.k| scale")
    assert told.cause.action == attn_logit_max.REMEDY.text
    assert told.events[1] == "adam-eps-floor at layers.0 fell below 10 at step 150"


def test_the_score_of_the_loss_does_not_come_later_than_the_jump() -> None:
    """It alarms at the sampled step after its second spike."""
    made = losses()
    made[190] = (190, 9.0)
    here = Run([record(150), record(155), record(200)], losses=made)
    late = alarm(spike_score.CHECK, record(200), losses=made)
    told = story(here, [late, logits(170)])
    assert told is not None
    assert "it is the batch" in told.cause.title


def test_a_loss_that_is_no_number() -> None:
    told = story(Run([record(155)], losses=losses(value=math.nan)), [])
    assert told is not None
    assert told.line.startswith("the loss was no finite number at step 160")


def test_a_training_whose_queries_and_keys_grow_in_one_layer() -> None:
    """By a fifth at every step from the 20th on, in layer 1 of 3."""
    model = nw.Transformer(nw.TransformerConfig(depth=3, width=32), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    monitor = Monitor(model, optimizer, every=5, max_overhead=100.0, checks=CHECKED)
    for step in range(50):
        ids = torch.randint(0, 256, (2, 48), generator=generator)
        loss = torch.nn.functional.cross_entropy(model(ids)[:, :-1].mT, ids[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss=loss)
        if step >= 20:
            with torch.no_grad():
                model.layers[1].attention.query.weight *= 1.2
                model.layers[1].attention.key.weight *= 1.2
    monitor.close()
    told = monitor.story
    assert told is not None
    assert told.cause.checks == ("attn-logit-max", "attn-entropy")
    assert "at layer 1 attention" in told.line
    assert {one.layer for _, one in monitor.alarms} == {1}


def test_what_is_only_worth_a_look_makes_no_story() -> None:
    step, one = logits(120)
    assert story(run(None), [(step, replace(one, severity="info"))]) is None
    assert story(run(None), []) is None
