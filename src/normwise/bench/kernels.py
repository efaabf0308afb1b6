"""Our kernels alone: prepared once on the tensors of a case, then only run."""

from collections.abc import Callable

from normwise.bench.cases import EPS, Tensors, uses
from normwise.ops import dispatch
from normwise.ops.forms import Form
from normwise.ops.reference import NormSpec

Run = Callable[[], None]


def kernels_alone(op: str, tensors: Tensors) -> tuple[Run, Run] | None:
    """A forward pass, and a backward pass after it; None where the kernels cannot run."""
    launch = dispatch.kernels(*tensors.leaves(op), rounding="fp32")
    if launch is None:
        return None
    norm = "layer_norm" if uses(op)[3] else "rms_norm"
    adds = op.startswith("add")
    form = Form.ADD if adds else Form.OUTPUT if op.endswith("add") else Form.PLAIN
    x, weight = tensors.x, tensors.weight
    bias = tensors.bias if uses(op)[3] else None
    residual = tensors.residual if uses(op)[1] else None
    spec = NormSpec((-1,), EPS, unit_offset=False, rounding="fp32", dtype=x.dtype,
                    out_dtype=x.dtype)  # fmt: skip
    forward, (_, stream, saved) = launch.prepare_forward(
        norm, form, (x, residual, weight, bias), spec, rounded=True, keep=True
    )
    backward, _ = launch.prepare_backward(
        norm, (stream if adds else x, None), (weight, bias),
        (tensors.dy, tensors.dstream if adds else None), saved, spec,
        dx_dtype=x.dtype, wants=(True, bias is not None),
    )  # fmt: skip
    return forward.run, backward.run
