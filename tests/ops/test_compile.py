"""Compiled and exported norms equal eager ones: outputs and gradients (required.md, rule 7)."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import normwise as nw
from tests.tolerance import FLOAT32_OUTPUT, HALF_ULPS, assert_close, ulp

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
    with nw.backend("reference"):
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
