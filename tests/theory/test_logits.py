"""Bounds of logits and entropy, with the inputs that reach them."""

import math

import pytest
import torch

from normwise.theory.logits import largest_logit, least_entropy
from tests.tolerance import FLOAT64_OUTPUT


def test_a_query_and_a_key_of_one_direction_reach_the_largest_logit() -> None:
    """8 for a head of 64 channels with gains 1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 64, generator=generator, dtype=torch.float64)
    unit = x / x.square().mean(-1, keepdim=True).sqrt()
    logits = (unit @ unit.T).abs() / 8.0
    assert largest_logit(64) == 8.0
    assert logits.max().item() == pytest.approx(8.0, rel=1e-12)
    assert logits.fill_diagonal_(0.0).max() < 8.0
    assert largest_logit(64, 2.0, 0.5) == 8.0
    assert largest_logit(16, 3.0) == 12.0


# norms.md, section 10
@pytest.mark.parametrize(("size", "expected"), [(1, 4.1437), (4, 2.8785), (10, 0.0292)])
def test_least_entropy(size: float, expected: float) -> None:
    keys = 64
    assert least_entropy(size, keys) == pytest.approx(expected, abs=5e-5)
    worst = torch.full((keys,), -size / math.sqrt(keys * (keys - 1)), dtype=torch.float64)
    worst[0] = size * math.sqrt((keys - 1) / keys)
    assert worst.norm().item() == pytest.approx(size, rel=1e-12)
    assert entropy(worst) == pytest.approx(least_entropy(size, keys), abs=FLOAT64_OUTPUT)
    generator = torch.Generator().manual_seed(1)
    others = torch.randn(1000, keys, generator=generator, dtype=torch.float64)
    others = size * others / others.norm(dim=-1, keepdim=True)
    assert all(entropy(row) > least_entropy(size, keys) for row in others)


def entropy(logits: torch.Tensor) -> float:
    shares = torch.softmax(logits, -1)
    return float(-(shares * shares.log()).sum())
