"""A Transformer in which norm, placement and initialisation are settings."""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from normwise.errors import ShapeError
from normwise.model.attention import Attention
from normwise.model.config import TransformerConfig
from normwise.model.feed_forward import FeedForward
from normwise.norms.registry import NORM_MODULES
from normwise.residual.registry import make_placement
from normwise.weight_init import Weight, initialize


class Layer(nn.Module):
    """The branches of one layer. How they join the stream is the placement's business."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(config) if config.attention else None
        self.feed_forward = FeedForward(config)


class Transformer(nn.Module):
    """Tokens (B, T) to logits (B, T, vocab_size).

    >>> model = nw.Transformer(nw.TransformerConfig(depth=2, placement="post_norm"), seed=0)
    >>> model(torch.zeros(1, 8, dtype=torch.long)).shape
    torch.Size([1, 8, 256])

    Args:
        config: what it is made of.
        seed: of the initial weights; None draws them from torch's global generator.
    """

    def __init__(self, config: TransformerConfig, seed: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        learned = config.positions == "learned"
        self.positions = nn.Embedding(config.max_len, config.width) if learned else None
        layers = nn.ModuleList(Layer(config) for _ in range(config.depth))
        self.layers = cast(Sequence[Layer], layers)
        self.placement = make_placement(
            config.placement, config.width, config.depth, config.norm, branches=config.branches,
            eps=config.norm_eps, affine=config.affine, bias=config.bias,
        )  # fmt: skip
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.reset_parameters(seed)

    def forward(
        self, input_ids: Tensor | None = None, *, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Logits (B, T, vocab_size) of tokens (B, T), or of embeddings (B, T, width) as given."""
        state = self.placement.enter(self._entry(input_ids, inputs_embeds))
        for index, layer in enumerate(self.layers):
            state = self.placement.layer(state, layer.attention, layer.feed_forward, index)
        logits: Tensor = self.head(self.placement.exit(state))
        return logits

    def _entry(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ShapeError("Pass either input_ids or inputs_embeds, and not both.")
        if inputs_embeds is None:
            inputs_embeds = self.embedding(input_ids)
        tokens = inputs_embeds.shape[-2]
        if tokens > self.config.max_len:
            raise ShapeError(
                f"A sequence may have max_len tokens. It has {tokens}, max_len is "
                f"{self.config.max_len}. Build the model with a larger max_len."
            )
        return inputs_embeds if self.positions is None else (
            inputs_embeds + self.positions.weight[:tokens]
        )  # fmt: skip

    def weights(self) -> Iterator[Weight]:
        """Every weight matrix with its role, for `weight_init`."""
        yield Weight(self.embedding.weight, "embedding")
        if self.positions is not None:
            yield Weight(self.positions.weight, "position")
        for layer in self.layers:
            if layer.attention is not None:
                for role in ("query", "key", "value"):
                    yield Weight(getattr(layer.attention, role).weight, role)
                yield Weight(layer.attention.output.weight, "attention_output")
            yield Weight(layer.feed_forward.inner.weight, "ff_in")
            if layer.feed_forward.gate is not None:
                yield Weight(layer.feed_forward.gate.weight, "ff_gate")
            yield Weight(layer.feed_forward.output.weight, "ff_out")
        yield Weight(self.head.weight, "head")

    def reset_parameters(self, seed: int | None = None) -> None:
        """Draws the weights as `config.init` says, sets biases to 0 and gains to 1.

        Ties the head again, which torch's `to_empty` unties.
        """
        if self.config.tied_head:
            self.head.weight = self.embedding.weight
        generator = None
        if seed is not None:
            generator = torch.Generator(self.embedding.weight.device).manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            elif isinstance(module, NORM_MODULES):
                module.reset_parameters()
        if not self.head.weight.is_meta:
            initialize(self.weights(), str(self.config.init), self.config.sublayers, generator)
