"""RMSNorm as a module: torch's drop-in, with its own settings (P09, P19, P49, P63)."""

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
    """torch's arguments in torch's order, eps alone with another default; ours are keywords."""
    ours, torchs = (
        list(inspect.signature(c.__init__).parameters.values()) for c in (nw.RMSNorm, nn.RMSNorm)
    )
    assert [p.name for p in ours[: len(torchs)]] == [p.name for p in torchs]
    differing = [p.name for p, q in zip(ours, torchs, strict=False) if p.default != q.default]
    assert differing == ["eps"]
    assert all(p.kind == p.KEYWORD_ONLY for p in ours[len(torchs) :])
    module = nw.RMSNorm((3, 4), 1e-3, True, "meta", torch.bfloat16)
    assert isinstance(module, nn.RMSNorm)
    assert (module.normalized_shape, module.eps, module.bias) == ((3, 4), 1e-3, None)
    weight = module.weight
    assert (weight.shape, weight.device.type, weight.dtype) == ((3, 4), "meta", torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
@offsets
def test_forward_is_the_formula(*, unit_offset: bool, bias: bool, dtype: torch.dtype) -> None:
    module = nw.RMSNorm(33, 1e-3, dtype=dtype, bias=bias, unit_offset=unit_offset)
    with torch.no_grad():
        for seed, p in enumerate(module.parameters(), 1):
            p.copy_(randn(33, seed=seed))
    x = randn(5, 33).to(dtype)
    shift = module.bias.detach().double() if bias else None
    truth = formulas.rms_norm(
        x.double(), module.weight.detach().double(), shift, eps=1e-3, offset=float(unit_offset)
    )
    y = module(x)
    assert y.dtype == dtype
    assert_close(y, truth, output_tolerance(truth, dtype))
    assert torch.equal(module(x=x), y)


# pytorch#140092; norms.md section 2, rule 2
def test_P09_default_eps() -> None:
    """P09: a fixed 1e-6 for every dtype; None keeps torch's meaning."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert nw.RMSNorm(8, dtype=dtype).eps == 1e-6
    module = nw.RMSNorm(8, None)
    x = torch.full((8,), 1e-3)
    assert module.eps is None
    assert_close(module(x), torch.full((8,), 0.945245, dtype=torch.float64), 1e-6)
    assert_close(nw.RMSNorm(8)(x), torch.full((8,), 0.5**0.5, dtype=torch.float64), 1e-6)


# transformers PR#40796; Liger#74; torchtitan PR#4489
@pytest.mark.parametrize("bias", [False, True])
@offsets
def test_P19_gain_is_one_at_the_start(*, unit_offset: bool, bias: bool) -> None:
    """P19: at construction and after a reset, with either parametrisation."""
    module = nw.RMSNorm(8, bias=bias, unit_offset=unit_offset)
    x = randn(5, 8)
    plain = nw.rms_norm(x, 8, eps=1e-6)
    for _ in range(2):
        assert torch.equal(module.weight, torch.full((8,), 0.0 if unit_offset else 1.0))
        assert module.bias is None or torch.equal(module.bias, torch.zeros(8))
        assert torch.equal(module(x), plain)
        with torch.no_grad():
            for p in module.parameters():
                p.add_(3)
        module.reset_parameters()


# FlagPerf PR#683; pytorch#115285; bionemo-recipes PR#1368
@offsets
def test_P49_meta_device(*, unit_offset: bool) -> None:
    """P49: built on meta, given memory, reset: no entry is left uninitialised."""
    module = nw.RMSNorm(8, device="meta", bias=True, unit_offset=unit_offset)
    assert module.bias.is_meta
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
    module = nw.RMSNorm(8, elementwise_affine=affine, bias=bias)
    assert list(module.state_dict()) == ["weight"] * affine + ["bias"] * (affine and bias)
    module.reset_parameters()
    x = randn(5, 8).requires_grad_()
    y = module(x)
    y.backward(randn(5, 8, seed=1))
    assert torch.equal(y, nw.rms_norm(x, 8, eps=1e-6))
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize("affine", [False, True])
def test_state_dict_interchanges_with_torch(*, affine: bool) -> None:
    """Either class loads the other's state, strictly, and then computes the same."""
    ours = nw.RMSNorm((3, 4), elementwise_affine=affine)
    torchs = nn.RMSNorm((3, 4), 1e-6, elementwise_affine=affine)
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
        f"RMSNorm: eps must be a finite number of at least 0. It is {eps}. "
        "Pass a small one such as 1e-6."
    )
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        nw.RMSNorm(8, eps)


def test_zero_eps_is_legal() -> None:
    """eps=0 is a value, not a missing one (kernels.md 2.1)."""
    assert nw.RMSNorm(2, 0.0)(torch.tensor([[1e-9, -1e-9]])).tolist() == [[1.0, -1.0]]


def test_offset_without_a_weight_is_refused() -> None:
    message = (
        "RMSNorm: unit_offset adds 1 to the weight, and elementwise_affine=False has none. "
        "Drop one of the two."
    )
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        nw.RMSNorm(8, elementwise_affine=False, unit_offset=True)


def test_repr_shows_eps() -> None:
    """The eps that is in force, whatever it is."""
    assert repr(nw.RMSNorm(8)) == (
        "RMSNorm((8,), eps=1e-06, elementwise_affine=True, bias=False, unit_offset=False, "
        "rounding=fp32)"
    )
    assert "eps=None" in repr(nw.RMSNorm(8, None))
    assert "eps=0.0" in repr(nw.RMSNorm(8, 0))


@pytest.mark.parametrize("eps", [1e-6, 1e-12, 0])
def test_eps_stays_a_float(eps: float) -> None:
    """Through construction from an int, deepcopy and casts (P65)."""
    module = nw.RMSNorm(8, eps)
    for other in (module, copy.deepcopy(module), copy.deepcopy(module).half(), module.bfloat16()):
        assert type(other.eps) is float
        assert other.eps == eps


@pytest.mark.parametrize("rounding", ["fp32", "llama", "native"])
def test_rounding_reaches_the_function(rounding: str) -> None:
    module = nw.RMSNorm(33, dtype=torch.bfloat16, rounding=rounding)
    torch.nn.init.constant_(module.weight, 1.03125)
    x = randn(5, 33).bfloat16()
    assert torch.equal(module(x), nw.rms_norm(x, 33, module.weight, 1e-6, rounding=rounding))


@offsets
def test_default_output_has_rms_one(*, unit_offset: bool) -> None:
    """norms.md section 14, claim 11: on N(0, 1) input each row has RMS 1 up to eps."""
    y = nw.RMSNorm(512, unit_offset=unit_offset)(randn(64, 512))
    assert_close(y.square().mean(-1).sqrt(), torch.ones(64, dtype=torch.float64), 2e-6)
