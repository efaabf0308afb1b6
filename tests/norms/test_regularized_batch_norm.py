"""RegularizedBatchNorm: its penalty, and that the batch's statistics carry gradient in it."""

import copy
import pickle
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import normwise as nw
from normwise.errors import ShapeError, UnknownName
from normwise.norms.regularized_batch_norm import DEVIATIONS
from tests.tolerance import FLOAT64_OUTPUT, assert_close, output_tolerance

F32, BF16, F64 = torch.float32, torch.bfloat16, torch.float64
EPS, CHANNELS = 1e-5, 4
MASK = torch.arange(6) < torch.tensor([6, 4, 1]).unsqueeze(1)
PENALTIES = (0.3, 0.02)

compared = pytest.mark.parametrize("compared", list(DEVIATIONS))


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype)


def batch(seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return (1 + 2 * randn(3, 6, CHANNELS, seed=seed)).to(dtype).requires_grad_()


def built(compared: str = "variance", **options: Any) -> nw.RegularizedBatchNorm:
    """A norm whose running statistics are not where they start."""
    options = {"penalties": PENALTIES, "dtype": F64, **options}
    norm = nw.RegularizedBatchNorm(CHANNELS, compared=compared, **options)
    norm.running_mean.add_(randn(CHANNELS, seed=8))
    norm.running_var.add_(randn(CHANNELS, seed=9).abs())
    return norm


def penalty_of(norm: nw.RegularizedBatchNorm, rows: Tensor) -> Tensor:
    """Before the batch is kept; rows (tokens, channels) are the valid ones."""
    mean, variance = rows.mean(0), rows.var(0, correction=0)
    kept_mean, kept = norm.running_mean.detach().clone(), norm.running_var.detach().clone()
    apart = (kept - variance).abs().sum()
    if norm.compared == "deviation":
        apart = (kept.sqrt() - variance.sqrt()).abs().sum()
    return norm.penalties[0] * (kept_mean - mean).square().sum() + norm.penalties[1] * apart


@compared
@pytest.mark.parametrize("masked", [False, True])
def test_penalty_and_its_gradient(compared: str, *, masked: bool) -> None:
    """norms.md section 8: lambda_mean |m - m_B|^2 + lambda_var |v - v_B|, or |s - s_B|.

    With the statistics of the batch detached there is no gradient at all, which is the known wrong
    version; with those of the norm in it, there is one too many, to buffers.
    """
    norm, x = built(compared), batch()
    rows = x[MASK] if masked else x.flatten(0, 1)
    right = penalty_of(norm, rows)
    (dx,) = torch.autograd.grad(right, x)
    norm(x, MASK if masked else None)
    found = nw.batch_penalty(norm)
    assert isinstance(found, Tensor)
    assert_close(found, right.detach(), FLOAT64_OUTPUT)
    (gradient,) = torch.autograd.grad(found, x)
    assert_close(gradient, dx, FLOAT64_OUTPUT)
    assert gradient.abs().max() > 1e-3
    assert not penalty_of(norm, rows.detach()).requires_grad


@compared
def test_penalty_by_hand(compared: str) -> None:
    """Batch [1, 3] has mean 2 and variance 1, which are compared with 0 and 4."""
    norm = nw.RegularizedBatchNorm(1, penalties=(0.1, 0.01), compared=compared)
    norm.running_var.fill_(4.0)
    norm(torch.tensor([[1.0], [3.0]]))
    right = 0.1 * 4 + 0.01 * (3 if compared == "variance" else 1)
    assert float(nw.batch_penalty(norm)) == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize("dtype", [F32, BF16, F64])
@pytest.mark.parametrize("masked", [False, True])
def test_output_and_running_statistics(dtype: torch.dtype, *, masked: bool) -> None:
    """Biased variance with a floor, kept biased with weight 0.05; unbiased it would be 6% more."""
    parameters = F64 if dtype == F64 else F32
    norm, x = built(dtype=parameters), batch(dtype=dtype)
    before = [running.double().clone() for running in (norm.running_mean, norm.running_var)]
    y = norm(x, MASK if masked else None)
    mask = MASK if masked else torch.ones_like(MASK)
    rows = x.detach().double()[mask]
    mean, variance = rows.mean(0), rows.var(0, correction=0)
    right = torch.zeros_like(x, dtype=F64)
    right[mask] = (rows - mean) / variance.sqrt()
    assert y.dtype == dtype
    assert_close(y, right, output_tolerance(right, dtype))
    for running, old, new in zip(
        (norm.running_mean, norm.running_var), before, (mean, variance), strict=True
    ):
        assert_close(running, 0.95 * old + 0.05 * new, output_tolerance(new, parameters))
    assert norm.num_batches_tracked == 1
    right = (rows - norm.running_mean.double()) / norm.running_var.double().sqrt()
    y = norm.eval()(x, mask)[mask]
    assert_close(y, right, output_tolerance(right, dtype))


@pytest.mark.parametrize("training", [True, False])
def test_floor_of_the_variance(*, training: bool) -> None:
    """max(var, eps), not var + eps: they are apart near eps, and below it eps alone divides."""
    norm = nw.RegularizedBatchNorm(2, 1e-2, dtype=F64).train(training)
    norm.running_var.copy_(torch.tensor([4e-4, 4e-2], dtype=F64))
    x = torch.tensor([[0.02, 0.2], [-0.02, -0.2]], dtype=F64)  # of variance 4e-4 and 4e-2
    right = torch.tensor([[0.2, 1.0], [-0.2, -1.0]], dtype=F64)
    assert_close(norm(x), right, FLOAT64_OUTPUT)


@compared
def test_channels_without_variance(compared: str) -> None:
    """P30: a constant channel has finite gradients, of the output and of the penalty."""
    x = torch.ones(5, 2, dtype=F64)
    x[:, 1] = randn(5)
    norm = nw.RegularizedBatchNorm(2, compared=compared, dtype=F64)
    y = norm(x.requires_grad_())
    (dx,) = torch.autograd.grad(y.pow(3).sum() + nw.batch_penalty(norm), x)
    assert not y[:, 0].any() and dx.isfinite().all()


def test_each_penalty_is_given_once() -> None:
    """A sum over layers, of the last training batch alone; 0.0 afterwards and in evaluation."""
    first, last = built(), built("deviation")
    model = nn.Sequential(first, nn.Linear(CHANNELS, CHANNELS, dtype=F64), last)
    model(batch(seed=1))
    before, entered = [copy.deepcopy(first), copy.deepcopy(last)], []
    for norm in (first, last):
        norm.register_forward_pre_hook(lambda _, args: entered.append(args[0].flatten(0, 1)))
    model(batch())
    right = sum(penalty_of(norm, x) for norm, x in zip(before, entered, strict=True))
    assert_close(nw.batch_penalty(model), right.detach(), FLOAT64_OUTPUT)
    assert nw.batch_penalty(model) == 0.0
    model.eval()(batch())
    assert nw.batch_penalty(model) == 0.0
    first.freeze(), last.freeze()
    model.train()(batch())
    assert nw.batch_penalty(model) == 0.0


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nw.BatchNormTokens(2)])
def test_other_models_have_no_penalty(model: nn.Module) -> None:
    model(torch.ones(3, 2))
    assert nw.batch_penalty(model) == 0.0


@pytest.mark.parametrize(
    ("shape", "mask", "options"),
    [
        ((3, 0), None, {}),
        ((3, 6), torch.zeros_like(MASK), {}),
        ((1, 1), None, {}),
        ((3, 6), None, {"track_running_stats": False}),
    ],
    ids=["empty", "padded", "one token", "no running statistics"],
)
def test_no_penalty_of_a_batch_that_is_not_kept(
    shape: tuple[int, int], mask: Tensor | None, options: dict[str, bool]
) -> None:
    """P34, P35: neither an empty batch nor one that is refused leaves anything."""
    norm = nw.RegularizedBatchNorm(CHANNELS, dtype=F64, **options)
    refused = pytest.raises(ShapeError) if shape == (1, 1) else nullcontext()
    with refused:
        norm(randn(*shape, CHANNELS), mask)
    assert nw.batch_penalty(norm) == 0.0


@compared
def test_copies_after_a_step(compared: str) -> None:
    """The penalty hangs on a graph, which no copy has."""
    norm, x = built(compared), batch()
    (norm(x).sum() + nw.batch_penalty(norm)).backward()
    y = norm(x)
    for other in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        assert nw.batch_penalty(other) == 0.0
        assert torch.equal(other(x), y)
        assert (other.penalties, other.compared) == (PENALTIES, compared)
    assert nw.batch_penalty(norm) != 0.0


@compared
@pytest.mark.parametrize("masked", [False, True])
def test_P40_checkpoint(compared: str, *, masked: bool) -> None:
    """P40: loss and penalty have the gradient that they have without checkpointing."""
    found = []
    for saves in (True, False):
        norm, x = built(compared), batch()
        mask = MASK if masked else None
        y = norm(x, mask) if saves else checkpoint(norm, x, mask, use_reentrant=False)
        penalty = nw.batch_penalty(norm)
        (dx,) = torch.autograd.grad(y.pow(3).sum() + penalty, x)
        found.append([dx, torch.as_tensor(penalty), *norm.buffers()])
        assert nw.batch_penalty(norm) == 0.0
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@compared
@pytest.mark.parametrize("masked", [False, True])
def test_compiled_in_one_graph(compared: str, *, masked: bool) -> None:
    """Output, penalty, the gradients of both, and what is kept, over two batches.

    The backward pass of a graph may copy the running statistics again, when they have changed:
    torch 2.13 then gives 1 - momentum of the gradient of the mean's penalty.
    """
    torch.compiler.reset()
    norm, other = built(compared), built(compared)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    for seed in range(2):
        results = []
        for call, module in ((norm, norm), (compiled, other)):
            x = batch(seed)
            y = call(x, MASK) if masked else call(x)
            penalty = nw.batch_penalty(module)
            of_penalty = torch.autograd.grad(penalty, x, retain_graph=True)
            of_output = torch.autograd.grad(y.pow(3).sum(), x)
            results.append([y, penalty, *of_penalty, *of_output, *module.buffers()])
        for right, found in zip(*results, strict=True):
            right = right.detach().double()
            assert_close(found, right, FLOAT64_OUTPUT * right.abs().clamp(min=1.0))


def test_an_unknown_comparison_is_answered() -> None:
    with pytest.raises(UnknownName, match="Unknown compared statistic 'sigma'"):
        nw.RegularizedBatchNorm(2, compared="sigma")


def test_defaults_of_the_paper() -> None:
    """Wu et al. 2022: weight 0.05 of the new batch, lambda (0.1, 0.01) in pre-norm."""
    norm = nw.RegularizedBatchNorm(2)
    assert (norm.momentum, norm.penalties, norm.compared) == (0.05, (0.1, 0.01), "variance")
    assert repr(norm).endswith("momentum=0.05, penalties=(0.1, 0.01), compared=variance)")
