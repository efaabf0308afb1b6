"""Adam's eps beside the gradients."""

from dataclasses import replace

import pytest
import torch

import normwise as nw
from normwise.probe.checks.adam_eps_floor import CHECK
from normwise.probe.findings import Reading, Unmeasured
from normwise.probe.preflight import check
from normwise.probe.updates import UpdateWatch
from tests.probe.runs import readings, record, told, update

IDS = torch.randint(0, 256, (2, 48), generator=torch.Generator().manual_seed(0))
FP32 = 1e-5  # sums of 4096 squares


def measured(eps: float, loss_factor: float = 1.0) -> list[Reading]:
    """As of a training, at whose first step this is."""
    made = nw.Transformer(nw.TransformerConfig(depth=2), seed=0)
    optimizer = torch.optim.AdamW(made.parameters(), eps=eps)
    cross = torch.nn.functional.cross_entropy
    result = check(
        made, IDS, lambda out, ids: loss_factor * cross(out[:, :-1].flatten(0, 1),
                                                        ids[:, 1:].flatten()),
        optimizer, checks=[CHECK.name],
    )  # fmt: skip
    return readings(CHECK, replace(result.record, stage="training"))


@pytest.fixture(scope="module")
def healthy() -> list[Reading]:
    return measured(1e-8)


def test_the_usual_eps_is_far_below(healthy: list[Reading]) -> None:
    assert {one.severity for one in healthy} == {"ok"}
    assert [one.layer for one in healthy] == [0, 1, None, None, None]


@pytest.mark.parametrize(
    ("e", "found"), [(12.0, "ok"), (8.0, "warn"), (1.2, "warn"), (0.8, "fail")]
)
@pytest.mark.parametrize("knob", ["eps", "loss"])
def test_a_gradient_near_eps(healthy: list[Reading], knob: str, e: float, found: str) -> None:
    first = healthy[0].value
    told = measured(1e-8 * first / e) if knob == "eps" else measured(1e-8, e / first)
    one = told[0]
    assert one.value == pytest.approx(e, rel=FP32)
    assert (one.severity, one.layer) == (found, 0)


def test_small_gradients_of_queries_and_keys_do_not_count() -> None:
    """While logits are small theirs are: 5e-9 in a healthy training."""
    floors = {"query": 0.5, "key": 0.5, "value": 5e3, "output": 8e3, "inner": 6e3, "outer": 2e4}
    some = [update(f"layers.0.{name}.weight", floor=floor) for name, floor in floors.items()]
    (one,) = readings(CHECK, record(updates=some))
    assert (one.value, one.severity) == (6e3, "ok")
    assert "Least in layers.0.query.weight: 0.5" in one.note


def test_vectors_and_tensors_without_gradient_are_left_out() -> None:
    some = [update(matrix=False, floor=1e-5), update(gradient=None, floor=None)]
    assert isinstance(told(CHECK, record(updates=some))[0], Unmeasured)
    made = nw.Transformer(nw.TransformerConfig(depth=2), seed=0)
    sgd = torch.optim.SGD(made.parameters(), lr=0.1)
    result = check(made, IDS, optimizer=sgd, checks=[CHECK.name])
    assert "no optimizer with an eps" in result.unmeasured[0].why


def test_rows_of_tokens_that_did_not_occur_do_not_count() -> None:
    """Two rows of 256 have a gradient of 2 eps: e is 2, and not 2 sqrt(2/256)."""
    embedding = torch.nn.Embedding(256, 8)
    optimizer = torch.optim.AdamW(embedding.parameters(), eps=1e-3)
    watch = UpdateWatch(embedding, optimizer)
    watch.before()
    (embedding(torch.tensor([3, 7])) * 2e-3).sum().backward()
    optimizer.step()
    watch.after()
    assert watch.rows is not None
    (one,) = watch.read(watch.rows.tolist())
    assert one.floor == pytest.approx(2.0, rel=FP32)


def test_branches_that_begin_as_nothing_are_no_fault() -> None:
    """LayerScale's first gradients are a hundredth of eps (0.04 at 12 layers), by design."""
    config = nw.TransformerConfig(depth=12, placement="layer_scale")
    model = nw.Transformer(config, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(0))
    result = nw.check(model, batch, optimizer=optimizer, checks=["adam-eps-floor"])
    assert {one.severity for one in result.readings} == {"ok", "info"}
