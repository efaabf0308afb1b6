"""Forward numerics against float64, one test a required case (P01-P15) and norms.md section 2."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import normwise as nw
from tests.ops import formulas
from tests.tolerance import (
    assert_close,
    gradient_tolerance,
    output_tolerance,
    sum_tolerance,
    weight_tolerance,
)

pytestmark = pytest.mark.usefixtures("backend")
OPS: dict[str, Callable[..., Tensor]] = {"layer_norm": nw.layer_norm, "rms_norm": nw.rms_norm}
both = pytest.mark.parametrize("name", list(OPS))
HALVES = [torch.float16, torch.bfloat16]
DTYPES = [torch.float32, *HALVES, torch.float64]
WIDTHS = [1, 2, 3, 31, 33, 1600, 4097]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(name: str, x: Tensor, *, eps: float, bound: float = 2e-6, **affine: Tensor) -> None:
    """Output in shape, dtype and value."""
    y = OPS[name](x, x.shape[-1], eps=eps, **affine)
    truth = formulas.FORMULAS[name](
        x.double(), *(formulas.wide(affine.get(key)) for key in ("weight", "bias")), eps=eps
    )
    assert y.dtype == x.dtype
    assert_close(y, truth, output_tolerance(truth, x.dtype, bound))


def check_gradients(name: str, x: Tensor, *, eps: float, seed: int = 1) -> None:
    """dx, dw and db for a random incoming gradient."""
    width = x.shape[-1]
    dy = randn(*x.shape, seed=seed).to(x.dtype)
    x = x.detach().requires_grad_()
    weight, bias = (randn(width, seed=seed + k).requires_grad_() for k in (1, 2))
    y = OPS[name](x, width, weight=weight, bias=bias, eps=eps)
    dx, dw, db = torch.autograd.grad(y, (x, weight, bias), dy)
    truth = formulas.expected(name, x, weight, bias, dy=dy, eps=eps)
    assert_close(dx, truth.dx, gradient_tolerance(truth.dx, truth.dx_size, x.dtype))
    assert_close(dw, truth.dw, weight_tolerance(truth.dw_terms, truth.db_terms, dw.dtype))
    assert_close(db, truth.db, sum_tolerance(truth.db_terms, db.dtype))


# pytorch#162489, pytorch PR#178123
@both
@pytest.mark.parametrize("scale", [1e19, 1e30, 8e37])
@pytest.mark.parametrize("width", [3, 4, 32, 33, 100, 4096])
def test_P01_large_fp32(name: str, scale: float, width: int) -> None:
    """P01: squares that leave fp32 do not reach the result."""
    rows = torch.stack([torch.linspace(1, 4, width), 8 * torch.rand(
        width, generator=torch.Generator().manual_seed(width)) - 4])  # fmt: skip
    x = rows * scale
    check(name, x, eps=1e-5)
    check_gradients(name, x, eps=1e-5)


def test_P01_worked_row() -> None:
    """P01: the reported row, and the textbook line in fp32 as the fault."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]) * 1e30
    right = torch.tensor([-1.341641, -0.447214, 0.447214, 1.341641], dtype=torch.float64)
    assert_close(nw.layer_norm(x, 4), right, 2e-6)
    centred = x - x.mean()
    with pytest.raises(AssertionError):
        assert_close(centred / (centred.square().mean() + 1e-5).sqrt(), right, 2e-6)


@both
@pytest.mark.parametrize("scale", [1e-36, 1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e20, 1e30])
@pytest.mark.parametrize("width", [3, 33, 4096])
def test_P01_scales_without_eps(name: str, scale: float, width: int) -> None:
    """P01: with eps 0 the size of a row does not matter, small or large (kernels.md 3.2)."""
    check(name, randn(2, width) * scale, eps=0.0)


@both
@pytest.mark.parametrize("power", [-90, -3, 0, 40, 120])
def test_P01_powers_of_two_change_no_bit(name: str, power: int) -> None:
    """P01: multiplying by a power of two is exact, so without eps the result keeps every bit."""
    x = randn(4, 33)
    assert torch.equal(OPS[name](x * 2.0**power, 33, eps=0.0), OPS[name](x, 33, eps=0.0))


# pytorch PR#133085; onnxruntime#29034; facebookresearch/ConvNeXt#80
@pytest.mark.parametrize("value", [300.0, 60000.0, 65504.0])
@pytest.mark.parametrize("width", [3, 8, 33, 4096])
def test_P02_rms_of_large_halves(value: float, width: int) -> None:
    """P02: x^2 leaves fp16, the result does not."""
    x = torch.full((width,), value, dtype=torch.float16)
    assert torch.equal(nw.rms_norm(x, width, eps=1e-6), torch.ones_like(x))
    with pytest.raises(AssertionError):
        narrow = x * torch.rsqrt(x.pow(2).mean() + 1e-6)
        assert_close(narrow, torch.ones(width, dtype=torch.float64), 1e-3)


@both
@pytest.mark.parametrize("dtype", HALVES)
def test_P02_maximum_of_the_dtype(name: str, dtype: torch.dtype) -> None:
    """P02: rows that hold the largest finite halves of both signs."""
    top = torch.finfo(dtype).max
    x = torch.tensor([[top, -top, top, 0.0], [top, top, -top, -top]], dtype=dtype)
    check(name, x, eps=1e-5)


def test_P02_worked_row() -> None:
    """P02: [65504, -65504, 65504, 0] in fp16."""
    x = torch.tensor([65504.0, -65504.0, 65504.0, 0.0], dtype=torch.float16)
    right = torch.tensor([0.9045, -1.5076, 0.9045, -0.3015], dtype=torch.float64)
    assert_close(nw.layer_norm(x, 4), right, output_tolerance(right, x.dtype, 5e-5))


def _one_pass(x: Tensor, eps: float) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / (x.square().mean(-1, keepdim=True) - mean.square() + eps).sqrt()


def _one_centring(x: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()


# onnxruntime#28463; pytorch#51102, #81090
@pytest.mark.parametrize("mean", [40000.0, 1e6])
def test_P03_worked_rows(mean: float) -> None:
    """P03: four neighbours far from 0; E[x^2] - E[x]^2 is the fault."""
    x = torch.arange(4.0) + mean
    right = torch.tensor([-1.341635, -0.447212, 0.447212, 1.341635], dtype=torch.float64)
    assert_close(nw.layer_norm(x, 4), right, 2e-6)
    with pytest.raises(AssertionError):
        assert_close(_one_pass(x, 1e-5), right, 2e-6)


@pytest.mark.parametrize("mean", [0.0, 100.0, 2000.0, 40000.0, 1e6, 1e7])
@pytest.mark.parametrize("width", [33, 4096, 32768])
def test_P03_large_mean(mean: float, width: int) -> None:
    """P03: the mean of a row costs no accuracy."""
    x = randn(3, width) * max(1.0, mean / 1e4) + mean
    check("layer_norm", x, eps=1e-5)
    check_gradients("layer_norm", x, eps=1e-5)


def test_P03_one_centring_is_not_enough() -> None:
    """P03: with a single fp32 mean the reported rows fail the same bound."""
    x = randn(3, 4096) + 2000
    truth = formulas.layer_norm(x.double(), eps=1e-5)
    for fault in (_one_pass, _one_centring):
        with pytest.raises(AssertionError):
            assert_close(fault(x, 1e-5), truth, output_tolerance(truth, x.dtype))


# pytorch PR#40307
@pytest.mark.parametrize("sigma", [0.01, 0.001])
@pytest.mark.parametrize("width", [100, 4097, 32768])
def test_P04_small_deviation(sigma: float, width: int) -> None:
    """P04: a deviation 1e-4 or 1e-5 of the mean, wide rows."""
    x = 100 + sigma * randn(2, width)
    check("layer_norm", x, eps=1e-5, bound=5e-6)
    truth = formulas.layer_norm(x.double(), eps=1e-5)
    with pytest.raises(AssertionError):
        assert_close(_one_pass(x, 1e-5), truth, 5e-6 * truth.abs().clamp(min=1.0))


# pytorch#108072; deeplearning4j#9821; BVLC/caffe#3963
@pytest.mark.parametrize("eps", [1e-5, 1e-12])
@pytest.mark.parametrize("value", [0.1, 1.5678, 14.0, 100.0, 123456.789])
@pytest.mark.parametrize("width", [1, 2, 3, 7, 9, 10, 100, 1000, 4097])
def test_P05_constant_rows(width: int, value: float, eps: float) -> None:
    """P05: a constant row is 0, then the bias; under RMS its square mean is 1."""
    x = torch.full((2, width), value)
    assert_close(nw.layer_norm(x, width, eps=eps), torch.zeros(2, width).double(), 1e-6)
    weight, bias = randn(width), randn(width, seed=1)
    shifted = nw.layer_norm(x, width, weight, bias, eps)
    assert_close(shifted, bias.double().expand(2, -1), 1e-6 * weight.abs().double())
    check("rms_norm", x, eps=eps)


# pytorch#188375, #188372, #108956
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [1e6, 12345.678, 0.1, -3.0])
def test_P07_width_one(value: float, dtype: torch.dtype) -> None:
    """P07: one element is its own mean: the bias, whatever the weight."""
    x = torch.tensor([min(value, torch.finfo(dtype).max)], dtype=dtype)
    weight, bias = torch.tensor([2.0], dtype=dtype), torch.tensor([3.0], dtype=dtype)
    assert torch.equal(nw.layer_norm(x, 1, weight, bias), torch.tensor([3.0], dtype=dtype))
    check("rms_norm", x, eps=1e-6, weight=weight, bias=bias)


# pytorch#41527; DeepSpeed#581
@both
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("eps", [1e-12, 1e-8, 1e-6, 1e-5])
@pytest.mark.parametrize("value", [0.0, 0.5])
def test_P08_tiny_eps_in_halves(name: str, dtype: torch.dtype, eps: float, value: float) -> None:
    """P08: eps and 1/sqrt(eps) stay in fp32, forward and backward."""
    x = torch.full((3, 10), value, dtype=dtype, requires_grad=True)
    weight, bias = (torch.full((10,), v, dtype=dtype, requires_grad=True) for v in (1.0, 0.0))
    dy = (0.04 * randn(3, 10).clamp(-1, 1)).to(dtype)
    y = OPS[name](x, 10, weight=weight, bias=bias, eps=eps)
    dx, dw, db = torch.autograd.grad(y, (x, weight, bias), dy)
    truth = formulas.expected(name, x, weight, bias, dy=dy, eps=eps)
    assert_close(y, truth.y, output_tolerance(truth.y, dtype))
    assert_close(dx, truth.dx, gradient_tolerance(truth.dx, truth.dx_size, dtype))
    assert_close(dw, truth.dw, sum_tolerance(truth.dw_terms, dtype))
    assert_close(db, truth.db, sum_tolerance(truth.db_terms, dtype))


def test_P08_gradients_outside_fp16() -> None:
    """P08: dx of ones is 0 under layer_norm, and rounds to infinity under rms_norm: never NaN."""
    for op, right in ((nw.layer_norm, 0.0), (nw.rms_norm, float("inf"))):
        x = torch.zeros(10, dtype=torch.float16, requires_grad=True)
        weight = torch.ones(10, dtype=torch.float16)
        op(x, 10, weight, eps=1e-12).backward(torch.ones(10, dtype=torch.float16))
        assert torch.equal(x.grad, torch.full((10,), right, dtype=torch.float16))


@both
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_rows(name: str, dtype: torch.dtype) -> None:
    """A row of zeros gives the bias for any eps > 0, and 0/0 without (kernels.md 4.2)."""
    x, bias = torch.zeros(2, 7, dtype=dtype), randn(7).to(dtype)
    for eps in (1e-300, 1e-30, 1e-12, 1e-5, 1.0) if dtype == torch.float64 else (1e-12, 1e-5, 1.0):
        assert torch.equal(OPS[name](x, 7, bias=bias, eps=eps), bias.expand(2, 7)), eps
    assert OPS[name](x, 7, bias=bias, eps=0.0).isnan().all()


# pytorch#140092, PR#142848, #189581, #155527
@pytest.mark.parametrize(
    ("dtype", "eps"),
    [
        (torch.float32, 1.1920929e-07),
        (torch.float16, 1.1920929e-07),
        (torch.bfloat16, 1.1920929e-07),
        (torch.float64, 2.220446049250313e-16),
    ],
)
def test_P09_eps_none(dtype: torch.dtype, eps: float) -> None:
    """P09: eps=None is the epsilon of the compute dtype, solved from the output itself."""
    x = torch.full((8,), 1e-3, dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    y = nw.rms_norm(x, 8, out_dtype=wide).double()[0]
    square = x.double()[0] ** 2
    assert (square * (1 / y**2 - 1)).item() == pytest.approx(eps, rel=2e-5)
    assert torch.equal(nw.rms_norm(x, 8), nw.rms_norm(x, 8, eps=eps))


def test_P09_worked_values() -> None:
    """P09: 1e-3 in every dtype, and 0.058 in bf16, where bf16's own epsilon gives 0.549."""
    for dtype, right in [
        (torch.float32, 0.945245),
        (torch.float16, 0.9453125),
        (torch.bfloat16, 0.9453125),
    ]:
        y = nw.rms_norm(torch.full((4,), 1e-3, dtype=dtype), 4)
        allowed = 1e-6 if dtype == torch.float32 else 0.0
        assert_close(y, torch.full((4,), right, dtype=torch.float64), allowed)
    y = nw.rms_norm(torch.full((4,), 1e-3, dtype=torch.float64), 4)
    assert_close(1 - y, torch.full((4,), 1.110223e-10, dtype=torch.float64), 1e-15)
    x = torch.full((4,), 0.058, dtype=torch.bfloat16)
    assert torch.equal(nw.rms_norm(x, 4), torch.ones(4, dtype=torch.bfloat16))
    assert nw.rms_norm(x, 4, eps=2.0**-7)[0].item() == pytest.approx(0.549, abs=2e-3)


# apple/coremltools#2821, PR#2822
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_P10_rescaling_rescales_eps(dtype: torch.dtype) -> None:
    """P10: a row divided by its largest entry must divide eps too."""
    x = torch.full((2, 4096), 0.1, dtype=dtype)
    x[0, 0] = 100
    x[1] = 0
    right = 63.869231
    y = nw.rms_norm(x, 4096, eps=1e-5)
    assert y[0, 0].item() == pytest.approx(right, rel=1e-6)
    assert torch.equal(y[1], torch.zeros(4096, dtype=dtype))
    largest = x[0].abs().max()
    fault = 100 / (largest * ((x[0] / largest).square().mean() + 1e-5).sqrt())
    assert fault.item() == pytest.approx(62.605199, rel=1e-6)
    assert fault.item() != pytest.approx(right, rel=1e-6)


@both
@pytest.mark.parametrize("eps", [1e-12, 1e-8, 1e-6, 1e-5, 1e-2, 10.0, 1e6])
@pytest.mark.parametrize("dtype", DTYPES)
def test_P10_eps_over_many_sizes(name: str, eps: float, dtype: torch.dtype) -> None:
    """P10: every eps beside every size of a row, from rows that eps swallows to large ones."""
    sizes = torch.tensor([1e-7, 1e-5, 1e-3, 1e-1, 1.0, 30.0, 1e3])
    check(name, (sizes[:, None] * randn(7, 33)).to(dtype), eps=eps)


# TransformerEngine PR#364; apple/axlearn PR#21; pyg PR#2917
def test_P11_eps_is_inside_the_root() -> None:
    """P11: sqrt(v + eps), not sqrt(v) + eps."""
    x = torch.tensor([3e-5], dtype=torch.float64)
    assert_close(nw.rms_norm(x, 1, eps=1e-8), torch.tensor([0.2873479]).double(), 5e-8)
    pair = torch.tensor([-3e-5, 3e-5], dtype=torch.float64)
    right = torch.tensor([-0.2873479, 0.2873479], dtype=torch.float64)
    assert_close(nw.layer_norm(pair, 2, eps=1e-8), right, 5e-8)
    assert_close(nw.layer_norm(pair.float(), 2, eps=1e-8), right, 2e-6)
    outside = x / (x.square().mean().sqrt() + 1e-8)
    assert outside.item() == pytest.approx(0.9996668, abs=5e-8)


# Liger PR#815; llm.c PR#445; xformers#785
@pytest.mark.parametrize(
    ("width", "last"),
    [
        (1, 1.0),
        (2, 1.26491106),
        (3, 1.38873015),
        (31, 1.69118865),
        (33, 1.69360725),
        (1600, 1.73123931),
        (4097, 1.73173380),
    ],
)
def test_P12_rms_of_ragged_widths(width: int, last: float) -> None:
    """P12: no lane beyond the row enters the statistics."""
    x = torch.arange(1, width + 1, dtype=torch.float64)
    assert nw.rms_norm(x, width, eps=0.0)[-1].item() == pytest.approx(last, abs=5e-9)
    assert nw.rms_norm(x.float(), width, eps=0.0)[-1].item() == pytest.approx(last, abs=2e-6)


@both
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_P12_ragged_widths(name: str, width: int, dtype: torch.dtype) -> None:
    """P12: the same against float64, with a large mean, which wrongly centred lanes would show."""
    counting = torch.arange(1, width + 1, dtype=torch.float64)
    rows = torch.stack([counting, randn(width).double(), 50 + randn(width, seed=1).double()])
    x = rows.to(dtype)
    weight, bias = randn(width, seed=2), randn(width, seed=3)
    check(name, x, eps=1e-5, weight=weight.to(dtype), bias=bias.to(dtype))


def test_P12_lanes_that_count_fail() -> None:
    """P12: zeros padded to a power of two and centred with the row are seen by the bound."""
    x = torch.arange(1.0, 34.0) + 50
    lanes = torch.cat([x, torch.zeros(31)])
    centred = lanes - x.mean()
    fault = centred[:33] / (centred.square().sum() / 33 + 1e-5).sqrt()
    truth = formulas.layer_norm(x.double(), eps=1e-5)
    with pytest.raises(AssertionError):
        assert_close(fault, truth, output_tolerance(truth, x.dtype))


# pytorch#173885, #149301, #74033
@both
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_P13_bad_rows_stay_alone(name: str, dtype: torch.dtype, bad: float) -> None:
    """P13: NaN and infinity do not leave their row, forward or backward."""
    rows = torch.tensor([[1.0, 2, 3, 4], [1, bad, 3, 4], [4, 3, 1, 2]], dtype=dtype)
    dy = randn(3, 4).to(dtype)
    x = rows.clone().requires_grad_()
    y = OPS[name](x, 4, eps=1e-5)
    (dx,) = torch.autograd.grad(y, x, dy)
    clean = rows[::2].clone().requires_grad_()
    alone = OPS[name](clean, 4, eps=1e-5)
    (dx_alone,) = torch.autograd.grad(alone, clean, dy[::2])
    assert torch.equal(y[::2], alone)
    assert torch.equal(dx[::2], dx_alone)
    if name == "layer_norm" or bad != bad:
        assert y[1].isnan().all()
    else:
        assert y[1, 1].isnan()
        assert torch.equal(y[1, [0, 2, 3]], torch.zeros(3, dtype=dtype))


# apex#411, #403
@both
@pytest.mark.parametrize("rows", [65536, 70001])
def test_P14_many_rows(name: str, rows: int) -> None:
    """P14: a row among many is the row alone, bit for bit, forward and backward."""
    data, dy = randn(rows, 8), randn(rows, 8, seed=1)
    weight, bias = randn(8, seed=2), randn(8, seed=3)
    x = data.clone().requires_grad_()
    y = OPS[name](x, 8, weight=weight, bias=bias, eps=1e-5)
    (dx,) = torch.autograd.grad(y, x, dy)
    for row in (0, 1, 65534, 65535, rows - 1):
        single = data[row].clone().requires_grad_()
        y_single = OPS[name](single, 8, weight=weight, bias=bias, eps=1e-5)
        (dx_single,) = torch.autograd.grad(y_single, single, dy[row])
        assert torch.equal(y[row], y_single), row
        assert torch.equal(dx[row], dx_single), row


# pytorch#181555; Liger#1483; flashinfer#3391
@both
def test_P15_offsets_over_two_to_the_31(name: str) -> None:
    """P15: rows that lie 2^31 elements apart; only the pages that are touched cost memory."""
    stride = 2**31
    try:
        storage = torch.empty(stride + 4096, dtype=torch.bfloat16)
    except RuntimeError:
        pytest.skip("this machine does not lend 4.3 GB of address space")
    x = storage.as_strided((2, 256), (stride, 1))
    rows, dy = randn(2, 256).bfloat16(), randn(2, 256, seed=1).bfloat16()
    x.copy_(rows)
    far = x.detach().requires_grad_()
    y = OPS[name](far, 256, eps=1e-5)
    (dx,) = torch.autograd.grad(y, far, dy)
    near = rows.clone().requires_grad_()
    y_near = OPS[name](near, 256, eps=1e-5)
    (dx_near,) = torch.autograd.grad(y_near, near, dy)
    assert torch.equal(y, y_near)
    assert torch.equal(dx, dx_near)


EPS_TABLE = [(1e-4, 0.0995, 0.0316), (1e-3, 0.7071, 0.3015), (1e-2, 0.9950, 0.9535),
             (1e-1, 0.99995, 0.9995), (1.0, 1.0, 1.0)]  # fmt: skip


@pytest.mark.parametrize(("size", "rms", "layer"), EPS_TABLE)
def test_eps_table(size: float, rms: float, layer: float) -> None:
    """Output RMS of small tokens: norms.md section 2, columns rms 1e-6 and LN 1e-5, as printed."""
    x = torch.tensor([[size, -size]], dtype=torch.float64)
    assert nw.rms_norm(x, 2, eps=1e-6).abs().max().item() == pytest.approx(rms, abs=5e-5)
    assert nw.layer_norm(x, 2, eps=1e-5).abs().max().item() == pytest.approx(layer, abs=5e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hand_worked_numbers(dtype: torch.dtype) -> None:
    """One row on paper for each formula, chosen so that every root is exact in every dtype.

    layer_norm: mean 3, var 5, eps 4: root 3. rms_norm: mean square 12.5, eps 3.5: root 4.
    """
    x = torch.tensor([0.0, 2.0, 4.0, 6.0], dtype=dtype)
    weight = torch.tensor([1.0, 3.0, 3.0, 2.0], dtype=dtype)
    bias = torch.tensor([0.0, 1.0, 0.5, -2.0], dtype=dtype)
    right = torch.tensor([-1.0, 0.0, 1.5, 0.0], dtype=torch.float64)
    y = nw.layer_norm(x, 4, weight, bias, eps=4.0)
    assert_close(y, right, output_tolerance(right, dtype))
    x = torch.tensor([3.0, 4.0], dtype=dtype)
    gain, shift = (torch.tensor(v, dtype=dtype) for v in ([1.0, 2.0], [0.25, -1.0]))
    y = nw.rms_norm(x, 2, gain, 3.5, bias=shift)
    assert torch.equal(y, torch.tensor([1.0, 1.0], dtype=dtype))
    y = nw.rms_norm(x, 2, gain, 3.5, bias=shift, unit_offset=True)
    assert torch.equal(y, torch.tensor([1.75, 2.0], dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_hand_worked_sums(dtype: torch.dtype) -> None:
    """The add forms norm the sum and return it; the output forms add the normed branch."""
    x, residual = torch.tensor([1.0, 5.0], dtype=dtype), torch.tensor([2.0, -1.0], dtype=dtype)
    y, stream = nw.add_rms_norm(x, residual, 2, eps=3.5)
    assert torch.equal(stream, torch.tensor([3.0, 4.0], dtype=dtype))
    assert torch.equal(y, torch.tensor([0.75, 1.0], dtype=dtype))
    y, stream = nw.add_layer_norm(x, residual, 2, eps=0.75)
    assert torch.equal(stream, torch.tensor([3.0, 4.0], dtype=dtype))
    assert torch.equal(y, torch.tensor([-0.5, 0.5], dtype=dtype))
    x = torch.tensor([3.0, 4.0], dtype=dtype)
    y = nw.rms_norm_add(x, residual, 2, eps=3.5)
    assert torch.equal(y, torch.tensor([2.75, 0.0], dtype=dtype))
    y = nw.layer_norm_add(x, residual, 2, eps=0.75)
    assert torch.equal(y, torch.tensor([1.5, -0.5], dtype=dtype))
