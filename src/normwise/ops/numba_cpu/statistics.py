"""What a kernel needs to know of a row: its mean and 1/sqrt(mean square + eps), both in fp64.

A row is summed in the dtype of the arithmetic, fp32 or fp64, in two sums of 32 lanes, and every
4096 entries these are added up in fp64.

Where squares overflow or vanish, the same sums are made of a copy of the row, in units of a power
of two near its largest entry, with eps divided along: no bit changes but for the range.
"""

import math

import numpy as np
from numba import njit

from normwise.ops.numba_cpu.lanes import (
    LANES,
    STRIDE,
    fma,
    larger_size,
    largest,
    spread,
    total,
)
from normwise.ops.numba_cpu.memory import limiter
from normwise.ops.numba_cpu.rows import padded

BLOCK = 64 * STRIDE  # entries whose sum is taken in the dtype of the arithmetic: 64 in each lane


@njit(error_model="numpy", forceinline=True)
def spread_statistics(mean, r, dtype):
    """What a norm's `unit` takes: the mean in `dtype`, what is lost of it times -r, and r."""
    high = dtype(mean)
    low = dtype(mean - np.float64(high))
    return spread(high), spread(-low * r), spread(r)


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


def scaling(part, read, write, dtype):
    """Makes `scaled(row, size, scale, spare)`: copies the row, times a power of two, into a buffer,
    where it is read as the row is. The products are exact but for entries so far below the largest
    that they do not count.
    """

    @part()
    def scaled(row, size, scale, spare):
        factor = spread(dtype(scale))
        for j in range(0, padded(size), LANES):
            write(spare, j, size, read(row, j, size) * factor)
        return spare

    return scaled


def rms_statistics(part, read, scaled, paired, dtype):
    """Makes `statistics(row, size, eps, spare)`: 0, and 1/sqrt(mean(x^2) + eps)."""
    unit_near = _unit_near(part, read, dtype)

    @part(forceinline=True)
    def squared(row, j, end, sums):
        a, b = read(row, j, end), read(row, j + LANES, end)
        return fma(a, a, sums[0]), fma(b, b, sums[1])

    @part(forceinline=True)
    def mean_square(row, size):
        squares, whole, zero = 0.0, size // STRIDE * STRIDE, spread(dtype(0))
        for start in range(0, whole, BLOCK):
            sums = zero, zero
            for j in range(start, min(start + BLOCK, whole), STRIDE):
                sums = squared(row, j, j + STRIDE, sums)
            squares += total(sums[0] + sums[1])
        if whole < size:
            sums = squared(row, whole, size, (zero, zero))
            squares += total(sums[0] + sums[1])
        return squares / size

    @part()
    def beyond_range(row, size, eps, spare):
        unit = unit_near(row, size, eps)
        square = mean_square(scaled(row, size, 1.0 / unit, spare), size)
        return 0.0, _inverse_root(square, eps, unit)

    @part()
    def statistics(row, size, eps, spare):
        square = mean_square(row, size)
        if _representable(square, eps, dtype):
            return 0.0, 1.0 / math.sqrt(square + eps)
        return beyond_range(row, size, eps, spare)

    return statistics


def layer_statistics(part, read, scaled, paired, dtype):
    """Makes `statistics(row, size, eps, spare)`: mean(x), and 1/sqrt(var(x) + eps).

    Sums are of differences from a pivot near the mean, the mean of the row's first 32 entries, so
    that one pass gives both without cancellation, and a constant row its value and 0. Where the
    pivot is more than a standard deviation off, the row is summed again about the mean found.
    """
    unit_near = _unit_near(part, read, dtype)
    within = limiter(dtype, paired=paired)

    @part(forceinline=True)
    def differences(row, j, end, centre, sums):
        a = within(read(row, j, end) - centre, j, end)
        b = within(read(row, j + LANES, end) - centre, j + LANES, end)
        return sums[0] + a, sums[1] + b, fma(a, a, sums[2]), fma(b, b, sums[3])

    @part()
    def moments_about(row, size, pivot):
        """mean(x) - pivot, and the variance."""
        plain, squares, whole = 0.0, 0.0, size // STRIDE * STRIDE
        centre, zero = spread(pivot), spread(dtype(0))
        for start in range(0, whole, BLOCK):
            sums = zero, zero, zero, zero
            for j in range(start, min(start + BLOCK, whole), STRIDE):
                sums = differences(row, j, j + STRIDE, centre, sums)
            plain += total(sums[0] + sums[1])
            squares += total(sums[2] + sums[3])
        if whole < size:
            sums = differences(row, whole, size, centre, (zero, zero, zero, zero))
            plain += total(sums[0] + sums[1])
            squares += total(sums[2] + sums[3])
        rest = plain / size
        variance = squares / size - rest * rest
        return rest, 0.0 if variance < 0.0 else variance

    @part(forceinline=True)
    def moments(row, size):
        pivot = dtype(total(read(row, 0, size)) / min(size, LANES))
        rest, variance = moments_about(row, size, pivot)
        if rest * rest > variance:
            pivot = dtype(np.float64(pivot) + rest)
            rest, variance = moments_about(row, size, pivot)
        return np.float64(pivot) + rest, variance

    @part()
    def beyond_range(row, size, eps, spare):
        unit = unit_near(row, size, eps)
        mean, variance = moments(scaled(row, size, 1.0 / unit, spare), size)
        return mean * unit, _inverse_root(variance, eps, unit)

    @part()
    def statistics(row, size, eps, spare):
        mean, variance = moments(row, size)
        if _representable(variance, eps, dtype):
            return mean, 1.0 / math.sqrt(variance + eps)
        return beyond_range(row, size, eps, spare)

    return statistics


def _unit_near(part, read, dtype):
    limits = np.finfo(dtype)
    top, low, high = float(limits.max), int(limits.minexp), -int(limits.minexp)

    @part()
    def unit_near(row, size, eps):
        """A power of two near the largest entry, or near sqrt(eps) where that is larger."""
        entry = spread(dtype(0))
        for j in range(0, size, LANES):
            entry = larger_size(entry, read(row, j, size))
        limit = max(np.float64(largest(entry)), math.sqrt(abs(eps)))
        _, exponent = math.frexp(min(limit, top))
        return math.ldexp(1.0, min(max(exponent - 1, low), high))

    return unit_near


@njit(error_model="numpy")
def _representable(square, eps, dtype):
    """Whether the squares that were summed neither overflowed nor lost the row below eps."""
    return math.isfinite(square) and max(square, abs(eps)) >= 1e8 * np.finfo(dtype).tiny


@njit(error_model="numpy")
def _inverse_root(square, eps, unit):
    """1/sqrt(mean square + eps) for a square in units of unit^2.

    eps is divided by the unit twice, whose square may overflow itself. Where it vanishes, so does
    eps beside any square but 0.
    """
    if square == 0.0:
        return 1.0 / math.sqrt(eps)
    return 1.0 / math.sqrt(square + eps / unit / unit) / unit
