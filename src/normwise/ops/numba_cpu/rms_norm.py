"""RMSNorm in one row: y = g n + b with n = x r and r = 1/sqrt(mean(x^2) + eps).

With dn = g dy the gradient is dx = r (dn - n mean(n dn)). Zhang and Sennrich 2019 (1910.07467),
equation 4.
"""

from numba import njit

from normwise.ops.numba_cpu.lanes import fma
from normwise.ops.numba_cpu.statistics import rms_statistics

statistics = rms_statistics


@njit(error_model="numpy", forceinline=True)
def unit(x, mean, minus_rest_r, r):
    """n."""
    return x * r


@njit(error_model="numpy", forceinline=True)
def input_gradient(n, dn, mean_dn, minus_mean_n_dn, r):
    """dx."""
    return fma(n, minus_mean_n_dn, dn) * r
