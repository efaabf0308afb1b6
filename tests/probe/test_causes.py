"""From findings to one cause."""

from dataclasses import replace

import pytest
import torch

from normwise.probe.causes import cause_of
from normwise.probe.checks import (
    adam_eps_floor,
    attn_entropy,
    attn_logit_max,
    massive_activation,
    residual_drift,
    spike_score,
    update_size,
)
from normwise.probe.findings import Reading, Sheet, Standard
from normwise.probe.preflight import check
from tests.probe.checks.planted import IDS, model, scaled
from tests.probe.runs import record

BAD: dict[str, Reading] = {
    "logits": attn_logit_max.STANDARD.reading("layer 0 attention", "S", 2e3, layer=0),
    "entropy": attn_entropy.LAYER.reading("layer 0 attention", "Hn", 0.01, layer=0),
    "drift": residual_drift.STANDARD.reading("the stream", "growth", 20.0),
    "floor": adam_eps_floor.STANDARD.reading("layers.0", "e", 0.5, layer=0),
    "surprise": replace(update_size.JUMP.reading("all", update_size.SURPRISE, 3.0), step=95),
    "spike": replace(spike_score.STANDARD.reading("the loss", "score", 0.2), step=100),
}
MASSIVE = Standard(massive_activation.NAME, massive_activation.SIZE, massive_activation.REMEDY)


def checks_of(*names: str) -> tuple[str, ...]:
    """Those that the cause of these findings explains."""
    found = cause_of(Sheet([BAD[name] for name in names]), record(100))
    assert found is not None
    return found.checks


@pytest.mark.parametrize(
    ("names", "checks"),
    [
        (("logits", "entropy"), ("attn-logit-max", "attn-entropy")),
        (("drift", "floor"), ("residual-drift", "adam-eps-floor")),
        (("spike", "surprise"), ("update-size", "spike-score")),
        (("spike",), ("spike-score",)),
    ],
)
def test_findings_that_are_one_fault(names: tuple[str, ...], checks: tuple[str, ...]) -> None:
    assert checks_of(*names) == checks


@pytest.mark.parametrize(
    ("names", "checks"),
    [
        (("logits",), ("attn-logit-max",)),
        (("entropy", "drift"), ("attn-entropy",)),  # a failure before a warning
        (("drift",), ("residual-drift",)),
        (("spike", "logits"), ("spike-score",)),  # both of one step: it is not the batch
    ],
)
def test_findings_that_are_no_pattern(names: tuple[str, ...], checks: tuple[str, ...]) -> None:
    found = cause_of(Sheet([replace(BAD[name], step=100) for name in names]), record(100))
    assert found is not None
    assert found.checks == checks
    assert found.title.startswith(f"{checks[0]} at ")


def test_what_is_in_order_or_worth_a_look_has_no_cause() -> None:
    some = MASSIVE.reading("the stream", "|h|", 500.0)
    told = attn_logit_max.STANDARD.reading("layer 0 attention", "S", 500.0)
    assert (some.severity, told.severity) == ("ok", "info")
    assert cause_of(Sheet([some, told]), record()) is None
    assert cause_of(Sheet(), record()) is None


def cause_at_start(*, eps: float = 1e-5, embedding: float = 1.0, branches: float = 1.0) -> str:
    """The cause that is found in a fresh model with factors on its weights."""
    made = scaled(model(12, 64, norm_eps=eps), branches)
    with torch.no_grad():
        made.entry.embedding.weight.mul_(embedding)
        made.entry.positions.weight.mul_(embedding)
    found = check(made, IDS).cause
    return found.title if found is not None else ""


@pytest.mark.parametrize(
    ("planted", "title"),
    [
        ({}, ""),
        ({"branches": 40.0}, "The signal is broken from the start"),
        ({"branches": 2.0}, "The signal is broken from the start"),
        ({"embedding": 0.02, "eps": 1e-8}, "The embedding is too small for the branches"),
        ({"embedding": 0.2}, "The embedding drowns in the norms' eps"),
    ],
)
def test_faults_of_a_fresh_model(planted: dict[str, float], title: str) -> None:
    found = cause_at_start(**planted)
    assert found.startswith(title)
    assert bool(found) == bool(title)


def test_branches_that_a_stream_in_bf16_loses() -> None:
    made = scaled(model(12, 64), 1e-3, range(6, 12)).bfloat16()
    found = check(made, IDS, checks=["effective-depth", "precision-headroom"]).cause
    assert found is not None
    assert found.title == "The branches are too small for the stream"


def test_a_value_that_is_not_finite_is_its_own_cause() -> None:
    made = model()
    with torch.no_grad():
        made.layers[3].feed_forward.output.weight[0, 0] = torch.nan
    found = check(made, IDS).cause
    assert found is not None
    assert "layer 3 feed-forward" in found.title


def test_a_trained_model_has_no_broken_start() -> None:
    found = check(scaled(model(), 600.0, range(4, 8)), IDS, stage="trained").cause
    assert found is None or not found.title.startswith("The signal is broken")
