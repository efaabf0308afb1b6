"""Entropy of attention: heads that collapse are found, sinks and specialists are not."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from normwise.probe.attention import AttentionWatch
from normwise.probe.checks.attn_entropy import CHECK
from normwise.probe.findings import Unmeasured
from normwise.probe.record import Attention
from normwise.probe.tally import Tally
from tests.probe.runs import attention, readings, record, severity, told


def weighed(logits: Tensor) -> list[float]:
    """Entropies by head of logits (1, H, T, T), and the share of queries that were skipped."""
    tally = Tally(torch.device("cpu"))
    with AttentionWatch(tally, exact=True):
        F.softmax(logits, dim=-1)
    *both, skipped = tally.sums["entropy", 0].tolist()
    heads = logits.shape[1]
    entropy = [
        one / count if count else math.nan
        for one, count in zip(both[:heads], both[heads:], strict=True)
    ]
    return [*entropy, skipped]


def drawn(scale: float) -> Tensor:
    """q.k of normal queries and keys times a factor, two heads, 40 tokens."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, 40, 16, generator=generator) for _ in range(2))
    return scale * q @ k.mT / 4.0


def scaled(*scales: float) -> list[Attention]:
    """Attentions of recorded steps, whose logits grow."""
    return [attention([1.0, 1.0], entropy=weighed(drawn(scale))[:2]) for scale in scales]


def run_of(attentions: list[Attention]) -> list[object]:
    return [record(50 * at, attentions=[one]) for at, one in enumerate(attentions)]


def test_heads_that_collapse_while_the_training_runs() -> None:
    assert severity(CHECK, *run_of(scaled(1.0, 2.0, 4.0, 8.0))) == "ok"
    found = readings(CHECK, *run_of(scaled(1.0, 10.0, 20.0, 30.0)))
    assert [one.severity for one in found] == ["warn", "ok"]
    assert (found[0].value, found[0].layer) == (1.0, 0)
    assert 0.02 < found[1].value < 0.05
    found = readings(CHECK, *run_of(scaled(1.0, 10.0, 30.0, 100.0)))
    assert [one.severity for one in found] == ["warn", "fail"]
    assert found[1].value < 0.02


def test_one_head_of_four_may() -> None:
    fallen = [[0.9, 0.9, 0.9, 0.9 * 0.3**at] for at in range(4)]
    four = [attention([1.0] * 4, entropy=one) for one in fallen]
    assert severity(CHECK, *run_of(four)) == "ok"
    two = [attention([1.0] * 4, entropy=[*one[:2], one[3], one[3]]) for one in fallen]
    assert severity(CHECK, *run_of(two)) == "warn"


def test_heads_that_do_not_fall_are_only_told() -> None:
    steady = [attention([1.0, 1.0], entropy=[0.04, 0.9])] * 4
    (heads, _) = readings(CHECK, *run_of(steady))
    assert (heads.severity, "not falling" in heads.note) == ("info", True)
    few = [attention([1.0, 1.0], entropy=[e, 0.9]) for e in (0.5, 0.04)]
    assert severity(CHECK, *run_of(few)) == "info"  # two records are no trend


def test_a_sink_is_no_collapse() -> None:
    plain = drawn(1.0)
    sink = plain.clone()
    sink[..., 0] += 9.0
    weights = sink.softmax(-1)
    with_sink = -torch.xlogy(weights, weights).sum(-1).mean() / math.log(40)
    assert float(with_sink) < 0.05  # with the first key it looks collapsed
    assert weighed(sink) == pytest.approx(weighed(plain), abs=1e-5)
    assert weighed(sink)[2] == 0.0


def test_rows_with_nothing_but_the_sink_are_skipped_and_counted() -> None:
    sink = drawn(1.0)
    sink[:, 0, :, 0] += 30.0
    first, second, skipped = weighed(sink)
    assert math.isnan(first)
    assert second == pytest.approx(weighed(drawn(1.0))[1], abs=1e-6)
    assert skipped == 40.0


def test_without_a_single_head_it_is_not_measured() -> None:
    (one,) = told(CHECK, record(attentions=[attention([1.0], entropy=[math.nan])]))
    assert isinstance(one, Unmeasured)


def test_entropy_is_that_over_ln_n() -> None:
    even = torch.zeros(1, 1, 40, 40)
    assert weighed(even)[0] == pytest.approx(1.0, abs=1e-6)
    half = torch.zeros(1, 1, 40, 41).index_fill(-1, torch.arange(21, 41), -50.0)
    assert weighed(half)[0] == pytest.approx(math.log(20) / math.log(40), abs=1e-6)
