"""Weight of each branch on the stream: the two expansions of the seed, for any branch variance.

Unrolling x_l gives a sum over x_0, F_0, ..., F_{l-1}. Post-norm divides by sqrt(1 + v) at every
connection, so a term's weight falls geometrically with its distance from the top; pre-norm gives
every branch the weight 1, so its share of a stream of variance 1 + l v falls like 1/sqrt(l).
"""

import math
from collections.abc import Callable, Sequence

Factors = Callable[[float, float, float], tuple[float, float]]


def _sum(stream: float, branch: float, alpha: float) -> tuple[float, float]:
    return 1.0, 1.0


def _post_norm(stream: float, branch: float, alpha: float) -> tuple[float, float]:
    return _deep_norm(stream, branch, 1.0)


def _deep_norm(stream: float, branch: float, alpha: float) -> tuple[float, float]:
    total = math.sqrt(alpha**2 * stream + branch)
    return alpha / total, 1.0 / total


def _peri_norm(stream: float, branch: float, alpha: float) -> tuple[float, float]:
    return 1.0, 1.0 / math.sqrt(branch) if branch else 0.0


RULES: dict[str, Factors] = {
    "pre_norm": _sum,
    "post_norm": _post_norm,
    "deep_norm": _deep_norm,
    "peri_norm": _peri_norm,
}


def branch_weights(
    placement: str, branch_variances: Sequence[float], entry: float = 1.0, alpha: float = 1.0
) -> list[float]:
    """Coefficients of x_0, F_0, ..., F_{l-1} in x_l, for independent branches.

    Each connection multiplies all earlier terms by one factor and the new branch by another.
    The squares, weighted with the variances, add up to the variance of x_l.

    Args:
        placement: a row of `RULES`, the full name of a placement.
        branch_variances: mean square of each branch's output, in order.
        entry: mean square of x_0.
        alpha: DeepNorm's factor on the skip.
    """
    factors, stream = RULES[placement], entry
    weights = [1.0]
    for variance in branch_variances:
        skip, branch = factors(stream, variance, alpha)
        weights = [skip * weight for weight in weights] + [branch]
        stream = skip**2 * stream + branch**2 * variance
    return weights
