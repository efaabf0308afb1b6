"""The compiled kernels: layouts, threads, memory and extreme rows, with nothing left to fall back.

Everything here runs under nw.backend("numba"), which raises where the kernels cannot run.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import normwise as nw
from normwise.errors import BackendUnavailable, ShapeError
from normwise.ops.numba_cpu import launch
from tests.ops import formulas
from tests.tolerance import (
    FLOAT64_OUTPUT,
    assert_close,
    gradient_tolerance,
    output_tolerance,
    sum_tolerance,
    weight_tolerance,
)

OPS: dict[str, Callable[..., Any]] = {
    "layer_norm": nw.layer_norm, "rms_norm": nw.rms_norm,
    "add_layer_norm": nw.add_layer_norm, "add_rms_norm": nw.add_rms_norm,
    "layer_norm_add": nw.layer_norm_add, "rms_norm_add": nw.rms_norm_add,
}  # fmt: skip
NORMS = ["layer_norm", "rms_norm"]
F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
both = pytest.mark.parametrize("name", NORMS)
every = pytest.mark.parametrize("op", list(OPS))


@pytest.fixture(autouse=True, scope="module")
def kernels_only() -> Iterator[None]:
    with nw.backend("numba"):
        yield


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = F32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=F64).to(dtype)


def norm_of(op: str) -> str:
    return op.removeprefix("add_").removesuffix("_add")


def call(op: str, x: Tensor, residual: Tensor, shape: Any, **keywords: Any) -> tuple[Tensor, ...]:
    """The results of any of the six; the residual is for those that take one."""
    result = OPS[op](x, *(() if op in NORMS else (residual,)), shape, **keywords)
    return result if isinstance(result, tuple) else (result,)


def bits(x: Tensor) -> Tensor:
    return x.detach().clone(memory_format=torch.contiguous_format).view(torch.uint8)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "two axes transposed": lambda x: x.transpose(0, -x.ndim // 2).contiguous().transpose(
        0, -x.ndim // 2),
    "every second row": lambda x: torch.stack([x, -x], 1)[:, 0],
    "expanded leading axis": lambda x: x[:1].expand_as(x),
    "strided last axis": lambda x: torch.stack([-x, x], -1)[..., 1],
    "slice of wider rows": lambda x: torch.cat([-x, x, -x], -1).narrow(-1, x.shape[-1], x.shape[-1])
}  # fmt: skip
INCOMING: dict[str, Callable[[Tensor], Tensor]] = {
    key: LAYOUTS[key] for key in ("contiguous", "two axes transposed", "expanded leading axis")
} | {"one number": lambda g: g.flatten()[0].expand_as(g)}
DTYPES = [  # of x, of the residual, of weight and bias
    (F32, F32, F32), (F64, F64, F64), (F64, F64, F32),
    (BF16, BF16, BF16), (BF16, F32, F32), (F16, F16, F16), (F16, F16, F32),
]  # fmt: skip


class Case(NamedTuple):
    """A call and its backward, all but the numbers."""

    op: str
    shape: tuple[int, ...]
    axes: int
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype]
    layouts: tuple[str, str]
    wants: tuple[bool, bool, bool, bool]
    used: tuple[bool, bool]
    incoming: tuple[str, str]
    rule: str
    offset: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = [draw(st.sampled_from([1, 2, 3, 31, 33, 100]))]
    for largest in ([1, 2, 3, 31], [1, 2, 3], [1, 2, 33])[: draw(st.integers(0, 3))]:
        shape.insert(0, draw(st.sampled_from(largest)))
    op, dtypes = draw(st.sampled_from(list(OPS))), draw(st.sampled_from(DTYPES))
    wants = draw(st.tuples(*[st.booleans()] * 4).filter(any))
    unrounded = op.startswith("add_") and dtypes[:2] == (BF16, BF16) and draw(st.booleans())
    return Case(
        op,
        tuple(shape),
        draw(st.integers(1, min(2, len(shape)))),
        dtypes,
        draw(st.tuples(*[st.sampled_from(list(LAYOUTS))] * 2)),
        wants if op not in NORMS or any(wants[::2]) or wants[3] else (True, *wants[1:]),
        draw(st.sampled_from([(True, True), (True, False), (False, True)])),
        draw(st.tuples(*[st.sampled_from(list(INCOMING))] * 2)),
        "after_stats" if unrounded else "before_stats",
        draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(cases(), st.integers(0, 2**16))
def test_any_call(case: Case, seed: int) -> None:
    """Each result and each wanted gradient against float64; no other gradient, no input touched."""
    inner = case.shape[len(case.shape) - case.axes :]
    x_dtype, residual_dtype, w_dtype = case.dtypes
    x = LAYOUTS[case.layouts[0]](randn(*case.shape, seed=seed, dtype=x_dtype))
    residual = LAYOUTS[case.layouts[1]](randn(*case.shape, seed=seed + 1, dtype=residual_dtype))
    weight, bias = (randn(*inner, seed=seed + k, dtype=w_dtype) for k in (2, 3))
    inputs = [
        t.detach().requires_grad_(w)
        for t, w in zip((x, residual, weight, bias), case.wants, strict=True)
    ]
    x, residual, weight, bias = inputs
    keywords = {} if not case.op.startswith("add_") else {"residual_rounding": case.rule}
    results = call(
        case.op, x, residual, inner,
        weight=weight, bias=bias, eps=1e-5, unit_offset=case.offset, **keywords,
    )  # fmt: skip
    incoming = [
        INCOMING[kind](randn(*case.shape, seed=seed + 4 + k, dtype=y.dtype))
        for k, (y, kind) in enumerate(zip(results, case.incoming, strict=False))
    ]
    used = case.used if len(results) == 2 else (True, False)
    kept = [bits(t) for t in (*inputs, *incoming)]
    torch.autograd.backward(
        [y for y, u in zip(results, used, strict=False) if u],
        [g for g, u in zip(incoming, used, strict=False) if u],
    )
    assert all(map(torch.equal, map(bits, (*inputs, *incoming)), kept))
    _check(case, inputs, results, incoming, used)


def _check(
    case: Case,
    inputs: list[Tensor],
    results: tuple[Tensor, ...],
    incoming: list[Tensor],
    used: tuple[bool, bool],
) -> None:
    x, residual, weight, bias = inputs
    seen, adds, joins = x, case.op.startswith("add_"), case.op.endswith("_add")
    if adds:
        assert torch.equal(results[1], x + residual)
        unrounded = x.detach().double() + residual.detach().double()
        seen = unrounded if case.rule == "after_stats" else results[1]
    truth = formulas.expected(
        norm_of(case.op), seen, weight, bias,
        dy=incoming[0], eps=1e-5, axes=case.axes, offset=float(case.offset),
    )  # fmt: skip
    y, allowed = truth.y, output_tolerance(truth.y, x.dtype)
    if joins:
        y = y + residual.detach().double()
        allowed = allowed + output_tolerance(y, results[0].dtype)
    assert_close(results[0], y, allowed)
    assert all(t.is_contiguous() for t in results)
    into_stream = incoming[1].double() if used[1] else torch.zeros_like(y)
    dx, size = used[0] * truth.dx + into_stream, truth.dx_size + into_stream.abs()
    right = {
        "x": (x, dx, gradient_tolerance(dx, size, x.dtype), True),
        "residual": (residual, dx, gradient_tolerance(dx, size, residual.dtype), adds or joins),
        "weight": (weight, truth.dw,
                   weight_tolerance(truth.dw_terms, truth.db_terms, weight.dtype), used[0]),
        "bias": (bias, truth.db, sum_tolerance(truth.db_terms, bias.dtype), used[0]),
    }  # fmt: skip
    if joins:
        right["residual"] = (residual, incoming[0].double(), 0.0, True)
    for key, (tensor, expected, bound, takes_part) in right.items():
        assert (tensor.grad is not None) == (tensor.requires_grad and takes_part), key
        if tensor.grad is not None:
            assert tensor.grad.dtype == tensor.dtype
            assert_close(tensor.grad, expected, bound)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def everything(name: str, x: Tensor, dy: Tensor, seed: int = 2) -> list[Tensor]:
    """y, dx, dw, db of fp32 parameters."""
    x = x.detach().requires_grad_()
    weight, bias = (randn(x.shape[-1], seed=seed + k).requires_grad_() for k in (0, 1))
    y = OPS[name](x, x.shape[-1], weight=weight, bias=bias, eps=1e-5)
    return [y.detach(), *torch.autograd.grad(y, (x, weight, bias), dy)]


# kernels.md: sums are cut by the shape alone
@both
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(1000, 768), (70001, 8), (3, 50000)])
def test_threads_change_no_bit(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """One, two and three threads, and one run and the next, give the same bits."""
    x, dy = (randn(*shape, seed=k, dtype=dtype) for k in (0, 1))
    first = everything(name, x, dy)
    for count in (1, 2, 3, 3, 2):
        with threads(count):
            again = everything(name, x, dy)
        assert all(map(torch.equal, again, first)), count


@both
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("width", [1, 3, 33, 768, 4097])
def test_a_row_does_not_see_its_batch(name: str, width: int, dtype: torch.dtype) -> None:
    """A row by itself has the y and the dx that it has among others."""
    x, dy = (randn(70, width, seed=k, dtype=dtype) for k in (0, 1))
    y, dx, *_ = everything(name, x, dy)
    for i in (0, 1, 64, 69):
        alone = everything(name, x[i : i + 1], dy[i : i + 1])
        assert torch.equal(y[i], alone[0][0]), i
        assert torch.equal(dx[i], alone[1][0]), i


# llm.c PR#476; Liger PR#950
@both
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_sums_over_many_rows(name: str, dtype: torch.dtype) -> None:
    """100000 terms of one sign add up to 1e-6 of their sum, and a half is that, rounded once."""
    x = randn(100_000, 16, dtype=dtype)
    dy = (x.sign() * (0.5 + randn(100_000, 16, seed=1).abs()) / 16).to(dtype)
    sums = {}
    for w_dtype in {F32, dtype}:
        weight, bias = (torch.ones(16, dtype=w_dtype, requires_grad=True) for _ in range(2))
        y = OPS[name](x, 16, weight=weight, bias=bias, eps=1e-5)
        sums[w_dtype] = torch.autograd.grad(y, (weight, bias), dy)
    truth = formulas.expected(name, x, dy=dy, eps=1e-5)
    assert_close(sums[F32][0], truth.dw, sum_tolerance(truth.dw_terms, F32))
    assert_close(sums[F32][1], truth.db, sum_tolerance(truth.db_terms, F32))
    for wide, narrow in zip(sums[F32], sums[dtype], strict=True):
        assert torch.equal(narrow, wide.to(dtype))


@both
def test_one_gradient_for_all_rows(name: str) -> None:
    """As the mean of an output sends it: every sum rounds the same way, again and again."""
    dy = (1 + torch.rand(16, generator=torch.Generator().manual_seed(0))).expand(100_000, 16)
    bias = torch.zeros(16, requires_grad=True)
    OPS[name](randn(100_000, 16), 16, bias=bias, eps=1e-5).backward(dy)
    assert_close(bias.grad, dy.double().sum(0), sum_tolerance(dy.double(), F32))


@both
@pytest.mark.parametrize(("dtype", "place"), [(BF16, 7), (F16, 10)])
def test_halves_are_rounded_once(name: str, dtype: torch.dtype, place: int) -> None:
    """A sum just above the middle between two halves is rounded up: by way of fp32, which cannot
    hold it, it would be the middle, and become the even one below.
    """
    x, bias = randn(192, 4), torch.zeros(4, dtype=dtype, requires_grad=True)
    dy = torch.zeros(192, 4)
    dy[0], dy[64], dy[128] = 1.0, 2.0 ** -(place + 1), 2.0**-30  # a chunk of 64 rows each
    (db,) = torch.autograd.grad(OPS[name](x, 4, bias=bias, eps=1e-5), bias, dy)
    assert torch.equal(db, torch.full((4,), 1 + 2.0**-place, dtype=dtype))


@both
@pytest.mark.parametrize("dtype", [F32, BF16, F16, F64])
@pytest.mark.parametrize("width", [1, 33, 768, 5000])
def test_kernels_agree_to_the_bit(name: str, width: int, dtype: torch.dtype) -> None:
    """Each form has a kernel of its own: with a residual of zeros they give one result."""
    x, zeros = (5 + randn(7, width)).to(dtype), torch.zeros(7, width, dtype=dtype)
    y = OPS[name](x, width, eps=1e-5)
    assert torch.equal(OPS[f"add_{name}"](x, zeros, width, eps=1e-5)[0], y)
    assert torch.equal(OPS[f"{name}_add"](x, zeros, width, eps=1e-5), y)


def in_turn(monkeypatch: pytest.MonkeyPatch, f: Callable[[], list[Tensor]]) -> list[bool]:
    """Runs f with results that stay in the caches and with results that pass them by, which must
    agree; whether each call of a kernel did so.
    """
    found, past, run = [], [], launch.run

    def record(kernel: Any, call: Any, *, threaded: bool) -> None:
        past.append(bool(call.past))
        run(kernel, call, threaded=threaded)

    monkeypatch.setattr(launch, "run", record)
    for size in (1 << 40, 1):
        monkeypatch.setattr(launch, "_BEYOND_CACHES", dict.fromkeys(launch._BEYOND_CACHES, size))
        launch._plan_forward.cache_clear()
        launch._plan_backward.cache_clear()
        found.append(f())
    launch._plan_forward.cache_clear()
    launch._plan_backward.cache_clear()
    assert all(map(torch.equal, *found))
    return past


@both
def test_a_narrow_stream_beside_a_wide_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of both must begin at cache lines: 48 fp32 are three lines, 48 bf16 one and a half."""
    x, residual = (randn(300, 48, seed=k, dtype=BF16) for k in (0, 1))
    add = OPS[f"add_{name}"]
    past = in_turn(monkeypatch, lambda: list(add(x, residual, 48, eps=1e-5, out_dtype=F32)))
    assert past == [False, False]


@every
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("width", "aligned"), [(96, True), (100, False)])
def test_past_the_caches(
    op: str, width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, *, aligned: bool
) -> None:
    """What is too large for the caches is written past them, where rows begin at cache lines."""
    inputs = [randn(300, width, seed=k, dtype=dtype).requires_grad_() for k in (0, 1)]
    inputs += [randn(width, seed=k, dtype=dtype).requires_grad_() for k in (2, 3)]
    x, residual, weight, bias = inputs
    wanted = inputs if op not in NORMS else [x, weight, bias]

    def run() -> list[Tensor]:
        outputs = call(op, x, residual, width, weight=weight, bias=bias, eps=1e-5)
        dy = [randn(300, width, seed=9, dtype=dtype) for _ in outputs]
        return [*outputs, *torch.autograd.grad(outputs, wanted, dy)]

    assert in_turn(monkeypatch, run) == [False, False, aligned, aligned]


@pytest.mark.parametrize(
    ("rows", "op", "dtype", "training", "inference"),
    [
        (2048, "rms_norm", F32, [False, True], False),  # 12 MiB forward, 18 backward
        (4096, "rms_norm", F32, [True, True], False),  # 24
        (4096, "rms_norm", BF16, [False, True], False),  # 12 and 18
        (4096, "add_rms_norm", BF16, [True, True], False),  # 24
        (2048, "add_rms_norm", BF16, [False, False], False),  # 12
        (5462, "add_rms_norm", F32, [True, True], True),  # 64
        (5461, "add_rms_norm", F32, [True, True], False),
    ],
)
def test_what_passes_the_caches(
    rows: int,
    op: str,
    dtype: torch.dtype,
    training: list[bool],
    inference: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the bytes that a pass reads and writes, and sooner where a backward pass follows."""
    past: list[bool] = []
    monkeypatch.setattr(launch, "run", lambda kernel, call, threaded: past.append(call.past == 1))
    x, residual = (torch.zeros(rows, 768, dtype=dtype).requires_grad_() for _ in range(2))
    outputs = call(op, x, residual, 768, eps=1e-5)
    torch.autograd.grad(outputs, x, [y.detach() for y in outputs])
    with torch.no_grad():
        call(op, x, residual, 768, eps=1e-5)
    assert past == [*training, inference]


@both
@pytest.mark.parametrize(("dtype", "one"), [(F32, 1.0), (BF16, 1.0), (F16, 0.5), (F64, 1.0)])
def test_ones_are_counted(name: str, dtype: torch.dtype, one: float) -> None:
    """100000 ones are 100000 in every dtype that holds it; in fp16, 50000 of halves."""
    bias = torch.zeros(16, dtype=dtype, requires_grad=True)
    y = OPS[name](randn(100_000, 16, dtype=dtype), 16, bias=bias, eps=1e-5)
    y.backward(torch.full_like(y, one))
    assert torch.equal(bias.grad, torch.full((16,), 100_000 * one).to(dtype))


NANS = {
    "fp32 -": torch.tensor(-1, dtype=torch.int32).view(F32),
    "fp32 +": torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(F32),
    "fp16 -": torch.tensor(-1, dtype=torch.int16).view(F16),
    "fp16 +": torch.tensor(0x7FFF, dtype=torch.int16).view(F16),
}
nans = pytest.mark.parametrize("nan", list(NANS))
narrows = pytest.mark.parametrize("narrow", [BF16, F16])
one_norm_each = pytest.mark.parametrize(  # whatever norms, a dtype rounds by one function
    ("name", "narrow"), [("layer_norm", BF16), ("rms_norm", F16)]
)


def with_nan(x: Tensor, nan: str, *place: int) -> tuple[Tensor, Tensor]:
    """x in the NaN's dtype, and the same with that NaN in one place, to the bit."""
    integer = {F32: torch.int32, F16: torch.int16}[NANS[nan].dtype]
    clean = x.to(NANS[nan].dtype)
    bad = clean.clone()
    bad.view(integer)[place] = NANS[nan].view(integer)
    return clean, bad


def nan_only_in(
    bad: Tensor, clean: Tensor, *, row: int | None = None, column: int | None = None
) -> None:
    """NaN in one row or column, and elsewhere what a clean call gives."""
    hit = torch.zeros_like(clean, dtype=torch.bool)
    hit[slice(None) if row is None else row, slice(None) if column is None else column] = True
    assert torch.equal(bad.isnan(), hit)
    assert torch.equal(bad[~hit], clean[~hit])


@one_norm_each
@nans
def test_nan_in_a_row(name: str, nan: str, narrow: torch.dtype) -> None:
    """A NaN whose bits are all set rounds to NaN, not to 0: y, dx and the sum dw."""
    results = []
    for x in with_nan(randn(3, 8), nan, 1, 2):
        x.requires_grad_()
        weight = torch.ones(8, dtype=narrow, requires_grad=True)
        y = OPS[name](x, 8, weight=weight, eps=1e-5, out_dtype=narrow)
        dx, dw = torch.autograd.grad(y, (x, weight), randn(3, 8, seed=1, dtype=narrow))
        results.append((y, dx, dw))
    (y, dx, dw), (bad_y, bad_dx, bad_dw) = results
    nan_only_in(bad_y, y, row=1)
    nan_only_in(bad_dx, dx, row=1)
    assert bad_dw.isnan().all() and not dw.isnan().any()


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("rounding", ["fp32", "llama"])
@narrows
@nans
@both
def test_nan_in_a_parameter(
    name: str, nan: str, narrow: torch.dtype, rounding: str, *, offset: bool
) -> None:
    """The same in the weight or the bias: a column of y; all of dx for the weight."""
    clean, bad = with_nan(1 + randn(8, seed=1), nan, 2)
    results = []
    for weight, bias in ((clean, clean), (bad, clean), (clean, bad)):
        x = randn(3, 8, dtype=narrow).requires_grad_()
        y = OPS[name](
            x, 8, weight=weight, bias=bias, eps=1e-5, rounding=rounding, unit_offset=offset
        )
        results.append((y, *torch.autograd.grad(y, x, randn(3, 8, seed=2, dtype=narrow))))
    (y, dx), (y_weight, dx_weight), (y_bias, dx_bias) = results
    nan_only_in(y_weight, y, column=2)
    nan_only_in(y_bias, y, column=2)
    assert dx_weight.isnan().all()
    assert torch.equal(dx_bias, dx)


@one_norm_each
@nans
def test_nan_in_the_stream(name: str, nan: str, narrow: torch.dtype) -> None:
    """The same in the residual: the row of y, of the stream and of dx."""
    results = []
    for residual in with_nan(randn(3, 8), nan, 1, 2):
        x = randn(3, 8, seed=1, dtype=narrow).requires_grad_()
        y, stream = OPS[f"add_{name}"](x, residual, 8, eps=1e-5)
        dy = randn(3, 8, seed=2, dtype=narrow)
        results.append((y, stream, *torch.autograd.grad(y, x, dy)))
    (y, stream, dx), (bad_y, bad_stream, bad_dx) = results
    nan_only_in(bad_y, y, row=1)
    nan_only_in(bad_dx, dx, row=1)
    assert torch.equal(bad_stream.isnan().nonzero(), torch.tensor([[1, 2]]))
    assert torch.equal(bad_stream.nan_to_num(9.0) != stream, bad_stream.isnan())


@one_norm_each
@nans
def test_nan_in_the_incoming_gradient(name: str, nan: str, narrow: torch.dtype) -> None:
    """The same in dy: the row of dx, and the column of dw and of db."""
    results = []
    for dy in with_nan(randn(3, 8), nan, 1, 2):
        x = randn(3, 8, seed=1, dtype=narrow).requires_grad_()
        weight, bias = (torch.ones(8, dtype=narrow, requires_grad=True) for _ in range(2))
        y = OPS[name](x, 8, weight=weight, bias=bias, eps=1e-5, out_dtype=dy.dtype)
        results.append(torch.autograd.grad(y, (x, weight, bias), dy))
    (dx, dw, db), (bad_dx, bad_dw, bad_db) = results
    nan_only_in(bad_dx, dx, row=1)
    for bad, clean in ((bad_dw, dw), (bad_db, db)):
        nan_only_in(bad[None], clean[None], column=2)


def saved_bytes(f: Callable[[], Any]) -> int:
    """The memory that a call holds for its backward; storage that is saved twice counts once."""
    saved: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        f()
    return sum(saved.values())


@every
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_saved_memory(op: str, dtype: torch.dtype, *, frozen: bool) -> None:
    """One tensor of the input's size, the parameters, and 16 bytes a row."""
    x, residual = (randn(512, 768, seed=k, dtype=dtype).requires_grad_() for k in (0, 1))
    weight, bias = (randn(768, seed=k).requires_grad_(not frozen) for k in (2, 3))
    held = saved_bytes(lambda: call(op, x, residual, 768, weight=weight, bias=bias, eps=1e-5))
    assert x.nbytes < held <= x.nbytes + weight.nbytes + bias.nbytes + 16 * 512
    with torch.no_grad():
        assert saved_bytes(lambda: call(op, x, residual, 768, weight=weight, eps=1e-5)) == 0


@every
@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_parameters_cost_nothing(
    op: str, monkeypatch: pytest.MonkeyPatch, *, frozen: bool
) -> None:
    """Backward returns None for a frozen weight and bias, and no kernel sums for them."""
    x, residual = (randn(512, 768, seed=k).requires_grad_() for k in (0, 1))
    weight, bias = (randn(768, seed=k).requires_grad_(not frozen) for k in (2, 3))
    y, *_ = call(op, x, residual, 768, weight=weight, bias=bias, eps=1e-5)
    calls, run = [], launch.run

    def record(kernel: Any, call: Any, *, threaded: bool) -> None:
        calls.append(call)
        run(kernel, call, threaded=threaded)

    monkeypatch.setattr(launch, "run", record)
    with torch.no_grad():
        grads = y.grad_fn.apply(torch.ones_like(y))
    assert [g is None for g in grads[-2:]] == [frozen, frozen]
    assert grads[1] is not None
    assert [bool(c) for c in (calls[0].dw, calls[0].db, calls[0].sums)] == [not frozen] * 3


def written(op: str, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    formula = formulas.FORMULAS[norm_of(op)]
    if op.startswith("add_"):
        return torch.stack([formula(x + residual, weight, bias, eps=0.25), x + residual])
    y = formula(x, weight, bias, eps=0.25)
    return y + residual if op.endswith("_add") else y


def ours(op: str, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    results = call(op, x, residual, 3, weight=weight, bias=bias, eps=0.25)
    return torch.stack(results) if len(results) == 2 else results[0]


def leaves(op: str) -> list[Tensor]:
    shapes = [(2, 3), (2, 3), (3,), (3,)]
    return [randn(*s, seed=k, dtype=F64).requires_grad_() for k, s in enumerate(shapes)]


@every
def test_finite_differences(op: str) -> None:
    """First and second derivatives of every input; all results, and each by itself."""
    assert torch.autograd.gradcheck(
        lambda *inputs: ours(op, *inputs), leaves(op)
    ) and torch.autograd.gradgradcheck(lambda *inputs: ours(op, *inputs), leaves(op))


@every
def test_derivatives_of_derivatives(op: str) -> None:
    """Two passes with a graph and a third without, each against the written formula's own."""
    found = []
    for f in (ours, written):
        inputs = leaves(op) if op not in NORMS else [leaves(op)[k] for k in (0, 2, 3)]
        x, *residual, weight, bias = inputs
        value, orders = f(op, x, *residual or [x], weight, bias).pow(3).sum(), []
        for order in (1, 2, 3):
            orders.append(torch.autograd.grad(value, inputs, create_graph=order < 3))
            value = sum(g.square().sum() for g in orders[-1])
        found.append(orders)
    for mine, right in zip(*found, strict=True):
        for a, b in zip(mine, right, strict=True):
            assert_close(a, b.detach(), FLOAT64_OUTPUT * (1 + b.detach().abs().max()))


@pytest.fixture(scope="module")
def op_infos() -> dict[str, Any]:
    """torch's own samples; its module freezes torch.backends, which is undone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends, "__allow_nonbracketed_mutation_flag", True)
        from torch.testing._internal.common_methods_invocations import op_db
    return {info.name.removeprefix("nn.functional."): info for info in op_db}


@both
@pytest.mark.parametrize("dtype", [F32, BF16, F16, F64])
def test_samples_of_torch(name: str, dtype: torch.dtype, op_infos: dict[str, Any]) -> None:
    """torch's samples, called as torch is: results and gradients of torch's op in float64."""
    info, seen = op_infos[name], 0
    assert dtype in info.dtypes
    for sample in info.reference_inputs("cpu", dtype, requires_grad=True):
        (shape, *parameters), keywords = sample.args, dict(sample.kwargs)
        given, x = [sample.input, *parameters], sample.input
        if not x.numel():
            with pytest.raises(BackendUnavailable, match="nothing to compute"):
                OPS[name](x, *sample.args, **keywords)
            continue
        dy = randn(*x.shape, seed=1, dtype=dtype)
        y = OPS[name](x, *sample.args, **keywords)
        grads = torch.autograd.grad(y, given, dy)
        default = 1e-5 if name == "layer_norm" else torch.finfo(F64 if dtype == F64 else F32).eps
        eps = keywords.pop("eps", default)
        assert not keywords
        wide = [t.detach().double().requires_grad_() for t in given]
        right = info.op(wide[0], shape, *wide[1:], eps=eps)
        right_grads = torch.autograd.grad(right, wide, dy.double())
        truth = formulas.expected(name, x, *parameters, dy=dy, eps=eps, axes=len(shape))
        bounds = [
            gradient_tolerance(right_grads[0], truth.dx_size, dtype),
            weight_tolerance(truth.dw_terms, truth.db_terms, dtype),
            sum_tolerance(truth.db_terms, dtype),
        ]
        assert_close(y, right.detach(), output_tolerance(right.detach(), dtype))
        for found, expected, bound in zip(grads, right_grads, bounds, strict=False):
            assert_close(found, expected, bound)
        seen += 1
    assert seen >= 5


@pytest.mark.parametrize(
    ("name", "info", "least"), [("layer_norm", "native_layer_norm", 3), ("rms_norm", "rms_norm", 3)]
)
def test_errors_of_torch(name: str, info: str, least: int, op_infos: dict[str, Any]) -> None:
    """What torch refuses is refused."""
    errors = [error.sample_input for error in op_infos[info].error_inputs("cpu")]
    assert len(errors) >= least
    for sample in errors:
        with pytest.raises(ShapeError):
            OPS[name](sample.input, *sample.args, **sample.kwargs)


# pytorch#181555; Liger#1483; flashinfer#3391
@both
def test_P15_rows_by_a_table(name: str) -> None:
    """P15 where no one step leads from row to row, for x, the residual and dy."""
    stride = 2**31
    try:
        storage = torch.empty(stride + 2**14, dtype=BF16)
    except RuntimeError:
        pytest.skip("this machine does not lend 4.3 GB of address space")
    near = [randn(2, 3, 256, seed=k, dtype=BF16) for k in range(3)]
    far = [storage.as_strided((2, 3, 256), (stride, 512, 1), 2048 * k) for k in range(3)]
    results = []
    for tensors in (far, near):
        if tensors is far:
            for t, values in zip(far, near, strict=True):
                t.copy_(values)
        x, residual, dy = tensors
        inputs = [t.detach().requires_grad_() for t in (x, residual)]
        y, stream = OPS[f"add_{name}"](*inputs, 256, eps=1e-5, residual_rounding="after_stats")
        results.append([y, stream, *torch.autograd.grad((y, stream), inputs, (dy, dy))])
    assert all(map(torch.equal, *results))


EXTREMES = [
    (F32, 1e30, 0.0), (F32, 1e30, 1e-5), (F32, 8e37, 0.0), (F32, 1e-30, 0.0), (F32, 3e-42, 0.0),
    (F64, 1e300, 0.0), (F64, 1e300, 1e-5), (F64, 1e-300, 0.0), (BF16, 8e37, 0.0),
]  # fmt: skip


# pytorch#162489, pytorch PR#178123
@both
@pytest.mark.parametrize("width", [3, 33, 4097])
@pytest.mark.parametrize(("dtype", "size", "eps"), EXTREMES)
def test_extreme_rows(name: str, dtype: torch.dtype, size: float, eps: float, width: int) -> None:
    """y and dx of rows at the ends of the range, where dx itself is within it.

    float64 sees the row times a power of two, and its dx divided by that.
    """
    x = (randn(2, width).double().clamp(-4, 4) * size).to(dtype).requires_grad_()
    _, exponent = torch.frexp(torch.tensor(size, dtype=F64))
    down = -int(exponent)
    dy = randn(2, width, seed=1).to(dtype) * (min(1.0, size * 1e25) if dtype == F32 else 1.0)
    weight = randn(width, seed=2).to(dtype)
    y = OPS[name](x, width, weight=weight, eps=eps)
    (dx,) = torch.autograd.grad(y, x, dy)
    scaled = torch.ldexp(x.detach().double(), torch.tensor(down))
    truth = formulas.expected(name, scaled, weight, dy=dy, eps=eps and eps * 4.0**down)
    right, bound = (torch.ldexp(t, torch.tensor(down)) for t in (truth.dx, truth.dx_size))
    assert_close(y, truth.y, output_tolerance(truth.y, dtype))
    assert dx.isfinite().all()
    assert_close(dx, right, gradient_tolerance(right, bound, dtype))


@both
def test_largest_bf16(name: str) -> None:
    """Rows of 3e38 and its neighbours, of both signs: squares and differences leave fp32."""
    rows = [[3e38, -3e38, 3e38, 1e38], [3e38, 2.9e38, 2.8e38, 3e38]]
    x = torch.tensor(rows, dtype=BF16, requires_grad=True)
    y = OPS[name](x, 4, eps=1e-5)
    dy = randn(2, 4, seed=1, dtype=BF16)
    (dx,) = torch.autograd.grad(y, x, dy)
    truth = formulas.expected(name, x, dy=dy, eps=1e-5)
    assert_close(y, truth.y, output_tolerance(truth.y, BF16))
    assert_close(dx, truth.dx, gradient_tolerance(truth.dx, truth.dx_size, BF16))


@both
@pytest.mark.parametrize("which", ["x", "weight", "bias", "dy"])
def test_lazily_negated_tensors(name: str, which: str) -> None:
    """A view that is marked as negative, such as conj().imag, gives what its copy gives."""
    results = []
    for resolve in (False, True):
        shapes = {"x": (2, 8), "weight": (8,), "bias": (8,), "dy": (2, 8)}
        given = {key: randn(*s, seed=k) for k, (key, s) in enumerate(shapes.items())}
        given[which] = torch._neg_view(given[which])
        if resolve:
            given[which] = given[which].resolve_neg()
        x, dy = given["x"].detach().requires_grad_(), given["dy"]
        y = OPS[name](x, 8, weight=given["weight"], bias=given["bias"], eps=1e-5)
        results.append((y, *torch.autograd.grad(y, x, dy)))
    assert all(map(torch.equal, *results))


@every
def test_batched_incoming_gradients(op: str) -> None:
    """A batch of incoming gradients at once, as a vectorized Jacobian sends it, is the loop."""
    inputs = leaves(op)
    y = ours(op, *inputs)
    batch = torch.eye(y.numel(), dtype=F64).reshape(-1, *y.shape)
    wanted = inputs if op not in NORMS else [inputs[k] for k in (0, 2, 3)]
    at_once = torch.autograd.grad(y, wanted, batch, is_grads_batched=True, retain_graph=True)
    loop = [torch.autograd.grad(y, wanted, dy, retain_graph=True) for dy in batch]
    for batched, rows in zip(at_once, zip(*loop, strict=True), strict=True):
        assert_close(batched, torch.stack(rows), FLOAT64_OUTPUT)
