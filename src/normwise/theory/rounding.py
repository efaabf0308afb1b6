"""How often rounding twice gives another result than rounding once."""

import numpy as np
from numpy.typing import NDArray


def double_rounding_share(values: NDArray[np.float64], factors: NDArray[np.float64]) -> float:
    """Share of products x w that come out otherwise when x is rounded before the product is.

    The first error is uniform over half a unit of x to both sides, 1/4 of one in the mean, and
    moves the product by that times |w|; a product lies anywhere between two results, so the move
    takes it across a boundary with probability |w| ulp(x)/(4 ulp(x w)). The number of digits falls
    out. Broadcasts values (..., D) with factors (D).
    """
    _, before = np.frexp(values)
    _, after = np.frexp(values * factors)
    shares: NDArray[np.float64] = np.abs(factors) * np.exp2(before - after) / 4.0
    return float(shares.mean())
