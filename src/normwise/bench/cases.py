"""The tensors of a case, and the right results in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from normwise.bench.settings import Case
from normwise.ops import reference
from normwise.ops.reference import NormSpec

EPS = 1e-5
TORCH_DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
}


@dataclass(frozen=True)
class Tensors:
    """Inputs of an op and the gradients of its results; what an op does not take is not used."""

    x: Tensor
    residual: Tensor
    weight: Tensor
    bias: Tensor
    dy: Tensor
    dstream: Tensor

    def leaves(self, op: str) -> list[Tensor]:
        """What the op is differentiated by."""
        parts = [self.x, self.residual, self.weight, self.bias]
        return [t for t, used in zip(parts, uses(op), strict=True) if used]

    def gradients(self, op: str) -> list[Tensor]:
        """One for each result."""
        return [self.dy, self.dstream] if op.startswith("add") else [self.dy]


def uses(op: str) -> tuple[bool, bool, bool, bool]:
    """Whether an op takes x, residual, weight and bias."""
    return True, "add" in op, True, "layer_norm" in op


def tensors_of(case: Case) -> Tensors:
    """Ordinary data with a row mean: x about 0.5 with spread 1, gain about 1."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, centre: float = 0.0, scale: float = 1.0) -> Tensor:
        values = torch.randn(shape, generator=generator) * scale + centre
        return values.to(TORCH_DTYPES[case.dtype])

    shape = (case.rows, case.width)
    return Tensors(
        x=draw(*shape, centre=0.5).requires_grad_(),
        residual=draw(*shape).requires_grad_(),
        weight=draw(case.width, centre=1.0, scale=0.1).requires_grad_(),
        bias=draw(case.width, scale=0.1).requires_grad_(),
        dy=draw(*shape),
        dstream=draw(*shape),
    )


@dataclass(frozen=True)
class Truth:
    """Right results: outputs, the gradient of x, and of the parameters with the sums of the sizes
    of their terms.
    """

    outputs: list[Tensor]
    dx: Tensor
    parameters: list[Tensor]
    sizes: list[Tensor]


def truth_of(case: Case, tensors: Tensors) -> Truth:
    """The op in float64, from the rounded inputs, and its float64 gradients.

    The sum of a form that adds is rounded as its stream is: that is part of the op.
    """
    leaves = [t.detach().double().requires_grad_() for t in tensors.leaves(case.op)]
    by_name = dict(zip(_names(case.op), leaves, strict=True))
    seen = by_name["x"]
    if case.op.startswith("add"):
        total = tensors.x.detach() + tensors.residual.detach()
        seen = total.double().requires_grad_()
    formula = reference.layer_norm if uses(case.op)[3] else reference.rms_norm
    spec = NormSpec((-1,), EPS, unit_offset=False, rounding="fp32", dtype=torch.float64,
                    out_dtype=torch.float64)  # fmt: skip
    weight, bias = by_name["weight"], by_name.get("bias")
    normed = formula(seen, weight, bias, spec)
    dy = tensors.dy.double()
    parameters = [t for t in (weight, bias) if t is not None]
    dx, *dparameters = torch.autograd.grad(normed, [seen, *parameters], dy)
    unit = formula(seen, None, None, spec).detach()
    sizes = [(unit * dy).abs().sum(0), dy.abs().sum(0)][: len(parameters)]
    outputs = [normed.detach()]
    if case.op.startswith("add"):
        outputs.append(seen.detach())
        dx = dx + tensors.dstream.double()
    elif case.op.endswith("add"):
        narrow = normed.detach().to(TORCH_DTYPES[case.dtype]).double()
        outputs = [by_name["residual"].detach() + narrow]
    return Truth(outputs, dx, dparameters, sizes)


def _names(op: str) -> list[str]:
    names = ("x", "residual", "weight", "bias")
    return [name for name, used in zip(names, uses(op), strict=True) if used]
