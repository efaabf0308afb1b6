"""The named rounding orders: where a norm rounds to a narrow dtype is part of its definition.

| name     | order of operations                                           | met in                |
|----------|---------------------------------------------------------------|-----------------------|
| `fp32`   | everything in fp32, one rounding at the end                   | Gemma, OLMo-2, torch  |
| `llama`  | normalized value rounded to the input dtype, then the product | Llama, Qwen, T5       |
| `native` | everything in the input dtype, as eager code without an upcast| seed-style modules    |

For fp64 read fp64 where fp32 stands. On fp32 and fp64 inputs `fp32` and `llama` are the same.
"""

import torch
from torch import Tensor

from normwise.table import Table

ROUNDINGS = Table(
    "rounding",
    {
        "fp32": "one rounding, at the end",
        "llama": "the normalized value is rounded to the input dtype before gain and bias",
        "native": "after every operation, as in eager code without an upcast",
    },
    aliases={"gemma": "fp32"},
)

RESIDUAL_ROUNDINGS = Table(
    "residual rounding",
    {
        "before_stats": "statistics of the sum rounded to the stream's dtype",
        "after_stats": "statistics of the unrounded sum",
    },
)


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """fp64 if any of the tensors is fp64, else fp32."""
    return widest(*(None if tensor is None else tensor.dtype for tensor in tensors))


def widest(*dtypes: torch.dtype | None) -> torch.dtype:
    """fp64 if any of the dtypes is, else fp32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def round_through(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x rounded to the values of `dtype`, in x's own dtype, with the derivative of the identity.

    A plain cast there and back would round the gradient too, which no kernel does.
    """
    if torch.finfo(dtype).bits >= torch.finfo(x.dtype).bits:
        return x
    value = x.detach()
    correction = torch.where(value.isfinite(), value.to(dtype).to(x.dtype) - value, 0)
    return x + correction
