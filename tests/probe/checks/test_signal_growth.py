"""Growth of stream and gradient: against the prediction, over the second half, and to infinity."""

import math

import pytest
import torch

import normwise as nw
from normwise.probe.checks.signal_growth import CHECK
from normwise.probe.findings import Unmeasured
from normwise.probe.record import Output, StreamPoint
from tests.probe.checks.planted import IDS, bad, model, readings, scaled, severity, undeclared
from tests.probe.runs import point, record, stack, told


@pytest.mark.parametrize(("factor", "found"), [(5.0, "ok"), (60.0, "warn"), (600.0, "fail")])
def test_larger_branches_than_declared(factor: float, found: str) -> None:
    assert severity(CHECK, scaled(model(), factor)) == found


@pytest.mark.parametrize(("factor", "found"), [(5.0, "ok"), (60.0, "warn"), (600.0, "fail")])
def test_a_second_half_that_grows_needs_no_prediction(factor: float, found: str) -> None:
    assert severity(CHECK, undeclared(scaled(model(), factor, range(4, 8)))) == found


def test_a_first_half_that_grows_is_not_told_from_a_small_embedding() -> None:
    assert severity(CHECK, undeclared(scaled(model(), 600.0, range(1)))) == "ok"


@pytest.mark.parametrize(("factor", "found"), [(5.0, "ok"), (50.0, "warn"), (500.0, "fail")])
def test_a_gradient_that_grows_at_one_place(factor: float, found: str) -> None:
    made = undeclared(model())
    connection = made.placement.connections[11]

    def scale(module: object, args: object, state: object) -> None:
        stream = connection.stream(state)
        if stream.requires_grad:
            stream.register_hook(lambda gradient: gradient * factor)

    connection.register_forward_hook(scale)
    assert {one.where for one in bad(readings(CHECK, made))} <= {
        "the gradient",
        "layer 6, gradient",
    }
    assert severity(CHECK, made) == found


@pytest.mark.parametrize("depth", [12, 48])
@pytest.mark.parametrize("declared", [True, False])
def test_post_norm_is_silent_at_any_depth(depth: int, *, declared: bool) -> None:
    made = model(depth, placement="post_norm")
    assert severity(CHECK, made if declared else undeclared(made)) == "ok"


def test_what_is_before_the_first_norm_of_a_post_norm_stack_does_not_count() -> None:
    made = model(placement="post_norm", norm_eps=1e-12)
    with torch.no_grad():
        made.entry.embedding.weight.mul_(1e-3)
        made.entry.positions.weight.mul_(1e-3)
    assert not [one for one in bad(readings(CHECK, made)) if "stream" in one.where]


@pytest.mark.parametrize("placement", ["pre_norm", "peri_norm", "output_norm", "deep_norm", "keel"])
def test_healthy_placements_are_silent(placement: str) -> None:
    assert severity(CHECK, model(12, placement=placement)) == "ok"


def test_the_rate_is_signed() -> None:
    (half, *_) = readings(CHECK, undeclared(model()))
    assert "ln(G)/L = +0.0" in half.note


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_place_that_is_not_finite(value: float) -> None:
    made = model()
    with torch.no_grad():
        made.layers[3].feed_forward.output.weight[0, 0] = value
    (one,) = readings(CHECK, made)
    assert (one.severity, one.layer, one.where) == ("fail", 3, "layer 3 feed-forward")
    assert one.value == math.inf


def test_logits_that_are_not_finite() -> None:
    made = model()
    with torch.no_grad():
        made.head.weight[0, 0] = math.inf
    (one,) = readings(CHECK, made)
    assert (one.severity, one.where) == ("fail", "the output")


def test_a_gradient_that_is_not_finite_is_named_where_it_came_from() -> None:
    made = model()
    made.layers[5].feed_forward.output.register_full_backward_hook(
        lambda module, given, taken: (given[0] * math.nan,)
    )
    (one,) = readings(CHECK, made)
    assert (one.severity, one.where) == ("fail", "layer 5 feed-forward")


def test_a_loss_that_is_not_finite() -> None:
    (one,) = told(CHECK, record(stage="initial", loss=math.inf, output=Output(1, 1, 1, "float32")))
    assert one.where == "the loss"  # type: ignore[union-attr]


def test_a_monitor_that_was_told_no_loss_is_no_fault() -> None:
    points = [point(gradient=1.0, gradient_largest=4.0)] * 3
    assert all(one.severity == "ok" for one in told(CHECK, record(stacks=[stack(points)])))  # type: ignore[union-attr]


def test_gradients_of_one_token_alone_are_not_judged() -> None:
    """As of a classification by its first token: the gradient spreads on its way back."""

    def seen(largest: float) -> set[str]:
        points = [point(gradient=g, gradient_largest=largest * g) for g in (60.0, 50.0, 1.0)]
        found = told(CHECK, record(stage="initial", loss=1.0, stacks=[stack(points)]))
        return {one.severity for one in found if not isinstance(one, Unmeasured)}

    assert "warn" in seen(5.0)
    assert seen(50.0) == {"ok", "info"}


def test_points_without_a_gradient_are_left_out() -> None:
    """Of a frozen embedding there is none at the entry."""
    points: list[StreamPoint | None] = [
        point(gradient=g, gradient_largest=4 * g) for g in (math.nan, 2.0, 1.0)
    ]
    found = told(CHECK, record(stage="initial", loss=1.0, stacks=[stack(points)]))
    assert all(one.severity == "ok" for one in found)  # type: ignore[union-attr]
    bare = told(CHECK, record(stage="initial", loss=1.0, stacks=[stack([point()] * 3)]))
    assert Unmeasured(CHECK.name, "no gradient was seen over the depth") in bare


def test_every_layer_has_a_reading() -> None:
    found = readings(CHECK, model())
    assert {one.layer for one in found if "this layer" in one.quantity} == set(range(8))


def test_a_trained_model_is_warned_of_and_does_not_fail() -> None:
    made = scaled(model(), 600.0, range(4, 8))
    assert severity(CHECK, made, IDS, stage="trained") == "warn"
    assert isinstance(made, nw.Transformer)
