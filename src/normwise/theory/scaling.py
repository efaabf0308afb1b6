"""Constants that papers prescribe, as functions of depth and width.

`sublayers` counts the residual branches of a stack: 2 L where every layer has an attention and a
feed-forward branch, L where it has one.
"""

import math


def xavier_std(fan_in: int, fan_out: int) -> float:
    """sqrt(2 / (fan_in + fan_out)), Glorot and Bengio 2010, equation 16, as a normal."""
    return math.sqrt(2.0 / (fan_in + fan_out))


def deep_norm_alpha(sublayers: int) -> float:
    """S^(1/4), the factor on the skip: (2 N)^(1/4) for N layers of two branches (2203.00555)."""
    return float(sublayers**0.25)


def deep_norm_beta(sublayers: int) -> float:
    """(4 S)^(-1/4), the gain on value, output and feed-forward matrices: (8 N)^(-1/4)."""
    return float((4 * sublayers) ** -0.25)


def residual_projection_scale(sublayers: int) -> float:
    """1/sqrt(S), the factor on each branch's last matrix (GPT-2, Radford et al. 2019, 2.3)."""
    return float(sublayers**-0.5)


def noam_peak_rate(dim: int, warmup: int) -> float:
    """1/sqrt(dim * warmup), the peak of Vaswani et al. 2017, equation 3; warmup 0 counts as 1."""
    return float((dim * max(warmup, 1)) ** -0.5)
