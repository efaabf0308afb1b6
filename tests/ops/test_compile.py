"""Compiled and exported norms equal eager ones: outputs and gradients (required.md, rule 7)."""

import shutil
from collections.abc import Callable

import pytest
import torch
from functorch.compile import make_boxed_compiler
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

import normwise as nw
from normwise.ops import graph
from tests.tolerance import FLOAT32_OUTPUT, FLOAT64_OUTPUT, HALF_ULPS, assert_close, ulp

SINGLE = {"layer_norm": nw.layer_norm, "rms_norm": nw.rms_norm}
PAIRED = {
    "add_layer_norm": nw.add_layer_norm,
    "add_rms_norm": nw.add_rms_norm,
    "layer_norm_add": nw.layer_norm_add,
    "rms_norm_add": nw.rms_norm_add,
}


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def run(f: Callable[..., object], inputs: list[Tensor]) -> list[Tensor]:
    """Outputs, then the gradient of each input."""
    leaves = [t.clone().requires_grad_() for t in inputs]
    result = f(*leaves)
    outputs = list(result) if isinstance(result, tuple) else [result]
    dy = [randn(*t.shape, seed=9 + k).to(t.dtype) for k, t in enumerate(outputs)]
    return [*outputs, *torch.autograd.grad(outputs, leaves, dy)]


def assert_same(compiled: list[Tensor], eager: list[Tensor]) -> None:
    """Within twice the bound of the arithmetic; narrow results within their last place."""
    for a, b in zip(compiled, eager, strict=True):
        assert a.dtype == b.dtype
        right = b.detach().double()
        allowed = 4 * FLOAT32_OUTPUT * right.abs().clamp(min=1.0)
        narrow = HALF_ULPS * ulp(right, b.dtype) if b.dtype != torch.float32 else 0.0
        assert_close(a, right, allowed + narrow)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(SINGLE))
def test_compiled_norms(name: str, dtype: torch.dtype) -> None:
    """One graph each, forward and backward, with weight, bias and offset."""

    def f(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return SINGLE[name](x, 33, weight=weight, bias=bias, eps=1e-5, unit_offset=True)

    inputs = [randn(5, 33).to(dtype), randn(33, seed=1), randn(33, seed=2)]
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert_same(run(compiled, inputs), run(f, inputs))


@pytest.mark.parametrize("rounding", ["llama", "native"])
def test_compiled_rounding_orders(rounding: str) -> None:
    """The forward keeps its bits in every order."""

    def f(x: Tensor, weight: Tensor) -> Tensor:
        return nw.rms_norm(x, 33, weight, 1e-5, rounding=rounding)

    inputs = [randn(5, 33).bfloat16(), randn(33, seed=1).bfloat16()]
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*inputs), f(*inputs))
    assert_same(run(compiled, inputs), run(f, inputs))


@pytest.mark.parametrize("name", list(PAIRED))
def test_compiled_sums(name: str) -> None:
    """The forms with a residual, in one graph."""

    def f(x: Tensor, residual: Tensor, weight: Tensor) -> object:
        return PAIRED[name](x, residual, 33, weight=weight, eps=1e-5)

    inputs = [randn(5, 33), randn(5, 33, seed=1), randn(33, seed=2)]
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert_same(run(compiled, inputs), run(f, inputs))


def test_P01_compiled() -> None:
    """P01 through the compiled path: no square leaves fp32."""
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]]) * 1e30
    compiled = torch.compile(lambda x: nw.layer_norm(x, 4), fullgraph=True, backend="aot_eager")
    right = torch.tensor([[-1.341641, -0.447214, 0.447214, 1.341641]], dtype=torch.float64)
    assert_close(compiled(x), right, 2e-6)


@pytest.mark.parametrize("build", [nw.LayerNorm, nw.RMSNorm])
def test_export(build: Callable[[int], nn.Module]) -> None:
    """torch.export gives a program with the same bits, also for another batch size."""
    module = build(33)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(module, (randn(5, 33),), dynamic_shapes=({0: batch},))
    for x in (randn(5, 33), randn(7, 33, seed=1)):
        with nw.backend("reference"):
            assert torch.equal(program.module()(x), module(x))


def _graph_inputs(form: str, dtype: torch.dtype) -> list[Tensor]:
    count = 1 if form == "PLAIN" else 2
    rows = [randn(5, 2, 33, seed=k).to(dtype) for k in range(count)]
    return [*rows, randn(33, seed=3).to(dtype), randn(33, seed=4).to(dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["PLAIN", "ADD", "OUTPUT"])
@pytest.mark.parametrize("name", list(SINGLE))
def test_opcheck(name: str, form: str, dtype: torch.dtype) -> None:
    """The operators' schemas, shapes and tracing are what torch expects of an operator."""
    *rows, weight, bias = _graph_inputs(form, dtype)
    inputs = (rows[0], rows[1] if len(rows) > 1 else None, weight, bias)
    call = (name, form, 1, 1e-5, False, "fp32", dtype, True)
    for keep in (False, True):
        torch.library.opcheck(graph.forward_operator, (*inputs, *call, keep))
        y, _, saved = graph.forward_operator(*inputs, *call, keep)
        assert saved.numel() == (20 if keep else 0)
    gradients = (y, rows[-1] if form == "ADD" else None, saved)
    call = (name, 1, 1e-5, False, "fp32", dtype, dtype, [True, True])
    torch.library.opcheck(graph.backward_operator, (rows[0], None, weight, bias, *gradients, *call))
    call = (*call[:-2], None, [False, True])
    torch.library.opcheck(graph.backward_operator, (rows[0], None, weight, bias, *gradients, *call))


INDUCTOR = pytest.param(
    "inductor",
    marks=[
        pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler"),
        pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    ],
)


@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*SINGLE, *PAIRED])
def test_compiled_is_eager_to_the_bit(name: str, dtype: torch.dtype, backend: str) -> None:
    """A compiled graph runs the same kernels, forward and backward."""
    form = "PLAIN" if name in SINGLE else "ADD"
    op = {**SINGLE, **PAIRED}[name]

    def f(*tensors: Tensor) -> object:
        *rows, weight, bias = tensors
        return op(*rows, 33, weight=weight, bias=bias, eps=1e-5)

    inputs = _graph_inputs(form, dtype)
    compiled = torch.compile(f, fullgraph=True, backend=backend)
    for a, b in zip(run(compiled, inputs), run(f, inputs), strict=True):
        assert torch.equal(a, b)


def test_compiled_dynamic_shapes() -> None:
    """One graph for any number of rows and any width, with gradients."""
    graphs = []

    def backend(module: torch.fx.GraphModule, example: list[Tensor]) -> Callable[..., object]:
        graphs.append(module)
        return torch._dynamo.lookup_backend("aot_eager")(module, example)

    def f(x: Tensor, weight: Tensor) -> Tensor:
        return nw.rms_norm(x, weight.shape, weight, 1e-5)

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=backend)
    for rows, width in ((5, 33), (7, 33), (3, 64)):
        inputs = [randn(rows, width), randn(width, seed=1)]
        for a, b in zip(run(compiled, inputs), run(f, inputs), strict=True):
            assert torch.equal(a, b)
    assert len(graphs) == 1


TRANSFORMS = {
    "grad": lambda f: torch.func.grad(lambda x: f(x).square().sum()),
    "vmap": torch.vmap,
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x * x,))[1],
    "per sample": lambda f: torch.vmap(torch.func.grad(lambda x: f(x).pow(3).sum())),
    "second": lambda f: torch.func.grad(
        lambda x: torch.func.grad(lambda x: f(x).pow(3).sum())(x).square().sum()
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("transform", list(TRANSFORMS))
@pytest.mark.parametrize("name", list(SINGLE))
def test_compiled_transforms(name: str, transform: str) -> None:
    """A transform inside a compiled graph differentiates the reference, never a kernel."""
    apply = TRANSFORMS[transform](lambda x: SINGLE[name](x, 8, eps=1e-3))
    x = randn(5, 8).double()
    compiled = torch.compile(apply, fullgraph=True, backend="aot_eager")
    right = apply(x)
    assert right.abs().max() > 1e-3
    assert_close(compiled(x), right, FLOAT64_OUTPUT * right.abs().clamp(min=1.0))


def test_compiled_reference() -> None:
    """nw.backend holds when a graph is made: it then has torch's operations and no operator."""
    made = {}

    def keep(name: str) -> Callable[..., object]:
        def compiler(module: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
            made[name] = [str(node.target) for node in module.graph.nodes]
            return module

        return aot_autograd(fw_compiler=make_boxed_compiler(compiler))

    for name in ("auto", "reference"):
        torch.compiler.reset()
        with nw.backend(name):
            torch.compile(lambda x: nw.layer_norm(x, 33), backend=keep(name))(randn(5, 33))
    assert any("normwise" in target for target in made["auto"])
    assert not any("normwise" in target for target in made["reference"])


def test_exported_program_needs_no_normwise() -> None:
    """An exported program is made of torch's operations."""
    program = torch.export.export(nw.LayerNorm(33), (randn(5, 33),))
    assert not any("normwise" in str(node.target) for node in program.graph.nodes)


def test_the_kernels_asked_for_by_name() -> None:
    """A graph that cannot have them is not compiled, and the reason is in the error."""

    def f(x: Tensor, rounding: str) -> Tensor:
        return nw.rms_norm(x, 8, rounding=rounding)

    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    with nw.backend("numba"):
        assert torch.equal(compiled(randn(2, 8), "fp32"), f(randn(2, 8), "fp32"))
        with pytest.raises(
            RuntimeError, match="cannot run this call: native rounding is by defini"
        ):
            compiled(randn(2, 8), "native")
