"""What an op does with a residual beside norming."""

from enum import Enum

import torch
from torch import Tensor

Inputs = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]  # x, residual, weight, bias


class Form(Enum):
    """norm(x); norm(x + residual), with the sum as a second result; residual + norm(x)."""

    PLAIN = 0
    ADD = 1
    OUTPUT = 2


def result_dtypes(
    form: Form, x: torch.dtype, residual: torch.dtype | None, out_dtype: torch.dtype
) -> tuple[torch.dtype, ...]:
    """The dtypes of a form's results: a stream has the promoted one of what is added."""
    if form is Form.PLAIN:
        return (out_dtype,)
    joint = x if residual is None else torch.promote_types(x, residual)
    return (out_dtype, joint) if form is Form.ADD else (joint,)
