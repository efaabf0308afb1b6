"""An embedding that is too small for the branches, or shrinks."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import normwise as nw
from normwise.probe.checks import signal_growth
from normwise.probe.checks.embed_scale import CHECK
from tests.probe.checks.planted import IDS, bad, model, readings, scaled, severity, undeclared
from tests.probe.runs import readings as of_records
from tests.probe.runs import record, update


def shrunk(factor: float, **settings: float) -> nw.Transformer:
    made = model(12, 64, norm_eps=1e-8, **settings)
    with torch.no_grad():
        made.entry.embedding.weight.mul_(factor)
        made.entry.positions.weight.mul_(factor)
    return made


@pytest.mark.parametrize(("factor", "found"), [(1.0, "ok"), (0.1, "ok"), (0.02, "warn")])
def test_an_embedding_smaller_than_declared(factor: float, found: str) -> None:
    """The first branch has 0.07 of the declared entry: it is the larger one below a factor 0.07."""
    assert severity(CHECK, shrunk(factor)) == found


def test_the_growth_of_the_signal_shows_it_too() -> None:
    assert severity(signal_growth.CHECK, shrunk(0.02)) == "warn"


def test_branches_that_are_larger_by_design_are_silent() -> None:
    """Without a depth-scaled initialisation, a_0 of a wide model is above 1."""
    made = model(2, 512, init="normal", placement="peri_norm", heads=8)
    (_, first) = readings(CHECK, made)
    assert (first.severity, first.value) == ("ok", pytest.approx(1.0, abs=0.2))
    assert "a_0 is 3" in first.note


def test_without_a_prediction_it_is_told_of_alone() -> None:
    first = readings(CHECK, undeclared(shrunk(0.02)))[-1]
    assert (first.severity, first.value > 1.0) == ("info", True)
    assert not bad(readings(CHECK, scaled(shrunk(0.02), 1.0), IDS, stage="trained"))


@pytest.mark.parametrize(("settings", "found"), [
    ({}, "info"), ({"embedding_norm": True}, "ok"),
    ({"embedding_scale": "sqrt", "width": 256}, "ok"),
])  # fmt: skip
def test_a_small_entry_is_told_of(settings: dict[str, object], found: str) -> None:
    entry = readings(CHECK, model(**settings))[0]  # type: ignore[arg-type]
    assert (entry.severity, entry.layer) == (found, 0)


@pytest.mark.parametrize(("now", "found"), [(0.02, "ok"), (0.011, "ok"), (0.009, "warn")])
def test_an_embedding_that_has_lost_half(now: float, found: str) -> None:
    start, end = (
        record(step, updates=[update("embed", embedding=True, rms=rms), update("w", rms=1e-9)])
        for step, rms in ((0, 0.02), (100, now))
    )
    drift = of_records(CHECK, start, end)[-1]
    assert (drift.where, drift.severity) == ("embed", found)


def test_weight_decay_that_halves_the_embedding() -> None:
    made = model(2)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3, weight_decay=200.0)
    monitor = nw.Monitor(made, optimizer, every=1, checks=[CHECK.name])
    for _ in range(8):
        logits = made(IDS)
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss=loss)
    monitor.close()
    assert "entry.embedding.weight" in {one.where for _, one in monitor.alarms}
