"""Results in memory that the caller gives, as torch's functions take it: `out=`."""

import torch
from torch import Tensor

from normwise.errors import ShapeError
from normwise.ops.forms import Form, Inputs, result_dtypes

Out = Tensor | tuple[Tensor, Tensor] | None


def results_in(
    op: str, form: Form, out: Out, inputs: Inputs, out_dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """The tensors to write to, one for each result of the form; none if none were given.

    Raises:
        ShapeError: a number, shape, dtype or layout other than the results', or gradients that
            would have to flow through them.
    """
    if out is None:
        return ()
    places = (out,) if isinstance(out, Tensor) else tuple(out)
    x, residual, *_ = inputs
    dtypes = result_dtypes(form, x.dtype, None if residual is None else residual.dtype, out_dtype)
    if len(places) != len(dtypes):
        raise ShapeError(
            f"{op}: out must hold a tensor for each of the {len(dtypes)} results. "
            f"It holds {len(places)}. "
            f"Pass {'(normed, stream)' if len(dtypes) > 1 else 'one tensor'}."
        )
    if len(set(map(id, places))) < len(places):
        raise ShapeError(
            f"{op}: out must hold memory of its own for each result. "
            f"It holds one tensor twice. Pass two."
        )
    for place, dtype in zip(places, dtypes, strict=True):
        if place.shape != x.shape or place.dtype != dtype or not place.is_contiguous():
            raise ShapeError(
                f"{op}: out must be contiguous, of the result's shape and dtype. "
                f"The result is {tuple(x.shape)} in {dtype}, out is {tuple(place.shape)} in "
                f"{place.dtype} with strides {place.stride()}. "
                f"Make it with torch.empty({tuple(x.shape)}, dtype={dtype})."
            )
    if torch.is_grad_enabled():
        for tensor in (*inputs, *places):
            if tensor is not None and tensor.requires_grad:
                raise ShapeError(
                    f"{op}: a result in memory that is given must need no gradient. "
                    f"A tensor of this call needs one. "
                    f"Call it under torch.no_grad(), or leave out=None."
                )
    return places


def may_be_written(places: tuple[Tensor, ...], inputs: Inputs) -> bool:
    """Whether a kernel may write there while it reads the inputs. Else the results are made
    elsewhere and copied.
    """
    for place in places:
        if place.is_neg() or (place.is_inference() and not torch.is_inference_mode_enabled()):
            return False
    taken = [_extent(t) for t in inputs if t is not None]
    for place in places:
        first, last = _extent(place)
        if any(first < end and start < last for start, end in taken):
            return False
        taken.append((first, last))
    return True


def copy_into(places: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The places, which then hold the results."""
    for place, result in zip(places, results, strict=True):
        place.copy_(result)
    return places


def mark_written(places: tuple[Tensor, ...]) -> None:
    """Says to autograd, which may have saved them, that they were changed."""
    for place in places:
        torch.autograd.graph.increment_version(place)


def _extent(x: Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first byte to behind its last."""
    steps = zip(x.shape, x.stride(), strict=True)
    entries = 1 + sum((length - 1) * stride for length, stride in steps) if x.numel() else 0
    return x.data_ptr(), x.data_ptr() + entries * x.element_size()
