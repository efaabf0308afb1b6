"""The share of eps in a norm's root, of models and of norms made by hand."""

import math

import pytest
import torch
from torch import Tensor

from normwise.probe.checks.norm_eps_share import CHECK
from normwise.probe.findings import Unmeasured
from normwise.probe.record import Norm
from tests.probe.checks.planted import IDS, bad, model, readings, severity
from tests.probe.runs import record, told


def norm(place: str = "pre", eps: float | None = 1e-5, **fields: float) -> Norm:
    return Norm("layers.0.norm", place, 0, "layer_norm", eps, "", **fields)


@pytest.mark.parametrize(("std", "found"), [(0.02, "ok"), (0.006, "warn"), (0.003, "fail")])
def test_an_embedding_that_eps_drowns(std: float, found: str) -> None:
    """One norm alone: s = 1e-5/(std^2 + 1e-5), 2.4 %, 22 % and 53 %."""
    made = model(1, 256, positions="none", norm_eps=1e-5)
    with torch.no_grad():
        made.entry.embedding.weight.mul_(std / 0.02)
    assert severity(CHECK, made) == found
    first = readings(CHECK, made)[0]
    assert first.value == pytest.approx(1e-5 / (std**2 + 1e-5), rel=0.1)


def test_a_smaller_eps_is_the_remedy() -> None:
    made = model(1, positions="none", norm_eps=1e-8)
    with torch.no_grad():
        made.entry.embedding.weight.mul_(0.15)
    assert severity(CHECK, made) == "ok"


@pytest.mark.parametrize("norm_name", ["rms_norm", "layer_norm"])
def test_queries_that_start_at_zero_under_their_norm(norm_name: str) -> None:
    made = model(2, norm=norm_name, query_key_norm="head", norm_eps=1e-6)
    with torch.no_grad():
        made.layers[1].attention.query.weight.zero_()
    found = bad(readings(CHECK, made))
    assert [(one.severity, one.layer, one.value) for one in found] == [("fail", 1, 1.0)]
    assert found[0].remedy is not None
    assert "away from zero" in found[0].remedy.text


@pytest.mark.parametrize("zero", [1.0, 0.25])
def test_zero_rows_have_no_share_of_an_eps_of_zero(zero: float) -> None:
    share = math.nan if zero == 1.0 else 0.0
    (one,) = told(CHECK, record(norms=[norm(eps=0.0, zero_rows=zero, share=share)]))
    assert one.severity == "ok"  # type: ignore[union-attr]
    assert "zero" in one.note  # type: ignore[union-attr]


def test_some_zero_rows_are_counted_and_change_no_share() -> None:
    """Of a padding token whose embedding is zero."""
    made = model(1, 256, positions="none", norm_eps=1e-5, bias=False)
    with torch.no_grad():
        made.entry.embedding.weight[IDS[0, 0]] = 0.0
    (one, *_) = readings(CHECK, made)
    assert one.severity == "ok"
    assert "of the rows are zero" in one.note
    assert one.value == pytest.approx(1e-5 / (0.02**2 + 1e-5), rel=0.1)


@pytest.mark.parametrize(
    ("warn", "fail", "found"),
    [(0.0, 0.0, "ok"), (0.2, 0.0, "info"), (0.6, 0.0, "warn"), (0.9, 0.6, "fail")],
)
def test_the_median_row_decides_and_the_95th_percentile_is_told(
    warn: float, fail: float, found: str
) -> None:
    share = 0.3 if fail > 0.5 else 0.1 if warn > 0.5 else 0.02
    (one,) = told(CHECK, record(norms=[norm(share=share, above_warn=warn, above_fail=fail)]))
    assert one.severity == found  # type: ignore[union-attr]


def test_a_few_tiny_rows_do_not_make_a_fault_of_a_large_mean() -> None:
    (one,) = told(CHECK, record(norms=[norm(share=0.3, above_warn=0.35, above_fail=0.3)]))
    assert one.severity == "info"  # type: ignore[union-attr]


@pytest.mark.parametrize(("stage", "found"), [("initial", "info"), ("trained", "fail")])
def test_behind_a_branch_it_is_told_of_at_initialisation(stage: str, found: str) -> None:
    """OLMo-2's first attention is small beside its norm's eps: that makes its branch smaller."""
    one = norm("output", share=0.8, above_warn=1.0, above_fail=1.0)
    (reading,) = told(CHECK, record(stage=stage, norms=[one]))
    assert reading.severity == found  # type: ignore[union-attr]


def test_an_eps_that_is_not_known_is_not_measured() -> None:
    (one,) = told(CHECK, record(norms=[norm(eps=None)]))
    assert isinstance(one, Unmeasured)


@pytest.mark.parametrize("settings", [
    {}, {"affine": False}, {"norm": "rms_norm"}, {"placement": "post_norm"},
    {"placement": "peri_norm"}, {"query_key_norm": "head"}, {"norm_eps": 0.0},
])  # fmt: skip
def test_healthy_models_are_silent(settings: dict[str, object]) -> None:
    assert severity(CHECK, model(width=64, **settings)) == "ok"  # type: ignore[arg-type]


def test_a_stream_far_from_zero_is_measured_around_its_mean() -> None:
    """The variance of a row with a mean of 1e4 and a spread of 1 is not lost in rounding."""
    made = model(1, norm_eps=1e-5)
    x = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0))

    def share(offset: float) -> float:
        embedded: Tensor = x + offset
        found = readings(CHECK, made, {"inputs_embeds": embedded}, loss_fn=lambda out, _: out.sum())
        return found[0].value

    assert share(1e4) == pytest.approx(share(0.0), rel=0.01)
