"""Statistics of a channel over a batch, against float64."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from normwise.ops.batch import (
    batch_statistics,
    fused_batch_norm,
    quadratic_means,
    summed_over,
    without_padding,
)
from tests.tolerance import FLOAT64_OUTPUT, assert_close, output_tolerance

F32, BF16, F64 = torch.float32, torch.bfloat16, torch.float64
EPS = 1e-5
MASK = torch.arange(7) < torch.tensor([7, 5, 5, 2, 1]).unsqueeze(1)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = F32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype)


@pytest.fixture
def world() -> Iterator[object]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("dtype", [F32, BF16, F64])
@pytest.mark.parametrize("offset", [0.0, 100.0, 4e4, 1e6])
@pytest.mark.parametrize("axes", [(0,), (0, 1)])
@pytest.mark.parametrize("together", [False, True])
def test_statistics(
    dtype: torch.dtype, offset: float, axes: tuple[int, ...], world: object, *, together: bool
) -> None:
    """Deviations keep their digits beside a large mean, in this process and over several."""
    x = (offset + randn(5, 7, 3)).to(dtype)
    centred, found = batch_statistics(x, MASK, axes, world if together else None)
    valid, rows = MASK.unsqueeze(-1), x.double()
    count = valid.sum(axes, keepdim=True)
    mean = torch.where(valid, rows, 0).sum(axes, keepdim=True) / count
    deviation = torch.where(valid, rows - mean, 0)
    squares = deviation.square().sum(axes, keepdim=True)
    wide = F64 if dtype == F64 else F32
    assert (centred.dtype, found.variance.dtype) == (wide, wide)
    assert (found.count.dtype, found.mean.dtype, found.unbiased.dtype) == (F64, F64, F64)
    assert torch.equal(found.count, count.double().expand_as(found.count))
    size = deviation.abs().max().item()  # what the arithmetic rounds, once the mean is off
    allowed = output_tolerance(torch.tensor(size**2, dtype=F64), wide)
    for result, right in (
        (centred, deviation),
        (found.mean, mean),
        (found.variance, squares / count),
        (found.unbiased, squares / (count - 1).clamp(min=1)),
    ):
        assert_close(result, right, allowed)


def test_the_plain_variance_loses_them() -> None:
    """mean(x^2) - mean(x)^2 in fp32 has no digit of a variance of 1 beside a mean of 40000."""
    x = 4e4 + randn(35, 3)
    plain = x.square().mean(0) - x.mean(0).square()
    assert ((plain - x.double().var(0, correction=0)).abs() > 1.0).all()


@pytest.mark.parametrize("axes", [(0,), (0, 1)])
def test_nothing_valid(axes: tuple[int, ...]) -> None:
    """Mean, variance and deviations are 0, not 0/0."""
    x = torch.full((2, 3, 4), float("nan"))
    centred, found = batch_statistics(x, torch.zeros(2, 3, dtype=torch.bool), axes)
    for tensor in (centred, found.count, found.mean, found.variance, found.unbiased):
        assert not tensor.any()


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_fused(rows: int, dtype: torch.dtype, offset: float) -> None:
    """Output and statistics of torch's kernel, one row included."""
    x, gain, bias = offset + randn(rows, 3, dtype=dtype), randn(3, seed=1), randn(3, seed=2)
    gain, bias = gain.to(dtype), bias.to(dtype)
    y, found = fused_batch_norm(x, gain, bias, EPS)
    wide = x.double()
    deviation = wide - wide.mean(0)
    variance = deviation.square().mean(0)
    right = deviation / (variance + EPS).sqrt() * gain.double() + bias.double()
    assert_close(y, right, output_tolerance(right, dtype))
    assert torch.equal(found.count, torch.full((3,), float(rows), dtype=F64))
    allowed = output_tolerance(deviation.abs().amax(0).square(), dtype)
    assert_close(found.mean, wide.mean(0), allowed)
    assert_close(found.variance, variance, allowed)


def test_fused_with_memory_as_it_was_found() -> None:
    """What torch.empty holds, here NaN, is in no statistic."""
    torch.use_deterministic_algorithms(True)
    try:
        _, found = fused_batch_norm(randn(5, 3), None, None, EPS)
    finally:
        torch.use_deterministic_algorithms(False)
    assert found.mean.isfinite().all() and found.variance.isfinite().all()


def test_fused_statistics_have_no_gradient() -> None:
    y, found = fused_batch_norm(randn(5, 3).requires_grad_(), None, None, EPS)
    assert y.requires_grad
    assert not found.mean.requires_grad and not found.variance.requires_grad


@pytest.mark.parametrize("dtype", [F32, BF16, F64])
def test_quadratic_means(dtype: torch.dtype) -> None:
    """mean(x^2) over the valid, with NaN in the padding; 0 where nothing is valid."""
    x = (1 + randn(5, 7, 3)).to(dtype).masked_fill(~MASK.unsqueeze(-1), float("nan"))
    found = quadratic_means(x, MASK, (0, 1)).flatten()
    right = x.double()[MASK].square().mean(0)
    assert found.dtype == (F64 if dtype == F64 else F32)
    assert_close(found, right, output_tolerance(right, found.dtype))
    assert not quadratic_means(x, torch.zeros_like(MASK), (0, 1)).any()
    right = x.double()[:, 0].square().mean(0)
    assert_close(quadratic_means(x[:, :1], None, (0, 1)).flatten(), right, 1e-5)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_without_padding(dtype: torch.dtype) -> None:
    """A choice, not a product: NaN does not pass, forward or backward, and no dtype changes."""
    x = torch.ones(5, 7, 3, dtype=dtype).masked_fill(~MASK.unsqueeze(-1), float("nan"))
    y = without_padding(x.requires_grad_(), MASK)
    assert y.dtype == dtype
    assert torch.equal(y, MASK.unsqueeze(-1).expand(5, 7, 3).to(dtype))
    (dx,) = torch.autograd.grad(y, x, x.detach())
    assert torch.equal(dx, y)
    assert without_padding(x, None) is x


def test_a_sum_over_processes_has_its_derivatives(world: object) -> None:
    """First and second; over one process the sum is the value, and the input stays."""
    x = randn(3, dtype=F64).requires_grad_()
    assert torch.equal(summed_over(x, world), x)
    assert torch.autograd.gradcheck(lambda x: summed_over(x, world).pow(3), x)
    assert torch.autograd.gradgradcheck(lambda x: summed_over(x, world).pow(3), x)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_statistics_have_their_derivatives(world: object, *, masked: bool, together: bool) -> None:
    """Of deviations, mean and variance, first and second."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        group = world if together else None
        centred, found = batch_statistics(x, MASK[1:4, :3] if masked else None, (0, 1), group)
        return centred, found.mean, found.variance, found.unbiased

    x = randn(3, 3, 2, dtype=F64).requires_grad_()
    assert torch.autograd.gradcheck(f, x)
    assert torch.autograd.gradgradcheck(f, x)
    mean = f(x)[1].sum()
    (dx,) = torch.autograd.grad(mean, x)
    valid = MASK[1:4, :3].unsqueeze(-1).double() if masked else torch.ones(3, 3, 1, dtype=F64)
    assert_close(dx, (valid / valid.sum()).expand(x.shape), FLOAT64_OUTPUT)
