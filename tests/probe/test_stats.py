"""Mean squares: one pass, many parts, merged."""

import math

import pytest
import torch

from normwise.probe.stats import MeanSquare


def of(*parts: torch.Tensor) -> MeanSquare:
    seen = MeanSquare()
    for part in parts:
        seen.add(part)
    return seen


def test_rms_is_the_root_of_the_mean_square() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, -5.0]])
    assert of(x).rms == math.sqrt((9 + 16 + 25) / 4)


@pytest.mark.parametrize("cuts", [[1], [3, 50], [1, 2, 3, 4]])
def test_merging_parts_equals_one_pass(cuts: list[int]) -> None:
    """Small integers have exact squares and sums, so nothing but the same number will do."""
    x = torch.randint(-9, 9, (64, 5), generator=torch.Generator().manual_seed(0)).float()
    whole, merged = of(x), MeanSquare()
    for part in x.tensor_split(cuts):
        merged.merge(of(part))
    assert merged == whole == of(*x.tensor_split(cuts))
    assert merged.rms == whole.rms


def test_merging_an_empty_one_changes_nothing() -> None:
    seen = of(torch.ones(3))
    seen.merge(MeanSquare())
    assert seen == of(torch.ones(3))


def test_nothing_seen_is_nan() -> None:
    assert math.isnan(MeanSquare().rms)
    assert math.isnan(of(torch.empty(0, 4)).rms)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_squares_are_taken_in_float64(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max if dtype != torch.float64 else 1e150
    x = torch.full((1000,), largest, dtype=dtype)
    assert of(x).rms == pytest.approx(x[0].item(), rel=1e-12)


def test_a_tensor_with_a_graph_is_only_read() -> None:
    x = torch.ones(3, requires_grad=True)
    seen = of(x * 2)
    assert seen == MeanSquare(count=3, total=12.0)
    assert isinstance(seen.total, float)
