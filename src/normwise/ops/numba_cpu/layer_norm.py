"""LayerNorm in one row: y = g n + b with n = (x - mean) r and r = 1/sqrt(var(x) + eps).

With dn = g dy the gradient is dx = r (dn - mean(dn) - n mean(n dn)). Ba et al. 2016 (1607.06450),
equation 4. The mean comes as the sum of two numbers, so that a large one costs no digit.
"""

from numba import njit

from normwise.ops.numba_cpu.statistics import layer_statistics

statistics = layer_statistics


@njit(error_model="numpy")
def unit(x, mean, rest, r):
    """n."""
    return ((x - mean) - rest) * r


@njit(error_model="numpy", fastmath={"contract"})
def input_gradient(n, dn, mean_dn, mean_n_dn, r):
    """dx."""
    return ((dn - mean_dn) - n * mean_n_dn) * r
