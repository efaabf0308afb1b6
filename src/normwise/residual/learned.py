"""Placements with learned factors on the skip or on the branch."""

import torch
from torch import Tensor, nn

from normwise.errors import SettingError
from normwise.residual.base import Branch, NormFactory, OneNorm, Residual, Site
from normwise.theory.scaling import admin_omega, layer_scale_start


class SkipInit(Residual):
    """x + alpha F(x), one alpha for each branch, 0 at the start; no norm anywhere.

    The stack starts as the identity, and at the first step only alpha moves. De and Smith 2020
    (2002.10444), section 3.
    """

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__(norm, site)
        self.alpha = nn.Parameter(torch.zeros(()))

    def reset_parameters(self) -> None:
        """alpha is 0."""
        nn.init.zeros_(self.alpha)

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        return state + self.alpha * branch(state)


class LayerScale(OneNorm):
    """x + s F(norm(x)), s a learned vector for each branch; one norm after the last layer.

    s starts near 0, so the stack starts near the identity. Touvron et al. 2021 (2103.17239),
    equation 8.

    Args:
        start: where s starts; 1e-5 up to 24 layers and 1e-6 above unless given. 0 is a value like
            any other.
    """

    def __init__(self, norm: NormFactory, site: Site, *, start: float | None = None) -> None:
        super().__init__(norm, site)
        self.start = layer_scale_start(site.stack) if start is None else start
        self.scale = nn.Parameter(torch.full((site.dim,), self.start))

    def reset_parameters(self) -> None:
        """s as it starts."""
        nn.init.constant_(self.scale, self.start)

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        return state + self.scale * branch(self.norm(state))

    def extra_repr(self) -> str:
        return f"start={self.start:g}"


class Admin(OneNorm):
    """norm(omega x + F(x)), omega a learned vector for each branch; nothing after the last layer,
    whose own norm is the last.

    omega stands on the skip. It starts at 1, which is post-norm, until `profile_admin` sets it from
    a batch. Liu et al. 2020 (2004.08249), section 4.

    Args:
        growth: "profiled", or "logarithmic", "linear" or "constant" for the values that the
            package admin-torch takes without a batch.

    Raises:
        SettingError: another growth.
    """

    def __init__(self, norm: NormFactory, site: Site, *, growth: str = "profiled") -> None:
        super().__init__(norm, site)
        self.start = 1.0
        if growth != "profiled":
            self.start = _admin_start(growth, site)
        self.omega = nn.Parameter(torch.full((site.dim,), self.start))

    def reset_parameters(self) -> None:
        """omega as it starts."""
        nn.init.constant_(self.omega, self.start)

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        return self.norm(self.omega * state + branch(state))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"start={self.start:.4f}"


def _admin_start(growth: str, site: Site) -> float:
    try:
        return admin_omega(growth, site.stack)
    except KeyError:
        raise SettingError(
            f"admin: growth must be profiled, logarithmic, linear or constant. It is {growth}."
        ) from None
