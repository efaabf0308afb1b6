"""Gradients of one layer that are out of proportion, or missing."""

import pytest
import torch
from torch import nn

from normwise.probe.checks.grad_balance import CHECK
from normwise.probe.preflight import check
from tests.probe.checks.planted import IDS, bad, model, readings, severity, times, undeclared

FACTORS = [
    (1.0, "ok"), (0.1, "ok"), (1 / 60, "warn"), (1e-3, "fail"), (5.0, "ok"), (30.0, "warn"),
    (500.0, "fail"),
]  # fmt: skip


@pytest.mark.parametrize(("factor", "found"), FACTORS)
def test_a_factor_on_the_branches_of_one_layer(factor: float, found: str) -> None:
    made = times(model(12, 64), factor, 5)
    assert severity(CHECK, made) == found
    if found != "ok":
        assert "5" in bad(readings(CHECK, made))[0].where


def test_a_layer_that_is_attenuated_is_named_in_the_grid() -> None:
    found = [one for one in readings(CHECK, times(model(12, 64), 1e-3, 5)) if one.layer == 5]
    assert [one.severity for one in found] == ["fail"]


@pytest.mark.parametrize("settings", [
    {}, {"depth": 48}, {"init": "normal", "depth": 48}, {"placement": "post_norm"},
    {"placement": "post_norm", "depth": 48}, {"placement": "peri_norm", "depth": 48},
    {"placement": "output_norm"}, {"placement": "keel", "depth": 48}, {"placement": "hybrid_norm"},
    {"placement": "depth_scaled_norm"}, {"placement": "deep_norm", "depth": 48},
    {"init": "normal", "width": 256},
])  # fmt: skip
def test_healthy_models_are_silent(settings: dict[str, object]) -> None:
    assert severity(CHECK, model(**{"width": 64, **settings})) == "ok"  # type: ignore[arg-type]


@pytest.mark.parametrize("placement", ["pre_norm", "post_norm"])
def test_frozen_layers_are_left_out_and_listed(placement: str) -> None:
    """Also those whose norms are trained: their few gradients are no measure."""
    made = model(8, 64, placement=placement)
    for layer in (2, 5):
        made.layers[layer].requires_grad_(False)
    found = readings(CHECK, made)
    assert not bad(found)
    assert found[0].note == "Frozen: layers 2, 5."
    assert {one.layer for one in found} == {None, 0, 1, 3, 4, 6, 7}


def test_a_layer_without_a_gradient_is_told_of_and_not_divided_by() -> None:
    found = bad(readings(CHECK, times(model(), 0.0, 5)))
    assert [(one.severity, one.layer, one.value) for one in found] == [("warn", 5, 2.0)]


@pytest.mark.parametrize("placement", ["rezero", "skip_init"])
def test_factors_that_start_at_zero_everywhere_are_no_fault(placement: str) -> None:
    result = check(model(placement=placement), IDS, checks=[CHECK.name])
    assert result.readings == []
    assert "no layer" in result.unmeasured[0].why


def test_a_flat_loss_is_told_of_and_no_layer_is_called_dead() -> None:
    """The sum of a LayerNorm is 0 in mathematics: its gradients are rounding errors."""
    made = undeclared(model(affine=False))
    made.head = nn.Identity()  # type: ignore[assignment]
    result = check(made, IDS, lambda out, batch: out.sum(), checks=[CHECK.name])
    assert result.readings == []
    assert "the loss is flat" in result.unmeasured[0].why


def test_a_loss_that_is_not_flat_behind_the_same_norm() -> None:
    made = undeclared(model(affine=False))
    made.head = nn.Identity()  # type: ignore[assignment]
    result = check(made, IDS, lambda out, batch: out[..., 0].sum(), checks=[CHECK.name])
    assert result.unmeasured == []
    assert not bad(result.readings)


def test_gradients_that_are_not_finite_are_not_compared() -> None:
    made = model()
    with torch.no_grad():
        made.head.weight[0, 0] = torch.nan
    result = check(made, IDS, checks=[CHECK.name])
    assert (result.readings, result.unmeasured[0].why) == ([], "a gradient is not finite")


def test_a_trained_model_is_warned_of_and_does_not_fail() -> None:
    assert severity(CHECK, times(model(), 1e-4, 5), IDS, stage="trained") == "warn"
