"""How many sublayers do something, and a second half that does nothing."""

import math

import pytest

from normwise.probe.checks.effective_depth import CHECK, effective_depth
from normwise.probe.findings import Reading, Unmeasured
from normwise.probe.record import Signal
from tests.probe.checks.planted import bad, model, readings, scaled, severity, undeclared
from tests.probe.runs import point, record, stack, told


def test_depth_of_equal_and_of_single_branches() -> None:
    assert effective_depth([0.3] * 8) == pytest.approx(8.0)
    assert effective_depth([1.0, 0.0, 0.0]) == pytest.approx(1.0)
    shares = [1 / 5, 4 / 5]
    assert effective_depth([1.0, 2.0]) == pytest.approx(
        math.exp(-sum(c * math.log(c) for c in shares))
    )


@pytest.mark.parametrize(("factor", "found"), [(1.5, "ok"), (3.0, "warn"), (30.0, "fail")])
def test_one_branch_that_does_everything(factor: float, found: str) -> None:
    made = scaled(model(12, 64), factor, [0], ["feed_forward"])
    assert severity(CHECK, made) == found


@pytest.mark.parametrize(("factor", "found"), [(1.0, "ok"), (0.3, "ok"), (0.03, "warn")])
@pytest.mark.parametrize("declared", [True, False])
def test_a_second_half_that_is_lost(factor: float, found: str, *, declared: bool) -> None:
    made = scaled(model(12, 64), factor, range(6, 12))
    made = made if declared else undeclared(made)
    assert severity(CHECK, made) == found
    if found == "warn":
        (lost,) = [one for one in bad(readings(CHECK, made)) if "second half" in one.where]
        assert (lost.value, lost.layer) == (1.0, 6)


def test_branches_that_are_small_throughout_are_not_lost() -> None:
    assert severity(CHECK, undeclared(scaled(model(12, 64), 0.01))) == "ok"


@pytest.mark.parametrize("settings", [
    {}, {"depth": 48}, {"init": "normal"}, {"placement": "post_norm"}, {"placement": "peri_norm"},
    {"placement": "layer_scale"}, {"placement": "depth_scaled_norm", "depth": 48},
    {"placement": "norm_former", "depth": 12}, {"placement": "hybrid_norm_star", "depth": 3},
    {"placement": "keel", "depth": 12}, {"init": "normal", "width": 256},
])  # fmt: skip
def test_healthy_models_are_silent(settings: dict[str, object]) -> None:
    assert severity(CHECK, model(**{"width": 64, **settings})) == "ok"  # type: ignore[arg-type]


def test_a_wide_model_is_shallow_by_design() -> None:
    """Its first branch covers a small embedding: one sublayer in 24, and the prediction says so."""
    share = readings(CHECK, model(12, 512, init="normal", placement="peri_norm", heads=8))[0]
    assert share.value == pytest.approx(1.0, abs=0.1)
    assert "D/M is 0.04 of 24 sublayers, and 0.04 as declared" in share.note
    assert "sublayer turns a token by" in share.note


def _trained(*, massive: bool) -> list[Reading]:
    """The second half of a trained stack is below 0.02 of its stream."""
    channels = ((3, 500.0),) if massive else ()
    stream = [point() for _ in range(4)] + [point(100.0, massive=channels) for _ in range(5)]
    made = stack(stream, branch=Signal(1e4, 0.0, 1.0))
    for connection in made.connections[4:]:
        object.__setattr__(connection, "skip", 100.0)
    found = told(CHECK, record(stage="trained", stacks=[made]))
    return [one for one in found if isinstance(one, Reading)]


@pytest.mark.parametrize(("massive", "found"), [(False, "warn"), (True, "info")])
def test_massive_activations_make_a_trained_stream_large(found: str, *, massive: bool) -> None:
    """As in SmolLM2: a few entries of one token, and no fault of the branches."""
    assert _trained(massive=massive)[-1].severity == found


def test_no_branch_and_branches_of_nothing_are_not_measured() -> None:
    for branch in (None, Signal(1.0, 0.0, 0.0)):
        (one,) = told(CHECK, record(stacks=[stack([point()] * 5, branch=branch)]))
        assert isinstance(one, Unmeasured)
