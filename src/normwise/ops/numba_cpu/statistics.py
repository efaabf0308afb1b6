"""What a kernel needs to know of a row: its mean and 1/sqrt(mean square + eps), both in fp64.

A row is summed in its own dtype, fp32 or fp64, in blocks whose sums are added in fp64. Only the
functions that sum may reorder (`reassoc`), without which no sum is vectorized; none assumes that
NaN or infinity do not occur, which plain fastmath would.

Where squares overflow or vanish, the same sums are made of a copy of the row, in units of a power
of two near its largest entry, with eps divided along: no bit changes but for the range.
"""

import math

import numpy as np
from numba import njit

from normwise.ops.numba_cpu.elements import widen
from normwise.ops.numba_cpu.rows import scaled

BLOCK = 2048  # entries whose sum is taken in the row's dtype: 64 in each of 32 vector lanes
HEAD = 32  # entries whose mean is the first estimate of a row's
SUMMING = {"reassoc", "contract", "nsz", "arcp"}


@njit(error_model="numpy")
def _difference(value, pivot):
    """x - pivot, before anything is added, also where the sums around it may be reordered."""
    return value - pivot


@njit(error_model="numpy", fastmath=SUMMING)
def _sum_of_squares(row, dtype):
    total = dtype(0)
    for j in range(row.size):
        value = widen(row[j], dtype)
        total += value * value
    return total


@njit(error_model="numpy", fastmath=SUMMING)
def _sums_about(row, pivot, dtype):
    total, squares = dtype(0), dtype(0)
    for j in range(row.size):
        difference = _difference(widen(row[j], dtype), pivot)
        total += difference
        squares += difference * difference
    return total, squares


@njit(error_model="numpy")
def _moments_about(row, pivot, dtype):
    """mean(x) - pivot, and the variance."""
    total, squares = 0.0, 0.0
    for start in range(0, row.size, BLOCK):
        sums = _sums_about(row[start : start + BLOCK], pivot, dtype)
        total += np.float64(sums[0])
        squares += np.float64(sums[1])
    rest = total / row.size
    variance = squares / row.size - rest * rest
    return rest, 0.0 if variance < 0.0 else variance


@njit(error_model="numpy")
def split(mean, dtype):
    """A mean in fp64 as the sum of two numbers of `dtype`."""
    high = dtype(mean)
    return high, dtype(mean - np.float64(high))


@njit(error_model="numpy")
def _mean_square(row, dtype):
    """mean(x^2)"""
    total = 0.0
    for start in range(0, row.size, BLOCK):
        total += np.float64(_sum_of_squares(row[start : start + BLOCK], dtype))
    return total / row.size


@njit(error_model="numpy")
def _moments(row, dtype):
    """mean(x), and the variance.

    Sums are of differences from a pivot near the mean, the mean of the row's head, so that one
    pass gives both without cancellation, and a constant row its value and 0. Where the head is
    more than a standard deviation off, the row is summed again about the mean that was found.
    """
    first = widen(row[0], dtype)
    pivot = first + dtype(_moments_about(row[:HEAD], first, dtype)[0])
    rest, variance = _moments_about(row, pivot, dtype)
    if rest * rest > variance:
        pivot = dtype(np.float64(pivot) + rest)
        rest, variance = _moments_about(row, pivot, dtype)
    return np.float64(pivot) + rest, variance


@njit(error_model="numpy")
def rms_statistics(row, eps, dtype):
    """0, and 1/sqrt(mean(x^2) + eps)."""
    square = _mean_square(row, dtype)
    if _representable(square, eps, dtype):
        return 0.0, 1.0 / math.sqrt(square + eps)
    unit = _unit_near(row, eps, dtype)
    square = _mean_square(scaled(row, 1.0 / unit, dtype), dtype)
    return 0.0, _inverse_root(square, eps, unit)


@njit(error_model="numpy")
def layer_statistics(row, eps, dtype):
    """mean(x), and 1/sqrt(var(x) + eps)."""
    mean, variance = _moments(row, dtype)
    if _representable(variance, eps, dtype):
        return mean, 1.0 / math.sqrt(variance + eps)
    unit = _unit_near(row, eps, dtype)
    mean, variance = _moments(scaled(row, 1.0 / unit, dtype), dtype)
    return mean * unit, _inverse_root(variance, eps, unit)


@njit(error_model="numpy")
def _representable(square, eps, dtype):
    """Whether the squares that were summed neither overflowed nor lost the row below eps."""
    return math.isfinite(square) and max(square, abs(eps)) >= 1e8 * np.finfo(dtype).tiny


@njit(error_model="numpy")
def _unit_near(row, eps, dtype):
    """A power of two near the largest entry, or near sqrt(eps) where that is larger."""
    largest = math.sqrt(abs(eps))
    for value in row:
        largest = max(largest, abs(widen(value, np.float64)))
    limits = np.finfo(dtype)
    _, exponent = math.frexp(min(largest, np.float64(limits.max)))
    return math.ldexp(1.0, min(max(exponent - 1, limits.minexp), -limits.minexp))


@njit(error_model="numpy")
def _inverse_root(square, eps, unit):
    """1/sqrt(mean square + eps) for a square in units of unit^2.

    eps is divided by the unit twice, whose square may overflow itself. Where it vanishes, so does
    eps beside any square but 0.
    """
    if square == 0.0:
        return 1.0 / math.sqrt(eps)
    return 1.0 / math.sqrt(square + eps / unit / unit) / unit


@njit(error_model="numpy")
def unit_of(inverse, dtype):
    """The power of two by which a row is multiplied before anything else: 1 but for rows whose
    1/sqrt(...) is near the limits of `dtype`.
    """
    if 2.0**-60 < inverse < 2.0**60 or not math.isfinite(inverse) or inverse <= 0.0:
        return 1.0
    limits = np.finfo(dtype)
    _, exponent = math.frexp(inverse)
    return math.ldexp(1.0, min(max(exponent - 1, limits.minexp), limits.maxexp - 1))
