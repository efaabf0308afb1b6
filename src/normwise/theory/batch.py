"""What a batch's statistics are worth: padding, noise, and training against inference."""

import math


def padded_moments(mean: float, variance: float, valid: float) -> tuple[float, float]:
    """Mean and variance of a channel whose padding, a share 1 - `valid` of it, is counted as zeros.

    f m, and f v + f (1 - f) m^2.
    """
    return valid * mean, valid * variance + valid * (1.0 - valid) * mean**2


def null_discrepancy(
    tokens: int, sequences: int | None = None, shared: float = 0.0
) -> tuple[float, float]:
    """Discrepancies of mean and deviation that a batch has by chance, running statistics being
    exact and tokens Gaussian: sqrt(2/(pi n)) and, for large n, 1/sqrt(pi n).

    Args:
        tokens: valid ones in the batch, n.
        sequences: among which they are divided, Q.
        shared: share of the variance that tokens of a sequence have in common, r. The effective
            batch is then nearer to the sequences: 1/n becomes r/Q + (1 - r)/n, for the mean.
    """
    inverse = 1.0 / tokens
    of_mean = shared / sequences + (1.0 - shared) * inverse if sequences else inverse
    return math.sqrt(2.0 / math.pi * of_mean), math.sqrt(inverse / math.pi)
