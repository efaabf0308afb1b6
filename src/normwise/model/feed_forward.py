"""The feed-forward branch, (..., D) to (..., D)."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from normwise.model.config import TransformerConfig
from normwise.model.places import place_norm

CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "swiglu": functional.silu,
}


class FeedForward(nn.Module):
    """W_out phi(W_in x); with SwiGLU W_out (silu(W_gate x) * W_in x), Shazeer 2020.

    A placement may ask for a norm before W_out.

    Args:
        config: what it is made of.
        layer: counted from 0.
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.curve = CURVES[config.activation]
        self.inner = nn.Linear(config.width, config.ff_width, bias=config.bias)
        self.output = nn.Linear(config.ff_width, config.width, bias=config.bias)
        self.gate = (
            nn.Linear(config.width, config.ff_width, bias=config.bias)
            if config.activation == "swiglu"
            else None
        )
        self.output_norm = (
            place_norm(config, "inner", layer, config.ff_width)
            if config.placement_row.inside.ff_output
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner(x)
        hidden = self.curve(inner) if self.gate is None else self.curve(self.gate(x)) * inner
        out: Tensor = self.output(self.output_norm(hidden))
        return out
