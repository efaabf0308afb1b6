"""Results in memory that the caller gives, as torch's functions take it: `out=`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from normwise.errors import ShapeError
from normwise.ops import dispatch
from normwise.ops.forms import Form, Inputs, result_dtypes

Out = Tensor | tuple[Tensor, Tensor] | None


def results_in(
    op: str, form: Form, out: Out, inputs: Inputs, out_dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """The tensors to write to, one for each result of the form; none if none were given.

    Raises:
        ShapeError: a number, shape, dtype, layout or device other than the results', memory that
            two results would share, or gradients that would have to flow through them.
    """
    if out is None:
        return ()
    places = (out,) if isinstance(out, Tensor) else out
    x, residual, *_ = inputs
    dtypes = result_dtypes(form, x.dtype, None if residual is None else residual.dtype, out_dtype)
    fits = isinstance(places, tuple | list) and len(places) == len(dtypes)
    if not fits or not all(isinstance(place, Tensor) for place in places):
        wanted = "a tensor" if len(dtypes) == 1 else "two tensors, (normed, stream)"
        raise ShapeError(
            f"{op}: out must be {wanted}. It is {_said(out)}. Pass that, or leave out=None."
        )
    for place, dtype in zip(places, dtypes, strict=True):
        _check_place(op, place, x, dtype)
    if _share_memory(places):
        raise ShapeError(
            f"{op}: out must hold memory of its own for each result. Its tensors share some. "
            f"Pass two that do not."
        )
    if torch.is_grad_enabled():
        _check_gradients(op, (*inputs, *places))
    return tuple(places)


def _check_place(op: str, place: Tensor, x: Tensor, dtype: torch.dtype) -> None:
    plain = place.layout == torch.strided and place.is_contiguous()
    fits = place.shape == x.shape and place.dtype == dtype and place.device == x.device
    if not (plain and fits):
        raise ShapeError(
            f"{op}: out must be contiguous, of the result's shape, dtype and device. "
            f"The result is {tuple(x.shape)} in {dtype} on {x.device}, out is "
            f"{tuple(place.shape)} in {place.dtype} on {place.device}"
            f"{'' if plain else ', not contiguous'}. Make it with torch.empty("
            f"{tuple(x.shape)}, dtype={dtype}, device={str(x.device)!r})."
        )
    if torch.compiler.is_compiling():
        return  # which cannot ask what follows
    if place.is_inference() and not torch.is_inference_mode_enabled():
        raise ShapeError(
            f"{op}: out must be an ordinary tensor outside inference mode. It was made within. "
            f"Clone it, or call {op} under torch.inference_mode()."
        )


def _check_gradients(op: str, tensors: Sequence[Tensor | None]) -> None:
    names = ("input", "residual", "weight", "bias", "out", "out")
    for name, tensor in zip(names, tensors, strict=False):
        if tensor is not None and tensor.requires_grad:
            raise ShapeError(
                f"{op}: a result in memory that is given has no gradient. {name} needs one. "
                f"Call it under torch.no_grad(), or leave out=None."
            )


def _said(out: object) -> str:
    if isinstance(out, tuple | list):
        return f"({', '.join(type(place).__name__ for place in out)})"
    return f"one {type(out).__name__}"


def may_be_written(places: tuple[Tensor, ...], inputs: Inputs) -> bool:
    """Whether a kernel may write there while it reads the inputs. Else the results are made
    elsewhere and copied.
    """
    taken = [_extent(tensor) for tensor in inputs if tensor is not None]
    for place in places:
        first, end = _extent(place)
        if place.is_neg() or any(first < stop and start < end for start, stop in taken):
            return False
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


def _share_memory(places: Sequence[Tensor]) -> bool:
    """Whether two results would be written to one place; asked where tensors have addresses."""
    if len(places) == 1:
        return False
    one, other = places
    if one is other:
        return True
    if torch.compiler.is_compiling() or not dispatch.is_plain(one, other):
        return False
    (first, end), (start, stop) = _extent(one), _extent(other)
    return first < stop and start < end


def _extent(x: Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first byte to behind its last."""
    first, entries = x.data_ptr(), x.numel()
    if not x.is_contiguous():
        steps = zip(x.shape, x.stride(), strict=True)
        entries = 1 + sum((length - 1) * stride for length, stride in steps)
    return first, first + entries * x.element_size()
