"""Tokens that are all alike behind the last layer."""

import math
from dataclasses import replace

import pytest
import torch

import normwise as nw
from normwise.probe.checks.registry import CHECKS
from normwise.probe.checks.token_collapse import CHECK
from normwise.probe.findings import Reading, Unmeasured
from normwise.probe.preflight import check
from tests.probe.runs import point, record, stack, told

IDS = torch.randint(0, 256, (2, 48), generator=torch.Generator().manual_seed(0))
FP32 = 1e-4  # a sum over 48^2 pairs as a difference of two squares


def model(shared: float = 0.0, **settings: object) -> nw.Transformer:
    """One whose tokens have an entry in common, of a size beside their own."""
    made = nw.Transformer(nw.TransformerConfig(depth=2, positions="none", **settings), seed=0)
    with torch.no_grad():
        weight = made.entry.embedding.weight
        weight += shared * weight.square().mean().sqrt()
    return made


def measured(made: nw.Transformer) -> list[Reading]:
    return check(made, IDS, checks=[CHECK.name]).readings


@pytest.mark.parametrize(("shared", "found"), [(0.0, "ok"), (2.0, "ok"), (8.0, "warn")])
def test_what_all_tokens_share(shared: float, found: str) -> None:
    """Their mean cosine is s^2/(1 + s^2) where the tokens differ: 0.8 and 0.98."""
    entry, last = measured(model(shared))
    assert entry.value == pytest.approx(shared**2 / (1.0 + shared**2), abs=0.03)
    assert last.severity == found
    assert entry.severity == ("info" if found == "warn" else "ok")


def test_the_cosine_is_that_of_all_pairs() -> None:
    made = model(1.0)
    with torch.no_grad():
        x = made.entry(IDS, None).double()
    pairs = (x @ x.mT).flatten(1).sum() - x.square().sum()
    wanted = pairs / (2 * 48 * 47) / x.square().sum(-1).mean()
    assert measured(made)[0].value == pytest.approx(float(wanted), rel=FP32)


def test_it_is_asked_only_by_name() -> None:
    assert not CHECKS["token-collapse"].default
    assert "token-collapse" not in check(model(), IDS).checks


def test_what_was_not_seen_is_not_measured() -> None:
    blind = replace(stack([None, point(0.0)]), overlap=1.0, overlap_last=1.0)
    assert all(isinstance(one, Unmeasured) for one in told(CHECK, record(stacks=[blind])))
    unknown = replace(stack(), overlap=0.0, overlap_last=math.nan)
    entry, last = told(CHECK, record(stacks=[unknown]))
    assert isinstance(entry, Reading)
    assert isinstance(last, Unmeasured)
