"""One step of the optimizer on the batch it was computed from."""

import math
from typing import Any

import pytest
import torch

import normwise as nw
from normwise.probe.checks.first_step_shock import CHECK
from normwise.probe.findings import Reading, Unmeasured
from normwise.probe.preflight import check
from normwise.probe.record import Trial
from tests.probe.checks.planted import IDS, bad, model, readings, severity
from tests.probe.runs import readings as of_records
from tests.probe.runs import record


def stepped(made: nw.Transformer, rate: float) -> list[Reading]:
    return readings(CHECK, made, optimizer=torch.optim.AdamW(made.parameters(), lr=rate))


@pytest.mark.parametrize(("rate", "found"), [
    (1e-3, "ok"), (1e-2, "ok"), (0.3, "warn"), (10.0, "warn"), (1e20, "fail"),
])  # fmt: skip
def test_a_rate_that_is_too_high(rate: float, found: str) -> None:
    made = model()
    optimizer = torch.optim.AdamW(made.parameters(), lr=rate)
    assert severity(CHECK, made, optimizer=optimizer) == found


@pytest.mark.parametrize("settings", [
    {}, {"placement": "post_norm"}, {"placement": "peri_norm"}, {"norm": "rms_norm"},
    {"init": "normal", "activation": "swiglu"}, {"width": 256, "depth": 12},
])  # fmt: skip
def test_healthy_models_at_a_usual_rate(settings: dict[str, Any]) -> None:
    assert not bad(stepped(model(**settings), 6e-4))


def test_logits_that_double_are_told_of_alone() -> None:
    change = stepped(model(12, 64), 3e-3)[-1]
    assert change.value > 1.0
    assert change.severity == "info"


def test_an_optimizer_that_changes_nothing() -> None:
    made = model()
    for optimizer in (
        torch.optim.SGD(made.parameters(), lr=0.0),
        torch.optim.SGD(model().parameters(), lr=0.1),
    ):
        found = bad(readings(CHECK, made, optimizer=optimizer))
        assert [(one.severity, one.value) for one in found] == [("warn", 1.0)]


def test_tensors_without_a_gradient_yet_are_no_fault() -> None:
    """The branches behind ReZero's factors, which start at 0."""
    moved = stepped(model(placement="rezero"), 1e-3)[0]
    assert 0.0 < moved.value < 1.0
    assert moved.severity == "ok"


def test_what_is_tried_depends_on_where_the_norms_stand() -> None:
    for placement, tries in (("post_norm", ("pre-norm", "peri-norm")), ("pre_norm", ())):
        (one,) = bad(stepped(model(placement=placement), 10.0))
        assert one.remedy is not None
        assert one.remedy.tries == tries


@pytest.mark.parametrize(("after", "found"), [
    (5.4, "ok"), (5.5, "ok"), (5.5 + 1e-6, "ok"), (5.6, "warn"), (math.nan, "fail"),
    (math.inf, "fail"),
])  # fmt: skip
def test_the_loss_after_the_step(after: float, found: str) -> None:
    trial = Trial(5.5, after, 0.1, 1.0, 1e-3)
    (one,) = [
        one for one in of_records(CHECK, record(stage="initial", trial=trial))
        if "loss" in one.quantity
    ]  # fmt: skip
    assert one.severity == found


def test_without_an_optimizer_nothing_was_tried() -> None:
    (one,) = check(model(), IDS, checks=[CHECK.name]).unmeasured
    assert isinstance(one, Unmeasured)
    assert "optimizer" in one.why


def test_nothing_of_the_step_is_left() -> None:
    made = model(norm="batch_norm_tokens", causal=False)
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.1)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    state = torch.get_rng_state()
    readings(CHECK, made, optimizer=optimizer)
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert any("running" in name for name in before)
    assert torch.equal(state, torch.get_rng_state())
    assert not optimizer.state
