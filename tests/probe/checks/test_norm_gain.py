"""Gains of norms."""

import math

import pytest
import torch
from transformers import GemmaConfig, GemmaForCausalLM

import normwise as nw
from normwise.probe.checks.norm_gain import CHECK
from normwise.probe.checks.registry import CHECKS
from normwise.probe.findings import Reading
from normwise.probe.preflight import check
from normwise.probe.record import Norm
from tests.probe.runs import readings, record

IDS = torch.randint(0, 99, (2, 48), generator=torch.Generator().manual_seed(0))


def measured(values: list[float]) -> list[Reading]:
    """Readings of the norm before layer 0, whose gain begins with these values."""
    made = nw.Transformer(nw.TransformerConfig(depth=2), seed=0)
    with torch.no_grad():
        made.placement.connections[0].norm.weight[: len(values)] = torch.tensor(values)
    return check(made, IDS, checks=[CHECK.name]).readings[:2]


@pytest.mark.parametrize(
    ("largest", "found"), [(1.0, "ok"), (9.0, "ok"), (11.0, "warn"), (-11.0, "warn")]
)
def test_one_large_gain(largest: float, found: str) -> None:
    spread, off = measured([largest])
    assert (spread.value, spread.severity, spread.layer) == (abs(largest), found, 0)
    assert (off.value, off.severity) == (0.0, "ok")


@pytest.mark.parametrize(("count", "found"), [(0, "ok"), (31, "ok"), (33, "warn")])
def test_channels_that_are_switched_off(count: int, found: str) -> None:
    _, off = measured([0.005] * count)
    assert (off.value, off.severity) == (count / 64, found)


def test_a_gain_of_one_plus_weight() -> None:
    """Its weights are zero at first, and its gain is 1."""
    config = GemmaConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    made = GemmaForCausalLM(config)
    assert float(made.model.norm.weight.detach().abs().max()) == 0.0
    found = check(made, IDS, checks=[CHECK.name]).readings
    assert {(one.value, one.severity) for one in found} == {(1.0, "ok"), (0.0, "ok")}


def test_a_norm_without_a_gain_gives_nothing() -> None:
    made = nw.Transformer(nw.TransformerConfig(depth=2, affine=False), seed=0)
    assert check(made, IDS, checks=[CHECK.name]).readings == []


def test_gains_that_are_half_zero_have_no_median() -> None:
    zero = Norm("n", "pre", 0, "rms_norm", 1e-5, "", gain_largest=1.0, gain_median=0.0,
                gain_small=0.6)  # fmt: skip
    spread, off = readings(CHECK, record(norms=[zero]))
    assert (spread.value, off.severity) == (math.inf, "warn")


def test_it_is_asked_only_by_name() -> None:
    assert not CHECKS["norm-gain"].default
