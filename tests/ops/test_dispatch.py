"""Which backend runs a call, the reason it gives, and that a transform meets the reference."""

import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call, functionalize, grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import normwise as nw
from normwise.errors import BackendUnavailable, UnknownName

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`torch\.jit\..*is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),  # shapes and eps are constants
]

KERNELS = ("numba", "eager call on CPU tensors")
ELSEWHERE = ("reference", "a tensor is not an ordinary one in this machine's memory")
DTYPE = ("reference", "a dtype that the kernels do not know")
EMPTY = ("reference", "there is nothing to compute")
NATIVE = ("reference", "native rounding is by definition what torch's own operations do")
TRANSFORM = ("reference", "a transform needs operations that it can differentiate or trace")
ASKED = ("reference", "asked for by nw.backend")

SIZE = 8


class Tagged(Tensor):
    """A subclass that could do anything with an operation."""


class Seen(TorchDispatchMode):
    """Notes each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, f, types, args=(), kwargs=None):
        self.names.append(str(f))
        return f(*args, **kwargs or {})


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def norm(x: Tensor) -> Tensor:
    return nw.layer_norm(x, SIZE, torch.linspace(-1, 2, SIZE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [Tensor.clone, nn.Parameter, nn.Buffer, Tensor.t])
def test_what_the_kernels_take(kind: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = kind(torch.zeros(2, 4, dtype=dtype))
    assert nw.which_backend(x, None) == KERNELS
    with nw.backend("numba"):
        assert nw.which_backend(x, None) == KERNELS


# each is refused for its own reason
REFUSED = {
    "empty": (torch.zeros(0, 4), EMPTY),
    "meta": (torch.zeros(2, 4, device="meta"), ELSEWHERE),
    "sparse": (torch.zeros(2, 4).to_sparse(), ELSEWHERE),
    "subclass": (torch.zeros(2, 4).as_subclass(Tagged), ELSEWHERE),
    "float8": (torch.zeros(2, 4).to(torch.float8_e4m3fn), DTYPE),
    "complex": (torch.zeros(2, 4, dtype=torch.complex64), DTYPE),
}


def refuses(reason: str, action: Callable[[], object]) -> None:
    """`nw.backend("numba")` makes one line of error of what would run the reference."""
    message = (
        f"The numba backend cannot run this call: {reason}. "
        'Use nw.backend("auto"), which would run the reference here.'
    )
    with (
        pytest.raises(BackendUnavailable, match=f"^{re.escape(message)}$"),
        nw.backend("numba"),
    ):
        action()


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_the_kernels_leave_to_the_reference(name: str) -> None:
    """One such tensor is enough, in any place; a choice by name is then an error."""
    x, choice = REFUSED[name]
    plain = torch.zeros(4)
    assert nw.which_backend(x) == nw.which_backend(plain, None, x) == choice
    assert nw.which_backend(plain) == KERNELS
    refuses(choice[1], lambda: nw.which_backend(plain, None, x))


@pytest.mark.parametrize("name", ["empty", "meta", "subclass"])
def test_results_of_such_tensors(name: str) -> None:
    """They are the reference's, also in kind; by name they are an error."""
    x, choice = REFUSED[name]
    y = nw.rms_norm(x, 4)
    with nw.backend("reference"):
        expected = nw.rms_norm(x, 4)
    assert (type(y), y.shape, y.device) == (type(expected), x.shape, x.device)
    refuses(choice[1], lambda: nw.rms_norm(x, 4))


def test_native_rounding() -> None:
    x = randn(3, SIZE).bfloat16()
    assert nw.which_backend(x, rounding="llama") == KERNELS
    assert nw.which_backend(x, rounding="native") == NATIVE
    refuses(NATIVE[1], lambda: nw.rms_norm(x, SIZE, rounding="native"))
    mean_square = x.pow(2).mean(-1, keepdim=True)
    literal = x * torch.rsqrt(mean_square + torch.finfo(torch.float32).eps)
    assert torch.equal(nw.rms_norm(x, SIZE, rounding="native"), literal)


def test_a_result_in_a_dtype_that_kernels_do_not_write() -> None:
    """The reference casts to fp8; asked for by name, the kernels say that they cannot."""
    x, narrow = torch.tensor([[3.0, 4.0]]), torch.float8_e4m3fn
    right = nw.rms_norm(x, 2, eps=0.0).to(narrow).float()
    assert torch.equal(nw.rms_norm(x, 2, eps=0.0, out_dtype=narrow).float(), right)
    compiled = torch.compile(nw.rms_norm, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, 2, eps=0.0, out_dtype=narrow).float(), right)
    with nw.backend("numba"), pytest.raises(BackendUnavailable, match="do not know"):
        nw.rms_norm(x, 2, eps=0.0, out_dtype=narrow)


def test_choices_nest_and_end() -> None:
    """The inner choice holds until its end, also where that is an error."""
    x = torch.zeros(2, 4)
    with nw.backend("reference"):
        assert nw.which_backend(x) == ASKED
        with nw.backend("Auto"):
            assert nw.which_backend(x) == KERNELS
            with pytest.raises(KeyError), nw.backend("reference"):
                raise KeyError
            assert nw.which_backend(x) == KERNELS
        assert nw.which_backend(x) == ASKED
    assert nw.which_backend(x) == KERNELS


def test_unknown_backend() -> None:
    message = "Unknown backend 'nubma'. Did you mean numba? Known: auto, numba, reference."
    with pytest.raises(UnknownName, match=f"^{re.escape(message)}$"), nw.backend("nubma"):
        pass


def test_reference_by_name_runs_it() -> None:
    with nw.backend("reference"), Seen() as seen:
        norm(randn(3, SIZE))
    assert "aten.rsqrt.default" in seen.names


def in_vmap(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return vmap(f)(x)


def in_grad(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return grad(lambda x: (f(x) * randn(SIZE, seed=7)).sum())(x)


def in_jvp(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return jvp(f, (x,), (randn(*x.shape, seed=3),))[1]


def in_dual_level(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        y = f(forward_ad.make_dual(x, randn(*x.shape, seed=3)))
        return forward_ad.unpack_dual(y).tangent


def in_dispatch_mode(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with Seen() as seen:
        y = f(x)
    assert "aten.rsqrt.default" in seen.names
    return y


def in_jit_trace(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.jit.trace(f, x, check_trace=False)(x)


def in_make_fx(f: Callable[[Tensor], Tensor], x: Tensor, *, pre_dispatch: bool) -> Tensor:
    """What was traced with other numbers."""
    traced = make_fx(f, pre_dispatch=pre_dispatch)(torch.ones_like(x))
    assert torch.ops.aten.rsqrt.default in {node.target for node in traced.graph.nodes}
    return traced(x)


def in_fake_mode(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with FakeTensorMode() as mode:
        y = f(mode.from_tensor(x))
    return torch.zeros(y.shape, dtype=y.dtype)


CONTEXTS = {
    "vmap": in_vmap,
    "grad": in_grad,
    "jvp": in_jvp,
    "functionalize": lambda f, x: functionalize(f)(x),
    "dual level": in_dual_level,
    "dispatch mode": in_dispatch_mode,
    "jit.trace": in_jit_trace,
    "make_fx": partial(in_make_fx, pre_dispatch=False),
    "make_fx before dispatch": partial(in_make_fx, pre_dispatch=True),
    "fake mode": in_fake_mode,
}


@pytest.mark.parametrize("name", list(CONTEXTS))
def test_within_a_transform(name: str) -> None:
    """The reason is given, the result is the reference's, and a choice by name is an error."""
    within, x, given = CONTEXTS[name], randn(5, SIZE), []

    def asks(x: Tensor) -> Tensor:
        given.append(nw.which_backend(x))
        return norm(x)

    result = within(asks, x)
    assert given and set(given) == {TRANSFORM}
    with nw.backend("reference"):
        assert torch.equal(result, within(norm, x))
    refuses(TRANSFORM[1], lambda: within(norm, x))
    assert nw.which_backend(x) == KERNELS


def test_derivatives_within_transforms_are_right() -> None:
    """Those of grad, jvp and dual levels are what the kernels' own backward gives."""
    x = randn(5, SIZE).requires_grad_()
    tangent, dy = randn(5, SIZE, seed=3), randn(SIZE, seed=7).expand(5, SIZE)
    (gradient,) = torch.autograd.grad(norm(x), x, dy)
    torch.testing.assert_close(in_grad(norm, x.detach()), gradient, rtol=1e-5, atol=1e-5)
    for forward_mode in (in_jvp, in_dual_level):
        change = forward_mode(norm, x.detach())
        torch.testing.assert_close(
            (change * dy).sum(), (gradient * tangent).sum(), rtol=1e-4, atol=1e-4
        )


def test_flops_are_counted() -> None:
    """A counter of operations sees those of a norm."""
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.rsqrt: lambda *shape, **_: 1000}
    )
    with counter:
        norm(randn(3, SIZE))
    assert counter.get_total_flops() == 1000


def test_module_in_a_functional_call() -> None:
    """Outside a transform another set of parameters changes nothing in the choice."""
    x, weight = randn(3, SIZE), randn(SIZE, seed=1)
    module = nw.RMSNorm(SIZE)
    with nw.backend("numba"):
        y = functional_call(module, {"weight": weight}, x)
    assert torch.equal(y, nw.rms_norm(x, SIZE, weight, module.eps))


# the forward ran on the kernels, and a transform comes with the backward


def test_backward_of_a_batch_of_gradients() -> None:
    """`is_grads_batched`, which a vectorized jacobian uses, equals the loop."""
    x, batch = randn(5, SIZE).requires_grad_(), randn(3, 5, SIZE, seed=3)
    y = norm(x)
    loop = [torch.autograd.grad(y, x, dy, retain_graph=True)[0] for dy in batch]
    (batched,) = torch.autograd.grad(y, x, batch, is_grads_batched=True)
    torch.testing.assert_close(batched, torch.stack(loop), rtol=1e-5, atol=1e-5)


def test_backward_within_a_dual_level() -> None:
    """The tangent of an incoming gradient goes on to the input's."""
    x = randn(5, SIZE).requires_grad_()
    y = norm(x)
    dy, tangent = randn(5, SIZE, seed=3), randn(5, SIZE, seed=4)
    (expected,) = torch.autograd.grad(y, x, tangent, retain_graph=True)
    with forward_ad.dual_level():
        (dx,) = torch.autograd.grad(y, x, forward_ad.make_dual(dy, tangent))
        found = forward_ad.unpack_dual(dx).tangent
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_backward_within_a_dispatch_mode() -> None:
    """A mode sees the operations of the backward."""
    x = randn(5, SIZE).requires_grad_()
    y = norm(x)
    (expected,) = torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)
    with Seen() as seen:
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert "aten.mul.Tensor" in seen.names
    torch.testing.assert_close(dx, expected, rtol=1e-5, atol=1e-5)
