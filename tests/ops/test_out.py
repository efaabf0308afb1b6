"""Results in memory that the caller gives."""

import re
from collections.abc import Callable, Iterator
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
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The addresses to which kernels wrote their first result."""
    found, run = [], launch.run

    def record(kernel: Any, call: Any, *, threaded: bool) -> None:
        found.append(call.y)
        run(kernel, call, threaded=threaded)

    monkeypatch.setattr(launch, "run", record)
    return found


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
    assert written != [place.data_ptr()]


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
    """Inside, its tensors are written; outside, torch refuses them, and so do we."""
    with torch.inference_mode():
        x, residual = randn(5, WIDTH), randn(5, WIDTH, seed=1)
        right = call(op, x, residual)
        places = [torch.empty_like(y) for y in right]
        call(op, x, residual, out=as_out(places))
        assert all(map(torch.equal, places, right))
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        call(op, x, residual, out=as_out(places))


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


def refuses(message: str, action: Callable[[], object]) -> None:
    with pytest.raises(ShapeError, match=f"^{re.escape(message)}$"):
        action()


@every
@pytest.mark.parametrize(
    "wrong",
    [
        lambda y: y.new_empty(4, WIDTH),
        lambda y: y.double(),
        lambda y: y.new_empty(WIDTH, 5).t(),
    ],
)
def test_a_place_that_does_not_fit(op: str, wrong: Callable[[Tensor], Tensor]) -> None:
    """Shape, dtype, layout; the last result's place is looked at as the first one's is."""
    x, residual = randn(5, WIDTH), randn(5, WIDTH, seed=1)
    *places, last = [torch.empty_like(y) for y in call(op, x, residual)]
    last = wrong(last)
    refuses(
        f"{op}: out must be contiguous, of the result's shape and dtype. "
        f"The result is (5, 48) in torch.float32, out is {tuple(last.shape)} in {last.dtype} with "
        f"strides {last.stride()}. "
        f"Make it with torch.empty((5, 48), dtype=torch.float32).",
        lambda: call(op, x, residual, out=as_out([*places, last])),
    )


@every
def test_a_number_of_places_that_does_not_fit(op: str) -> None:
    """Two for the forms that return two, else one."""
    x, residual = randn(5, WIDTH), randn(5, WIDTH, seed=1)
    adds = op.startswith("add")
    given = torch.empty(5, WIDTH) if adds else (torch.empty(5, WIDTH), torch.empty(5, WIDTH))
    refuses(
        f"{op}: out must hold a tensor for each of the {1 + adds} results. It holds {2 - adds}. "
        f"Pass {'(normed, stream)' if adds else 'one tensor'}.",
        lambda: call(op, x, residual, out=given),
    )


@pytest.mark.parametrize("op", ["add_layer_norm", "add_rms_norm"])
def test_one_place_for_two_results(op: str) -> None:
    """Whichever were written last would be both."""
    place = torch.empty(5, WIDTH)
    refuses(
        f"{op}: out must hold memory of its own for each result. It holds one tensor twice. "
        f"Pass two.",
        lambda: call(op, randn(5, WIDTH), randn(5, WIDTH, seed=1), out=(place, place)),
    )


@every
@pytest.mark.parametrize("which", ["input", "out"])
def test_gradients_are_refused(op: str, which: str) -> None:
    """As torch's functions refuse them; without gradients the same call runs."""
    x, residual = randn(5, WIDTH), randn(5, WIDTH, seed=1)
    places = [torch.empty_like(y) for y in call(op, x, residual)]
    (x if which == "input" else places[-1]).requires_grad_()
    refuses(
        f"{op}: a result in memory that is given must need no gradient. "
        f"A tensor of this call needs one. Call it under torch.no_grad(), or leave out=None.",
        lambda: call(op, x, residual, out=as_out(places)),
    )
    with torch.no_grad():
        right = call(op, x, residual)
        call(op, x, residual, out=as_out(places))
    assert all(map(torch.equal, places, right))
