"""Steps beside Adam's second moment and the weights."""

import math

import pytest
import torch
from torch import nn

from normwise.probe.checks.update_size import CHECK
from normwise.probe.findings import Unmeasured
from normwise.probe.record import ParameterUpdate
from normwise.probe.updates import UpdateWatch
from tests.probe.runs import readings, record, severity, told, update

SETTLED = 200  # steps: 0.95^200 is 4e-5


def stepped(factor: float, beta2: float = 0.95, steps: int = SETTLED) -> ParameterUpdate:
    """A matrix whose gradients are signs, the last of them times a factor."""
    torch.manual_seed(0)
    matrix = nn.Linear(32, 32, bias=False)
    optimizer = torch.optim.Adam(matrix.parameters(), betas=(0.9, beta2))
    watch = UpdateWatch(matrix, optimizer)
    for step in range(steps):
        sign = torch.randn(32, 32).sign()
        matrix.weight.grad = sign * (factor if step == steps - 1 else 1.0)
        watch.before()
        optimizer.step()
        watch.after()
    assert watch.rows is not None
    (one,) = watch.read(watch.rows.tolist())
    return one


@pytest.mark.parametrize(("factor", "found"), [(1.0, "ok"), (2.5, "ok"), (3.0, "warn")])
def test_a_batch_whose_gradient_adam_does_not_know(factor: float, found: str) -> None:
    """RMS_t is factor/sqrt(0.95 + 0.05 factor^2)."""
    one = stepped(factor)
    wanted = factor / math.sqrt(0.95 + 0.05 * factor**2)
    assert one.surprise == pytest.approx(wanted, rel=1e-4)
    model, layer = readings(CHECK, record(SETTLED, updates=[one]))[:2]
    assert (model.value, model.severity) == (one.surprise, found)
    assert layer.severity == ("info" if found == "warn" else "ok")


def test_rms_t_has_a_cap_that_a_small_beta2_keeps_below_the_limit() -> None:
    assert stepped(1e4).surprise == pytest.approx(math.sqrt(1 / 0.05), rel=1e-3)
    short = stepped(1e4, beta2=0.7)
    assert short.surprise == pytest.approx(math.sqrt(1 / 0.3), rel=1e-3)
    assert severity(CHECK, record(SETTLED, updates=[short])) == "ok"


def test_the_first_steps_are_no_surprise() -> None:
    """Adam's v is a thousandth of g^2 at first, and corrected for that."""
    for steps in (1, 2, 20):
        assert stepped(1.0, beta2=0.999, steps=steps).surprise == pytest.approx(1.0, rel=1e-4)


def test_one_layer_is_told_and_only_the_model_is_warned_of() -> None:
    sizes = [3.0, 1.0, 1.2]
    updates = [update(f"layers.{layer}.weight", surprise=s) for layer, s in enumerate(sizes)]
    found = readings(CHECK, record(SETTLED, updates=updates))
    assert [one.severity for one in found[:4]] == ["ok", "info", "ok", "ok"]
    assert found[0].value == 1.2
    early = readings(CHECK, record(50, updates=[update(surprise=3.0)]))
    assert [one.severity for one in early] == ["info", "info"]


@pytest.mark.parametrize(
    ("relative", "found"),
    [(1.1e-5, "ok"), (1e-3, "ok"), (0.09, "ok"), (0.11, "warn"), (0.9e-5, "warn")],
)
def test_weights_that_move_too_far_or_hardly(relative: float, found: str) -> None:
    records = [record(at, updates=[update(relative=relative)]) for at in (150, 200)]
    assert severity(CHECK, *records, warmup=100) == found


def test_the_step_is_measured() -> None:
    torch.manual_seed(0)
    matrix = nn.Linear(16, 16, bias=False)
    optimizer = torch.optim.SGD(matrix.parameters(), lr=0.5)
    before = matrix.weight.detach().clone()
    watch = UpdateWatch(matrix, optimizer)
    watch.before()
    matrix.weight.grad = torch.ones(16, 16)
    optimizer.step()
    watch.after()
    assert watch.rows is not None
    (one,) = watch.read(watch.rows.tolist())
    assert one.relative == pytest.approx(0.5 / before.square().mean().sqrt().item(), rel=1e-6)
    assert one.surprise is None
    found = readings(CHECK, record(SETTLED, updates=[one]))
    assert [one.severity for one in found] == ["warn", "ok"]  # far, not near; no RMS_t


def test_a_rate_that_decays_to_nothing_is_sound() -> None:
    records = [record(at, updates=[update(relative=r)]) for at, r in ((150, 1e-3), (900, 1e-9))]
    assert severity(CHECK, *records) == "ok"


def test_before_the_end_of_the_warm_up_steps_are_not_judged() -> None:
    early = record(150, updates=[update(relative=0.5)])
    assert severity(CHECK, early, warmup=200) == "ok"
    assert severity(CHECK, early, warmup=100) == "warn"


def test_biases_gains_and_embeddings_are_left_out() -> None:
    """|w| of a bias or of the gain of a norm that adds 1 is about 0."""
    some = [update(matrix=False, relative=9.0), update(embedding=True, relative=9.0)]
    (one,) = told(CHECK, record(SETTLED, updates=some))
    assert isinstance(one, Unmeasured)
    assert readings(CHECK, record(SETTLED, updates=[update(relative=math.nan)]))[-1].value == 1.0


def test_weights_that_the_optimizer_does_not_have_are_not_watched() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    watch = UpdateWatch(model, torch.optim.Adam(model[1].parameters()))
    assert [one.name for one in watch.tensors] == ["1.weight"]
