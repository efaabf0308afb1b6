"""What half precision does not hold, judged by the dtype that tensors have."""

import math
from typing import Any

import pytest
import torch

import normwise as nw
from normwise.probe.checks.precision_headroom import CHECK
from normwise.probe.findings import Reading, Unmeasured
from normwise.probe.preflight import check
from normwise.probe.record import Signal
from tests.probe.runs import output, point, readings, record, severity, stack, told, update

IDS = torch.randint(0, 256, (2, 48), generator=torch.Generator().manual_seed(0))
BF16 = 2.0**-8  # half a step of bf16 either way


def model(**settings: Any) -> nw.Transformer:
    return nw.Transformer(nw.TransformerConfig(depth=2, **settings), seed=0)


def measured(made: nw.Transformer, dtype: str, **options: Any) -> list[Reading]:
    return check(made, IDS, dtype=dtype, checks=[CHECK.name], **options).readings


def worst(found: list[Reading]) -> Reading:
    """The one that is not in order, and it alone."""
    (one,) = [one for one in found if one.severity != "ok"]
    return one


@pytest.mark.parametrize(
    ("bits", "found"), [(3.1, "ok"), (2.9, "warn"), (1.1, "warn"), (0.9, "fail")]
)
def test_a_stream_near_the_end_of_fp16(bits: float, found: str) -> None:
    largest = 65504.0 / 2.0**bits
    here = stack([point(dtype="float16"), point(largest=largest, dtype="float16")])
    (one,) = readings(CHECK, record(stacks=[here]))
    assert (one.value, one.severity) == (pytest.approx(bits), found)


def test_a_model_in_fp16_near_the_end() -> None:
    made = model()
    with torch.no_grad():
        made.entry.embedding.weight.mul_(16384.0 / made.entry.embedding.weight[IDS].abs().max())
    found = measured(made.half(), "fp16")
    assert {one.severity for one in found} == {"ok", "warn"}
    assert min(one.value for one in found) == pytest.approx(2.0, abs=0.01)


def test_what_overflowed_has_no_bits() -> None:
    for largest in (math.inf, math.nan):
        here = stack([point(), point()], branch=Signal(1.0, 0.0, 1.0, 3.0, largest, "float16"))
        assert severity(CHECK, record(stacks=[here])) == "fail"


@pytest.mark.parametrize(("factor", "found"), [(1.0, "ok"), (0.05, "ok"), (1e-3, "warn")])
def test_branches_that_a_stream_in_bf16_swallows(factor: float, found: str) -> None:
    """And that one in fp32 keeps, whose branches are in bf16 by autocast."""
    made = model(embedding_scale="sqrt")
    with torch.no_grad():
        made.layers[1].feed_forward.output.weight *= factor
        made.layers[1].feed_forward.output.bias *= factor
    assert all(one.severity == "ok" for one in measured(made, "bf16"))
    assert not any("sum" in one.where for one in measured(made, "bf16"))
    sums = [one for one in measured(made.bfloat16(), "bf16") if one.where.endswith("sum")]
    assert len(sums) == 4
    assert [one.severity for one in sums] == ["ok", "ok", "ok", found]
    assert (sums[3].value > 0.5) == (found == "warn")


def test_all_entries_below_the_limit_are_lost() -> None:
    """The share is a lower bound of what a sum in bf16 does not see."""
    generator = torch.Generator().manual_seed(0)
    h, f = (torch.randn(10_000, generator=generator).bfloat16() for _ in range(2))
    f = f * 2.0**-10
    below = f.abs() < 2.0**-9 * h.abs()
    lost = h + f == h
    assert bool(lost[below].all())
    assert 0.5 < float(below.float().mean()) < float(lost.float().mean())


@pytest.mark.parametrize(
    ("rate", "found"), [(1e-3, "ok"), (1e-4, "ok"), (1e-6, "warn")]
)  # fmt: skip
def test_steps_that_weights_in_bf16_do_not_see(rate: float, found: str) -> None:
    made = model().bfloat16()
    told = measured(made, "bf16", optimizer=torch.optim.AdamW(made.parameters(), lr=rate))
    steps = [one for one in told if one.where.endswith("weights")]
    assert {one.severity for one in steps} == {found}
    assert [one.layer for one in steps] == [0, 1, None]
    whole = model()
    optimizer = torch.optim.AdamW(whole.parameters(), lr=rate)
    assert all(one.severity == "ok" for one in measured(whole, "bf16", optimizer=optimizer))


def test_gains_embeddings_and_a_warm_up_do_not_count() -> None:
    still = {"vanishing": 1.0, "dtype": "bfloat16"}
    others = [update(matrix=False, **still), update(embedding=True, **still)]
    assert isinstance(told(CHECK, record(updates=others))[0], Unmeasured)
    moved = record(150, updates=[update(**still)])
    assert severity(CHECK, moved, warmup=100) == "warn"
    assert isinstance(told(CHECK, moved, warmup=200)[0], Unmeasured)


@pytest.mark.parametrize(
    ("wanted", "found"), [(60.0, "ok"), (70.0, "warn"), (250.0, "warn"), (260.0, "fail")]
)
def test_logits_in_bf16(wanted: float, found: str) -> None:
    made = model()
    with torch.no_grad():
        made.head.weight *= wanted / made(IDS).abs().max()
    one = next(one for one in measured(made, "bf16") if one.where == "the output logits")
    assert one.value == pytest.approx(wanted, rel=0.02)  # of products in bf16
    assert one.severity == found
    assert isinstance(check(made, IDS, checks=[CHECK.name]).unmeasured[0], Unmeasured)


def test_spacing_of_bf16_at_the_limits() -> None:
    for limit, step in ((64.0, 0.5), (256.0, 2.0)):
        here = torch.tensor(limit).bfloat16()
        assert float(torch.nextafter(here, torch.tensor(math.inf).bfloat16()) - here) == step


def test_logits_in_fp16_have_their_range() -> None:
    logits = record(output=output(40_000.0, dtype="float16"))
    assert worst(readings(CHECK, logits)).severity == "fail"
