"""A stack of layers: branches and the placement that joins them to the stream."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from normwise.model.attention import Attention, HeadScale, UnitQuery
from normwise.model.config import TransformerConfig
from normwise.model.feed_forward import FeedForward
from normwise.model.places import place_norm
from normwise.norms.registry import NORM_MODULES, NORMS
from normwise.residual.base import Branch, Residual
from normwise.residual.registry import build_placement
from normwise.theory.stack import Stack
from normwise.weight_init import CROSS, Weight


class Layer(nn.Module):
    """The branches of one layer. How they join the stream is the placement's business."""

    def __init__(self, config: TransformerConfig, stack: Stack, index: int) -> None:
        super().__init__()
        self.attention = Attention(config, index) if "attention" in stack.kinds else None
        self.cross_attention = (
            Attention(config, index, cross=True) if "cross_attention" in stack.kinds else None
        )
        self.feed_forward = FeedForward(config, index)


class LayerStack(nn.Module):
    """Layers and their placement, (B, T, D) to (B, T, D).

    Args:
        config: what the layers are made of.
        stack: how many there are, with which branches, and beside which other stack.
    """

    def __init__(self, config: TransformerConfig, stack: Stack) -> None:
        super().__init__()
        self.config = config
        self.stack = stack
        layers = nn.ModuleList(Layer(config, stack, index) for index in range(stack.depth))
        self.layers = cast(Sequence[Layer], layers)
        self.placement = build_placement(
            config.placement, stack, config.width,
            lambda site, layer: place_norm(config, site, layer, config.width),
            dict(config.placement_options),
        )  # fmt: skip

    def run(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        """Runs x (B, T, D) through the layers; masks (B, T) are True for valid tokens."""
        own = None if mask is None else attention_mask(mask, causal=self.config.causal)
        other = None if source_mask is None else source_mask[:, None, None, :]
        state = self.placement.enter(x)
        for index, layer in enumerate(self.layers):
            state = self.placement.layer(
                state, _bound(layer.attention, mask=own), layer.feed_forward, index,
                cross_attention=_bound(layer.cross_attention, source=source, mask=other),
            )  # fmt: skip
        return self.placement.exit(state)

    def layer_weights(self) -> Iterator[Weight]:
        """The weight matrices of the layers with their roles."""
        for layer in self.layers:
            for attention, prefix in ((layer.attention, ""), (layer.cross_attention, CROSS)):
                if attention is not None:
                    for role in ("query", "key", "value"):
                        yield Weight(getattr(attention, role).weight, prefix + role)
                    yield Weight(attention.output.weight, prefix + "attention_output")
            yield Weight(layer.feed_forward.inner.weight, "ff_in")
            if layer.feed_forward.gate is not None:
                yield Weight(layer.feed_forward.gate.weight, "ff_gate")
            yield Weight(layer.feed_forward.output.weight, "ff_out")


def _bound(branch: nn.Module | None, **inputs: Tensor | None) -> Branch | None:
    return None if branch is None else partial(branch, **inputs)


def attention_mask(mask: Tensor, *, causal: bool) -> Tensor:
    """Which key (last axis) a query may see, (B, 1, T, T), from a mask of valid tokens (B, T).

    Every query sees itself, so that one of padding has a finite result.
    """
    tokens = mask.shape[-1]
    own = torch.eye(tokens, dtype=torch.bool, device=mask.device)
    seen = mask[:, None, None, :] | own
    return seen & torch.ones_like(own).tril() if causal else seen.expand(-1, -1, tokens, -1)


def mask_norms(model: nn.Module, config: TransformerConfig, mask: Tensor | None) -> None:
    """Gives the mask (B, T) to every norm over a batch, until the next call.

    It stays after the forward pass: activation checkpointing runs the norms once more in backward.
    """
    if any(NORMS[name].batch for name in config.norm_names):
        for module in model.modules():
            if isinstance(module, NORM_MODULES) and hasattr(module, "mask"):
                module.mask = mask  # type: ignore[assignment]


def reset_gains(model: nn.Module) -> None:
    """Biases of linear layers to 0; norms and factors as they start."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        elif isinstance(module, (*NORM_MODULES, Residual, HeadScale, UnitQuery)):
            module.reset_parameters()
