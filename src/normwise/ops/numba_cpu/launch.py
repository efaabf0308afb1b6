"""From tensors to kernels and back: allocates results, describes a call, runs it.

Nothing here is seen by autograd, and nothing that is given is written to but `out`. What does not
depend on addresses is worked out once for each kind of call and kept: a small norm takes 12 us for
14.
"""

from ctypes import Structure
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from normwise.ops.forms import Form, Inputs, result_dtypes
from normwise.ops.numba_cpu import compiled
from normwise.ops.numba_cpu.calls import BackwardCall, ForwardCall
from normwise.ops.numba_cpu.layout import chunks_of, fields, padded, rows_of
from normwise.ops.numba_cpu.memory import LINE
from normwise.ops.numba_cpu.parameters import ABSENT, KINDS
from normwise.ops.numba_cpu.threads import run
from normwise.ops.reference import NormSpec
from normwise.ops.rounding import widest

Results = tuple[Tensor, Tensor | None, Tensor | None]
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
Dtype = torch.dtype | None
Dtypes = tuple[torch.dtype, ...]
Use = Literal["training", "inference"]

_CPU = torch.device("cpu")
_PLANS = 1024  # kinds of calls that are kept

# Bytes that a pass reads and writes from which on its results are not kept in the caches (2 cores
# with 32 MiB of third-level cache, docs/design.md). In a training, whatever comes between a result
# and its last use drives it out sooner than where only the next operation reads it.
_BEYOND_CACHES: dict[Use, int] = {"training": 16 << 20, "inference": 64 << 20}


class Launch(NamedTuple):
    """A kernel with everything it reads and writes, to be run any number of times.

    It keeps addresses: whoever holds it holds the tensors too.
    """

    kernel: compiled.Kernel
    call: Structure
    threaded: bool
    tensors: tuple[object, ...]

    def run(self) -> None:
        """Writes the results."""
        run(self.kernel, self.call, threaded=self.threaded)


class _Plan(NamedTuple):
    """A call but for its addresses, and the dtypes of what it needs memory for."""

    kernel: compiled.Kernel
    call: Structure
    threaded: bool
    dtypes: tuple[torch.dtype, ...]


def forward(
    norm: str,
    form: Form,
    inputs: Inputs,
    spec: NormSpec,
    *,
    rounded: bool,
    keep: bool,
    out: tuple[Tensor, ...] = (),
) -> Results:
    """The result, the stream of the form that adds, and the rows' statistics if they are kept."""
    launch, results = prepare_forward(norm, form, inputs, spec, rounded=rounded, keep=keep, out=out)
    launch.run()
    return results


def prepare_forward(
    norm: str,
    form: Form,
    inputs: Inputs,
    spec: NormSpec,
    *,
    rounded: bool,
    keep: bool,
    out: tuple[Tensor, ...] = (),
) -> tuple[Launch, Results]:
    """A forward pass, and the tensors that it will fill.

    Args:
        norm: a row of `compiled.NORMS`.
        form: what is done with the residual.
        inputs: x, residual, weight, bias.
        spec: everything else that the functional form takes.
        rounded: whether the statistics of a sum see it as the stream holds it.
        keep: whether a backward will follow.
        out: memory for the results, if it is given; apart from the inputs'.
    """
    x, residual, weight, bias = inputs
    use: Use = "training" if keep else "inference"
    plan = _plan_forward(norm, form, spec, use, x.shape, *map(_dtype, inputs))
    call = ForwardCall.from_buffer_copy(plan.call)
    y, *rest = out or [_empty(x, dtype) for dtype in plan.dtypes]
    stream = rest[0] if rest else None
    saved = torch.empty(call.rows, 2, dtype=torch.float64, device=_CPU) if keep else None
    axes, size = len(spec.dims), call.size
    x_rows = rows_of(x, axes, size)
    residual_rows = None if residual is None else rows_of(residual, axes, size)
    weight, bias = _plain(weight), _plain(bias)
    call.x, call.x_step, call.x_table = fields(x_rows)
    call.residual, call.residual_step, call.residual_table = fields(residual_rows)
    call.weight, call.bias, call.rounded = _address(weight), _address(bias), rounded
    call.y, call.stream, call.saved = y.data_ptr(), _address(stream), _address(saved)
    if call.past:
        call.past = _at_line(y) and _at_line(stream)
    tensors = (x_rows, residual_rows, weight, bias, y, stream, saved)
    return Launch(plan.kernel, call, plan.threaded, tensors), (y, stream, saved)


@lru_cache(maxsize=_PLANS)
def _plan_forward(
    norm: str,
    form: Form,
    spec: NormSpec,
    use: Use,
    shape: torch.Size,
    x_dtype: torch.dtype,
    residual_dtype: Dtype,
    weight_dtype: Dtype,
    bias_dtype: Dtype,
) -> _Plan:
    rows, size = _rows_and_size(shape, len(spec.dims))
    read = (x_dtype,) if residual_dtype is None else (x_dtype, residual_dtype)
    residual_dtype = residual_dtype or x_dtype
    joint = torch.promote_types(x_dtype, residual_dtype)
    written = result_dtypes(form, x_dtype, residual_dtype, spec.out_dtype)
    dtypes = (x_dtype, residual_dtype, written[0], joint,
              widest(x_dtype, residual_dtype, weight_dtype, bias_dtype))  # fmt: skip
    chunks, rows_per_chunk = chunks_of(rows, size)
    call = ForwardCall(
        chunks=chunks, rows_per_chunk=rows_per_chunk, rows=rows, size=size,
        weight_kind=_kind(weight_dtype), bias_kind=_kind(bias_dtype), eps=spec.eps,
        llama=spec.rounding == "llama", unit_offset=spec.unit_offset,
        past=_beyond_caches(rows, size, read, written, use),
    )  # fmt: skip
    return _Plan(compiled.forward(norm, form, dtypes), call, _pays(rows, size), written)


def backward(
    norm: str,
    source: tuple[Tensor, Tensor | None],
    parameters: tuple[Tensor | None, Tensor | None],
    gradients: tuple[Tensor, Tensor | None],
    saved: Tensor,
    spec: NormSpec,
    *,
    dx_dtype: torch.dtype | None,
    wants: tuple[bool, bool],
) -> Gradients:
    """The gradients of what was normed, of the weight and of the bias."""
    launch, results = prepare_backward(
        norm, source, parameters, gradients, saved, spec, dx_dtype=dx_dtype, wants=wants
    )
    launch.run()
    return results


def prepare_backward(
    norm: str,
    source: tuple[Tensor, Tensor | None],
    parameters: tuple[Tensor | None, Tensor | None],
    gradients: tuple[Tensor, Tensor | None],
    saved: Tensor,
    spec: NormSpec,
    *,
    dx_dtype: torch.dtype | None,
    wants: tuple[bool, bool],
) -> tuple[Launch, Gradients]:
    """A backward pass, and the tensors that it will fill.

    Args:
        norm: a row of `compiled.NORMS`.
        source: what was normed; two tensors whose unrounded sum was.
        parameters: weight and bias.
        gradients: of the result, and of the stream, which is added to dx.
        saved: the statistics that forward kept.
        spec: as forward was given.
        dx_dtype: dtype of the first gradient; None if it is not wanted.
        wants: whether weight and bias need theirs.
    """
    (x, residual), (weight, bias), (dy, dstream) = source, parameters, gradients
    if dy.dtype == torch.float16 != x.dtype:
        dy = dy.float()  # a row that is scaled for x's range may leave that of fp16
    tensors = (x, residual, weight, bias, dy, dstream)
    plan = _plan_backward(norm, spec, x.shape, *map(_dtype, tensors), dx_dtype)
    call = BackwardCall.from_buffer_copy(plan.call)
    dx = None if dx_dtype is None else _empty(x, dx_dtype)
    dw, db = (_like(parameter) if want else None
              for want, parameter in zip(wants, parameters, strict=True))  # fmt: skip
    sums = _sums(plan, dw, db)
    axes, size = len(spec.dims), call.size
    x_rows, residual_rows, dy_rows, dstream_rows = (
        None if part is None else rows_of(part, axes, size) for part in (x, residual, dy, dstream)
    )
    weight = _plain(weight)
    call.x, call.x_step, call.x_table = fields(x_rows)
    call.residual, call.residual_step, call.residual_table = fields(residual_rows)
    call.dy, call.dy_step, call.dy_table = fields(dy_rows)
    call.dstream, call.dstream_step, call.dstream_table = fields(dstream_rows)
    call.weight, call.saved, call.sums = _address(weight), saved.data_ptr(), _address(sums)
    call.dx, call.dw, call.db = _address(dx), _address(dw), _address(db)
    if call.past:
        call.past = _at_line(dx)
    held = (x_rows, residual_rows, dy_rows, dstream_rows, weight, saved, sums, dx, dw, db)
    return Launch(plan.kernel, call, plan.threaded, held), (dx, dw, db)


@lru_cache(maxsize=_PLANS)
def _plan_backward(
    norm: str,
    spec: NormSpec,
    shape: torch.Size,
    x_dtype: torch.dtype,
    residual_dtype: Dtype,
    weight_dtype: Dtype,
    bias_dtype: Dtype,
    dy_dtype: torch.dtype,
    dstream_dtype: Dtype,
    dx_dtype: Dtype,
) -> _Plan:
    rows, size = _rows_and_size(shape, len(spec.dims))
    dtype = widest(x_dtype, residual_dtype, weight_dtype, bias_dtype)
    found = (x_dtype, residual_dtype, dy_dtype, dstream_dtype)
    read = tuple(dtype for dtype in found if dtype is not None)
    dtypes = (x_dtype, residual_dtype or x_dtype, dy_dtype, dstream_dtype or dy_dtype,
              dx_dtype or spec.dtype, spec.dtype, dtype)  # fmt: skip
    kind = compiled.Source(residual_dtype is not None, dstream_dtype is not None)
    chunks, rows_per_chunk = chunks_of(rows, size)
    call = BackwardCall(
        chunks=chunks, rows_per_chunk=rows_per_chunk, rows=rows, size=size,
        weight_kind=_kind(weight_dtype), dw_kind=_kind(weight_dtype), db_kind=_kind(bias_dtype),
        llama=spec.rounding == "llama", unit_offset=spec.unit_offset,
        past=_beyond_caches(rows, size, read, (dx_dtype or dtype,), "training"),
    )  # fmt: skip
    return _Plan(compiled.backward(norm, kind, dtypes), call, _pays(rows, size), (dtype,))


def _rows_and_size(shape: torch.Size, axes: int) -> tuple[int, int]:
    size = shape[-axes:].numel()
    return shape.numel() // size, size


def _pays(rows: int, size: int) -> bool:
    """Whether there is work for more than one thread: a second one costs 2 us, 65536 entries 5."""
    return rows * size >= 1 << 16


def _beyond_caches(rows: int, size: int, read: Dtypes, written: Dtypes, use: Use) -> bool:
    """Whether results are written past the caches; all their rows have to begin at cache lines."""
    row_bytes = sum(size * dtype.itemsize for dtype in (*read, *written))
    aligned = not any(size * dtype.itemsize % LINE for dtype in written)
    return aligned and rows * row_bytes >= _BEYOND_CACHES[use]


def _at_line(x: Tensor | None) -> bool:
    return x is None or x.data_ptr() % LINE == 0


def _sums(plan: _Plan, dw: Tensor | None, db: Tensor | None) -> Tensor | None:
    """Memory for the sums of each chunk. A single one needs none: they stay with the kernel."""
    chunks, wanted = plan.call.chunks, (dw is not None) + (db is not None)
    if chunks == 1 or not wanted:
        return None
    length = padded(plan.call.size)
    return torch.empty(chunks, wanted, length, dtype=plan.dtypes[0], device=_CPU)


def _plain(parameter: Tensor | None) -> Tensor | None:
    """The parameter without gaps and with its sign in its numbers."""
    if parameter is None or (parameter.is_contiguous() and not parameter.is_neg()):
        return parameter
    return parameter.resolve_neg().contiguous()


def _dtype(x: Tensor | None) -> Dtype:
    return None if x is None else x.dtype


def _kind(dtype: Dtype) -> int:
    return ABSENT if dtype is None else KINDS[dtype]


def _empty(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for a result of x's shape; half the time of torch.empty with that shape."""
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def _like(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else _empty(parameter, parameter.dtype)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()
