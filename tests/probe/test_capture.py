"""Streams and branches as tensors, and the angle between them."""

import math
from itertools import pairwise

import pytest
import torch

from normwise.model.config import TransformerConfig, reference_config
from normwise.model.transformer import Transformer
from normwise.probe.capture import angular_distance, capture
from normwise.residual.registry import PLACEMENTS

LAYERS = (1, 2, 4, 8, 16, 32)
# of model r1, 32 layers, between the streams before and after layer 1, 2, 4 ...; one seed
DISTANCES = {
    "pre_norm": (0.219, 0.192, 0.148, 0.114, 0.076, 0.059),
    "depth_scaled_norm": (0.219, 0.141, 0.093, 0.059, 0.038, 0.027),
    "peri_norm": (0.306, 0.210, 0.151, 0.114, 0.075, 0.054),
}


def distances(placement: str, depth: int = 32) -> list[float]:
    """Between neighbouring layers."""
    model = Transformer(reference_config("r1", depth=depth, placement=placement), seed=0)
    x = torch.randn(1, 32, 128, generator=torch.Generator().manual_seed(50))
    with torch.no_grad(), capture(model) as seen:
        model(inputs_embeds=x)
    ends = seen.stream[::2]
    return [angular_distance(a, b) for a, b in pairwise(ends)]


@pytest.mark.parametrize("placement", DISTANCES)
def test_angles_between_layers_fall_as_in_the_table(placement: str) -> None:
    found = distances(placement)
    for layer, expected in zip(LAYERS, DISTANCES[placement], strict=True):
        assert found[layer - 1] == pytest.approx(expected, rel=0.15)


def test_angles_of_post_norm_stay() -> None:
    assert all(0.2 < found < 0.35 for found in distances("post_norm"))


@pytest.mark.parametrize(("placement", "expected"), [("deep_norm", 0.006), ("keel", 0.004)])
def test_angles_of_scaled_skips_are_small(placement: str, expected: float) -> None:
    """From the second layer on."""
    assert distances(placement)[1:] == pytest.approx([expected] * 31, rel=0.3)


def test_a_pre_norm_stack_walks_at_random() -> None:
    """1 - cos falls like 1/l, whatever is in the branches."""
    found = distances("pre_norm")
    shares = [(1 - math.cos(math.pi * found[layer - 1])) * layer for layer in (4, 8, 16, 32)]
    assert max(shares) < 1.7 * min(shares)


@pytest.mark.filterwarnings("ignore::normwise.errors.PairingWarning")
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_point_is_kept(placement: str) -> None:
    model = Transformer(TransformerConfig(depth=2, width=8, heads=2, placement=placement), seed=0)
    tokens = torch.arange(10).reshape(2, 5)
    plain = model(tokens)
    with capture(model) as seen:
        model(tokens)
        assert torch.equal(model(tokens), plain)
    assert len(seen.stream) == 5
    assert len(seen.branch) == 4
    assert all(x.shape == (2, 5, 8) and not x.requires_grad for x in seen.stream + seen.branch)
    model(tokens)
    assert len(seen.stream) == 5


def test_the_stream_is_the_sum_of_its_branches() -> None:
    model = Transformer(TransformerConfig(depth=2, width=8, heads=2), seed=0)
    with capture(model) as seen:
        model(torch.arange(5)[None])
    torch.testing.assert_close(seen.stream[-1], seen.stream[0] + sum(seen.branch))


def test_the_angle_itself() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    y = torch.tensor([[0.0, 2.0], [-3.0, 0.0]])
    assert angular_distance(x, y) == pytest.approx((0.5 + 1.0) / 2)
    assert angular_distance(x, 5 * x) == pytest.approx(0.0, abs=1e-9)
