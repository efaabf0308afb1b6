"""LayerNorm in one row: y = g n + b with n = (x - mean) r and r = 1/sqrt(var(x) + eps).

With dn = g dy the gradient is dx = r (dn - mean(dn) - n mean(n dn)). Ba et al. 2016 (1607.06450),
equation 4. The mean comes as the sum of two numbers, so that a large one costs no digit.
"""

from numba import njit

from normwise.ops.numba_cpu.lanes import fma
from normwise.ops.numba_cpu.statistics import layer_statistics

statistics = layer_statistics


@njit(error_model="numpy", forceinline=True)
def unit(x, mean, minus_rest_r, r):
    """n."""
    return fma(x - mean, r, minus_rest_r)


@njit(error_model="numpy", forceinline=True)
def input_gradient(n, dn, mean_dn, minus_mean_n_dn, r):
    """dx."""
    return fma(n, minus_mean_n_dn, dn - mean_dn) * r
