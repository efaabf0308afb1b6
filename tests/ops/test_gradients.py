"""Gradients of every order and in every mode against float64 (P07, P20, P22-P31, P33, P63, P64)."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import normwise as nw
from normwise.ops import reference
from normwise.ops.reference import NormSpec
from tests.ops import formulas
from tests.tolerance import (
    FLOAT64_OUTPUT,
    assert_close,
    gradient_tolerance,
    output_tolerance,
    sum_tolerance,
    weight_tolerance,
)

OPS: dict[str, Callable[..., Tensor]] = {"layer_norm": nw.layer_norm, "rms_norm": nw.rms_norm}
ADDS = {"layer_norm": nw.add_layer_norm, "rms_norm": nw.add_rms_norm}
OUTPUTS = {"layer_norm": nw.layer_norm_add, "rms_norm": nw.rms_norm_add}
REFERENCES = {"layer_norm": reference.layer_norm, "rms_norm": reference.rms_norm}
both = pytest.mark.parametrize("name", list(OPS))
offsets = pytest.mark.parametrize("offset", [False, True])
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]

# torch scripts its own jvp decompositions on the first use of forward mode
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.usefixtures("backend"),
]


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def check(
    name: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dy: Tensor,
    *,
    axes: int = 1,
    offset: bool = False,
) -> tuple[Tensor, ...]:
    """Output, dx, dw and db, each against float64; returned for further comparison."""
    given = [t.detach().requires_grad_() for t in (x, weight, bias) if t is not None]
    left = iter(given)
    x, weight, bias = (next(left) if t is not None else None for t in (x, weight, bias))
    y = OPS[name](x, x.shape[-axes:], weight=weight, bias=bias, eps=1e-5, unit_offset=offset)
    grads = torch.autograd.grad(y, given, dy)
    truth = formulas.expected(
        name, x, weight, bias, dy=dy, eps=1e-5, axes=axes, offset=float(offset)
    )
    assert_close(y, truth.y, output_tolerance(truth.y, x.dtype))
    assert_close(grads[0], truth.dx, gradient_tolerance(truth.dx, truth.dx_size, x.dtype))
    rest = iter(grads[1:])
    if weight is not None:
        assert_close(
            next(rest), truth.dw, weight_tolerance(truth.dw_terms, truth.db_terms, weight.dtype)
        )
    if bias is not None:
        assert_close(next(rest), truth.db, sum_tolerance(truth.db_terms, bias.dtype))
    return y.detach(), *grads


# pytorch#188375, #188372, #108956
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [1e6, 12345.678, 0.1])
def test_P07_width_one_backward(value: float, dtype: torch.dtype) -> None:
    """P07: dw = 0, dx = 0 and db = 1, exactly."""
    x, weight, bias = (
        torch.tensor([min(v, torch.finfo(dtype).max)], dtype=dtype, requires_grad=True)
        for v in (value, 2.0, 3.0)
    )
    nw.layer_norm(x, 1, weight, bias).backward(torch.ones(1, dtype=dtype))
    assert (x.grad.item(), weight.grad.item(), bias.grad.item()) == (0.0, 0.0, 1.0)
    check("rms_norm", x, weight, bias, torch.ones(1, dtype=dtype))


# llm.c PR#476; Liger PR#950; norms.md section 5
@both
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("w_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_P20_bias_gradient_of_ones(
    name: str, dtype: torch.dtype, w_dtype: torch.dtype, *, autocast: bool, threads: int
) -> None:
    """P20: 8192 ones add up to 8192, not to 256 where a bf16 sum stalls."""
    x = randn(8192, 8, dtype=dtype)
    weight = torch.ones(8, dtype=w_dtype, requires_grad=True)
    bias = torch.zeros(8, dtype=w_dtype, requires_grad=True)
    torch.set_num_threads(threads)
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = OPS[name](x, 8, weight=weight, bias=bias, eps=1e-5)
        y.backward(torch.ones_like(y))
    finally:
        torch.set_num_threads(1)
    assert torch.equal(bias.grad, torch.full((8,), 8192.0, dtype=w_dtype))
    truth = formulas.expected(name, x, weight, bias, dy=torch.ones_like(x), eps=1e-5)
    assert_close(weight.grad, truth.dw, sum_tolerance(truth.dw_terms, w_dtype))


@both
@pytest.mark.parametrize(("w_dtype", "right"), [(torch.float32, 2e4), (torch.bfloat16, 19968.0)])
def test_P20_twenty_thousand_rows(name: str, w_dtype: torch.dtype, right: float) -> None:
    """P20: 20000 rows give 20000, and 19968 after one bf16 rounding; a running bf16 sum fails."""
    x, dy = randn(20000, 8, dtype=torch.bfloat16), torch.ones(20000, 8, dtype=torch.bfloat16)
    weight, bias = torch.ones(8, dtype=w_dtype), torch.zeros(8, dtype=w_dtype)
    *_, db = check(name, x, weight, bias, dy)
    assert torch.equal(db, torch.full((8,), right, dtype=w_dtype))
    stalled = torch.zeros(8, dtype=torch.bfloat16)
    for row in dy[:600]:
        stalled = stalled + row
    assert torch.equal(stalled, stalled + dy[0])
    truth = formulas.expected(name, x, weight, bias, dy=dy, eps=1e-5)
    with pytest.raises(AssertionError):
        assert_close(stalled, truth.db, sum_tolerance(truth.db_terms, w_dtype))


def _g(name: str) -> Callable[[Tensor], Tensor]:
    weight, bias = double(1.0, 2.0), double(0.0, 0.0)

    def value(t: Tensor) -> Tensor:
        row = torch.stack([t, torch.zeros_like(t)])
        return OPS[name](row, 2, weight=weight, bias=bias, eps=0.25).sum()

    return value


def _jvp(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda t: jvp(f, (t,), (torch.ones_like(t),))[1]


# pytorch#196700
@pytest.mark.parametrize("outer", [grad, _jvp])
@pytest.mark.parametrize("inner", [grad, _jvp])
def test_P22_second_order(inner: Callable, outer: Callable) -> None:
    """P22: g = -t/sqrt(1 + t^2) twice differentiated, in all four nestings."""
    t = torch.tensor(0.7, dtype=torch.float64)
    first, second = inner(_g("layer_norm"))(t), outer(inner(_g("layer_norm")))(t)
    assert first.item() == pytest.approx(-0.5498200808852620, abs=1e-10)
    assert second.item() == pytest.approx(0.7749142079590942, abs=1e-10)
    rms = outer(inner(_g("rms_norm")))(t)
    assert rms.item() == pytest.approx(-1.5227068814, abs=1e-10)
    assert second.item() != pytest.approx(-0.38487405661968344, abs=1e-10)


# kernels.md 3.1, pytorch#175754
@pytest.mark.parametrize("nest", list(product([grad, _jvp], repeat=3)))
def test_P31_third_order(nest: tuple[Callable, ...]) -> None:
    """P31: g''' = 3/(1+t^2)^2.5 - 15 t^2/(1+t^2)^3.5 in all eight nestings."""
    t = torch.tensor(0.7, dtype=torch.float64)
    f = _g("layer_norm")
    for transform in nest:
        f = transform(f)
    right = 3 / 1.49**2.5 - 15 * 0.49 / 1.49**3.5
    assert f(t).item() == pytest.approx(right, abs=1e-10)


@both
def test_P31_third_order_in_eager_mode(name: str) -> None:
    """P31: the same by three calls of autograd.grad, against the formula's own three."""

    def third(value: Callable[[Tensor], Tensor]) -> float:
        t = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        result = value(t)
        for _ in range(3):
            (result,) = torch.autograd.grad(result, t, create_graph=True)
        return result.item()

    def written(t: Tensor) -> Tensor:
        row = torch.stack([t, torch.zeros_like(t)])
        return formulas.FORMULAS[name](row, double(1.0, 2.0), eps=0.25).sum()

    assert third(_g(name)) == pytest.approx(third(written), abs=1e-10)


@offsets
@both
@pytest.mark.parametrize("fast", [True, False])
def test_P31_gradgradcheck(name: str, *, offset: bool, fast: bool) -> None:
    """P31: first and second derivatives of every input by finite differences."""
    shapes = [(2, 3), (3,), (3,)]
    inputs = [randn(*s, seed=k, dtype=torch.float64).requires_grad_() for k, s in enumerate(shapes)]

    def f(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return OPS[name](x, 3, weight=weight, bias=bias, eps=1e-3, unit_offset=offset)

    assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True, fast_mode=fast)
    assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True, fast_mode=fast)


INCOMING: dict[str, Callable[[torch.dtype], Tensor]] = {
    "strided": lambda dtype: randn(6, 16, dtype=dtype)[:, ::2],
    "transposed": lambda dtype: randn(8, 6, dtype=dtype).t(),
    "stride 0": lambda dtype: torch.ones((), dtype=dtype).expand(6, 8),
    "row": lambda dtype: randn(8, dtype=dtype).expand(6, 8),
    "column": lambda dtype: randn(6, 1, dtype=dtype).expand(6, 8),
}


# unsloth PR#10617, PR#10675; Dao-AILab/quack#88; FlagGems PR#1082
@offsets
@both
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", list(INCOMING))
def test_P23_incoming_gradient_layouts(
    name: str, kind: str, dtype: torch.dtype, *, offset: bool
) -> None:
    """P23: a strided or expanded dy gives what its contiguous copy gives."""
    dy = INCOMING[kind](dtype)
    assert not dy.is_contiguous()
    tensors = [randn(*s, seed=k, dtype=dtype) for k, s in enumerate([(6, 8), (8,), (8,)], 1)]
    results = check(name, *tensors, dy, offset=offset)
    copied = check(name, *tensors, dy.contiguous(), offset=offset)
    for result, right in zip(results, copied, strict=True):
        assert_close(result, right.double(), 1e-6 * right.double().abs().clamp(min=1.0))


def test_P23_sum_of_the_output() -> None:
    """P23: y.sum() sends a gradient of stride 0 by itself."""
    for name in OPS:
        x = randn(6, 8).requires_grad_()
        OPS[name](x, 8, weight=randn(8, seed=1), eps=1e-5).sum().backward()
        truth = formulas.expected(name, x, randn(8, seed=1), dy=torch.ones(6, 8), eps=1e-5)
        assert_close(x.grad, truth.dx, gradient_tolerance(truth.dx, truth.dx_size, x.dtype))


LAYOUTS = {
    "strided": lambda: randn(6, 16)[:, ::2],
    "transposed": lambda: randn(8, 6).t(),
    "one row": lambda: randn(8).expand(6, 8),
    "one column": lambda: randn(6, 1).expand(6, 8),
    "slice of qkv": lambda: randn(6, 24)[:, 8:16],
    "channels last": lambda: randn(2, 3, 4, 8).to(memory_format=torch.channels_last),
}


# ModelTC/LightLLM#1467; ELS-RD/kernl#193; vllm PR#28103
@offsets
@both
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_P24_input_layouts(name: str, layout: str, *, offset: bool) -> None:
    """P24: a strided or expanded input, with strided parameters, gives what its copy gives."""
    x = LAYOUTS[layout]()
    assert not x.is_contiguous()
    parameters = [randn(16, seed=k)[::2] for k in (1, 2)]
    results = check(name, x, *parameters, randn(*x.shape, seed=3), offset=offset)
    plain = [p.contiguous() for p in parameters]
    copied = check(name, x.contiguous(), *plain, randn(*x.shape, seed=3), offset=offset)
    for result, right in zip(results, copied, strict=True):
        assert_close(result, right.double(), 1e-6 * right.double().abs().clamp(min=1.0))


@both
@pytest.mark.parametrize("rounding", ["fp32", "llama", "native"])
@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_P24_output_is_contiguous(name: str, layout: str, rounding: str, *, wants: bool) -> None:
    """P24: whatever the layout of the input, the result is contiguous, as in torch."""
    x = LAYOUTS[layout]().requires_grad_(wants)
    y = OPS[name](x, 8, eps=1e-5, rounding=rounding)
    normed, _ = ADDS[name](x, x.detach(), 8, eps=1e-5, rounding=rounding)
    joined = OUTPUTS[name](x, x.detach(), 8, eps=1e-5, rounding=rounding)
    assert [t.is_contiguous() for t in (y, normed, joined)] == [True, True, True]


# Liger#370, PR#376, PR#1305
@offsets
@both
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("expanded", [False, True])
def test_P25_incoming_gradient_is_kept(
    name: str, dtype: torch.dtype, *, expanded: bool, offset: bool
) -> None:
    """P25: backward writes into neither dy nor its inputs; a second consumer sees dy."""
    x, residual = randn(6, 8, dtype=dtype), randn(6, 8, seed=1, dtype=dtype)
    weight = randn(8, seed=2, dtype=dtype).requires_grad_()
    dy = randn(8, seed=3, dtype=dtype).expand(6, 8) if expanded else randn(6, 8, dtype=dtype)
    kept, x_kept = dy.clone(), x.clone()
    x.requires_grad_(), residual.requires_grad_()
    z = OPS[name](x, 8, weight=weight, eps=1e-5, unit_offset=offset) + residual
    z.backward(dy)
    assert torch.equal(dy, kept)
    assert torch.equal(residual.grad, kept)
    assert torch.equal(x.detach(), x_kept)


# FlagGems#5392
@offsets
@both
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "axes"), [((4,), 1), ((2, 3, 4), 1), ((2, 3, 4), 2), ((2, 3, 4), 3),
                        ((2, 2, 3, 2, 4), 2)]
)  # fmt: skip
def test_P26_ranks(
    name: str, shape: tuple[int, ...], axes: int, dtype: torch.dtype, *, offset: bool
) -> None:
    """P26: any rank and any number of normalized axes; the same as the rows in two axes."""
    inner = shape[-axes:]
    x, dy = randn(*shape, dtype=dtype), randn(*shape, seed=1, dtype=dtype)
    parameters = [randn(*inner, seed=k, dtype=dtype) for k in (2, 3)]
    results = check(name, x, *parameters, dy, axes=axes, offset=offset)
    width = parameters[0].numel()
    flat = [t.reshape(-1, width) for t in (x, dy)]
    two_axes = check(name, flat[0], *(p.reshape(width) for p in parameters), flat[1], offset=offset)
    for result, right in zip(results, two_axes, strict=True):
        right = right.double().reshape(result.shape)
        assert_close(result, right, output_tolerance(right, dtype))


# tenstorrent/tt-metal#53204
def test_P27_worked_gradient() -> None:
    """P27: one row on paper; the mean of dy w subtracted twice fails the same bound."""
    x, weight, dy = double(1, 2, 4), double(1, 2, 3), double(1, 1, 2)
    right = double(0.22906854696963697, -0.3436234375514523, 0.11455489058181578)
    _, dx, dw, db = check("layer_norm", x, weight, double(0, 0, 0), dy)
    assert_close(dx, right, 1e-10)
    assert_close(dw, double(-1.069041531450298, -0.2672603828625746, 2.6726038286257436), 1e-10)
    assert torch.equal(db, dy)
    unit, inverse = formulas.layer_norm(x, eps=1e-5), formulas.inverse_root("layer_norm", x, 1e-5)
    dn = dy * weight
    once = inverse * (dn - dn.mean() - unit * (unit * dn).mean())
    assert_close(once, right, 1e-10)
    with pytest.raises(AssertionError):
        assert_close(once - inverse * dn.mean(), right, 1e-10)


SUBSETS = [s for s in product([False, True], repeat=3) if any(s)]


# unsloth#4533, PR#4550; huggingface/candle#2168, #3011; paiml/entrenar PR#257
@offsets
@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wants", SUBSETS)
def test_P28_gradients_where_asked(
    name: str, wants: tuple[bool, ...], dtype: torch.dtype, *, offset: bool
) -> None:
    """P28: a gradient exactly where it is asked for, with the value of the full run."""
    shapes = [(5, 8), (8,), (8,)]
    tensors = [randn(*s, seed=k, dtype=dtype) for k, s in enumerate(shapes)]
    dy = randn(5, 8, seed=3, dtype=dtype)
    full = check(name, *tensors, dy, offset=offset)[1:]
    x, weight, bias = (t.detach().requires_grad_(w) for t, w in zip(tensors, wants, strict=True))
    y = OPS[name](x, 8, weight=weight, bias=bias, eps=1e-5, unit_offset=offset)
    assert y.requires_grad
    y.backward(dy)
    for tensor, want, right in zip((x, weight, bias), wants, full, strict=True):
        assert (tensor.grad is not None) == want
        assert tensor.grad is None or torch.equal(tensor.grad, right)


class _Shapes(TorchDispatchMode):
    """The shapes of everything that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.Size] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.seen.update(t.shape for t in [result] if isinstance(t, Tensor))
        return result


# Liger#1067, PR#1068; pytorch#80952
@both
def test_P29_frozen_weight(name: str) -> None:
    """P29: with frozen parameters dx keeps its bits and nothing of their shape is computed."""
    dx, computed = {}, {}
    for frozen in (True, False):
        x = randn(5, 8).requires_grad_()
        weight, bias = (randn(8, seed=k).requires_grad_(not frozen) for k in (1, 2))
        y = OPS[name](x, 8, weight=weight, bias=bias, eps=1e-5)
        with _Shapes() as shapes:
            y.backward(randn(5, 8, seed=3))
        dx[frozen], computed[frozen] = x.grad, shapes.seen
    assert torch.equal(dx[True], dx[False])
    parameter_shapes = {torch.Size([8]), torch.Size([1, 8])}
    assert computed[False] & parameter_shapes
    assert not computed[True] & parameter_shapes


@both
def test_P29_frozen_input(name: str) -> None:
    """P29: per-sample gradients of the weight where the input needs none."""
    x, weight = randn(5, 8), randn(8, seed=1)

    def loss(weight: Tensor, row: Tensor) -> Tensor:
        return OPS[name](row, 8, weight=weight, eps=1e-5).square().sum()

    samples = vmap(grad(loss), in_dims=(None, 0))(weight, x)
    unit = formulas.FORMULAS[name](x.double(), eps=1e-5)
    right = 2 * unit.square() * weight.double()
    assert_close(samples, right, 4e-6 * right.abs().clamp(min=1.0))


# pytorch#4320; tracel-ai/burn#1992; FluxML/Flux.jl#2096; keras#2960
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_P30_rows_without_variance(dtype: torch.dtype) -> None:
    """P30: (I - 1/4)/sqrt(eps) for a constant row, dy/sqrt(eps) for a zero row under rms_norm."""
    x = torch.full((4,), 2.0, dtype=dtype, requires_grad=True)
    nw.layer_norm(x, 4).backward(torch.tensor([1.0, 0, 0, 0], dtype=dtype))
    right = (double(1, 0, 0, 0) - 0.25) / 1e-5**0.5
    assert_close(right, double(237.1708, -79.0569, -79.0569, -79.0569), 5e-5)
    assert_close(x.grad, right, 1e-6 * right.abs())
    x = torch.zeros(4, dtype=dtype, requires_grad=True)
    dy = randn(4, dtype=dtype)
    nw.rms_norm(x, 4, eps=1e-6).backward(dy)
    assert_close(x.grad, 1000 * dy.double(), 1e-6 * (1000 * dy.double()).abs())


# pytorch PR#28614, PR#45250; torch-xpu-ops PR#4378
@both
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 4), (0, 5, 4), (2, 0, 4), (3, 0), (0, 0)])
@pytest.mark.parametrize("rounding", ["fp32", "llama"])
def test_P33_empty(name: str, shape: tuple[int, ...], dtype: torch.dtype, rounding: str) -> None:
    """P33: empty inputs pass both ways; parameter gradients are zeros, not None."""
    width = shape[-1]
    x = torch.empty(shape, dtype=dtype, requires_grad=True)
    weight, bias = (torch.ones(width, dtype=dtype, requires_grad=True) for _ in range(2))
    y = OPS[name](x, width, weight=weight, bias=bias, eps=1e-5, rounding=rounding)
    y.backward(torch.ones_like(y))
    assert (y.shape, y.dtype, x.grad.shape) == (x.shape, dtype, x.shape)
    assert torch.equal(weight.grad, torch.zeros(width, dtype=dtype))
    assert torch.equal(bias.grad, torch.zeros(width, dtype=dtype))


# pytorch#108048, PR#18233; FlagGems#323
@both
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("present", list(product([False, True], repeat=2)))
def test_P63_missing_parameters(name: str, present: tuple[bool, bool], dtype: torch.dtype) -> None:
    """P63: a missing weight acts as 1 and a missing bias as 0; the other's gradient is right."""
    weight, bias = (randn(8, seed=k, dtype=dtype) if p else None for k, p in enumerate(present, 1))
    results = check(name, randn(5, 8, dtype=dtype), weight, bias, randn(5, 8, seed=3, dtype=dtype))
    assert len(results) == 2 + sum(present)


# pytorch#63541
@pytest.mark.parametrize("width", [1, 2, 3, 8, 100, 4097])
def test_P64_gradient_of_the_sum(width: int) -> None:
    """P64: the sum of a layer norm is constant; rms_norm's is not."""
    x = randn(4, width).requires_grad_()
    nw.layer_norm(x, width).sum().backward()
    assert_close(x.grad, torch.zeros(4, width, dtype=torch.float64), 1e-5)
    if width > 1:
        (dx,) = torch.autograd.grad(nw.rms_norm(x, width, eps=1e-6).sum(), x)
        assert dx.abs().max() > 1e-3


# kernels.md 4.1-4.3: the closed form must be the definition's own derivative
@offsets
@both
@pytest.mark.parametrize("rounding", ["fp32", "llama"])
@pytest.mark.parametrize("w_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_is_the_reference(
    name: str,
    dtype: torch.dtype,
    w_dtype: torch.dtype,
    rounding: str,
    backend: str,
    *,
    offset: bool,
) -> None:
    """Each gradient as autograd of the definition gives it; closed forms forward to the bit."""
    inputs = [
        randn(7, 33, dtype=dtype).requires_grad_(),
        randn(33, seed=1, dtype=w_dtype).requires_grad_(),
        randn(33, seed=2, dtype=w_dtype).requires_grad_(),
    ]
    x, weight, bias = inputs
    dy = randn(7, 33, seed=3, dtype=dtype)
    spec = NormSpec((-1,), 1e-5, offset, rounding, dtype, dtype)
    y = OPS[name](x, 33, weight=weight, bias=bias, eps=1e-5, unit_offset=offset, rounding=rounding)
    y_reference = REFERENCES[name](x, weight, bias, spec)
    if backend == "reference":
        assert type(y.grad_fn).__name__ == "_ClosedFormBackward"
        assert torch.equal(y, y_reference)
    else:
        assert type(y.grad_fn).__name__ == "_KernelsBackward"
    truth = formulas.expected(name, x, weight, bias, dy=dy, eps=1e-5, offset=float(offset))
    dx, dw, db = (g.double() for g in torch.autograd.grad(y_reference, inputs, dy))
    closed = torch.autograd.grad(y, inputs, dy)
    narrow = {t: t if t != torch.float64 or dtype == w_dtype else torch.float32
              for t in (dtype, w_dtype)}  # fmt: skip
    assert_close(closed[0], dx, gradient_tolerance(dx, truth.dx_size, narrow[dtype]))
    assert_close(closed[1], dw, weight_tolerance(truth.dw_terms, truth.db_terms, narrow[w_dtype]))
    assert_close(closed[2], db, sum_tolerance(truth.db_terms, narrow[w_dtype]))


@both
@pytest.mark.parametrize("w_dtype", [torch.float32, torch.bfloat16])
def test_llama_weight_gradient_uses_the_rounded_row(name: str, w_dtype: torch.dtype) -> None:
    """Under llama dw sums dy times the rounded row, as forward used it (kernels.md 2.1)."""
    x, dy = randn(1, 33, dtype=torch.bfloat16), torch.ones(1, 33, dtype=torch.bfloat16)
    rows = {}
    for rounding in ("llama", "fp32"):
        weight = torch.ones(33, requires_grad=True)
        OPS[name](x, 33, weight=weight, eps=1e-5, rounding=rounding).backward(dy)
        rows[rounding] = weight.grad
    assert torch.equal(rows["llama"], OPS[name](x, 33, eps=1e-5)[0].float())
    assert torch.equal(rows["fp32"], OPS[name](x, 33, eps=1e-5, out_dtype=torch.float32)[0])
    assert not torch.equal(rows["llama"], rows["fp32"])


@both
@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0)])
def test_vmap_is_the_loop(name: str, in_dims: tuple[int | None, ...]) -> None:
    """P32: vmap over x, weight or both equals the loop."""
    x = randn(4, 5, 8, dtype=torch.float64) if in_dims[0] == 0 else randn(5, 8).double()
    weight = randn(*([4, 8] if in_dims[1] == 0 else [8]), seed=1, dtype=torch.float64)

    def f(x: Tensor, weight: Tensor) -> Tensor:
        return OPS[name](x, 8, weight=weight, eps=1e-5)

    batched = vmap(f, in_dims=in_dims)(x, weight)
    loop = [f(x[k] if in_dims[0] == 0 else x, weight[k] if in_dims[1] == 0 else weight)
            for k in range(4)]  # fmt: skip
    assert_close(batched, torch.stack(loop), FLOAT64_OUTPUT)


@both
def test_jacrev_is_the_loop(name: str) -> None:
    """The Jacobian of a row equals one backward pass for each output, and the formula's."""
    x, weight = randn(5, dtype=torch.float64), randn(5, seed=1, dtype=torch.float64)
    jacobian = jacrev(lambda row: OPS[name](row, 5, weight=weight, eps=1e-5))(x)
    truth = jacrev(lambda row: formulas.FORMULAS[name](row, weight, eps=1e-5))(x)
    assert_close(jacobian, truth, FLOAT64_OUTPUT)
    x.requires_grad_()
    y = OPS[name](x, 5, weight=weight, eps=1e-5)
    rows = [torch.autograd.grad(y, x, e, retain_graph=True)[0] for e in torch.eye(5).double()]
    assert_close(torch.stack(rows), truth, FLOAT64_OUTPUT)


@both
def test_per_sample_gradients_are_the_loop(name: str) -> None:
    """vmap(grad) over a module's parameters equals one backward pass for each sample."""
    module = nw.make_norm(name, 8, dtype=torch.float64)
    x = randn(6, 3, 8, dtype=torch.float64)
    parameters = {key: p.detach() for key, p in module.named_parameters()}

    def loss(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(module, parameters, (sample,)).pow(3).sum()

    batched = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for k, sample in enumerate(x):
        module.zero_grad()
        module(sample).pow(3).sum().backward()
        for key, p in module.named_parameters():
            assert_close(batched[key][k], p.grad, FLOAT64_OUTPUT * (1 + p.grad.abs()))


DTYPE_PAIRS = [
    (torch.float64, torch.float64), (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16),
    (torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16),
]  # fmt: skip


# kernels.md 3.1: torchnorm, quack, Liger: the second output's gradient ignored, dropped or needed
@offsets
@both
@pytest.mark.parametrize("rule", ["before_stats", "after_stats"])
@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("pair", DTYPE_PAIRS)
def test_add_forms(
    name: str,
    pair: tuple[torch.dtype, torch.dtype],
    used: tuple[bool, bool],
    rule: str,
    *,
    offset: bool,
) -> None:
    """dx = d_norm(dy) + d_stream, rounded once; the residual's is the same in its own dtype."""
    x, residual = (randn(7, 33, seed=k, dtype=t).requires_grad_() for k, t in enumerate(pair))
    weight = randn(33, seed=2, dtype=pair[0]).requires_grad_()
    bias = randn(33, seed=3, dtype=pair[0]).requires_grad_()
    y, stream = ADDS[name](
        x, residual, 33, weight=weight, bias=bias, eps=1e-5,
        unit_offset=offset, residual_rounding=rule,
    )  # fmt: skip
    dy, ds = (randn(7, 33, seed=4 + k, dtype=t.dtype) for k, t in enumerate((y, stream)))
    outputs = [t for t, u in zip((y, stream), used, strict=True) if u]
    incoming = [g for g, u in zip((dy, ds), used, strict=True) if u]
    dx, dr, dw, db = torch.autograd.grad(
        outputs, (x, residual, weight, bias), incoming, allow_unused=True
    )
    total = x.detach().double() + residual.detach().double()
    seen = stream.detach().double() if rule == "before_stats" else total
    truth = formulas.expected(name, seen, weight, bias, dy=dy, eps=1e-5, offset=float(offset))
    right = used[0] * truth.dx + used[1] * ds.double()
    size = truth.dx_size + ds.double().abs()
    assert_close(stream, total, output_tolerance(total, stream.dtype))
    assert_close(y, truth.y, output_tolerance(truth.y, y.dtype))
    assert_close(dx, right, gradient_tolerance(right, size, x.dtype))
    assert_close(dr, right, gradient_tolerance(right, size, residual.dtype))
    assert (dw is None, db is None) == (not used[0], not used[0])
    if used[0]:
        assert_close(dw, truth.dw, weight_tolerance(truth.dw_terms, truth.db_terms, weight.dtype))
        assert_close(db, truth.db, sum_tolerance(truth.db_terms, bias.dtype))


@both
def test_add_forms_without_a_gradient(name: str) -> None:
    """Where neither result is used nothing arrives, and nothing breaks."""
    x, residual = randn(7, 33).requires_grad_(), randn(7, 33, seed=1).requires_grad_()
    ADDS[name](x, residual, 33, eps=1e-5)
    x.sum().backward()
    assert residual.grad is None
    assert torch.equal(x.grad, torch.ones(7, 33))


@both
@pytest.mark.parametrize("wants", SUBSETS)
def test_add_forms_gradients_where_asked(name: str, wants: tuple[bool, ...]) -> None:
    """P28 for (x, residual, weight): also where the residual alone needs one."""
    shapes = [(5, 8), (5, 8), (8,)]
    x, residual, weight = (
        randn(*s, seed=k).requires_grad_(w)
        for k, (s, w) in enumerate(zip(shapes, wants, strict=True))
    )
    y, stream = ADDS[name](x, residual, 8, weight=weight, eps=1e-5)
    dy, ds = randn(5, 8, seed=3), randn(5, 8, seed=4)
    ((y * dy).sum() + (stream * ds).sum()).backward()
    truth = formulas.expected(name, stream, weight, dy=dy, eps=1e-5)
    right = truth.dx + ds.double()
    for tensor, want in zip((x, residual), wants[:2], strict=True):
        assert (tensor.grad is not None) == want
        if want:
            assert_close(
                tensor.grad, right,
                gradient_tolerance(right, truth.dx_size + ds.double().abs(), torch.float32),
            )  # fmt: skip
    assert (weight.grad is not None) == wants[2]


@offsets
@both
@pytest.mark.parametrize("pair", DTYPE_PAIRS)
def test_output_forms(name: str, pair: tuple[torch.dtype, torch.dtype], *, offset: bool) -> None:
    """residual + norm(x): the residual's gradient is dy, the branch's is the norm's."""
    x, residual = (randn(7, 33, seed=k, dtype=t).requires_grad_() for k, t in enumerate(pair))
    weight = randn(33, seed=2, dtype=pair[0]).requires_grad_()
    bias = randn(33, seed=3, dtype=pair[0]).requires_grad_()
    y = OUTPUTS[name](x, residual, 33, weight=weight, bias=bias, eps=1e-5, unit_offset=offset)
    dy = randn(7, 33, seed=4, dtype=y.dtype)
    dx, dr, dw, db = torch.autograd.grad(y, (x, residual, weight, bias), dy)
    truth = formulas.expected(name, x, weight, bias, dy=dy, eps=1e-5, offset=float(offset))
    right = truth.y + residual.detach().double()
    rounding_of_the_branch = output_tolerance(truth.y, x.dtype)
    assert_close(y, right, rounding_of_the_branch + output_tolerance(right, y.dtype))
    assert torch.equal(dr, dy.to(residual.dtype))
    assert_close(dx, truth.dx, gradient_tolerance(truth.dx, truth.dx_size, x.dtype))
    assert_close(dw, truth.dw, weight_tolerance(truth.dw_terms, truth.db_terms, weight.dtype))
    assert_close(db, truth.db, sum_tolerance(truth.db_terms, bias.dtype))
