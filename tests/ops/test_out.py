"""Results in memory that the caller gives."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import normwise as nw
from normwise.errors import ShapeError
from normwise.ops.numba_cpu import launch

OPS: dict[str, Callable[..., Any]] = {
    name: getattr(nw, name)
    for norm in ("layer_norm", "rms_norm")
    for name in (norm, f"add_{norm}", f"{norm}_add")
}
every = pytest.mark.parametrize("op", list(OPS))
backends = pytest.mark.parametrize("backend", ["numba", "reference"])
WIDTH = 48


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


GAIN = randn(WIDTH, seed=7)


def call(op: str, x: Tensor, residual: Tensor, **keywords: Any) -> tuple[Tensor, ...]:
    more = (residual,) if "add" in op else ()
    result = OPS[op](x, *more, WIDTH, GAIN, eps=1e-5, **keywords)
    return result if isinstance(result, tuple) else (result,)


def as_out(places: list[Tensor]) -> Any:
    return places[0] if len(places) == 1 else tuple(places)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The addresses to which kernels wrote their first result."""
    found, run = [], launch.run

    def record(kernel: Any, call: Any, *, threaded: bool) -> None:
        found.append(call.y)
        run(kernel, call, threaded=threaded)

    monkeypatch.setattr(launch, "run", record)
    return found


def refuses(message: str, action: Callable[[], object]) -> None:
    with pytest.raises(ShapeError, match=f"^{re.escape(message)}$"):
        action()


@every
@backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_result_is_where_it_was_asked_for(
    op: str, backend: str, dtype: torch.dtype, written: list[int]
) -> None:
    """A kernel writes there itself; whatever else runs is copied."""
    x, residual = randn(5, WIDTH, dtype=dtype), randn(5, WIDTH, seed=1, dtype=dtype)
    right = call(op, x, residual)
    written.clear()
    places = [torch.full_like(y, torch.nan) for y in right]
    with nw.backend(backend):
        found = call(op, x, residual, out=as_out(places))
    assert all(a is b for a, b in zip(found, places, strict=True))
    if backend == "numba":
        assert written == [places[0].data_ptr()]
        assert all(map(torch.equal, places, right))
    else:
        torch.testing.assert_close(places, list(right))


@every
def test_every_result_dtype(op: str) -> None:
    """A stream and a sum have the promoted dtype, a normed value what was asked for."""
    x, residual = randn(5, WIDTH, dtype=torch.bfloat16), randn(5, WIDTH, seed=1)
    keywords = {} if op.endswith("_add") else {"out_dtype": torch.float64}
    right = call(op, x, residual, **keywords)
    places = [torch.empty_like(y) for y in right]
    call(op, x, residual, out=as_out(places), **keywords)
    assert all(map(torch.equal, places, right))


@every
@pytest.mark.parametrize("shift", [0, 1, WIDTH, -3])
def test_memory_shared_with_an_input(op: str, shift: int, written: list[int]) -> None:
    """In place, or one entry or a row further on: the result is that of the input as it was."""
    memory = randn(8 * WIDTH)
    x = memory[WIDTH : 6 * WIDTH].view(5, WIDTH)
    start = WIDTH + shift
    place, residual = memory[start : start + 5 * WIDTH].view(5, WIDTH), randn(5, WIDTH, seed=1)
    right = call(op, x, residual)
    written.clear()
    places = [place, *(torch.empty_like(y) for y in right[1:])]
    call(op, x, residual, out=as_out(places))
    assert all(map(torch.equal, places, right))
    assert len(written) == 1 != written.count(place.data_ptr())


@every
def test_the_last_row_of_a_strided_input_is_first_in_out(op: str) -> None:
    """A strided input reaches further than its number of entries."""
    memory = randn(13, WIDTH)
    x, place, residual = memory[:9:2], memory[8:], randn(5, WIDTH, seed=1)
    right = call(op, x, residual)
    places = [place, *(torch.empty_like(y) for y in right[1:])]
    call(op, x, residual, out=as_out(places))
    assert all(map(torch.equal, places, right))


@every
def test_neighbours_in_one_buffer_are_written_directly(op: str, written: list[int]) -> None:
    """Pieces of one storage that do not touch are apart."""
    buffer = torch.empty(4, 5, WIDTH)
    x, residual = buffer[0].copy_(randn(5, WIDTH)), randn(5, WIDTH, seed=1)
    right = call(op, x, residual)
    written.clear()
    places = [buffer[1], buffer[2]][: len(right)]
    call(op, x, residual, out=as_out(places))
    assert all(map(torch.equal, places, right))
    assert written == [buffer[1].data_ptr()]


@every
@pytest.mark.parametrize(
    "layout", [lambda t: t[::2], lambda t: t[:1].expand(8, WIDTH), lambda t: t[:0]]
)
def test_inputs_of_any_layout(op: str, layout: Callable[[Tensor], Tensor]) -> None:
    """Strided, expanded and empty inputs."""
    x, residual = layout(randn(8, WIDTH)), layout(randn(8, WIDTH, seed=1))
    right = call(op, x, residual)
    places = [torch.empty_like(y) for y in right]
    call(op, x, residual, out=as_out(places))
    assert all(map(torch.equal, places, right))


@every
def test_a_sign_that_is_kept_beside_the_numbers(op: str) -> None:
    """The imaginary part of a conjugate is a tensor whose numbers are negated when read."""
    x, residual = randn(5, WIDTH), randn(5, WIDTH, seed=1)
    right = call(op, x, residual)
    places = [torch._neg_view(torch.empty_like(y)) for y in right]
    call(op, x, residual, out=as_out(places))
    assert all(map(torch.equal, places, right))


@every
@backends
def test_autograd_is_told(op: str, backend: str) -> None:
    """What was saved for a backward pass and is overwritten since is an error, not a wrong
    gradient.
    """
    x, residual = randn(5, WIDTH), randn(5, WIDTH, seed=1)
    places = [torch.ones(5, WIDTH) for _ in call(op, x, residual)]
    leaf = randn(5, WIDTH).requires_grad_()
    products = [leaf * place for place in places]
    with torch.no_grad(), nw.backend(backend):
        call(op, x, residual, out=as_out(places))
    for product in products:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


@every
def test_inference_mode(op: str) -> None:
    """Inside, its tensors are written; outside they are refused, as by torch, and before another
    result is written over an input.
    """
    with torch.inference_mode():
        x, residual = randn(5, WIDTH), randn(5, WIDTH, seed=1)
        right = call(op, x, residual)
        places = [torch.empty_like(y) for y in right]
        call(op, x, residual, out=as_out(places))
        assert all(map(torch.equal, places, right))
    x = randn(5, WIDTH)
    places[:-1] = [x] * (len(places) - 1)
    refuses(
        f"{op}: out must be an ordinary tensor outside inference mode. It was made within. "
        f"Clone it, or call {op} under torch.inference_mode().",
        lambda: call(op, x, residual, out=as_out(places)),
    )
    assert torch.equal(x, randn(5, WIDTH))


@every
def test_in_a_compiled_graph(op: str) -> None:
    """One graph, which writes where the eager call does."""
    x, residual = randn(5, WIDTH), randn(5, WIDTH, seed=1)
    right = call(op, x, residual)
    places = [torch.empty_like(y) for y in right]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: Tensor, residual: Tensor, *places: Tensor) -> None:
        call(op, x, residual, out=as_out(list(places)))

    step(x, residual, *places)
    assert all(map(torch.equal, places, right))


@every
@pytest.mark.parametrize(
    ("wrong", "plain"),
    [
        (lambda y: y.new_empty(4, WIDTH), True),
        (lambda y: y.double(), True),
        (lambda y: y.to("meta"), True),
        (lambda y: y.new_empty(WIDTH, 5).t(), False),
        (lambda y: y.to_sparse(), False),
        (lambda y: y.to_mkldnn(), False),
    ],
)
def test_a_place_that_does_not_fit(
    op: str, wrong: Callable[[Tensor], Tensor], *, plain: bool
) -> None:
    """Shape, dtype, layout; the last result's place is looked at as the first one's is."""
    x, residual = randn(5, WIDTH), randn(5, WIDTH, seed=1)
    *places, last = [torch.empty_like(y) for y in call(op, x, residual)]
    last = wrong(last)
    refuses(
        f"{op}: out must be contiguous, of the result's shape, dtype and device. "
        f"The result is (5, 48) in torch.float32 on cpu, out is {tuple(last.shape)} in "
        f"{last.dtype} on {last.device}{'' if plain else ', not contiguous'}. "
        f"Make it with torch.empty((5, 48), dtype=torch.float32, device='cpu').",
        lambda: call(op, x, residual, out=as_out([*places, last])),
    )


@every
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "one int"),
        ((), "()"),
        ((torch.empty(5, WIDTH),) * 3, "(Tensor, Tensor, Tensor)"),
        ((None, torch.empty(5, WIDTH)), "(NoneType, Tensor)"),
        ([None], "(NoneType)"),
    ],
)
def test_what_is_not_a_place(op: str, given: Any, said: str) -> None:
    """Another number of things than the results, or another kind of thing."""
    wanted = "two tensors, (normed, stream)" if op.startswith("add") else "a tensor"
    refuses(
        f"{op}: out must be {wanted}. It is {said}. Pass that, or leave out=None.",
        lambda: call(op, randn(5, WIDTH), randn(5, WIDTH, seed=1), out=given),
    )


@every
def test_one_tensor_or_two(op: str) -> None:
    """A tensor is not taken apart into rows, and two are not too many quietly."""
    adds = op.startswith("add")
    given = torch.empty(2, 5, WIDTH) if adds else (torch.empty(5, WIDTH), torch.empty(5, WIDTH))
    with pytest.raises(ShapeError, match="out must be"):
        call(op, randn(5, WIDTH), randn(5, WIDTH, seed=1), out=given)


@pytest.mark.parametrize("op", ["add_layer_norm", "add_rms_norm"])
@pytest.mark.parametrize("start", [0, 1, WIDTH, 5 * WIDTH - 1])
@backends
def test_one_place_for_two_results(op: str, start: int, backend: str) -> None:
    """Whichever were written last would be in both."""
    memory = torch.zeros(10 * WIDTH)
    places = memory[: 5 * WIDTH].view(5, WIDTH), memory[start : start + 5 * WIDTH].view(5, WIDTH)
    with nw.backend(backend):
        refuses(
            f"{op}: out must hold memory of its own for each result. Its tensors share some. "
            f"Pass two that do not.",
            lambda: call(op, randn(5, WIDTH), randn(5, WIDTH, seed=1), out=places),
        )
    assert not memory.any()


@every
@pytest.mark.parametrize("which", ["input", "out"])
def test_gradients_are_refused(op: str, which: str) -> None:
    """As torch's functions refuse them; without gradients the same call runs."""
    x, residual = randn(5, WIDTH), randn(5, WIDTH, seed=1)
    places = [torch.empty_like(y) for y in call(op, x, residual)]
    (x if which == "input" else places[-1]).requires_grad_()
    refuses(
        f"{op}: a result in memory that is given has no gradient. {which} needs one. "
        f"Call it under torch.no_grad(), or leave out=None.",
        lambda: call(op, x, residual, out=as_out(places)),
    )
    with torch.no_grad():
        right = call(op, x, residual)
        call(op, x, residual, out=as_out(places))
    assert all(map(torch.equal, places, right))
