"""One branch that is too large or too small beside its stream."""

import pytest

from normwise.probe.checks.sublayer_ratio import CHECK
from normwise.probe.record import Signal
from tests.probe.checks.planted import IDS, bad, model, readings, scaled, severity, undeclared
from tests.probe.runs import readings as of_records
from tests.probe.runs import record, stack

FACTORS = [
    (1.0, "ok"), (5.0, "ok"), (30.0, "warn"), (300.0, "fail"), (0.2, "ok"), (0.03, "warn"),
    (0.003, "fail"),
]  # fmt: skip


@pytest.mark.parametrize(("factor", "found"), FACTORS)
@pytest.mark.parametrize("declared", [True, False])
def test_one_branch_in_the_middle(factor: float, found: str, *, declared: bool) -> None:
    made = scaled(model(), factor, [4], ["feed_forward"])
    made = made if declared else undeclared(made)
    assert severity(CHECK, made) == found
    if found != "ok":
        assert bad(readings(CHECK, made))[0].where == "layer 4 feed-forward"


def test_attention_is_held_against_attention() -> None:
    """An attention's branch is a fifth of a feed-forward one in a fresh model."""
    (attention, feed_forward, *_) = readings(CHECK, undeclared(model()))
    assert "the median of its kind" in attention.note
    assert attention.note != feed_forward.note


def test_the_first_layer_of_an_undeclared_stack_is_not_judged() -> None:
    """Its stream is the embedding's, from which a sound stack grows a hundredfold."""
    made = undeclared(scaled(model(), 1e-3, range(1, 8)))
    assert severity(CHECK, made) == "ok"
    assert {one.severity for one in readings(CHECK, made) if one.layer == 0} == {"info"}


@pytest.mark.parametrize("settings", [
    {}, {"depth": 48}, {"init": "normal"}, {"placement": "post_norm"}, {"placement": "peri_norm"},
    {"placement": "layer_scale"}, {"placement": "rezero"}, {"placement": "keel"},
    {"placement": "depth_scaled_norm", "depth": 48}, {"init": "xavier", "depth": 48},
])  # fmt: skip
@pytest.mark.parametrize("declared", [True, False])
def test_healthy_models_are_silent(settings: dict[str, object], *, declared: bool) -> None:
    made = model(width=64, **settings)  # type: ignore[arg-type]
    assert severity(CHECK, made if declared else undeclared(made)) == "ok"


def test_post_norm_is_read_at_the_add() -> None:
    made = model(placement="post_norm", width=64)
    (attention, *_) = readings(CHECK, made)
    assert attention.value == pytest.approx(1.0, abs=0.3)


def test_a_trained_model_is_told_of_alone() -> None:
    made = scaled(model(), 300.0, [4], ["feed_forward"])
    found = readings(CHECK, made, IDS, stage="trained")
    assert {one.severity for one in found} == {"ok", "info"}


def test_a_branch_that_was_not_seen_has_no_reading() -> None:
    assert of_records(CHECK, record(stacks=[stack(branch=None)])) == []
    seen = of_records(CHECK, record(stacks=[stack(branch=Signal(1.0, 0.0, 0.5))]))
    assert [one.value for one in seen] == [1.0, 1.0]
