"""Norms by name: every row builds, every alias finds its row, a wrong name is answered."""

import re

import pytest
import torch
from torch import Tensor, nn

import normwise as nw
from normwise.errors import SettingError, UnknownName
from normwise.norms.registry import NORMS
from tests.tolerance import assert_close

every = pytest.mark.parametrize("name", list(NORMS))
normalizing = pytest.mark.parametrize("name", [n for n, row in NORMS.items() if row.normalizes])


over_batch = pytest.mark.parametrize("name", [n for n, row in NORMS.items() if row.batch])


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(name: str, shape: int | tuple[int, ...], **options: object) -> nn.Module:
    """A norm of the registry for up to 64 positions, of which one kind has to know."""
    if NORMS[name].batch == "position":
        options = {"max_len": 64, **options}
    return nw.make_norm(name, shape, **options)


@every
@pytest.mark.parametrize("shape", [16, (16,), (3, 16)])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_every_norm_builds(
    name: str, shape: int | tuple[int, ...], *, affine: bool, bias: bool
) -> None:
    """Whatever the settings, the module keeps shape and dtype and passes a gradient."""
    if shape == (3, 16) and NORMS[name].batch:
        shape = 16  # channels are one axis
    module = made(name, shape, affine=affine, bias=bias)
    x = randn(2, 3, 16).requires_grad_()
    y = module(x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    y.square().sum().backward()
    assert x.grad.isfinite().all()
    assert affine or not list(module.parameters())


@pytest.mark.parametrize(
    ("name", "kind", "eps"),
    [("layer_norm", nw.LayerNorm, 1e-5), ("rms_norm", nw.RMSNorm, 1e-6)],
)
def test_settings_reach_the_module(name: str, kind: type, eps: float) -> None:
    """eps=None is the norm's own default; other keywords go through."""
    module = nw.make_norm(name, 8)
    assert isinstance(module, kind)
    assert module.eps == eps
    module = nw.make_norm(name, 8, eps=0.0, unit_offset=True, rounding="llama", dtype=torch.float64)
    assert (module.eps, module.unit_offset, module.rounding) == (0.0, True, "llama")
    assert module.weight.dtype == torch.float64


def test_bias_by_nature() -> None:
    """bias takes the bias from layer_norm and gives none to rms_norm."""
    assert nw.make_norm("layer_norm", 8).bias is not None
    assert nw.make_norm("layer_norm", 8, bias=False).bias is None
    assert nw.make_norm("rms_norm", 8, bias=True).bias is None


def test_no_norm_is_the_identity() -> None:
    x = randn(2, 8)
    assert nw.make_norm("no_norm", 8)(x) is x


@normalizing
@pytest.mark.parametrize("unit_offset", [False, True])
def test_default_output_has_rms_one(name: str, *, unit_offset: bool) -> None:
    """norms.md section 14, claim 11: N(0, 1) input comes out with RMS 1, up to eps: a row, over
    the coordinates that are measured where that is a part of them, or a channel over a batch.
    """
    norm, over = made(name, 512, unit_offset=unit_offset), 0 if NORMS[name].batch else -1
    y = norm(randn(64, 1, 512))[..., : getattr(norm, "first", 512)]
    rms = y.square().mean(over).sqrt()
    assert_close(rms, torch.ones_like(rms).double(), 1e-5)


@every
def test_zero_rows_are_finite(name: str) -> None:
    """norms.md section 1: x = 0 gives a finite output and finite gradients."""
    x = torch.zeros(2, 16, requires_grad=True)
    y = made(name, 16)(x)
    y.backward(torch.ones(2, 16))
    assert torch.equal(y, torch.zeros(2, 16))
    assert x.grad.isfinite().all()


@every
def test_a_row_tells_what_a_token_sees(name: str) -> None:
    """In training nothing else, its position in other sequences, or all tokens of the batch; in
    evaluation never another.
    """
    norm, x = made(name, 16), randn(3, 4, 16)
    other = x.clone()
    other[1, 2] = randn(16, seed=1)
    touched = torch.zeros(3, 4, dtype=torch.bool)
    touched[1, 2] = True
    seen = {None: touched, "position": touched.any(0).expand(3, 4), "tokens": touched | True}
    assert torch.equal((norm(x) != norm(other)).any(-1), seen[NORMS[name].batch])
    norm.eval()
    assert torch.equal((norm(x) != norm(other)).any(-1), touched)


@every
def test_a_row_tells_of_eps_and_parameters(name: str) -> None:
    assert bool(list(made(name, 16).parameters())) == NORMS[name].has_parameters
    eps = getattr(made(name, 16, eps=0.25), "eps", None)
    assert eps == (0.25 if NORMS[name].has_eps and NORMS[name].has_parameters else None)


@over_batch
def test_channels_are_one_axis(name: str) -> None:
    message = (
        "A norm over a batch has one axis of channels. normalized_shape is (3, 16). Pass the "
        "number of channels."
    )
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        made(name, (3, 16))


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("ln", "layer_norm"), ("LN", "layer_norm"), ("rms", "rms_norm"), ("RMS", "rms_norm"),
        ("Rms", "rms_norm"), ("none", "no_norm"), ("None", "no_norm"), ("Layer-Norm", "layer_norm"),
        ("RMS_NORM", "rms_norm"), (" rms-norm ", "rms_norm"), ("dyt", "dynamic_tanh"),
        ("prms_norm", "partial_rms_norm"), ("reg_batch_norm", "regularized_batch_norm"),
    ],
)  # fmt: skip
def test_aliases_in_any_case(alias: str, name: str) -> None:
    assert NORMS.resolve(alias) == name
    assert type(nw.make_norm(alias, 16)) is type(nw.make_norm(name, 16))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("layernorm", " Did you mean layer_norm?"),
        ("rmsnorm", " Did you mean rms_norm?"),
        ("xyzzy", ""),
    ],
)
def test_unknown_name(name: str, hint: str) -> None:
    """The answer holds the name as typed, the nearest one and all that there are."""
    message = f"Unknown norm {name!r}.{hint} Known: {', '.join(sorted(NORMS))}."
    with pytest.raises(UnknownName, match=f"^{re.escape(message)}$"):
        nw.make_norm(name, 8)
