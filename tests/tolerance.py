"""The one place that says how far a result may lie from float64, and why."""

import torch
from torch import Tensor

FLOAT32_OUTPUT = 2e-6  # a norm's output of order 1: some 16 roundings of 2^-24, by P-cases' rule
FLOAT64_OUTPUT = 1e-10
HALF_ULPS = 1.5  # one rounding is half a unit in the last place; one unit of slack for ties


def output_tolerance(expected: Tensor, dtype: torch.dtype, fp32: float = FLOAT32_OUTPUT) -> Tensor:
    """Largest allowed error of each entry of an output rounded once to `dtype`.

    Args:
        expected: the float64 result.
        dtype: what the output was rounded to.
        fp32: bound of the fp32 arithmetic before the rounding, relative to max(1, |expected|).
    """
    size = expected.abs().clamp(min=1.0)
    if dtype == torch.float64:
        return FLOAT64_OUTPUT * size
    return fp32 * size + (HALF_ULPS * ulp(expected, dtype) if dtype != torch.float32 else 0.0)


def ulp(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Spacing of `dtype` at each entry of x, in float64."""
    limits = torch.finfo(dtype)
    _, exponent = torch.frexp(x.double().abs().clamp(min=limits.tiny))
    return limits.eps * torch.ldexp(torch.ones((), dtype=torch.float64), exponent - 1)


def sum_tolerance(terms: Tensor, dtype: torch.dtype) -> Tensor:
    """Largest allowed error of a parameter gradient, the sum over axis 0 of float64 `terms`.

    An fp32 sum of n terms in cascades errs by about 2^-24 log2(n) of the sum of their sizes;
    1e-6 of it covers n up to 2^16. Halves are rounded once more.
    """
    if dtype == torch.float64:
        return FLOAT64_OUTPUT * (1.0 + terms.abs().sum(0))
    bound = 1e-6 * terms.abs().sum(0) + 1e-30
    return bound + (HALF_ULPS * ulp(terms.sum(0), dtype) if dtype != torch.float32 else 0.0)


def assert_close(actual: Tensor, expected: Tensor, allowed: Tensor | float) -> None:
    """Every entry of `actual` within `allowed` of the float64 `expected`; equal infinities pass."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} is not {tuple(expected.shape)}"
    wide = actual.detach().double()
    error = torch.where(wide == expected, 0.0, (wide - expected).abs())
    excess = (error - allowed).max().item() if error.numel() else -1.0
    assert excess <= 0.0, f"largest error {error.max().item():.3e} exceeds what is allowed by {excess:.3e}"
