"""From tensors to kernels and back: allocates results, describes a call, runs it.

Nothing here is seen by autograd, and nothing that is given is written to.
"""

from ctypes import Structure
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from normwise.ops.forms import Form
from normwise.ops.numba_cpu import compiled
from normwise.ops.numba_cpu.calls import BackwardCall, CombineCall, ForwardCall
from normwise.ops.numba_cpu.layout import chunks_of, rows_of
from normwise.ops.numba_cpu.threads import run
from normwise.ops.reference import NormSpec
from normwise.ops.rounding import compute_dtype

Inputs = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]
Results = tuple[Tensor, Tensor | None, Tensor | None]
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


class Launch(NamedTuple):
    """A kernel with everything it reads and writes, to be run any number of times.

    It keeps addresses: whoever holds it holds the tensors too.
    """

    kernel: compiled.Kernel
    call: Structure
    chunks: int
    tensors: tuple[object, ...]

    def run(self) -> None:
        """Writes the results."""
        self.call.ticket = 0
        run(self.kernel, self.call, self.chunks)


def forward(
    norm: str,
    form: Form,
    inputs: Inputs,
    spec: NormSpec,
    *,
    rounded: bool,
    keep: bool,
) -> Results:
    """The result, the stream of the form that adds, and the rows' statistics if they are kept."""
    launch, results = prepare_forward(norm, form, inputs, spec, rounded=rounded, keep=keep)
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
) -> tuple[Launch, Results]:
    """A forward pass, and the tensors that it will fill.

    Args:
        norm: a row of `compiled.NORMS`.
        form: what is done with the residual.
        inputs: x, residual, weight, bias.
        spec: everything else that the functional form takes.
        rounded: whether the statistics of a sum see it as the stream holds it.
        keep: whether a backward will follow.
    """
    x, residual, weight, bias = inputs
    dtype = compute_dtype(*inputs)
    axes, size = len(spec.dims), x.shape[-len(spec.dims) :].numel()
    rows = x.numel() // size
    joint = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
    y_dtype = joint if form is Form.OUTPUT else spec.out_dtype
    y = _empty(x, y_dtype)
    stream = _empty(x, joint) if form is Form.ADD else None
    saved = torch.empty((rows, 2), dtype=torch.float64, device="cpu") if keep else None
    gain = _gain(weight, size, dtype, spec)
    shift = gain if bias is None else _plain(bias, dtype)
    x_rows = rows_of(x, axes, size)
    residual_rows = x_rows if residual is None else rows_of(residual, axes, size)
    chunks, rows_per_chunk = chunks_of(rows, size)
    call = ForwardCall(
        0, chunks, rows_per_chunk, rows, size,
        *x_rows.fields(), *residual_rows.fields(),
        gain.data_ptr(), shift.data_ptr(), y.data_ptr(), _address(stream), _address(saved),
        rounded, spec.rounding == "llama", bias is not None, keep,
        spec.eps,
    )  # fmt: skip
    dtypes = (x.dtype, residual_rows.tensor.dtype, y_dtype, joint, dtype)
    tensors = (x_rows, residual_rows, gain, shift, y, stream, saved)
    return Launch(compiled.forward(norm, form, dtypes), call, chunks, tensors), (y, stream, saved)


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
    launches, results = prepare_backward(
        norm, source, parameters, gradients, saved, spec, dx_dtype=dx_dtype, wants=wants
    )
    for launch in launches:
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
) -> tuple[list[Launch], Gradients]:
    """A backward pass, in parts to be run in order, and the tensors that it will fill.

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
    dtype = compute_dtype(x, residual, weight, bias)
    if dy.dtype == torch.float16 != x.dtype:
        dy = dy.to(dtype)  # a row that is scaled for x's range may leave that of fp16
    axes, size = len(spec.dims), x.shape[-len(spec.dims) :].numel()
    rows = x.numel() // size
    chunks, rows_per_chunk = chunks_of(rows, size)
    dx = None if dx_dtype is None else _empty(x, dx_dtype)
    sums = [torch.empty((chunks, size), dtype=torch.float64, device="cpu") if want else None
            for want in wants]  # fmt: skip
    gain = _gain(weight, size, dtype, spec)
    x_rows, dy_rows = rows_of(x, axes, size), rows_of(dy, axes, size)
    residual_rows = x_rows if residual is None else rows_of(residual, axes, size)
    dstream_rows = dy_rows if dstream is None else rows_of(dstream, axes, size)
    call = BackwardCall(
        0, chunks, rows_per_chunk, rows, size,
        *x_rows.fields(), *residual_rows.fields(), *dy_rows.fields(), *dstream_rows.fields(),
        gain.data_ptr(), saved.data_ptr(), _address(dx), *map(_address, sums),
        spec.rounding == "llama", dx is not None, *wants,
    )  # fmt: skip
    tensors = (x_rows, residual_rows, dy_rows, dstream_rows)
    dtypes = (*(part.tensor.dtype for part in tensors), dx_dtype or spec.dtype, spec.dtype, dtype)
    kind = compiled.Source(residual is not None, dstream is not None)
    kernel = compiled.backward(norm, kind, dtypes)
    launches = [Launch(kernel, call, chunks, (*tensors, gain, saved, dx, sums))]
    totals = [_combine(part, parameter, launches)
              for part, parameter in zip(sums, parameters, strict=True)]  # fmt: skip
    return launches, (dx, totals[0], totals[1])


def _combine(
    sums: Tensor | None, parameter: Tensor | None, launches: list[Launch]
) -> Tensor | None:
    """The gradient of a parameter, to be filled by one more launch from the sums of all chunks."""
    if sums is None or parameter is None:
        return None
    total = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
    chunks, size = sums.shape
    call = CombineCall(0, chunks, 0, 0, size, sums.data_ptr(), total.data_ptr())
    launches.append(Launch(compiled.combine(parameter.dtype), call, 1, (sums, total)))
    return total


def _gain(weight: Tensor | None, size: int, dtype: torch.dtype, spec: NormSpec) -> Tensor:
    """The weight, or 1 + weight, in the dtype of the arithmetic; 1 where there is none."""
    if weight is None:
        return _ones(size, dtype)
    wide = _plain(weight, dtype)
    return 1 + wide if spec.unit_offset else wide


def _plain(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """The parameter in a dtype, without gaps. A cast to its own dtype costs 0.8 us for nothing."""
    wide = parameter if parameter.dtype == dtype else parameter.to(dtype)
    return wide.resolve_neg().contiguous()


def _empty(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for a result of x's shape; half the time of torch.empty with that shape."""
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


@lru_cache(maxsize=16)
def _ones(size: int, dtype: torch.dtype) -> Tensor:
    return torch.ones(size, dtype=dtype, device="cpu")


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()
