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


def assert_same_decisions(y: Tensor, written: Tensor) -> None:
    """Two roundings of one value to a half agree, but where sums in another order move a tie.

    A last bit of 1/rms moves an fp32 by at most 2 * 2^-24 of itself, which meets a tie of fp16 in
    2^-12 of the entries and of bf16 in 2^-15; gain and bias round again. A flip is 1 unit in the
    last place of the value before the bias.
    """
    flipped = y != written
    assert flipped.sum() <= 1 + 1e-3 * y.numel(), f"{int(flipped.sum())} of {y.numel()} differ"
    distance = (y.double() - written.double()).abs()
    assert (distance <= ulp(written.double().abs().clamp(min=4.0), y.dtype)).all()


def ulp(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Spacing of `dtype` at each entry of x, in float64."""
    limits = torch.finfo(dtype)
    mantissa, _ = torch.frexp(size := x.double().abs().clamp(min=limits.tiny))
    return limits.eps * size / (2 * mantissa)


def gradient_tolerance(expected: Tensor, size: Tensor, dtype: torch.dtype) -> Tensor:
    """Largest allowed error of an input gradient that is rounded once to `dtype`.

    It is a difference of terms of the given size, and cancels down to any value: the error follows
    the terms. Twice an output's bound, since the normalized row and the product both err. A dozen
    of the smallest subnormals covers rows whose 1/rms is itself subnormal.

    Args:
        expected: the float64 gradient.
        size: a float64 bound of the terms, `formulas.Expected.dx_size`.
    """
    if dtype == torch.float64:
        return FLOAT64_OUTPUT * size
    fp32 = 2 * FLOAT32_OUTPUT * size + 16 * 2.0**-149
    return fp32 + (HALF_ULPS * ulp(expected, dtype) if dtype != torch.float32 else 0.0)


def sum_tolerance(terms: Tensor, dtype: torch.dtype) -> Tensor:
    """Largest allowed error of a parameter gradient, the sum over axis 0 of float64 `terms`.

    An fp32 sum of n terms in cascades errs by about 2^-24 log2(n) of the sum of their sizes;
    1e-6 of it covers n up to 2^16. Halves are rounded once more.
    """
    if dtype == torch.float64:
        return FLOAT64_OUTPUT * (1.0 + terms.abs().sum(0))
    bound = 1e-6 * terms.abs().sum(0) + 1e-30
    return bound + (HALF_ULPS * ulp(terms.sum(0), dtype) if dtype != torch.float32 else 0.0)


def weight_tolerance(terms: Tensor, incoming: Tensor, dtype: torch.dtype) -> Tensor:
    """As `sum_tolerance`, for a sum of `incoming` times the normalized row.

    Each entry of the row errs by up to FLOAT32_OUTPUT, also where it is nearly 0.
    """
    row_error = 0.0 if dtype == torch.float64 else FLOAT32_OUTPUT
    return sum_tolerance(terms, dtype) + row_error * incoming.abs().sum(0)


def assert_close(actual: Tensor, expected: Tensor, allowed: Tensor | float) -> None:
    """Every entry of `actual` within `allowed` of the float64 `expected`; equal infinities pass."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} is not {tuple(expected.shape)}"
    wide = actual.detach().double()
    error = torch.where(wide == expected, 0.0, (wide - expected).abs())
    excess = (error - allowed).max().item() if error.numel() else -1.0
    assert excess <= 0.0, (
        f"largest error {error.max().item():.3e} exceeds what is allowed by {excess:.3e}"
    )


# Theory of wide models against integrals, simulations and real models.
QUADRATURE = 1e-6  # of the square: what theory.activations promises for squares up to 100
TRAPEZOID_KINK = 2e-5  # ReLU's kink costs a trapezoid step of 0.0125 some 0.0125^2/12
WIDE_BRANCH = 0.04  # four standard errors of the mean of 160 draws in width 256
WIDE_SOFTMAX = 0.12  # three standard errors, and the width's own share
TRACKED_LOG2 = 0.08  # 24 sample variances of 2^15 entries: 3 x 24^(1/2) 2^-8 log2(e)
EPS_SHARE = 3e-5  # what an eps of 1e-5 takes from a norm's output of size 1, with room for fp32
STANDARD_ERRORS = 4  # of a std or a mean measured on drawn weights; one false alarm in 16000
THEORY = 0.3  # of the stream's RMS: width 64 to 128 stands in for infinite width, 2 or 3 seeds
PERI_GROWTH = 0.25  # branches and stream correlate a little: 1.8 to 2.2 a layer (placements.md)
ROTARY_ANGLE = 2e-5  # angles up to 40 in float32 err by 40 x 2^-24, on scores of size 10
