"""A model that is not initialised as it says."""

import math

import pytest
import torch

from normwise.probe.checks.theory_gap import CHECK, LIMITS
from normwise.probe.preflight import check
from tests.probe.checks.planted import IDS, bad, model, readings, scaled, severity, undeclared


@pytest.mark.parametrize(
    ("factor", "found"),
    [(1.2, "ok"), (2.6, "warn"), (6.0, "fail"), (0.8, "ok"), (0.38, "warn"), (0.1, "fail")],
)
def test_the_last_matrix_of_one_branch(factor: float, found: str) -> None:
    made = scaled(model(width=64), factor, [7], ["feed_forward"])
    assert severity(CHECK, made) == found
    assert {one.where for one in bad(readings(CHECK, made))} <= {"layer 7 feed-forward"}


def test_depth_scaling_that_is_declared_and_was_left_out() -> None:
    made = model(48, init="normal")
    made.recipes = model(48, init="gpt2").recipes  # type: ignore[method-assign]
    assert severity(CHECK, made) == "fail"


def test_depth_scaling_that_was_applied_twice_shows_on_the_branches_alone() -> None:
    made = scaled(model(48), (2 * 48) ** -0.5)
    found = bad(readings(CHECK, made))
    assert {one.severity for one in found} == {"fail"}
    assert all(one.quantity.endswith("of the branch") for one in found)
    ((stack, expected),) = check(made, IDS).record.with_expected()
    assert expected is not None
    gaps = [
        abs(math.log(point.rms / by))
        for point, by in zip(stack.points, expected.stream, strict=True)
        if point is not None
    ]
    assert LIMITS.warn is not None
    assert max(gaps) < LIMITS.warn


def test_a_frameworks_default_in_the_blocks() -> None:
    made = model(width=64)
    torch.manual_seed(0)
    for module in made.layers.modules():
        if isinstance(module, torch.nn.Linear):
            module.reset_parameters()
    assert severity(CHECK, made) == "fail"


@pytest.mark.parametrize(("factor", "found"), [(1.2, "ok"), (3.0, "warn"), (6.0, "fail")])
def test_the_embedding(factor: float, found: str) -> None:
    made = model()
    with torch.no_grad():
        made.entry.embedding.weight.mul_(factor)
        made.entry.positions.weight.mul_(factor)
    first = bad(readings(CHECK, made))[:1]
    assert severity(CHECK, made) == found
    assert [one.where for one in first] == (["the entry"] if found != "ok" else [])


@pytest.mark.parametrize(
    "settings",
    [
        {"depth": 12}, {"depth": 48}, {"depth": 12, "init": "normal"},
        *({"depth": 12, "placement": name} for name in (
            "post_norm", "peri_norm", "output_norm", "deep_norm", "keel", "mix_norm", "sub_norm",
            "layer_scale", "rezero", "depth_scaled_norm", "scaled_residual", "hybrid_norm",
            "parallel", "siamese_norm", "resi_dual",
        )),
    ],
)  # fmt: skip
def test_models_that_are_as_declared_are_silent(settings: dict[str, object]) -> None:
    assert severity(CHECK, model(width=64, **settings)) == "ok"  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [torch.zeros(2, 32, dtype=torch.long), IDS[:1, :8]])
def test_any_batch_will_do(batch: torch.Tensor) -> None:
    """Also one of a single token that repeats, of which all tokens are alike."""
    assert severity(CHECK, model(width=64, positions="rotary"), batch) == "ok"


def test_without_a_declaration_nothing_is_said_to_be_in_order() -> None:
    result = check(undeclared(model()), IDS, checks=[CHECK.name])
    assert (result.readings, [one.why for one in result.unmeasured]) == ([], ["none is declared"])


def test_it_is_for_fresh_weights() -> None:
    assert not CHECK.training
    result = check(model(), IDS, checks=[CHECK.name], stage="trained")
    assert result.readings == []


def test_the_note_says_what_is_declared() -> None:
    made = scaled(model(), 6.0, [7], ["feed_forward"])
    (one,) = bad(readings(CHECK, made))
    assert "times the RMS that is expected of: N(0, 0.02), last matrix of each branch" in one.note
