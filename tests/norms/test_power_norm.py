"""PowerNorm: forward in warm-up and after it, and the published backward pass (2003.07845)."""

import copy
import pickle
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import normwise as nw
from normwise.errors import SettingError, ShapeError
from tests.tolerance import FLOAT32_OUTPUT, FLOAT64_OUTPUT, assert_close, output_tolerance

F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
EPS, CHANNELS, WARMUP, STEPS = 1e-5, 4, 2, 5
MASK = torch.arange(6) < torch.tensor([6, 4, 1]).unsqueeze(1)

SUMS = 10 * FLOAT32_OUTPUT  # of 18 terms, over a few steps: some ten times what an output errs by

masks = pytest.mark.parametrize("masked", [False, True])
# torch scripts its own jvp decompositions on the first use of forward mode
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype)


def batch(seed: int, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor]:
    """x and dy: channels of unequal size, and a gradient that does not vanish on average."""
    x = (1 + randn(3, 6, CHANNELS, seed=seed)) * torch.arange(1.0, 1 + CHANNELS)
    return x.to(dtype).requires_grad_(), (1 + randn(*x.shape, seed=seed + 50)).to(dtype)


def built(dtype: torch.dtype = F64, **options: Any) -> nw.PowerNorm:
    """A norm with a short warm-up and parameters away from where they start."""
    norm = nw.PowerNorm(CHANNELS, dtype=dtype, warmup=WARMUP, **options)
    with torch.no_grad():
        for seed, parameter in enumerate(norm.parameters()):
            parameter.add_(randn(CHANNELS, seed=seed, dtype=dtype).tanh() / 2)
    return norm


def state(norm: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in norm.state_dict().items()}


def assert_state(norm: nn.Module, before: dict[str, Tensor]) -> None:
    assert all(torch.equal(norm.state_dict()[name], before[name]) for name in before)


def scaled(x: Tensor) -> Tensor:
    """z = x/rms(x) of each token."""
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


@dataclass
class Published:
    """Algorithms 1 and 2 in float64, a step at a time, on the valid tokens (n, channels).

        phi_B = mean(z^2);  y = z/sqrt(phi + eps), phi that of the batch or the running one
        dz = (g dy - nu y)/sqrt(phi + eps)
        nu <- nu + (1 - decay) (mean(g dy y) - nu mean(y^2));  phi <- decay phi + (1 - decay) phi_B

    With `plain` dz is the derivative instead.
    """

    weight: Tensor
    bias: Tensor
    decay: float = 0.9
    plain: bool = False
    seen: int = 0
    phi: Tensor = field(default_factory=lambda: torch.ones(CHANNELS, dtype=F64))
    nu: Tensor = field(default_factory=lambda: torch.zeros(CHANNELS, dtype=F64))

    def step(self, x: Tensor, dy: Tensor) -> list[Tensor]:
        """y, dx, dw and db."""
        x = x.detach().double().requires_grad_()
        dy, z = dy.double(), scaled(x)
        of_batch = z.square().mean(0)
        phi = of_batch if self.seen < WARMUP else self.phi
        unit = z / (phi + EPS).sqrt()
        gained = dy * self.weight
        dz = (gained - self.nu * unit.detach()) / (phi.detach() + EPS).sqrt()
        (dx,) = torch.autograd.grad(unit, x, gained) if self.plain else torch.autograd.grad(
            z, x, dz, retain_graph=True
        )  # fmt: skip
        unit = unit.detach()
        moved = (gained * unit).mean(0) - self.nu * unit.square().mean(0)
        self.nu = self.nu + (1 - self.decay) * moved
        self.phi = self.decay * self.phi + (1 - self.decay) * of_batch.detach()
        self.seen += 1
        return [unit * self.weight + self.bias, dx, (dy * unit).sum(0), dy.sum(0)]


def published(norm: nw.PowerNorm, **options: Any) -> Published:
    return Published(norm.weight.detach().double(), norm.bias.detach().double(), **options)


def steps(norm: nw.PowerNorm, x: Tensor, dy: Tensor, mask: Tensor | None = None) -> list[Tensor]:
    """y, dx, dw and db of the code under test."""
    y = norm(x) if mask is None else norm(x, mask)
    return [y.detach(), *torch.autograd.grad(y, (x, norm.weight, norm.bias), dy)]


@masks
@pytest.mark.parametrize("decay", [0.9, 0.5])
@pytest.mark.parametrize(
    ("dtype", "parameters"), [(F64, F64), (F32, F32), (BF16, F32), (BF16, BF16)]
)
def test_published_steps(
    dtype: torch.dtype, parameters: torch.dtype, decay: float, *, masked: bool
) -> None:
    """norms.md section 8, across the end of the warm-up: outputs, gradients, phi, nu, counter."""
    norm = built(parameters, decay=decay)
    right, mask = published(norm, decay=decay), MASK if masked else torch.ones_like(MASK)
    for seed in range(STEPS):
        x, dy = batch(seed, dtype)
        found = steps(norm, x, dy, mask if masked else None)
        assert found[0].dtype == dtype
        for each in found[:2]:
            assert not each[~mask].any()
        wanted = right.step(x[mask], dy[mask])
        for got, want in zip([each[mask] for each in found[:2]] + found[2:], wanted, strict=True):
            assert_close(got, want, output_tolerance(want, got.dtype, SUMS))
        wide = F64 if parameters == F64 else F32
        for got, want in ((norm.running_phi, right.phi), (norm.running_gradient, right.nu)):
            assert got.dtype == wide
            assert_close(got, want, output_tolerance(want, wide, SUMS))
        assert norm.num_batches_tracked == seed + 1


@pytest.mark.parametrize("seen", [0, WARMUP + 1])
def test_the_backward_pass_is_not_the_derivative(seen: int) -> None:
    """norms.md section 8: plain autograd, through phi or past it, is another method."""
    norm = built()
    right, wrong = published(norm), published(norm, plain=True)
    for seed in range(seen + 2):
        x, dy = batch(seed)
        found, *_ = steps(norm, x, dy)[1:]
        dx, plain = (each.step(x.flatten(0, 1), dy.flatten(0, 1))[1] for each in (right, wrong))
    assert_close(found.flatten(0, 1), dx, FLOAT64_OUTPUT)
    assert (dx - plain).abs().max() > 0.01


def test_nu_starts_as_plain_autograd_past_phi() -> None:
    """nu is 0 at first, so that the first dz is dy g/sqrt(phi + eps)."""
    norm, (x, dy) = built(), batch(0)
    z = scaled(x)
    phi = z.square().mean((0, 1)).detach()
    (dx,) = torch.autograd.grad(z / (phi + EPS).sqrt() * norm.weight.detach(), x, dy)
    assert_close(steps(norm, x, dy)[1], dx, FLOAT64_OUTPUT)


@pytest.mark.parametrize("dtype", [F64, F32, BF16, F16])
@masks
def test_evaluation(dtype: torch.dtype, *, masked: bool) -> None:
    """The running phi and the derivative; nothing is kept."""
    norm = built(F64 if dtype == F64 else F32)
    for seed in range(STEPS):
        norm(batch(seed, dtype)[0])
    before = state(norm.eval())
    (x, dy), mask = batch(9, dtype), MASK if masked else torch.ones_like(MASK)
    y = norm(x, MASK if masked else None)
    leaf = x.detach().double().requires_grad_()
    unit = scaled(leaf) / (norm.running_phi.double() + EPS).sqrt()
    right = unit * norm.weight.detach().double() + norm.bias.detach().double()
    right = torch.where(mask.unsqueeze(-1), right, 0)
    assert y.dtype == dtype
    assert_close(y, right.detach(), output_tolerance(right.detach(), dtype, SUMS))
    (dx,) = torch.autograd.grad(right, leaf, dy.double())
    (found,) = torch.autograd.grad(y, x, dy)
    assert_close(found, dx, output_tolerance(dx, dtype, SUMS))
    assert_state(norm, before)


@pytest.mark.parametrize("after", [False, True])
def test_after_the_warm_up_no_token_sees_another(*, after: bool) -> None:
    """In the forward pass; before, each sees all."""
    norm, (x, _) = built(), batch(0)
    for seed in range(WARMUP if after else 0):
        norm(batch(seed)[0])
    other = copy.deepcopy(norm)
    changed = x.detach().clone()
    changed[1] = changed[1].flip(-1)
    same = torch.equal(norm(x)[0], other(changed)[0])
    assert same == after


@masks
def test_padding_is_as_if_it_were_not_there(*, masked: bool) -> None:
    """The valid tokens by themselves give the same, whatever the padding holds."""
    norm, packed = built(), built()
    for seed in range(STEPS):
        x, dy = batch(seed)
        alone = x.detach()[MASK].requires_grad_()
        pad = 1e6 if masked else 0.0
        filled = x.detach().masked_fill(~MASK.unsqueeze(-1), pad).requires_grad_()
        found, right = steps(norm, filled, dy, MASK), steps(packed, alone, dy[MASK])
        found[:2] = [each[MASK] for each in found[:2]]
        for got, want in zip(found, right, strict=True):
            assert_close(got, want, output_tolerance(want, F64))
        for name in ("running_phi", "running_gradient"):
            assert_close(getattr(norm, name), getattr(packed, name), FLOAT64_OUTPUT)


# pytorch#64305, #4132, #17455; chemprop#960
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("pad", [float("nan"), float("inf")])
def test_P37_nothing_leaves_the_padding(pad: float, *, training: bool) -> None:
    """P37: the bits are those of zeros there, of gradients and of what is kept too."""
    results = []
    for value in (0.0, pad):
        norm = built().train(training)
        for seed in range(WARMUP + 1):
            x, dy = (t.detach().masked_fill(~MASK.unsqueeze(-1), value) for t in batch(seed))
            found = steps(norm, x.requires_grad_(), dy, MASK)
        assert not found[1][~MASK].any()
        results.append([*found, *norm.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# pytorch#12013, #29578
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("what", ["no sequence", "no token", "padding only"])
def test_P34_empty_batch(what: str, *, training: bool) -> None:
    """P34: nothing moves, forward or backward."""
    norm = built().train(training)
    norm(batch(0)[0]).sum().backward()
    norm.zero_grad()
    before = state(norm)
    x = batch(1)[0].detach()
    x = {"no sequence": x[:0], "no token": x[:, :0], "padding only": x}[what].requires_grad_()
    mask = torch.zeros_like(MASK) if what == "padding only" else None
    y = norm(x, mask)
    y.sum().backward()
    assert y.shape == x.shape and not y.any() and not x.grad.any()
    assert not norm.weight.grad.any() and not norm.bias.grad.any()
    assert_state(norm, before)


# pytorch#96136, #62471
@pytest.mark.parametrize("reentrant", [True, False])
@masks
def test_P40_checkpoint(*, reentrant: bool, masked: bool) -> None:
    """P40: over the end of the warm-up, all is as without checkpointing."""
    norm, plain = built(), built()
    mask = MASK if masked else None
    for seed in range(STEPS):
        results = []
        for module, saves in ((plain, True), (norm, False)):
            x, dy = batch(seed)
            module.zero_grad()
            y = module(x, mask) if saves else checkpoint(
                module, x, mask, use_reentrant=reentrant
            )  # fmt: skip
            y.backward(dy)
            results.append([y, x.grad, *(p.grad for p in module.parameters()), *module.buffers()])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert norm.num_batches_tracked == STEPS


@masks
# Dynamo makes an object of torch's own class, of which that class warns.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_in_one_graph(*, masked: bool) -> None:
    """Output, gradients and what is kept, over the end of the warm-up."""
    torch.compiler.reset()
    norm, other = built(), built()
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    given = (MASK,) if masked else ()
    for seed in range(STEPS):
        results = []
        for call, module in ((norm, norm), (compiled, other)):
            x, dy = batch(seed)
            y = call(x, *given)
            leaves = (x, module.weight, module.bias)
            results.append([y, *torch.autograd.grad(y, leaves, dy), *module.buffers()])
        for right, found in zip(*results, strict=True):
            right = right.detach().double()
            assert_close(found, right, FLOAT64_OUTPUT * right.abs().clamp(min=1.0))


def test_state_goes_on_where_it_was_stored() -> None:
    """Both running means and the counter, in a state and in copies."""
    norm = built()
    for seed in range(WARMUP + 1):
        norm(batch(seed)[0]).pow(3).sum().backward()
    assert list(norm.state_dict()) == [
        "weight", "bias", "running_phi", "running_gradient", "num_batches_tracked",
    ]  # fmt: skip
    assert norm.running_gradient.any()
    loaded = nw.PowerNorm(CHANNELS, dtype=F64, warmup=WARMUP)
    loaded.load_state_dict(norm.state_dict(), strict=True)
    copies = [loaded, copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))]
    right = steps(norm, *batch(9))
    for other in copies:
        assert all(torch.equal(a, b) for a, b in zip(steps(other, *batch(9)), right, strict=True))
        assert_state(other, state(norm))


# pytorch#75478, #96203
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_P43_running_means_stay_wide(dtype: torch.dtype) -> None:
    """P43: a cast to a half leaves them in fp32, to the last bit."""
    norm = built(F32)
    norm(batch(0, F32)[0]).pow(3).sum().backward()
    before = state(norm)
    nn.Sequential(norm).to(dtype)
    assert norm.weight.dtype == dtype
    for name in ("running_phi", "running_gradient", "num_batches_tracked"):
        assert torch.equal(norm.state_dict()[name], before[name])
        assert norm.state_dict()[name].dtype == before[name].dtype
    assert norm(batch(1, dtype)[0]).dtype == dtype


def test_it_is_differentiated_once() -> None:
    """The backward pass is no function whose derivative would mean something."""
    norm, (x, dy) = built(), batch(0)
    (dx,) = torch.autograd.grad(norm(x), x, dy, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


# pytorch#85533; pytorch/functorch#867, #273
@pytest.mark.parametrize("training", [True, False])
def test_P32_transforms(*, training: bool) -> None:
    """P32: evaluation works; training names the remedy, and nothing has changed."""
    norm, x = built().train(training), batch(0)[0].detach()
    before = state(norm)
    slope = norm.weight.detach() / (norm.running_phi + EPS).sqrt()
    jacobian = torch.autograd.functional.jacobian(lambda x: scaled(x) * slope, x[0])
    for found, right in (
        (lambda: torch.func.jacrev(norm)(x[0]), jacobian),
        (lambda: torch.vmap(norm)(x), scaled(x) * slope + norm.bias.detach()),
        (
            lambda: torch.func.jvp(norm, (x[0],), (x[1],))[1],
            torch.tensordot(jacobian, x[1], dims=2),
        ),
    ):
        if training:
            with pytest.raises(SettingError, match=r"PowerNorm in training .* Call eval\(\) first"):
                found()
        else:
            assert_close(found(), right, FLOAT64_OUTPUT)
        assert_state(norm, before)


@pytest.mark.parametrize("wrong", [torch.ones(3, 7), torch.ones(3, 6, 1), torch.ones(3, 6)])
def test_masks_are_checked(wrong: Tensor) -> None:
    """As `BatchNorm` checks them: dtype bool, and the shape of the tokens."""
    norm = built()
    before = state(norm)
    mask = wrong if wrong.shape == (3, 6) else wrong.bool()
    with pytest.raises(ShapeError, match=r"^PowerNorm: a mask must "):
        norm(batch(0)[0], mask)
    assert_state(norm, before)


def test_the_mask_that_is_set_holds() -> None:
    """Until one is given."""
    norm, other = built(), built()
    norm.mask = MASK
    assert torch.equal(norm(batch(0)[0]), other(batch(0)[0], MASK))
    assert torch.equal(norm(batch(1)[0], MASK[:1]), other(batch(1)[0], MASK[:1]))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"affine": False}, []),
        ({"bias": False}, ["weight"]),
        ({"unit_offset": True}, ["weight", "bias"]),
    ],
)
def test_gain_and_bias(options: dict[str, bool], names: list[str]) -> None:
    norm, plain = built(**options), nw.PowerNorm(CHANNELS, affine=False, dtype=F64, warmup=WARMUP)
    assert [name for name, _ in norm.named_parameters()] == names
    unit = plain(batch(0)[0])
    gain = 1 if norm.weight is None else norm.weight + options.get("unit_offset", 0)
    right = unit * gain + (0 if norm.bias is None else norm.bias)
    assert_close(norm(batch(0)[0]), right.detach(), FLOAT64_OUTPUT)


def test_repr_shows_the_settings() -> None:
    """norms.md section 2, rule 2; 10000 batches and 0.9 are the paper's code's."""
    assert re.search(r"eps=1e-05, decay=0\.9, warmup=10000\)$", repr(nw.PowerNorm(8)))
