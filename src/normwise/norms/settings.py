"""Default eps, and what every norm module asks of its settings."""

import math

from normwise.errors import SettingError

DEFAULT_EPS = {
    "layer_norm": 1e-5,
    "rms_norm": 1e-6,
    "partial_rms_norm": 1e-6,
    "group_norm": 1e-5,
    "scale_norm": 1e-5,
    "batch_norm": 1e-5,
}


def checked_eps(owner: str, eps: float) -> float:
    """eps as a Python float; negative, infinite and NaN values are refused."""
    if not (eps >= 0 and math.isfinite(eps)):
        raise SettingError(
            f"{owner}: eps must be a finite number of at least 0. It is {eps}. "
            f"Pass a small one such as 1e-6."
        )
    return float(eps)


def checked_offset(owner: str, *, unit_offset: bool, affine: bool) -> bool:
    """unit_offset, refused where there is no weight to add 1 to."""
    if unit_offset and not affine:
        raise SettingError(
            f"{owner}: unit_offset adds 1 to the weight, and elementwise_affine=False has none. "
            f"Drop one of the two."
        )
    return unit_offset
