"""LayerNorm as a module: torch's drop-in, with its own settings (P19, P49, P63)."""

import copy
import inspect
import re
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import normwise as nw
from normwise.errors import SettingError
from tests.ops import formulas
from tests.tolerance import assert_close, output_tolerance

offsets = pytest.mark.parametrize("unit_offset", [False, True])


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_torchs_positional_arguments() -> None:
    """torch's arguments in torch's order; ours are keywords only."""
    ours, torchs = (
        list(inspect.signature(c.__init__).parameters.values())
        for c in (nw.LayerNorm, nn.LayerNorm)
    )
    assert [p.name for p in ours[: len(torchs)]] == [p.name for p in torchs]
    assert [p.default for p in ours[: len(torchs)]] == [p.default for p in torchs]
    assert all(p.kind == p.KEYWORD_ONLY for p in ours[len(torchs) :])
    module = nw.LayerNorm((3, 4), 1e-3, True, False, "meta", torch.bfloat16)
    assert isinstance(module, nn.LayerNorm)
    assert (module.normalized_shape, module.eps, module.bias) == ((3, 4), 1e-3, None)
    weight = module.weight
    assert (weight.shape, weight.device.type, weight.dtype) == ((3, 4), "meta", torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@offsets
def test_forward_is_the_formula(*, unit_offset: bool, dtype: torch.dtype) -> None:
    module = nw.LayerNorm(33, 1e-3, dtype=dtype, unit_offset=unit_offset)
    with torch.no_grad():
        module.weight.copy_(randn(33, seed=1))
        module.bias.copy_(randn(33, seed=2))
    x = randn(5, 33).to(dtype)
    truth = formulas.layer_norm(
        x.double(), module.weight.double(), module.bias.double(), eps=1e-3,
        offset=float(unit_offset),
    )  # fmt: skip
    y = module(x)
    assert y.dtype == dtype
    assert_close(y, truth.detach(), output_tolerance(truth.detach(), dtype))
    assert torch.equal(module(input=x), y)


# transformers PR#40796; Liger#74; torchtitan PR#4489
@offsets
def test_P19_gain_is_one_at_the_start(*, unit_offset: bool) -> None:
    """P19: at construction and after a reset, with either parametrisation."""
    module = nw.LayerNorm(8, unit_offset=unit_offset)
    x = randn(5, 8)
    plain = nw.layer_norm(x, 8)
    for _ in range(2):
        assert torch.equal(module.weight, torch.full((8,), 0.0 if unit_offset else 1.0))
        assert torch.equal(module.bias, torch.zeros(8))
        assert torch.equal(module(x), plain)
        with torch.no_grad():
            module.weight.add_(3), module.bias.add_(3)
        module.reset_parameters()


# FlagPerf PR#683; pytorch#115285; bionemo-recipes PR#1368
@offsets
def test_P49_meta_device(*, unit_offset: bool) -> None:
    """P49: built on meta, given memory, reset: no entry is left uninitialised."""
    module = nw.LayerNorm(8, device="meta", unit_offset=unit_offset)
    module.to_empty(device="cpu")
    with torch.no_grad():
        module.weight.fill_(7), module.bias.fill_(7)
    module.reset_parameters()
    assert torch.equal(module.weight, torch.full((8,), 0.0 if unit_offset else 1.0))
    assert torch.equal(module.bias, torch.zeros(8))


# pytorch#108048, PR#18233; FlagGems#323
@pytest.mark.parametrize(("affine", "bias"), list(product([False, True], repeat=2)))
def test_P63_missing_parameters(*, affine: bool, bias: bool) -> None:
    """P63: the state holds what there is; forward, backward and reset work without the rest."""
    module = nw.LayerNorm(8, elementwise_affine=affine, bias=bias)
    present = ["weight"] * affine + ["bias"] * (affine and bias)
    assert list(module.state_dict()) == present
    assert list(module.state_dict()) == list(
        nn.LayerNorm(8, elementwise_affine=affine, bias=bias).state_dict()
    )
    module.reset_parameters()
    x = randn(5, 8).requires_grad_()
    y = module(x)
    y.backward(randn(5, 8, seed=1))
    assert torch.equal(y, nw.layer_norm(x, 8))
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize(("affine", "bias"), list(product([False, True], repeat=2)))
def test_state_dict_interchanges_with_torch(*, affine: bool, bias: bool) -> None:
    """Either class loads the other's state, strictly, and then computes the same."""
    ours = nw.LayerNorm((3, 4), elementwise_affine=affine, bias=bias)
    torchs = nn.LayerNorm((3, 4), elementwise_affine=affine, bias=bias)
    for source, target in ((ours, torchs), (torchs, ours)):
        with torch.no_grad():
            for p in source.parameters():
                p.copy_(randn(3, 4, seed=p.numel()))
        target.load_state_dict(source.state_dict(), strict=True)
        x = randn(5, 3, 4)
        assert torch.allclose(ours(x), torchs(x), atol=2e-6, rtol=0.0)


@pytest.mark.parametrize("eps", [-1e-6, float("nan"), float("inf"), float("-inf")])
def test_eps_that_is_refused(eps: float) -> None:
    message = (
        f"LayerNorm: eps must be a finite number of at least 0. It is {eps}. "
        "Pass a small one such as 1e-6."
    )
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        nw.LayerNorm(8, eps)


def test_zero_eps_is_legal() -> None:
    """eps=0 is a value, not a missing one (kernels.md 2.1)."""
    assert nw.LayerNorm(2, 0.0)(torch.tensor([[1e-9, -1e-9]])).tolist() == [[1.0, -1.0]]


def test_offset_without_a_weight_is_refused() -> None:
    message = (
        "LayerNorm: unit_offset adds 1 to the weight, and elementwise_affine=False has none. "
        "Drop one of the two."
    )
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        nw.LayerNorm(8, elementwise_affine=False, unit_offset=True)


@pytest.mark.parametrize("eps", [1e-5, 1e-12, 0.0])
def test_repr_shows_eps(eps: float) -> None:
    module = nw.LayerNorm(8, eps, unit_offset=True, rounding="gemma")
    assert f"eps={eps}" in repr(module)
    assert "unit_offset=True, rounding=fp32" in repr(module)
    assert "eps=1e-05" in repr(nw.LayerNorm(8))


@pytest.mark.parametrize("eps", [1e-5, 1e-12, 0, torch.tensor(1e-5).item()])
def test_eps_stays_a_float(eps: float) -> None:
    """Through construction from an int, deepcopy and casts (P65)."""
    module = nw.LayerNorm(8, eps)
    for other in (module, copy.deepcopy(module), copy.deepcopy(module).half(), module.bfloat16()):
        assert type(other.eps) is float
        assert other.eps == eps


@pytest.mark.parametrize("rounding", ["fp32", "llama", "native"])
def test_rounding_reaches_the_function(rounding: str) -> None:
    module = nw.LayerNorm(33, dtype=torch.bfloat16, rounding=rounding)
    torch.nn.init.constant_(module.weight, 1.03125)
    x = randn(5, 33).bfloat16()
    y = nw.layer_norm(x, 33, module.weight, module.bias, rounding=rounding)
    assert torch.equal(module(x), y)


@offsets
def test_default_output_has_rms_one(*, unit_offset: bool) -> None:
    """norms.md section 14, claim 11: on N(0, 1) input each row has RMS 1 up to eps."""
    y = nw.LayerNorm(512, unit_offset=unit_offset)(randn(64, 512))
    assert_close(y.square().mean(-1).sqrt(), torch.ones(64, dtype=torch.float64), 1e-5)
