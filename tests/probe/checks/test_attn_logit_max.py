"""Attention logits: the largest one is found, a mask's is not, and growth is seen."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import normwise as nw
from normwise.probe.attention import AttentionWatch
from normwise.probe.checks.attn_logit_max import CHECK
from normwise.probe.findings import Reading
from normwise.probe.preflight import check
from normwise.probe.tally import Tally
from tests.probe.runs import attention, readings, record, severity

IDS = torch.randint(0, 256, (2, 48), generator=torch.Generator().manual_seed(0))
FP32 = 1e-5  # a product of two sums over 64 channels, in another order


def model(**settings: object) -> nw.Transformer:
    return nw.Transformer(nw.TransformerConfig(depth=2, bias=False, **settings), seed=0)


def by_hand(made: nw.Transformer) -> float:
    """S of layer 0, every pair computed."""
    seen: list[Tensor] = []
    layer = made.layers[0].attention
    hook = layer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        made(IDS)
        hook.remove()
        logits = layer.logits(seen[0]).double()
    past = torch.ones(48, 48).tril().bool()
    return float(logits.abs().masked_fill(~past, 0.0).max())


def measured(made: nw.Transformer) -> Reading:
    return check(made, IDS, checks=[CHECK.name]).readings[0]


@pytest.mark.parametrize(
    ("wanted", "found"), [(50.0, "ok"), (500.0, "info"), (5e3, "warn"), (2e4, "fail")]
)
def test_queries_and_keys_that_are_too_large(wanted: float, found: str) -> None:
    made = model()
    factor = math.sqrt(wanted / by_hand(made))
    with torch.no_grad():
        made.layers[0].attention.query.weight *= factor
        made.layers[0].attention.key.weight *= factor
    one = measured(made)
    assert one.value == pytest.approx(by_hand(made), rel=FP32)
    assert one.value == pytest.approx(wanted, rel=FP32)
    assert (one.severity, one.layer, one.where) == (found, 0, "layer 0 attention")
    assert (one.remedy is None) == (found == "ok")


def test_query_key_norms_keep_them_small() -> None:
    made = model(query_key_norm="head")
    with torch.no_grad():
        made.layers[0].attention.query.weight *= 100.0
        made.layers[0].attention.key.weight *= 100.0
    one = measured(made)
    assert one.severity == "ok"
    assert one.value <= math.sqrt(16.0) * (1.0 + FP32)  # by Cauchy and Schwarz: a head is 16 wide


def watched(call: str, query: int, key: int, dtype: torch.dtype = torch.float32) -> float:
    """S of random queries and keys with one pair of logit 4096, in an attention that masks the
    future in the way `call`.
    """
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(1, 1, 100, 64, generator=generator) for _ in range(2))
    q[..., query, :] = k[..., key, :] = 0.0
    q[..., query, 0], k[..., key, 0] = 64.0, 512.0
    q[..., :query, 0] = q[..., query + 1 :, 0] = 0.0
    q, k = q.to(dtype), k.to(dtype)
    past = torch.ones(100, 100).tril().bool()
    added = torch.zeros(100, 100, dtype=dtype).masked_fill(~past, torch.finfo(dtype).min)
    tally = Tally(torch.device("cpu"))
    with AttentionWatch(tally, exact=True):
        if call == "causal":
            F.scaled_dot_product_attention(q, k, k, is_causal=True)
        elif call == "boolean":
            F.scaled_dot_product_attention(q, k, k, attn_mask=past)
        elif call == "added":
            F.scaled_dot_product_attention(q, k, k, attn_mask=added[None, None])
        else:  # models add a mask in half precision and take the softmax in fp32
            (q @ k.mT / 8.0 + added).float().softmax(-1)
    return float(tally.maxima["logit", 0].max())


CALLS = [
    *((call, torch.float32) for call in ("causal", "boolean", "added", "given")),
    ("added", torch.bfloat16), ("given", torch.bfloat16), ("added", torch.float16),
    ("given", torch.float16),
]  # fmt: skip


@pytest.mark.parametrize(("call", "dtype"), CALLS)
@pytest.mark.parametrize(("query", "key"), [(37, 11), (99, 98), (5, 5)])
def test_one_hot_pair_is_seen_wherever_it_is(
    call: str, dtype: torch.dtype, query: int, key: int
) -> None:
    assert watched(call, query, key, dtype) == 4096.0


@pytest.mark.parametrize(("call", "dtype"), CALLS)
def test_a_masked_pair_does_not_count(call: str, dtype: torch.dtype) -> None:
    assert watched(call, 11, 37, dtype) < 20.0  # the others reach 17.6


def test_a_bound_alone_fails_no_model() -> None:
    some = attention([20.0], bound=[2e4], exact=False)
    (one,) = readings(CHECK, record(attentions=[some]))
    assert (one.severity, "unknown" in one.note) == ("info", True)
    (one,) = readings(CHECK, record(attentions=[attention([20.0], bound=[900.0], exact=False)]))
    assert (one.severity, "unknown" in one.note) == ("ok", False)
    (one,) = readings(CHECK, record(attentions=[attention([2e3], bound=[2e4], exact=False)]))
    assert (one.severity, "unknown" in one.note) == ("warn", False)


def test_logits_that_are_no_numbers_fail() -> None:
    assert severity(CHECK, record(attentions=[attention([1.0, math.nan])])) == "fail"


def test_two_attentions_of_a_layer_are_told_apart() -> None:
    """Of a decoder that also looks at an encoder."""
    both = record(attentions=[attention([1.0]), attention([2.0]), attention([3.0], layer=1)])
    assert [one.where for one in readings(CHECK, both)] == [
        "layer 0 attention 1", "layer 0 attention 2", "layer 1 attention",
    ]  # fmt: skip


def grown(start: float, per_step: float, steps: int | None) -> list[Reading]:
    """Readings at step 500 of a training whose S grows by e^per_step at a step."""
    sizes = [(at, start * math.exp(per_step * (at - 500))) for at in range(0, 501, 50)]
    return readings(
        CHECK, *(record(at, attentions=[attention([size])]) for at, size in sizes), steps=steps
    )  # fmt: skip


def test_growth_that_would_pass_1e4_is_a_warning() -> None:
    now, ahead = grown(500.0, 0.01, 800)  # 500 e^3 at the end
    assert (now.severity, ahead.severity) == ("info", "warn")
    assert ahead.value == pytest.approx(500.0 * math.exp(3.0), rel=1e-9)
    assert "10 per 1000 steps" in ahead.note
    assert grown(500.0, 0.01, 790)[1].severity == "ok"  # 500 e^2.9 is 9087


def test_growth_is_not_extended_beyond_what_was_seen() -> None:
    ahead = grown(500.0, 0.001, 100_000)[1]  # to step 1000
    assert ahead.value == pytest.approx(500.0 * math.exp(0.5), rel=1e-9)
    assert ahead.severity == "ok"


def test_logits_that_overflowed_have_no_trend() -> None:
    sizes = [200.0] * 10 + [math.inf]
    records = [record(50 * at, attentions=[attention([size])]) for at, size in enumerate(sizes)]
    assert [one.severity for one in readings(CHECK, *records, steps=800)] == ["fail"]
    records.append(record(550, attentions=[attention([200.0])]))
    assert [one.severity for one in readings(CHECK, *records, steps=800)] == ["info", "ok"]


def test_small_logits_may_grow_fast() -> None:
    assert [one.severity for one in grown(90.0, 0.02, 1000)] == ["ok"]


def test_without_an_end_or_enough_records_there_is_no_trend() -> None:
    assert len(grown(500.0, 0.01, None)) == 1
    few = [record(at, attentions=[attention([500.0])]) for at in (300, 400, 500)]
    assert len(readings(CHECK, *few, steps=800)) == 1
