"""PowerNorm: quadratic means of a batch's channels, with a running backward pass."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from normwise.errors import SettingError
from normwise.norms.affine import AffineNorm
from normwise.norms.settings import DEFAULT_EPS, checked_eps
from normwise.ops.batch import check_mask, quadratic_means, without_padding
from normwise.ops.functional import rms_norm
from normwise.ops.recompute import in_backward, recomputing, snapshot, transformed
from normwise.ops.reference import affine
from normwise.ops.rounding import compute_dtype


class PowerNorm(AffineNorm):
    """g z/sqrt(phi + eps) + b with z = x/rms(x) of each token and phi a mean of z^2 by channel.

    x is (..., tokens, num_features). phi is the batch's for the first `warmup` batches and then the
    running one of before the batch, which evaluation uses too: no mean is taken off, and after the
    warm-up no token sees another in the forward pass.

    Backward is the paper's, not the derivative: dz = (dy g - nu y)/sqrt(phi + eps), where nu is a
    running mean of dy g y, nu <- nu + (1 - decay) (mean(dy g y) - nu mean(y^2)). It can be
    differentiated once. With activation checkpointing a second forward pass before the backward
    one is not supported: the first would be repeated with the second's phi. Padded tokens are no
    part of any mean and come out as 0; a batch that is not finite is not kept. Shen et al. 2020
    (2003.07845), algorithms 1 and 2.

    Args:
        num_features: channels, the last axis of x.
        decay: weight of the old value in both running means.
        warmup: batches that are normalized with their own phi.

    Raises:
        SettingError: eps out of range; unit_offset without a weight.
        ShapeError: a mask of another shape or dtype.
    """

    wide_buffers = ("running_phi", "running_gradient")
    running_phi: Tensor
    running_gradient: Tensor
    num_batches_tracked: Tensor

    def __init__(  # noqa: PLR0913 - torch's signature and four of ours
        self,
        num_features: int,
        eps: float = DEFAULT_EPS["batch_norm"],
        affine: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        decay: float = 0.9,
        warmup: int = 10_000,
        unit_offset: bool = False,
    ) -> None:
        super().__init__(
            num_features, elementwise_affine=affine, bias=bias,
            unit_offset=unit_offset, device=device, dtype=dtype,
        )  # fmt: skip
        self.eps = checked_eps("PowerNorm", eps)
        self.decay = decay
        self.warmup = warmup
        self.mask: Tensor | None = None
        self._before = (torch.empty(0), torch.empty(0))  # phi and counter before the batch
        kept = torch.float64 if dtype == torch.float64 else torch.float32
        for name in self.wide_buffers:
            self.register_buffer(name, torch.empty(num_features, dtype=kept, device=device))
        self.register_buffer(
            "num_batches_tracked", torch.empty((), dtype=torch.long, device=device)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Gain 1, bias 0, phi 1, nu 0, no batch seen."""
        super().reset_parameters()
        self.running_phi.fill_(1.0)
        self.running_gradient.zero_()
        self.num_batches_tracked.zero_()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalizes x; `mask` (..., tokens) is True for the valid ones, and without it `self.mask`
        holds.
        """
        mask = self.mask if mask is None else mask
        spec = self.spec(x, self.eps)
        check_mask("PowerNorm", x, mask)
        wide = compute_dtype(x, self.weight, self.bias)
        scaled = rms_norm(without_padding(x, mask), x.shape[-1:], eps=self.eps, out_dtype=wide)
        if self.training and x.numel():
            unit = self._trained(scaled, mask)
        else:
            unit = scaled * torch.rsqrt(self.running_phi.to(wide) + self.eps)
        return without_padding(affine(unit, self.weight, self.bias, spec), mask)

    def _trained(self, scaled: Tensor, mask: Tensor | None) -> Tensor:
        if transformed():
            raise SettingError(
                "PowerNorm in training changes its running means, which a transform such as vmap "
                "or jacrev cannot follow. Call eval() first."
            )
        batch = quadratic_means(scaled.detach(), mask, tuple(range(scaled.ndim - 1))).flatten()
        valid = torch.tensor(scaled.shape[:-1].numel(), device=scaled.device)
        if mask is not None:
            valid = mask.expand(scaled.shape[:-1]).sum()
        if not recomputing():
            self._before = snapshot(self.running_phi), snapshot(self.num_batches_tracked)
            self._keep(batch, valid)
        phi, seen = self._before
        inverse = torch.rsqrt(
            torch.where(seen < self.warmup, batch, phi.to(batch.dtype)) + self.eps
        )
        share = 1.0 - self.decay
        counted = valid.clamp_min(1)
        unit: Tensor = _Power.apply(scaled, inverse, self.running_gradient, counted, share)  # type: ignore[no-untyped-call]
        return unit

    def _keep(self, batch: Tensor, valid: Tensor) -> None:
        """One step of phi, unless there was no valid token, or one that is not finite."""
        keep = (valid > 0) & batch.isfinite().all()
        if torch.compiler.is_compiling():
            keep = keep & ~in_backward(batch)
        moved = torch.lerp(self.running_phi, batch.to(self.running_phi.dtype), 1.0 - self.decay)
        self.running_phi.copy_(torch.where(keep, moved, self.running_phi))
        self.num_batches_tracked += keep

    def extra_repr(self) -> str:
        own = f"eps={self.eps}, decay={self.decay}, warmup={self.warmup}"
        return f"{super().extra_repr()}, {own}"


class _Power(torch.autograd.Function):
    """z times a constant, with the running backward pass of PowerNorm."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, inverse: Tensor, running: Tensor, valid: Any, weight: float
    ) -> Tensor:
        y = z * inverse
        ctx.save_for_backward(y, inverse)
        ctx.running, ctx.valid, ctx.weight = running, valid, weight
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        y, inverse = ctx.saved_tensors
        old = ctx.running.to(y.dtype, copy=True)
        axes = tuple(range(y.ndim - 1))
        of_gradient = (gradient * y).sum(axes) / ctx.valid
        of_square = y.square().sum(axes) / ctx.valid
        moved = ctx.weight * (of_gradient - old * of_square)
        ctx.running.add_(torch.where(moved.isfinite().all(), moved, 0.0))
        return (gradient - old * y) * inverse, None, None, None, None
