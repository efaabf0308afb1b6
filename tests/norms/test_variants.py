"""The norms beside LayerNorm and RMSNorm: formulas in float64, and known wrong versions."""

import copy
import io
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import normwise as nw
from normwise.errors import SettingError, ShapeError
from normwise.norms.registry import NORMS
from normwise.schedules import parameter_groups
from tests.norms.test_registry import made
from tests.tolerance import FLOAT64_OUTPUT, assert_close, output_tolerance

F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
WIDTH = 48
VARIANTS = ["partial_rms_norm", "scale_norm", "group_norm", "dynamic_tanh", "derf"]
OVER_BATCH = [name for name, row in NORMS.items() if row.batch]
variants = pytest.mark.parametrize("name", VARIANTS)
written_out = pytest.mark.parametrize("name", VARIANTS + OVER_BATCH)
every = pytest.mark.parametrize("name", list(NORMS))
learning = pytest.mark.parametrize("name", [n for n, row in NORMS.items() if row.has_parameters])


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = F32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype)


def written(name: str, norm: nn.Module, x: Tensor) -> Tensor:
    """The formula in float64, from the rounded tensors; over a batch the one of training."""
    x = x.double()
    p = {key: value.double() for key, value in norm.named_parameters()}
    offset = 1.0 if norm.unit_offset else 0.0
    if name == "scale_norm":
        length = x.square().sum(-1, keepdim=True).sqrt()
        root = math.sqrt(x.shape[-1])
        gain = root * (1 + p["weight"]) if offset else p["weight"]
        return gain * x / length.clamp(min=norm.eps)
    if name == "partial_rms_norm":
        square = x[..., :3].square().mean(-1, keepdim=True)  # 3 = int(48 / 16)
        unit = x / (square + 1e-6).sqrt()
    elif name == "group_norm":
        parts = x.reshape(*x.shape[:-1], 4, -1)
        centred = parts - parts.mean(-1, keepdim=True)
        unit = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        unit = unit.reshape(x.shape)
    elif name in OVER_BATCH:
        unit = written_over_batch(name, x)
    elif name == "dynamic_tanh":
        unit = torch.tanh(p["alpha"] * x)
    else:
        unit = torch.erf(p["alpha"] * x + p["shift"])
    y = unit * (offset + p["weight"])
    return y + p["bias"] if "bias" in p else y


def written_over_batch(name: str, x: Tensor) -> Tensor:
    """Units of x (sequences, tokens, channels)."""
    axes = (0,) if name == "batch_norm_position" else (0, 1)
    if name == "power_norm":
        z = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return z / (z.square().mean(axes, keepdim=True) + 1e-5).sqrt()
    centred = x - x.mean(axes, keepdim=True)
    variance = centred.square().mean(axes, keepdim=True)
    floored = name == "regularized_batch_norm"
    return centred / (variance.clamp(min=1e-5) if floored else variance + 1e-5).sqrt()


def drawn(name: str, dtype: torch.dtype = F32, **options: object) -> nn.Module:
    """A norm of width 48 whose parameters are not where they start."""
    norm = made(name, WIDTH, dtype=dtype, **options)
    with torch.no_grad():
        for seed, parameter in enumerate(norm.parameters()):
            parameter.add_(0.3 * randn(*parameter.shape, seed=seed + 1, dtype=dtype))
    return norm


@written_out
@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize("parameters", [F32, BF16])
@pytest.mark.parametrize("dtype", [F32, BF16, F16, F64])
def test_formula(
    name: str, dtype: torch.dtype, parameters: torch.dtype, *, unit_offset: bool
) -> None:
    """Every dtype is computed in fp32 or better and rounded once, to the dtype of the input."""
    norm = drawn(name, parameters, unit_offset=unit_offset)
    x = (1 + 2 * randn(5, 7, WIDTH)).to(dtype)
    y, right = norm(x), written(name, norm, x)
    assert y.dtype == dtype
    assert_close(y, right, output_tolerance(right, dtype))


@variants
def test_derivatives(name: str) -> None:
    """First and second, in x and in every parameter, by finite differences."""
    norm = drawn(name, F64)
    x = randn(3, WIDTH, dtype=F64).requires_grad_()
    names = [key for key, _ in norm.named_parameters()]

    def f(x: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(norm, given, (x,))

    inputs = (x, *(p.detach().clone().requires_grad_() for p in norm.parameters()))
    assert torch.autograd.gradcheck(f, inputs)
    assert torch.autograd.gradgradcheck(f, inputs)


@written_out
def test_parameter_gradients_of_halves(name: str) -> None:
    """norms.md section 14, claim 12: 8192 rows of bf16, summed in fp32 and rounded once."""
    norm = drawn(name, BF16)
    x, dy = (randn(8192, 1, WIDTH, seed=k, dtype=BF16) for k in (0, 1))
    found = torch.autograd.grad(norm(x), list(norm.parameters()), dy)
    leaves = [p.detach().double().requires_grad_() for p in norm.parameters()]
    exact = copy.deepcopy(norm).double()
    with torch.no_grad():
        for parameter, leaf in zip(exact.parameters(), leaves, strict=True):
            parameter.copy_(leaf)
    right = torch.autograd.grad(written(name, exact, x), list(exact.parameters()), dy.double())
    for got, want in zip(found, right, strict=True):
        assert got.dtype == BF16
        assert_close(got, want, 2.0**-8 * want.abs() + 1e-5 * 8192**0.5 * WIDTH)


@pytest.mark.parametrize(("width", "law"), [(512, 0.121), (1024, 0.086), (4096, 0.043)])
def test_noise_of_a_partial_root(width: int, law: float) -> None:
    """sqrt((1/k - 1/d)/2) for Gaussian rows, within a twentieth (norms.md section 6)."""
    norm = nw.PartialRMSNorm(width)
    k = norm.first
    assert k == int(0.0625 * width)
    assert math.sqrt((1 / k - 1 / width) / 2) == pytest.approx(law, abs=6e-4)
    x = randn(4096, width)
    ratio = x.square().mean(-1).sqrt() * (norm(x) / x).mean(-1)  # whole RMS over the part's
    assert (1 / ratio).std().item() == pytest.approx(law, rel=0.05)
    above_one = (
        k + (width - k) * k / (k - 2)
    ) / width  # 1/mean of k squares is k/(k - 2) on average
    assert norm(x).square().mean().item() == pytest.approx(above_one, rel=0.01)


def test_a_partial_root_sees_the_first_coordinates_only() -> None:
    """The shape stays as it is, and the rest is scaled though it is not measured."""
    norm, x = nw.PartialRMSNorm(WIDTH), randn(2, WIDTH)
    other = torch.cat([x[:, : norm.first], 7 * x[:, norm.first :]], -1)
    assert_close(norm(other), torch.cat([norm(x)[:, :3], 7 * norm(x)[:, 3:]], -1).double(), 1e-5)
    assert norm(x).shape == x.shape
    whole = nw.PartialRMSNorm(WIDTH, partial=1.0)
    assert_close(whole(x), nw.rms_norm(x, WIDTH, eps=1e-6).double(), 1e-6)


@pytest.mark.parametrize(("width", "partial"), [(15, 0.0625), (8, 0.0), (8, 1.5), (8, math.nan)])
def test_a_part_must_hold_a_coordinate(width: int, partial: float) -> None:
    with pytest.raises(SettingError, match=f"at least one of the {width} coordinates. It is"):
        nw.PartialRMSNorm(width, partial=partial)


@pytest.mark.parametrize("size", [1e30, 1e20, 1.0, 1e-4])
def test_scale_norm_at_any_size(size: float) -> None:
    """norm2(y) = sqrt(d) from the start, not 1, and no square overflows."""
    x = randn(3, WIDTH) * size
    lengths = nw.ScaleNorm(WIDTH)(x).double().square().sum(-1).sqrt()
    assert_close(lengths, torch.full((3,), WIDTH**0.5, dtype=F64), 1e-5)
    fixed = nw.ScaleNorm(WIDTH, elementwise_affine=False)
    assert not list(fixed.parameters())
    assert_close(fixed(x), nw.ScaleNorm(WIDTH)(x).detach().double(), 1e-6)


def test_scale_norm_below_its_floor() -> None:
    """A row shorter than eps is divided by eps, and its gradient is g/eps."""
    norm = nw.ScaleNorm(4, eps=1e-2)
    x = torch.tensor([1e-3, 0.0, 0.0, 0.0], requires_grad=True)
    y = norm(x)
    assert_close(y, torch.tensor([0.2, 0.0, 0.0, 0.0], dtype=F64), 1e-6)
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert_close(dx, torch.full((4,), 200.0, dtype=F64), 1e-3)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_within_a_token(groups: int) -> None:
    """As torch's on tokens as samples; one group is LayerNorm; no token sees another."""
    norm = drawn("group_norm", groups=groups)
    x = 3 + randn(2, 5, WIDTH)
    rows = functional.group_norm(x.flatten(0, 1), groups, norm.weight, norm.bias, norm.eps)
    assert_close(norm(x), rows.reshape(x.shape).detach().double(), 1e-5)
    if groups == 1:
        layer = nw.layer_norm(x, WIDTH, norm.weight, norm.bias, norm.eps)
        assert_close(norm(x), layer.detach().double(), 2e-6)
    changed = x.clone()
    changed[0, 1] = 100.0
    same = torch.arange(5) != 1
    assert torch.equal(norm(changed)[0, same], norm(x)[0, same])


def test_groups_must_divide() -> None:
    with pytest.raises(SettingError, match=r"5 groups and 48 channels. Pass a divisor of 48\.$"):
        nw.GroupNorm(WIDTH, groups=5)


@pytest.mark.parametrize("name", ["dynamic_tanh", "derf"])
def test_curves_keep_the_size_of_their_input(name: str) -> None:
    """Neither is invariant to scale, as every norm of a row is; both start from alpha = 0.5."""
    norm, x = nw.make_norm(name, WIDTH), randn(4, WIDTH)
    curve: Callable[[Tensor], Tensor] = {"dynamic_tanh": torch.tanh, "derf": torch.erf}[name]
    assert_close(norm(x), curve(0.5 * x).double(), 1e-6)
    assert (norm(3 * x) - norm(x)).abs().max() > 0.3
    assert not NORMS[name].normalizes
    assert nw.make_norm(name, WIDTH, alpha=0.2).alpha.item() == pytest.approx(0.2)
    assert nw.make_norm(name, WIDTH, eps=1e-3).extra_repr() == norm.extra_repr()


@every
@pytest.mark.parametrize("dtype", [F32, BF16])
# Dynamo makes an object of torch's own class of functions, of which that class warns.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_what_every_norm_can(name: str, dtype: torch.dtype) -> None:
    """Made on the meta device, copied, pickled, stored, loaded, and compiled in one graph."""
    norm = nw.make_norm(name, WIDTH) if name == "no_norm" else drawn(name, dtype)
    x = randn(3, 2, WIDTH, dtype=dtype)
    y = norm(x)
    stream = io.BytesIO()
    torch.save(norm.state_dict(), stream)
    stream.seek(0)
    empty = nw.make_norm(name, WIDTH) if name == "no_norm" else made(
        name, WIDTH, device="meta", dtype=dtype
    )  # fmt: skip
    loaded = empty.to_empty(device="cpu")
    loaded.load_state_dict(torch.load(stream))
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    for other in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm)), loaded):
        assert torch.equal(other(x), y)
    assert_close(compiled(x), y.detach().double(), output_tolerance(y.detach().double(), dtype))


@learning
def test_meta_norms_reset(name: str) -> None:
    """A model made without memory gets its values by reset_parameters, buffers included."""
    norm, right = made(name, WIDTH, device="meta").to_empty(device="cpu"), made(name, WIDTH)
    norm.reset_parameters()
    stored = norm.state_dict()
    assert list(stored) == list(right.state_dict())
    assert all(torch.equal(stored[key], value) for key, value in right.state_dict().items())
    x = randn(3, 2, WIDTH)
    assert torch.equal(norm(x), right(x))


@learning
def test_no_decay(name: str) -> None:
    """Gains, alpha and shift are decayed by nobody, whatever the number of their axes."""
    norm = made(name, WIDTH if NORMS[name].batch else (3, 16))
    assert [group["weight_decay"] for group in parameter_groups(norm, 0.1)] == [0.0]


@written_out
def test_in_a_model(name: str) -> None:
    """A model of such norms resets to one function, and its gradients are finite."""
    batch = NORMS[name].batch  # heads come without one, and tokens of one see the future
    config = nw.TransformerConfig(
        depth=2, norm=name, query_key_norm="full" if batch else "head", causal=batch != "tokens"
    )
    tokens = torch.arange(12).reshape(2, 6)
    model = nw.Transformer(config, seed=0)
    y = model(tokens)
    y.square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)
    model.reset_parameters(seed=0)
    fresh = nw.Transformer(config, seed=0).state_dict()
    assert all(torch.equal(value, fresh[key]) for key, value in model.state_dict().items())
    assert_close(model(tokens), y.detach().double(), FLOAT64_OUTPUT)


@written_out
def test_shapes_are_checked(name: str) -> None:
    norm = made(name, WIDTH)
    with pytest.raises(ShapeError, match=f"{type(norm).__name__}: the input"):
        norm(randn(2, 3, WIDTH - 1))
