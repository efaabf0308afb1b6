"""Every sentence of every error of the functions, and that nothing else is refused."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import normwise as nw
from normwise.errors import NormwiseError, ShapeError, UnknownName

SINGLE = {"layer_norm": nw.layer_norm, "rms_norm": nw.rms_norm}
ADD = {"add_layer_norm": nw.add_layer_norm, "add_rms_norm": nw.add_rms_norm}
OUTPUT = {"layer_norm_add": nw.layer_norm_add, "rms_norm_add": nw.rms_norm_add}
PAIRED = ADD | OUTPUT
ALL = SINGLE | PAIRED


def call(name: str, x: Tensor, shape: int | tuple[int, ...], **keywords: object) -> object:
    residual = (torch.zeros(x.shape),) if name in PAIRED else ()
    return ALL[name](x, *residual, shape, **keywords)


def refuses(kind: type[NormwiseError], message: str, action: Callable[[], object]) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$") as caught:
        action()
    assert isinstance(caught.value, ValueError)


every = pytest.mark.parametrize("name", list(ALL))


# P26: the message holds both shapes
@every
@pytest.mark.parametrize(
    ("x_shape", "shape", "shown"),
    [
        ((2, 3), 4, "(4,)"),
        ((2, 3), (2,), "(2,)"),
        ((4,), (2, 4), "(2, 4)"),
        ((2, 3), (), "()"),
        ((), 4, "(4,)"),
        ((2, 3, 4), (4, 3), "(4, 3)"),
    ],
)
def test_P26_shape_that_does_not_fit(
    name: str, x_shape: tuple[int, ...], shape: int | tuple[int, ...], shown: str
) -> None:
    """P26: a normalized_shape that is not the end of the input's."""
    refuses(
        ShapeError,
        f"{name}: the input must end with normalized_shape. "
        f"The input is {x_shape}, normalized_shape is {shown}. "
        "Pass the sizes of the trailing axes to normalize over.",
        lambda: call(name, torch.zeros(x_shape), shape),
    )


@every
@pytest.mark.parametrize("parameter", ["weight", "bias"])
@pytest.mark.parametrize("given", [(3,), (1,), (2, 4), ()])
def test_parameter_of_another_shape(name: str, parameter: str, given: tuple[int, ...]) -> None:
    refuses(
        ShapeError,
        f"{name}: {parameter} must have the shape that is normalized. "
        f"{parameter} is {given}, normalized_shape is (4,). "
        f"Pass a {parameter} of shape (4,), or {parameter}=None.",
        lambda: call(name, torch.zeros(2, 4), 4, **{parameter: torch.zeros(given)}),
    )


@every
def test_offset_without_a_weight(name: str) -> None:
    refuses(
        ShapeError,
        f"{name}: unit_offset adds 1 to the weight, and there is none. "
        "Pass a weight of shape (3, 4), or unit_offset=False.",
        lambda: call(name, torch.zeros(2, 3, 4), (3, 4), unit_offset=True),
    )


@every
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("tensor", ["input", "weight", "bias"])
def test_tensor_that_is_not_floating(name: str, tensor: str, dtype: torch.dtype) -> None:
    wrong = torch.zeros(4, dtype=dtype)
    x = wrong if tensor == "input" else torch.zeros(4)
    keywords = {} if tensor == "input" else {tensor: wrong}
    refuses(
        ShapeError,
        f"{name}: {tensor} must be a floating-point tensor. It is {dtype}. "
        "Convert it first, for example with .float().",
        lambda: call(name, x, 4, **keywords),
    )


@pytest.mark.parametrize("name", list(PAIRED))
def test_residual_that_is_not_floating(name: str) -> None:
    refuses(
        ShapeError,
        f"{name}: residual must be a floating-point tensor. It is torch.int64. "
        "Convert it first, for example with .float().",
        lambda: PAIRED[name](torch.zeros(4), torch.zeros(4, dtype=torch.int64), 4),
    )


@pytest.mark.parametrize("name", list(PAIRED))
@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 4), (2, 2, 4)])
def test_residual_of_another_shape(name: str, shape: tuple[int, ...]) -> None:
    refuses(
        ShapeError,
        f"{name}: input and residual must have one shape. "
        f"The input is (2, 4), the residual is {shape}. "
        "Expand the smaller one first.",
        lambda: PAIRED[name](torch.zeros(2, 4), torch.zeros(shape), 4),
    )


@every
@pytest.mark.parametrize(
    ("rounding", "hint"),
    [("lama", " Did you mean llama?"), ("float", ""), ("fp23", " Did you mean fp32?")],
)
def test_unknown_rounding(name: str, rounding: str, hint: str) -> None:
    refuses(
        UnknownName,
        f"Unknown rounding {rounding!r}.{hint} Known: fp32, llama, native.",
        lambda: call(name, torch.zeros(2, 4), 4, rounding=rounding),
    )


@pytest.mark.parametrize("name", list(ADD))
def test_unknown_residual_rounding(name: str) -> None:
    x = torch.zeros(2, 4)
    refuses(
        UnknownName,
        "Unknown residual rounding 'before'. Did you mean before_stats? "
        "Known: after_stats, before_stats.",
        lambda: ADD[name](x, x, 4, residual_rounding="before"),
    )


@every
@pytest.mark.parametrize("shape", [4, (4,), [4], torch.Size([4])])
def test_shapes_that_are_accepted(name: str, shape: int | tuple[int, ...] | list[int]) -> None:
    """An int, a tuple, a list and a torch.Size name the same axes."""
    given = call(name, torch.ones(2, 4), shape)
    plain = call(name, torch.ones(2, 4), 4)
    if name in ADD:
        given, plain = given[0], plain[0]
    assert torch.equal(given, plain)


@pytest.mark.parametrize("name", list(SINGLE | ADD))
@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_a_result_that_is_not_floating(name: str, dtype: torch.dtype) -> None:
    """A norm of anything else would be cut to pieces."""
    refuses(
        ShapeError,
        f"{name}: out_dtype must be a floating-point dtype. It is {dtype}. "
        "Name one, or leave out_dtype=None.",
        lambda: call(name, torch.ones(2, 4), 4, out_dtype=dtype),
    )
