"""BatchNorm over tokens and over positions: the formula, padding, running statistics (P06-P49)."""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import normwise as nw
from normwise.errors import SettingError, ShapeError
from normwise.norms import batch_norm
from normwise.norms.batch_norm import BatchNorm
from tests.tolerance import (
    FLOAT64_OUTPUT,
    assert_close,
    gradient_tolerance,
    output_tolerance,
    weight_tolerance,
)

F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
EPS = 1e-5
CHANNELS, LENGTH = 4, 6
LENGTHS = (5, 4, 4, 2, 1)  # of five sequences: 5, 4, 3, 3, 1 and 0 of them reach each position
Build = Callable[..., BatchNorm]

forms = pytest.mark.parametrize("form", ["tokens", "position"])
modes = pytest.mark.parametrize("training", [True, False])
# torch scripts its own jvp decompositions on the first use of forward mode
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = F32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype)


def column(*values: float, dtype: torch.dtype = F32) -> Tensor:
    """Sequences of one token with one channel."""
    return torch.tensor(values, dtype=dtype).reshape(-1, 1, 1)


def reaching(lengths: tuple[int, ...] = LENGTHS, longest: int = LENGTH) -> Tensor:
    return torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)


def holed() -> Tensor:
    """Padding on the right, and a token missing within the first sequence."""
    mask = reaching()
    mask[0, 1] = False
    return mask


def built(form: str, channels: int = CHANNELS, **options: Any) -> BatchNorm:
    if form == "tokens":
        return nw.BatchNormTokens(channels, **options)
    return nw.BatchNormPosition(channels, options.pop("max_len", LENGTH), **options)


@pytest.fixture(params=["torch's kernel", "composed", "synchronized"])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """Builds norms that compute in each of three ways."""
    if request.param == "synchronized":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield lambda form, *args, **kw: built(form, *args, synchronized=True, **kw)
        dist.destroy_process_group()
        return
    if request.param == "composed":
        for kind in (BatchNorm, nw.BatchNormTokens):
            monkeypatch.setattr(kind, "_fits_torch", lambda *_: False)
    yield built


def batches(form: str, mask: Tensor) -> list[Tensor]:
    """Which tokens (sequences, length) share a statistic."""
    if form == "tokens":
        return [mask]
    return [mask & (torch.arange(mask.shape[1]) == t) for t in range(mask.shape[1])]


def inverse_root(rows: Tensor) -> Tensor:
    return 1 / ((rows - rows.mean(0)).square().mean(0) + EPS).sqrt()


def units(form: str, x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean)/sqrt(var + eps), 0 at padding."""
    unit = torch.zeros_like(x)
    for batch in batches(form, mask):
        if batch.any():
            unit[batch] = (x[batch] - x[batch].mean(0)) * inverse_root(x[batch])
    return unit


def written(form: str, x: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.where(mask.unsqueeze(-1), units(form, x, mask) * weight + bias, 0)


class Kept(NamedTuple):
    """What running statistics become by one batch; a statistic of one value is not kept."""

    mean: Tensor
    variance: Tensor
    seen: Tensor


def kept(form: str, x: Tensor, mask: Tensor, momentum: float = 0.1) -> Kept:
    means, variances, seen = [], [], []
    for batch in batches(form, mask):
        rows, weight = x[batch], momentum * int(batch.sum() > 1)
        mean, variance = (rows.mean(0), rows.var(0)) if weight else (x[0, 0], x[0, 0])
        means.append(weight * mean)
        variances.append(1 - weight + weight * variance)
        seen.append(weight > 0)
    stacked = Kept(torch.stack(means), torch.stack(variances), torch.tensor(seen).long())
    return Kept(*(each[0] for each in stacked)) if form == "tokens" else stacked


def drawn(norm: BatchNorm) -> BatchNorm:
    """The norm with parameters and running statistics away from where they start."""
    with torch.no_grad():
        for seed, tensor in enumerate(norm.state_dict().values(), 1):
            if tensor.is_floating_point():
                tensor.add_(randn(*tensor.shape, seed=seed).to(tensor.dtype).tanh() / 2)
    return norm


def state(norm: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in norm.state_dict().items()}


def assert_state(norm: nn.Module, before: dict[str, Tensor]) -> None:
    after = norm.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def message(text: str) -> str:
    return f"^{re.escape(text)}$"


# norms.md section 7
@forms
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("dtype", "parameters"), [(F32, F32), (F64, F64), (BF16, BF16), (BF16, F32), (F16, F32)]
)
def test_formula(
    form: str, dtype: torch.dtype, parameters: torch.dtype, build: Build, *, masked: bool
) -> None:
    """Output, dx, dw, db and running statistics, with and without padding."""
    norm = build(form, dtype=parameters)
    with torch.no_grad():
        for seed, parameter in enumerate(norm.parameters(), 1):
            parameter.add_(0.3 * randn(CHANNELS, seed=seed).to(parameters))
    x, dy = ((1 + 2 * randn(len(LENGTHS), LENGTH, CHANNELS, seed=k)).to(dtype) for k in (3, 4))
    x.requires_grad_()
    y = norm(x, holed()) if masked else norm(x)
    mask = holed() if masked else torch.ones_like(holed())
    found = torch.autograd.grad(y, (x, norm.weight, norm.bias), dy)

    leaves = [t.detach().double().requires_grad_() for t in (x, norm.weight, norm.bias)]
    right = written(form, leaves[0], mask, *leaves[1:])
    dx, dw, db = torch.autograd.grad(right, leaves, dy.double())
    assert y.dtype == dtype
    assert_close(y, right.detach(), output_tolerance(right.detach(), dtype))

    rows, gain = leaves[0].detach(), leaves[1].detach()
    unit = units(form, rows, mask)
    size = torch.zeros_like(unit)
    for batch in (b for b in batches(form, mask) if b.any()):
        dn = (dy[batch].double() * gain).abs().amax(0)
        size[batch] = inverse_root(rows[batch]) * dn * (2 + unit[batch].abs())
    incoming = dy.double() * mask.unsqueeze(-1)
    assert_close(found[0], dx, gradient_tolerance(dx, size, dtype))
    terms = (incoming * unit).flatten(0, 1), incoming.flatten(0, 1)
    assert_close(found[1], dw, weight_tolerance(*terms, parameters))
    assert_close(found[2], db, weight_tolerance(terms[1], terms[1], parameters))

    mean, variance, seen = kept(form, rows, mask)
    for running, now in ((norm.running_mean, mean), (norm.running_var, variance)):
        assert running.dtype == (F64 if parameters == F64 else F32)
        assert_close(running, now, output_tolerance(now, running.dtype))
    assert torch.equal(norm.num_batches_tracked, seen)


@pytest.mark.parametrize(
    ("form", "masked", "options", "times"),
    [
        ("tokens", False, {}, 1),
        ("tokens", True, {}, 1),
        ("position", False, {}, 1),
        ("position", True, {}, 0),  # its batches are of unequal size
        ("tokens", False, {"synchronized": True}, 0),
    ],
)
def test_where_torch_s_kernel_runs(
    form: str,
    options: dict[str, bool],
    times: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    masked: bool,
) -> None:
    """In training only, and the three ways of `build` are three."""
    calls = []

    def fused(*args: object) -> object:
        calls.append(args)
        return real(*args)

    real = batch_norm.fused_batch_norm
    monkeypatch.setattr(batch_norm, "fused_batch_norm", fused)
    norm = built(form, **options)
    for training in (True, False):
        norm.train(training)(randn(5, LENGTH, CHANNELS), reaching() if masked else None)
    assert len(calls) == times


@forms
@pytest.mark.parametrize("masked", [False, True])
@modes
def test_valid_everywhere_is_torch_s_batch_norm(
    form: str, build: Build, *, masked: bool, training: bool
) -> None:
    """norms.md section 7, the oracles: BatchNorm1d on (B T, d), or over B with T d channels."""
    norm = drawn(build(form, dtype=F64)).train(training)
    times = 1 if form == "tokens" else LENGTH
    oracle = nn.BatchNorm1d(times * CHANNELS, dtype=F64).train(training)
    oracle.load_state_dict(
        {
            "weight": norm.weight.repeat(times), "bias": norm.bias.repeat(times),
            "running_mean": norm.running_mean.flatten(),
            "running_var": norm.running_var.flatten(), "num_batches_tracked": torch.tensor(0),
        }
    )  # fmt: skip
    x, other = (randn(7, LENGTH, CHANNELS, dtype=F64).requires_grad_() for _ in range(2))
    y = norm(x, torch.ones(7, LENGTH, dtype=torch.bool)) if masked else norm(x)
    right = oracle(other.reshape(-1, times * CHANNELS)).reshape(x.shape)
    assert_close(y, right.detach(), FLOAT64_OUTPUT)
    dy = randn(*x.shape, seed=1, dtype=F64)
    found, dx = torch.autograd.grad(y, x, dy)[0], torch.autograd.grad(right, other, dy)[0]
    assert_close(found, dx, FLOAT64_OUTPUT)
    assert_close(norm.running_mean.flatten(), oracle.running_mean, FLOAT64_OUTPUT)
    assert_close(norm.running_var.flatten(), oracle.running_var, FLOAT64_OUTPUT)
    assert (norm.num_batches_tracked == int(training)).all()


# pytorch PR#50467 (gradgrad ignored that mean and rstd depend on x)
@forms
@pytest.mark.parametrize("masked", [False, True])
@modes
def test_P31_double_backward(form: str, build: Build, *, masked: bool, training: bool) -> None:
    """P31: first and second derivatives in x, weight and bias."""
    norm = drawn(build(form, 2, dtype=F64)).train(training)
    mask = reaching((4, 2, 3), 4) if masked else None

    def f(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x, mask))

    inputs = tuple(
        t.detach().clone().requires_grad_()
        for t in (randn(3, 4, 2, dtype=F64), norm.weight, norm.bias)
    )
    assert torch.autograd.gradcheck(f, inputs)
    assert torch.autograd.gradgradcheck(f, inputs)


@forms
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"affine": False}, []),
        ({"bias": False}, ["weight"]),
        ({"unit_offset": True}, ["weight", "bias"]),
    ],
)
def test_gain_and_bias(form: str, options: dict[str, bool], names: list[str], build: Build) -> None:
    norm = build(form, dtype=F64, **options)
    assert [name for name, _ in norm.named_parameters()] == names
    assert all(not p.any() for p in norm.parameters()) or not options.get("unit_offset")
    drawn(norm)
    x, mask = randn(5, LENGTH, CHANNELS, dtype=F64), reaching()
    weight = torch.ones(CHANNELS, dtype=F64) if norm.weight is None else norm.weight.detach()
    bias = torch.zeros(CHANNELS, dtype=F64) if norm.bias is None else norm.bias.detach()
    right = written(form, x, mask, weight + options.get("unit_offset", 0), bias)
    assert_close(norm(x, mask), right, FLOAT64_OUTPUT)


# pytorch#5410 (saturates to +-1)
@forms
@pytest.mark.parametrize("value", [123456.789, 33333333.33, 1e10])
@pytest.mark.parametrize("rows", [3, 7, 10, 32, 100, 1000])
def test_P06_constant_channel(form: str, rows: int, value: float, build: Build) -> None:
    """P06: 0, whatever the constant and the number of rows."""
    x = torch.full((rows, 1, 2), value)
    for mask in (None, torch.ones(rows, 1, dtype=torch.bool)):
        assert build(form, 2)(x, mask).abs().max() <= 1e-3


def test_P06_the_plain_formula_fails() -> None:
    """P06: a mean rounded to fp32 leaves an ulp of the constant, over a root of almost 0."""
    x = torch.full((1000, 2), 123456.789)
    centred = x - x.mean(0)
    assert (centred / (centred.square().mean(0) + EPS).sqrt()).abs().max() > 0.5


# pytorch#12013, #29578
@forms
@pytest.mark.parametrize("shape", [(0, 5, CHANNELS), (3, 0, CHANNELS), (0, 0, CHANNELS)])
@modes
def test_P34_empty_batch(
    form: str, shape: tuple[int, ...], build: Build, *, training: bool
) -> None:
    """P34: nothing moves, and gradients are zeros."""
    norm = drawn(build(form)).train(training)
    before = state(norm)
    x = torch.zeros(shape, requires_grad=True)
    y = norm(x)
    assert y.shape == shape
    y.sum().backward()
    assert_state(norm, before)
    assert x.grad.shape == shape
    assert not norm.weight.grad.any() and not norm.bias.grad.any()


@forms
@modes
def test_P34_no_valid_token(form: str, build: Build, *, training: bool) -> None:
    """P34 for a batch that is all padding."""
    norm = drawn(build(form)).train(training)
    before = state(norm)
    x = randn(2, 3, CHANNELS).requires_grad_()
    y = norm(x, torch.zeros(2, 3, dtype=torch.bool))
    assert not y.any()
    y.sum().backward()
    assert_state(norm, before)
    assert not x.grad.any() and not norm.weight.grad.any() and not norm.bias.grad.any()


@forms
def test_P34_P35_cumulative_mean(form: str, build: Build) -> None:
    """momentum=None: [2, 4], nothing, [6, 8] give 5; one value and [2, 4] give 3."""
    norm = build(form, 1, momentum=None)
    for batch in (column(2, 4), column(), column(6, 8)):
        norm(batch)
    assert norm.running_mean.flatten()[0] == 5.0
    norm = build(form, 1, momentum=None)
    if form == "tokens":
        with pytest.raises(ShapeError):
            norm(column(9))
    else:
        norm(column(9))
    norm(column(2, 4))
    assert norm.running_mean.flatten()[0] == 3.0


# pytorch#4534, #1381, #77014, #13223; torch/nn PR#1271; pyg PR#5530
@pytest.mark.parametrize("masked", [False, True])
def test_P35_one_token(build: Build, *, masked: bool) -> None:
    """P35: an error that says what to do, before anything has changed."""
    norm = drawn(build("tokens"))
    before = state(norm)
    x = randn(2, 3, CHANNELS) if masked else randn(1, CHANNELS)
    mask = reaching((1, 0), 3) if masked else None
    text = (
        "BatchNormTokens: training needs two valid tokens or more in a batch. There is 1. "
        "Pass a larger batch, or call eval()."
    )
    with pytest.raises(ShapeError, match=message(text)):
        norm(x, mask)
    assert_state(norm, before)
    assert norm.eval()(x, mask).isfinite().all()


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_P35_one_sequence(rank: int, build: Build, *, masked: bool) -> None:
    """P35: every position comes out as the bias, and is not kept."""
    norm = drawn(build("position"))
    before = state(norm)
    x = randn(1, 3, CHANNELS) if rank == 3 else randn(3, CHANNELS)
    mask = torch.ones(x.shape[:-1], dtype=torch.bool) if masked else None
    assert torch.equal(norm(x, mask), norm.bias.expand(x.shape))
    assert_state(norm, before)


# pytorch#70529, #25910, #81985; tensorflow#30161; keras PR#3228
@pytest.mark.parametrize("pad", [0.0, 1e6])
def test_P36_padding_stays_out(pad: float, build: Build) -> None:
    """P36: mean 4.333333, biased variance 5.555556 for the output, 6.666667 for the running one;
    with zeros counted they would be 3.25 and 7.6875.
    """
    norm = build("tokens", 1, momentum=1.0)
    x = torch.tensor([[1, 5, pad, pad], [2, 4, 6, 8]]).unsqueeze(-1)
    mask = reaching((2, 4), 4)
    y = norm(x, mask)
    right = torch.where(mask.unsqueeze(-1), (x.double() - 26 / 6) / (50 / 9 + EPS) ** 0.5, 0)
    assert_close(y, right, output_tolerance(right, F32))
    assert_close(norm.running_mean, torch.tensor([4.333333], dtype=F64), 1e-6)
    assert_close(norm.running_var, torch.tensor([6.666667], dtype=F64), 1e-6)


# pytorch#64305, #4132, #17455; chemprop#960
@forms
@modes
@pytest.mark.parametrize("pad", [1e6, float("nan"), float("inf")])
def test_P36_P37_whatever_is_in_the_padding(
    form: str, pad: float, build: Build, *, training: bool
) -> None:
    """P37: the bits of output, gradients and running statistics are those of zeros, also if dy is
    NaN there.
    """
    results = []
    for value in (0.0, pad):
        norm = drawn(build(form)).train(training)
        padding = ~holed().unsqueeze(-1)
        x = randn(5, LENGTH, CHANNELS).masked_fill(padding, value).requires_grad_()
        y = norm(x, holed())
        dy = randn(*x.shape, seed=1).masked_fill(padding, value)
        gradients = torch.autograd.grad(y, (x, norm.weight, norm.bias), dy)
        assert not y.masked_select(padding).any()
        assert not gradients[0].masked_select(padding).any()
        assert all(g.isfinite().all() for g in gradients)
        results.append([y, *gradients, *norm.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_P37_by_hand(kind: str, build: Build) -> None:
    """P37: [1, 3, NaN] with the last one padded has mean 2."""
    norm = build("tokens", 1, momentum=1.0)
    y = norm(column(1, 3, float(kind)), torch.tensor([[True], [True], [False]]))
    right = column(-1, 1, 0, dtype=F64) / (1 + EPS) ** 0.5
    assert_close(y, right, output_tolerance(right, F32))
    assert (norm.running_mean.item(), norm.running_var.item()) == (2.0, 2.0)


# pytorch#7028, #19902, #19916
@forms
@pytest.mark.parametrize("padded", [0, 2])
def test_P38_biased_for_the_output_only(form: str, padded: int, build: Build) -> None:
    """P38: [2, 2, -4] is divided by sqrt(8 + eps), and 12 is kept; n is the number of valid ones.

    Divided by sqrt(12) it would be 0.577 where 0.707 is right.
    """
    norm = build(form, 1, momentum=1.0)
    x = column(2, 2, -4, *[50.0] * padded)
    valid = torch.arange(len(x)).unsqueeze(-1) < 3
    y = norm(x, valid if padded else None)
    right = torch.where(valid.unsqueeze(-1), x.double(), 0) / (8 + EPS) ** 0.5
    assert_close(y, right, output_tolerance(right, F32))
    assert norm.running_mean.flatten()[0].abs() <= 1e-7
    assert_close(norm.running_var.flatten()[0], torch.tensor(12.0, dtype=F64), 1e-5)


# pytorch#66073, #10856; Lightning#13902, #15062, PR#15063; ultralytics PR#8753
@forms
def test_P39_frozen_stays_frozen(form: str, build: Build) -> None:
    """P39: train() does not undo it; the affine part still learns."""
    norm = drawn(build(form)).freeze()
    before, model = state(norm), nn.Sequential(norm)
    x = randn(5, LENGTH, CHANNELS)
    mean, root = norm.running_mean.double(), (norm.running_var.double() + EPS).sqrt()
    right = (x.double() - mean) / root * norm.weight.double() + norm.bias.double()
    for training in (True, False, True):
        y = model.train(training)(x)
        assert_close(y, right.detach(), output_tolerance(right.detach(), F32))
        assert norm.training == training
        assert_state(norm, before)
    y.sum().backward()
    assert norm.weight.grad.any() and norm.bias.grad.any()
    norm.unfreeze()(x)
    assert (norm.num_batches_tracked == 1).all()


def test_freeze_needs_running_statistics() -> None:
    text = (
        "BatchNormTokens: freeze needs running statistics. There are none. "
        "Build it with track_running_stats=True."
    )
    with pytest.raises(SettingError, match=message(text)):
        nw.BatchNormTokens(2, track_running_stats=False).freeze()


# pytorch#96136, #62471; Tencent/YOLO-Master#262; fairscale#1035; pfnet/pytorch-pfn-extras PR#117
@forms
@pytest.mark.parametrize("reentrant", [True, False])
def test_P40_checkpoint_keeps_a_batch_once(form: str, build: Build, *, reentrant: bool) -> None:
    """P40: [0.45, 0.55, 0.65] and 1 batch; two would give [0.855, 1.045, 1.235] and 2."""
    assert_kept_once(form, build, lambda norm: norm, reentrant=reentrant)


@forms
@pytest.mark.parametrize("reentrant", [True, False])
def test_P40_checkpoint_of_a_graph(form: str, *, reentrant: bool) -> None:
    """P40: a graph is made before the backward pass that runs it a second time."""
    torch.compiler.reset()
    compiled = partial(torch.compile, backend="aot_eager", fullgraph=True)
    assert_kept_once(form, built, compiled, reentrant=reentrant)


def assert_kept_once(
    form: str, build: Build, call: Callable[[nn.Module], nn.Module], *, reentrant: bool
) -> None:
    """After a step under checkpointing all is as after one without it."""
    norm, plain = build(form, 3), build(form, 3)
    x, other = (torch.arange(12.0).reshape(4, 1, 3).requires_grad_() for _ in range(2))
    checkpoint(call(norm), x, use_reentrant=reentrant).pow(3).sum().backward()
    plain(other).pow(3).sum().backward()
    mean = norm.running_mean.reshape(-1, 3)[0]
    assert_close(mean, torch.tensor([0.45, 0.55, 0.65], dtype=F64), 1e-6)
    assert norm.num_batches_tracked.flatten()[0] == 1
    assert torch.equal(x.grad, other.grad)
    assert_state(norm, state(plain))


# pytorch#8481, #8430, #110361; mapillary/inplace_abn#130
@pytest.mark.parametrize("affine", [False, True])
def test_P42_state_interchanges_with_torch(*, affine: bool) -> None:
    """P42: either loads the other's state, strictly, and then evaluates to the same."""
    x = randn(7, CHANNELS)
    for ours_first in (True, False):
        ours, torchs = nw.BatchNormTokens(CHANNELS, affine=affine), nn.BatchNorm1d(4, affine=affine)
        source, target = (ours, torchs) if ours_first else (torchs, ours)
        drawn(source)
        source(x)
        target.load_state_dict(source.state_dict(), strict=True)
        assert_state(target, state(source))
        y, right = ours.eval()(x), torchs.eval()(x).detach().double()
        assert_close(y, right, output_tolerance(right, F32))


@forms
@pytest.mark.parametrize("old", [True, False])
def test_P42_states_without_a_counter(form: str, *, old: bool) -> None:
    """P42: an old state loads, strictly; it and an empty one leave the counter alone."""
    norm, x = built(form), randn(5, LENGTH, CHANNELS)
    norm(x), norm(x)
    stored = state(drawn(built(form))) if old else {}
    stored.pop("num_batches_tracked", None)
    norm.load_state_dict(stored, strict=old)
    assert (norm.num_batches_tracked == 2).all()
    assert all(torch.equal(norm.state_dict()[name], stored[name]) for name in stored)


# pytorch#75478, #96203; Lightning#18802; fairscale#442; DeepSpeed#2102
@forms
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_P43_statistics_stay_wide(form: str, dtype: torch.dtype) -> None:
    """P43: whatever a model is cast to, and to the last bit; fp64 is wider."""
    norm = drawn(built(form))
    mean, variance = norm.running_mean.clone(), norm.running_var.clone()
    for cast in (nn.Module.half, nn.Module.bfloat16, lambda m: m.to(dtype)):
        cast(nn.Sequential(norm))
        assert torch.equal(norm.running_mean, mean) and torch.equal(norm.running_var, variance)
        assert norm.running_mean.dtype == norm.running_var.dtype == F32
        assert norm.num_batches_tracked.dtype == torch.long
    assert norm.weight.dtype == dtype
    for training in (True, False):
        y = norm.train(training)(randn(5, LENGTH, CHANNELS).to(dtype))
        assert y.dtype == dtype and y.isfinite().all()
    assert built(form, dtype=dtype).running_mean.dtype == F32
    assert norm.double().running_mean.dtype == F64


@forms
def test_P43_a_thousand_updates(form: str, build: Build) -> None:
    """P43: bf16 batches, within 1e-3 of float64; statistics in bf16 are off by more."""
    norm = build(form).bfloat16()
    batch = [(3 + randn(5, 1, CHANNELS, seed=k)).bfloat16() for k in range(1000)]
    mean, variance = torch.zeros(CHANNELS, dtype=F64), torch.ones(CHANNELS, dtype=F64)
    narrow = torch.zeros(CHANNELS, dtype=BF16)
    for x in batch:
        norm(x)
        rows = x.double()[:, 0]
        mean.lerp_(rows.mean(0), 0.1), variance.lerp_(rows.var(0), 0.1)
        narrow.lerp_(rows.mean(0).bfloat16(), 0.1)
    assert_close(norm.running_mean.reshape(-1, CHANNELS)[0], mean, 1e-3)
    assert_close(norm.running_var.reshape(-1, CHANNELS)[0], variance, 1e-3)
    assert (narrow.double() - mean).abs().max() > 1e-3
    assert norm.num_batches_tracked.flatten()[0] == 1000


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "vmap": lambda f, x: torch.vmap(f)(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x.cos(),))[1],
}
transforms = pytest.mark.parametrize("transform", list(TRANSFORMS))


# pytorch#85533; pytorch/functorch#867, #273
@forms
@transforms
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("way", ["eval", "freeze"])
def test_P32_transforms_in_evaluation(form: str, transform: str, way: str, *, masked: bool) -> None:
    """P32: evaluation is one affine map of each channel."""
    norm = drawn(built(form, dtype=F64))
    norm = norm.eval() if way == "eval" else norm.freeze()
    before, x = state(norm), randn(5, LENGTH, CHANNELS, dtype=F64)
    mask = reaching((4,))[0] if masked else None
    slope = (norm.weight / (norm.running_var + EPS).sqrt()).expand(x.shape)

    def f(x: Tensor) -> Tensor:
        y = (x - norm.running_mean) * slope[0] + norm.bias
        return y if mask is None else torch.where(mask.unsqueeze(-1), y, 0)

    found = TRANSFORMS[transform](lambda x: norm(x, mask), x)
    assert_close(found, TRANSFORMS[transform](f, x).detach(), FLOAT64_OUTPUT)
    assert_state(norm, before)


@forms
@transforms
@pytest.mark.parametrize("masked", [False, True])
def test_P32_training_names_the_remedy(form: str, transform: str, *, masked: bool) -> None:
    """P32: an error before anything has changed."""
    norm, x = drawn(built(form)), randn(5, LENGTH, CHANNELS)
    before = state(norm)
    mask = reaching((4,))[0] if masked else None
    text = (
        f"{type(norm).__name__} in training changes its running statistics, which a transform such "
        "as vmap or jacrev cannot follow. Call eval() or freeze() first, or build it with "
        "track_running_stats=False."
    )
    with pytest.raises(SettingError, match=message(text)):
        TRANSFORMS[transform](lambda x: norm(x, mask), x)
    assert_state(norm, before)


@forms
@pytest.mark.parametrize("masked", [False, True])
def test_P32_jacobian_without_running_statistics(form: str, *, masked: bool) -> None:
    """P32: the remedy that keeps the batch's statistics, and it has no state, in either mode."""
    norm = drawn(built(form, 2, track_running_stats=False, dtype=F64))
    assert sorted(norm.state_dict()) == ["bias", "weight"]
    x = randn(3, 4, 2, dtype=F64)
    mask = reaching((4, 2, 3), 4) if masked else torch.ones(3, 4, dtype=torch.bool)
    right = torch.autograd.functional.jacobian(
        lambda x: written(form, x, mask, norm.weight.detach(), norm.bias.detach()), x
    )
    for training in (True, False):
        norm.train(training)
        found = torch.func.jacrev(lambda x: norm(x, mask if masked else None))(x)
        assert_close(found, right, FLOAT64_OUTPUT)
        tangent = torch.func.jvp(lambda x: norm(x, mask if masked else None), (x,), (x.cos(),))[1]
        moved = torch.tensordot(right, x.cos(), dims=3)
        assert_close(tangent, moved, FLOAT64_OUTPUT)


@forms
@pytest.mark.parametrize("masked", [False, True])
def test_P32_vmap_without_running_statistics(form: str, *, masked: bool) -> None:
    """P32: each slice is a batch of its own, with a mask of its own."""
    norm = drawn(built(form, track_running_stats=False, dtype=F64))
    x = randn(2, 5, LENGTH, CHANNELS, dtype=F64)
    masks = torch.stack([holed(), reaching()]) if masked else torch.ones(2, 5, LENGTH).bool()
    right = [written(form, *each, norm.weight, norm.bias) for each in zip(x, masks, strict=True)]
    found = torch.vmap(norm)(x, masks) if masked else torch.vmap(norm)(x)
    assert_close(found, torch.stack(right).detach(), FLOAT64_OUTPUT)


# flagos-ai/FlagPerf PR#683; pytorch#115285; bionemo-recipes PR#1368
@forms
@pytest.mark.parametrize("unit_offset", [False, True])
def test_P49_meta_device(form: str, *, unit_offset: bool) -> None:
    """P49: built on meta, given memory, reset: no entry is left uninitialised."""
    norm = built(form, device="meta", unit_offset=unit_offset)
    assert all(tensor.is_meta for tensor in norm.state_dict().values())
    norm.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in norm.state_dict().values():
            tensor.fill_(7)
    norm.reset_parameters()
    values = {name: set(tensor.flatten().tolist()) for name, tensor in norm.state_dict().items()}
    assert values == {
        "weight": {0.0 if unit_offset else 1.0}, "bias": {0.0},
        "running_mean": {0.0}, "running_var": {1.0}, "num_batches_tracked": {0},
    }  # fmt: skip
    assert_state(norm, state(built(form, unit_offset=unit_offset)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@forms
def test_a_batch_that_is_not_finite_is_not_kept(form: str, bad: float, build: Build) -> None:
    """It is said, and later batches are kept; a position knows nothing of the others."""
    norm, x = build(form), randn(5, LENGTH, CHANNELS)
    x[2, 1, 0] = bad
    text = (
        f"{type(norm).__name__}: a batch with values that are not finite was normalized; its "
        "statistics are not kept."
    )
    with pytest.warns(RuntimeWarning, match=message(text)):
        norm(x)
    without = torch.ones(5, LENGTH, dtype=torch.bool)
    without[:, slice(None) if form == "tokens" else 1] = False
    mean, variance, seen = kept(form, x.double(), without)
    assert_close(norm.running_mean, mean, output_tolerance(mean, F32))
    assert_close(norm.running_var, variance, output_tolerance(variance, F32))
    assert torch.equal(norm.num_batches_tracked, seen)
    norm(randn(5, LENGTH, CHANNELS))
    assert torch.equal(norm.num_batches_tracked, seen + 1)
    assert all(tensor.isfinite().all() for tensor in norm.state_dict().values())


@forms
def test_evaluation_sees_one_sequence(form: str) -> None:
    """norms.md section 7: neither batch mates nor the length of the padding change a bit."""
    norm, x = drawn(built(form)).eval(), randn(5, LENGTH, CHANNELS)
    together = norm(x, reaching())
    for i, length in enumerate(LENGTHS):
        assert torch.equal(norm(x[i : i + 1, :length])[0], together[i, :length])


def test_positions_have_their_own_counts() -> None:
    """norms.md section 7: of the six positions 5, 4, 3, 3, 1 and 0 sequences are valid; one or none
    leaves a position as it was.
    """
    norm = nw.BatchNormPosition(1, LENGTH + 2, momentum=None)
    x = torch.arange(30.0).reshape(5, LENGTH, 1)  # x[b, t] = 6 b + t
    norm(x, reaching())
    norm(x[:2, :1])
    assert norm.num_batches_tracked.tolist() == [2, 1, 1, 1, 0, 0, 0, 0]
    means = [(12 + 3) / 2, 9 + 1, 6 + 2, 6 + 3, 0, 0, 0, 0]
    variances = [(90 + 18) / 2, 60, 36, 36, 1, 1, 1, 1]
    assert norm.running_mean.flatten().tolist() == pytest.approx(means, abs=1e-5)
    assert norm.running_var.flatten().tolist() == pytest.approx(variances, abs=1e-4)


@modes
@pytest.mark.parametrize("shape", [(5, LENGTH + 1, CHANNELS), (CHANNELS,)])
def test_positions_end_at_max_len(shape: tuple[int, ...], *, training: bool) -> None:
    norm = drawn(built("position")).train(training)
    before = state(norm)
    text = (
        "BatchNormPosition: x must be (..., tokens, channels) with at most max_len = 6 tokens. "
        f"It is {shape}. Build it with a larger max_len."
    )
    with pytest.raises(ShapeError, match=message(text)):
        norm(randn(*shape))
    assert_state(norm, before)


@forms
@modes
@pytest.mark.parametrize("shape", [(5, 7), (4, 6), (5, 6, CHANNELS), (5, 6, 1), (3, 5, 6), (5,)])
def test_mask_of_another_shape(form: str, shape: tuple[int, ...], *, training: bool) -> None:
    norm = drawn(built(form)).train(training)
    before = state(norm)
    text = (
        f"{type(norm).__name__}: a mask must have the shape of x without channels, (5, 6). "
        f"It is {shape}."
    )
    with pytest.raises(ShapeError, match=message(text)):
        norm(randn(5, 6, CHANNELS), torch.ones(shape, dtype=torch.bool))
    assert_state(norm, before)


@forms
@pytest.mark.parametrize("dtype", [F32, torch.long, torch.uint8])
def test_mask_of_another_dtype(form: str, dtype: torch.dtype) -> None:
    norm = drawn(built(form))
    before = state(norm)
    text = (
        f"{type(norm).__name__}: a mask must be of dtype bool, True for valid tokens. It is "
        f"{dtype}. Pass mask != 0."
    )
    with pytest.raises(ShapeError, match=message(text)):
        norm(randn(5, LENGTH, CHANNELS), torch.ones(5, LENGTH, dtype=dtype))
    assert_state(norm, before)


@forms
@pytest.mark.parametrize("shape", [(LENGTH,), (1, LENGTH), (5, 1)])
@modes
def test_mask_is_broadcast(
    form: str, shape: tuple[int, ...], build: Build, *, training: bool
) -> None:
    """One row for all sequences or one entry for all tokens; the one that is set holds else."""
    mask = torch.arange(max(shape)).reshape(shape) < 4
    norm, other = (drawn(build(form)).train(training) for _ in range(2))
    x = randn(5, LENGTH, CHANNELS)
    y = norm(x, mask)
    other.mask = mask.expand(5, LENGTH)
    assert torch.equal(other(x), y)
    assert_state(other, state(norm))
    assert torch.equal(other(x, reaching()), norm(x, reaching()))


@forms
def test_more_axes_in_front(form: str, build: Build) -> None:
    """(..., tokens, channels): all axes in front of the tokens count sequences."""
    norm, other = (build(form) for _ in range(2))
    x, mask = randn(3, 2, LENGTH, CHANNELS), reaching((5, 4, 4, 2, 3, 2)).reshape(3, 2, LENGTH)
    y = other(x.flatten(0, 1), mask.flatten(0, 1)).detach().double()
    assert_close(norm(x, mask).flatten(0, 1), y, output_tolerance(y, F32))
    y = other(x.flatten(0, 1)).detach().double()
    assert_close(norm(x).flatten(0, 1), y, output_tolerance(y, F32))


@forms
@pytest.mark.parametrize("masked", [False, True])
@modes
def test_compiled_in_one_graph(form: str, *, masked: bool, training: bool) -> None:
    """Output, gradients and what is kept, over two batches."""
    torch.compiler.reset()
    norm, other = (drawn(built(form, dtype=F64)).train(training) for _ in range(2))
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    for seed in range(2):
        x, dy = (randn(5, LENGTH, CHANNELS, seed=seed + k, dtype=F64) for k in (0, 5))
        given = (reaching(),) if masked else ()
        results = []
        for call, module in ((norm, norm), (compiled, other)):
            leaf = x.clone().requires_grad_()
            y = call(leaf, *given)
            leaves = (leaf, module.weight, module.bias)
            results.append([y, *torch.autograd.grad(y, leaves, dy), *module.buffers()])
        for right, found in zip(*results, strict=True):
            assert_close(found, right.detach().double(), FLOAT64_OUTPUT)


def test_torch_s_positional_arguments() -> None:
    """torch's arguments in torch's order and with its defaults; ours are keywords."""
    ours, torchs = (
        list(inspect.signature(c.__init__).parameters.values())
        for c in (nw.BatchNormTokens, nn.BatchNorm1d)
    )
    shared = [p for p in torchs if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert [(p.name, p.default) for p in ours[: len(shared)]] == [
        (p.name, p.default) for p in shared
    ]
    assert all(p.kind == p.KEYWORD_ONLY for p in ours[len(shared) :])


@pytest.mark.parametrize("momentum", [-0.1, 1.5, float("nan")])
def test_momentum_that_is_refused(momentum: float) -> None:
    text = (
        "BatchNormTokens: momentum is the weight of the new batch, from 0 to 1, or None for the "
        f"mean of all batches. It is {momentum}."
    )
    with pytest.raises(SettingError, match=message(text)):
        nw.BatchNormTokens(2, momentum=momentum)


def test_repr_shows_the_settings() -> None:
    """norms.md section 2, rule 2."""
    assert repr(nw.BatchNormTokens(8).freeze()) == (
        "BatchNormTokens((8,), elementwise_affine=True, bias=True, unit_offset=False, eps=1e-05, "
        "momentum=0.1, frozen)"
    )
