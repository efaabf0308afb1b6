"""Dtype rules and rounding orders, to the bit (P16-P18, P21, P65; norms.md section 3)."""

import copy
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as torch_functional

import normwise as nw
from normwise.ops import reference
from normwise.ops.rounding import compute_dtype
from tests.ops import formulas
from tests.tolerance import (
    assert_close,
    assert_same_decisions,
    gradient_tolerance,
    output_tolerance,
    sum_tolerance,
)

pytestmark = pytest.mark.usefixtures("backend")

OPS: dict[str, Callable[..., Tensor]] = {"layer_norm": nw.layer_norm, "rms_norm": nw.rms_norm}
both = pytest.mark.parametrize("name", list(OPS))
HALVES = [torch.float16, torch.bfloat16]
DTYPES = [torch.float32, *HALVES, torch.float64]
ROUNDINGS = ["fp32", "llama", "native"]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_same(y: Tensor, written: Tensor, backend: str) -> None:
    """The reference to the bit; the kernels, which sum in another order, in their decisions."""
    if backend == "reference" or y.dtype not in HALVES:
        assert torch.equal(y, written)
    else:
        assert_same_decisions(y, written)


def bf16(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.bfloat16)


# pytorch#135969; intel-extension#731; apex#979, #1635; transformers#1326
@both
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("w_dtype", DTYPES)
@pytest.mark.parametrize("x_dtype", DTYPES)
def test_P16_pairs(
    name: str, x_dtype: torch.dtype, w_dtype: torch.dtype, *, autocast: bool
) -> None:
    """P16: every pair of dtypes works; y and dx in x's, dw and db in the parameters' own."""
    x = randn(9, 33).to(x_dtype).requires_grad_()
    weight, bias = (randn(33, seed=k).to(w_dtype).requires_grad_() for k in (1, 2))
    dy = randn(9, 33, seed=3).to(x_dtype)
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        y = OPS[name](x, 33, weight=weight, bias=bias, eps=1e-5)
    dx, dw, db = torch.autograd.grad(y, (x, weight, bias), dy)
    assert [t.dtype for t in (y, dx, dw, db)] == [x_dtype, x_dtype, w_dtype, w_dtype]
    truth = formulas.expected(name, x, weight, bias, dy=dy, eps=1e-5)
    assert_close(y, truth.y, output_tolerance(truth.y, x_dtype))
    assert_close(dx, truth.dx, gradient_tolerance(truth.dx, truth.dx_size, x_dtype))
    narrow = torch.float32 if x_dtype != w_dtype == torch.float64 else w_dtype
    assert_close(dw, truth.dw, sum_tolerance(truth.dw_terms, narrow))
    assert_close(db, truth.db, sum_tolerance(truth.db_terms, narrow))


@both
@pytest.mark.parametrize("w_dtype", DTYPES)
@pytest.mark.parametrize("x_dtype", DTYPES)
def test_P16_compute_dtype(name: str, x_dtype: torch.dtype, w_dtype: torch.dtype) -> None:
    """P16: arithmetic is in fp64 where either tensor is, else in fp32, whatever goes in."""
    x, weight = randn(5, 33).to(x_dtype), randn(33, seed=1).to(w_dtype)
    y = OPS[name](x, 33, weight=weight, eps=1e-5, out_dtype=torch.float64)
    truth = formulas.FORMULAS[name](x.double(), weight.double(), eps=1e-5)
    wide = torch.float64 if torch.float64 in (x_dtype, w_dtype) else torch.float32
    assert_close(y, truth, output_tolerance(truth, wide))


@pytest.mark.parametrize("b_dtype", DTYPES)
@pytest.mark.parametrize("w_dtype", DTYPES)
def test_P16_weight_and_bias_apart(w_dtype: torch.dtype, b_dtype: torch.dtype) -> None:
    """P16: weight and bias need not share a dtype."""
    x = randn(4, 7).bfloat16()
    weight = randn(7, seed=1).to(w_dtype).requires_grad_()
    bias = randn(7, seed=2).to(b_dtype).requires_grad_()
    y = nw.layer_norm(x, 7, weight, bias)
    y.backward(torch.ones_like(y))
    truth = formulas.layer_norm(x.double(), weight.double(), bias.double())
    assert y.dtype == torch.bfloat16
    assert_close(y, truth, output_tolerance(truth, torch.bfloat16))
    assert (weight.grad.dtype, bias.grad.dtype) == (w_dtype, b_dtype)


# transformers#30236, #33133, PR#25421; TransformerEngine#1132; InternLM/lmdeploy PR#2842
@pytest.mark.parametrize("w_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("rounding", "last"), [("llama", 1.9375), ("fp32", 1.9296875), ("gemma", 1.9296875)]
)
def test_P17_casting_variants(rounding: str, last: float, w_dtype: torch.dtype) -> None:
    """P17: two functions, each to the bit; fp32 weights do not turn the output into fp32."""
    weight = torch.full((4,), 1.03125, dtype=w_dtype)
    y = nw.rms_norm(bf16(1, 2, 3, 10), 4, weight, 1e-6, rounding=rounding)
    assert y.dtype == torch.bfloat16
    assert y[-1].item() == last


# Liger PR#1462; vllm PR#29810, PR#3653; llama.cpp PR#5810; litgpt#1031
@pytest.mark.parametrize(
    ("w", "gain", "narrow"),
    [(15.8125, 16.8125, 16.75), (0.00390625, 1.00390625, 1.0), (3.140625, 4.140625, 4.125)],
)
def test_P18_offset_is_added_wide(w: float, gain: float, narrow: float) -> None:
    """P18: 1 + w in fp32, forward and backward; bf16's own sum is what `native` asks for."""
    weight = bf16(w, w)
    x = torch.ones(2, requires_grad=True)
    for rounding in ("fp32", "llama"):
        y = nw.rms_norm(
            bf16(1, 1), 2, weight, 0.0,
            unit_offset=True, rounding=rounding, out_dtype=torch.float32,
        )  # fmt: skip
        assert torch.equal(y, torch.full((2,), gain)), rounding
        y = nw.rms_norm(x, 2, weight, 0.0, unit_offset=True, rounding=rounding)
        (dx,) = torch.autograd.grad(y, x, torch.tensor([1.0, 0.0]))
        assert torch.equal(dx, torch.tensor([gain / 2, -gain / 2])), rounding
    y = nw.rms_norm(bf16(1, 1), 2, weight, 0.0, unit_offset=True, rounding="native")
    assert torch.equal(y, bf16(narrow, narrow))


# pytorch PR#139923
@both
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("w_dtype", DTYPES)
@pytest.mark.parametrize("x_dtype", DTYPES)
def test_P21_real_meta_fake(
    name: str, x_dtype: torch.dtype, w_dtype: torch.dtype, rounding: str
) -> None:
    """P21: outputs, sums and gradients have the same dtype and shape on every kind of tensor."""

    def layout(device: str) -> list[tuple[torch.dtype, torch.Size, tuple[int, ...]]]:
        x = torch.ones(2, 3, 4, dtype=x_dtype, device=device, requires_grad=True)
        weight, bias = (
            torch.ones(3, 4, dtype=w_dtype, device=device, requires_grad=True) for _ in range(2)
        )
        residual = torch.ones(2, 3, 4, device=device)
        add = {"layer_norm": nw.add_layer_norm, "rms_norm": nw.add_rms_norm}[name]
        keywords = {"weight": weight, "bias": bias, "eps": 1e-5, "rounding": rounding}
        y = OPS[name](x, (3, 4), **keywords)
        grads = torch.autograd.grad(y, (x, weight, bias), torch.ones_like(y))
        summed = add(x, residual, (3, 4), **keywords)
        return [(t.dtype, t.shape, t.stride()) for t in (y, *grads, *summed)]

    real = layout("cpu")
    assert [dtype for dtype, *_ in real] == [
        x_dtype, x_dtype, w_dtype, w_dtype, x_dtype, torch.promote_types(x_dtype, torch.float32),
    ]  # fmt: skip
    assert layout("meta") == real
    with FakeTensorMode():
        assert layout("cpu") == real


@pytest.mark.parametrize("device", ["cpu", "meta", "fake"])
@pytest.mark.parametrize("unit", [reference.layer_unit, reference.rms_unit])
def test_P21_statistics_are_fp32(unit: Callable[..., tuple[Tensor, Tensor]], device: str) -> None:
    """P21: the normalized row and 1/root of bf16 rows are fp32, one root for each row."""
    with FakeTensorMode() if device == "fake" else nullcontext():
        where = "meta" if device == "meta" else "cpu"
        x = torch.ones(2, 3, 4, dtype=torch.bfloat16, device=where)
        weight = torch.ones(4, device=where)
        normed, inverse = unit(x.to(compute_dtype(x, weight)), (-1,), 1e-5)
    assert (normed.dtype, inverse.dtype) == (torch.float32, torch.float32)
    assert (normed.shape, inverse.shape) == (x.shape, (2, 3, 1))


MODULES = {"layer_norm": nw.LayerNorm, "rms_norm": nw.RMSNorm}


def _half(module: torch.nn.Module, x: Tensor) -> Tensor:
    return module.half()(x)


def _copied(module: torch.nn.Module, x: Tensor) -> Tensor:
    return copy.deepcopy(module.half())(x)


def _exported(module: torch.nn.Module, x: Tensor) -> Tensor:
    return torch.export.export(module.half(), (x,)).module()(x)


def _autocast(module: torch.nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.float16):
        return module(x)


def _autocast_half_parameters(module: torch.nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.float16):
        return module.half()(x.float()).half()


# pytorch#86580; TIM-VX PR#589; tensorflow PR#24979
@both
@pytest.mark.parametrize("route", [_half, _copied, _exported, _autocast, _autocast_half_parameters])
def test_P65_eps_survives_half(
    name: str, route: Callable[[torch.nn.Module, Tensor], Tensor]
) -> None:
    """P65: eps 1e-8 is 0 in fp16; it stays a Python float, and zeros stay zeros."""
    module = MODULES[name](6, eps=1e-8)
    x = torch.zeros(3, 6, dtype=torch.float16)
    x[1] = 0.5
    y = route(module, x)
    right = torch.zeros_like(x)
    right[1] = 0.0 if name == "layer_norm" else 1.0
    assert torch.equal(y, right)
    assert type(module.eps) is float
    assert module.eps == 1e-8


def _written_unit(name: str, x: Tensor, eps: float) -> Tensor:
    """The normalized row as kernels.md 4.1 orders the steps, in x's own dtype."""
    if name == "layer_norm":
        x = x - x.mean(-1, keepdim=True)
        x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)


def _written_native_unit(name: str, x: Tensor, eps: float) -> Tensor:
    """The textbook line without an upcast."""
    if name == "layer_norm":
        centred = x - x.mean(-1, keepdim=True)
        return centred / (x.var(-1, correction=0, keepdim=True) + eps).sqrt()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _written(
    name: str, rounding: str, x: Tensor, weight: Tensor, bias: Tensor, offset: int, eps: float
) -> Tensor:
    if rounding == "native":
        unit = _written_native_unit(name, x, eps)
        gain = weight + 1 if offset else weight
        return (unit * gain + bias).to(x.dtype)
    unit = _written_unit(name, x.float(), eps)
    if rounding == "llama":
        unit = unit.to(x.dtype).float()
    return (unit * (weight.float() + offset) + bias.float()).to(x.dtype)


@both
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("wide_weight", [True, False])
@pytest.mark.parametrize("x_dtype", HALVES)
def test_rounding_orders(
    name: str, x_dtype: torch.dtype, backend: str, *, wide_weight: bool, offset: int, rounding: str
) -> None:
    """Each named order equals its written-out line bit for bit, and no other order's."""
    x = (randn(64, 100) * torch.logspace(-2, 2, 64)[:, None]).to(x_dtype)
    w_dtype = torch.float32 if wide_weight else x_dtype
    weight = (1 + 0.3 * randn(100, seed=1) - offset).to(w_dtype)
    bias = randn(100, seed=2).to(w_dtype)
    y = OPS[name](
        x, 100, weight=weight, bias=bias, eps=1e-5, unit_offset=bool(offset), rounding=rounding
    )
    written = {order: _written(name, order, x, weight, bias, offset, 1e-5) for order in ROUNDINGS}
    assert_same(y, written.pop(rounding), backend)
    for other in written.values():
        assert (y != other).double().mean() > 0.02


@pytest.mark.parametrize("rounding", ["fp32", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@both
def test_wide_inputs_round_once(name: str, dtype: torch.dtype, rounding: str) -> None:
    """On fp32 and fp64 inputs `fp32` and `llama` are one function, also with narrow weights."""
    x, weight = randn(8, 33).to(dtype), randn(33, seed=1).bfloat16()
    y = OPS[name](x, 33, weight=weight, eps=1e-5, rounding=rounding)
    truth = formulas.FORMULAS[name](x.double(), weight.double(), eps=1e-5)
    assert torch.equal(y, OPS[name](x, 33, weight=weight, eps=1e-5))
    assert_close(y, truth, output_tolerance(truth, dtype))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [64, 100, 1024])
def test_fp32_order_is_torch_rms_norm(width: int, dtype: torch.dtype, backend: str) -> None:
    """On ordinary data the default equals torch's own rms_norm bit for bit (norms.md 3)."""
    x, weight = randn(200, width).to(dtype), (1 + 0.3 * randn(width, seed=1)).to(dtype)
    torchs = torch_functional.rms_norm(x, (width,), weight, 1e-6)
    assert_same(nw.rms_norm(x, width, weight, 1e-6), torchs, backend)
    assert not torch.equal(nw.rms_norm(x, width, weight, 1e-6, rounding="llama"), torchs)


@both
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("out_dtype", DTYPES)
@pytest.mark.parametrize("x_dtype", DTYPES)
def test_out_dtype(name: str, x_dtype: torch.dtype, out_dtype: torch.dtype, rounding: str) -> None:
    """out_dtype names the output's dtype and nothing else; the gradient is in x's own."""
    x, weight = randn(6, 33).to(x_dtype).requires_grad_(), randn(33, seed=1)
    keywords = {"weight": weight, "eps": 1e-5, "rounding": rounding}
    y = OPS[name](x, 33, **keywords, out_dtype=out_dtype)
    assert y.dtype == out_dtype
    wide = torch.promote_types(x_dtype, torch.float32)
    right = OPS[name](x, 33, **keywords, out_dtype=wide)
    assert torch.equal(y, right.to(out_dtype))
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert dx.dtype == x_dtype


ADDS = {"layer_norm": nw.add_layer_norm, "rms_norm": nw.add_rms_norm}
TIES = [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)]


@pytest.mark.parametrize(("dtype", "tie"), TIES)
@both
def test_residual_roundings_at_ties(name: str, dtype: torch.dtype, tie: float) -> None:
    """1 + half a unit rounds to 1; the statistics see 1 before, and the exact sum after."""
    x = torch.tensor([1.0, 1.0], dtype=dtype)
    residual = torch.tensor([tie, 0.0], dtype=dtype)
    exact = torch.tensor([1 + tie, 1.0], dtype=torch.float64)
    seen = {"before_stats": torch.ones(2, dtype=torch.float64), "after_stats": exact}
    results = {}
    for rule, total in seen.items():
        y, stream = ADDS[name](
            x, residual, 2, eps=1e-8, residual_rounding=rule, out_dtype=torch.float32
        )
        truth = formulas.FORMULAS[name](total, eps=1e-8)
        assert_close(y, truth, output_tolerance(truth, torch.float32))
        assert torch.equal(stream, torch.ones(2, dtype=dtype))
        results[rule] = y
    assert not torch.allclose(*results.values(), atol=2e-6, rtol=0.0)
    default, _ = ADDS[name](x, residual, 2, eps=1e-8, out_dtype=torch.float32)
    assert torch.equal(default, results["before_stats"])


@both
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_before_stats_is_two_calls(name: str, dtype: torch.dtype, rounding: str) -> None:
    """The default fuses without changing a bit: the sum in the stream's dtype, then the norm."""
    x, residual = randn(16, 33).to(dtype), randn(16, 33, seed=1).to(dtype)
    weight = randn(33, seed=2).to(dtype)
    keywords = {"weight": weight, "eps": 1e-5, "rounding": rounding}
    y, stream = ADDS[name](x, residual, 33, **keywords)
    assert torch.equal(stream, x + residual)
    assert torch.equal(y, OPS[name](x + residual, 33, **keywords))


@both
@pytest.mark.parametrize("dtype", HALVES)
def test_after_stats_reads_the_unrounded_sum(name: str, dtype: torch.dtype, backend: str) -> None:
    """after_stats is the norm of the fp32 sum, rounded once at the end."""
    x, residual = randn(16, 33).to(dtype), randn(16, 33, seed=1).to(dtype)
    y, stream = ADDS[name](x, residual, 33, eps=1e-5, residual_rounding="after_stats")
    total = x.float() + residual.float()
    assert torch.equal(stream, total.to(dtype))
    assert_same(y, _written_unit(name, total, 1e-5).to(dtype), backend)
    before, _ = ADDS[name](x, residual, 33, eps=1e-5)
    assert not torch.equal(y, before)


@both
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("rule", ["before_stats", "after_stats"])
@pytest.mark.parametrize("x_dtype", HALVES)
def test_wide_residual_is_never_cast_down(
    name: str, x_dtype: torch.dtype, rule: str, rounding: str
) -> None:
    """An fp32 stream beside half branches keeps every bit; y stays in the branch's dtype."""
    x = randn(8, 33).to(x_dtype)
    residual = 1 + 2.0**-20 * randn(8, 33, seed=1)
    y, stream = ADDS[name](x, residual, 33, eps=1e-5, residual_rounding=rule, rounding=rounding)
    assert (y.dtype, stream.dtype) == (x_dtype, torch.float32)
    assert torch.equal(stream, x.float() + residual)
    output = {"layer_norm": nw.layer_norm_add, "rms_norm": nw.rms_norm_add}[name]
    joined = output(x, residual, 33, eps=1e-5, rounding=rounding)
    normed = OPS[name](x, 33, eps=1e-5, rounding=rounding)
    assert normed.dtype == x_dtype
    assert joined.dtype == torch.float32
    assert torch.equal(joined, residual + normed.float())


@pytest.mark.parametrize("residual_dtype", DTYPES)
@pytest.mark.parametrize("x_dtype", DTYPES)
@both
def test_stream_has_the_promoted_dtype(
    name: str, x_dtype: torch.dtype, residual_dtype: torch.dtype
) -> None:
    """Stream promoted, y as x, each gradient in its own tensor's dtype."""
    x = randn(4, 7).to(x_dtype).requires_grad_()
    residual = randn(4, 7, seed=1).to(residual_dtype).requires_grad_()
    y, stream = ADDS[name](x, residual, 7, eps=1e-5)
    dx, dr = torch.autograd.grad((y, stream), (x, residual), (torch.ones_like(y),
                                 torch.ones_like(stream)))  # fmt: skip
    promoted = torch.promote_types(x_dtype, residual_dtype)
    assert (y.dtype, stream.dtype, dx.dtype, dr.dtype) == (
        x_dtype, promoted, x_dtype, residual_dtype,
    )  # fmt: skip
    assert torch.equal(stream, x + residual)
    truth = formulas.FORMULAS[name](stream.detach().double(), eps=1e-5)
    assert_close(y, truth, output_tolerance(truth, x_dtype))
