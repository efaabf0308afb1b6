"""Where tokens enter a stack: embedding, its scale, positions, and a norm."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from normwise.errors import ShapeError
from normwise.model.config import TransformerConfig
from normwise.model.places import place_norm
from normwise.weight_init import Weight


class Entry(nn.Module):
    """Tokens (B, T) to the stream (B, T, width)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        learned = config.positions == "learned"
        self.positions = nn.Embedding(config.max_len, config.width) if learned else None
        self.scale = nn.Parameter(torch.empty(())) if config.embedding_scale == "learned" else None
        normed = config.embedding_norm
        self.norm = place_norm(config, "embedding", 0, config.width) if normed else nn.Identity()

    def forward(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ShapeError("Pass either input_ids or inputs_embeds, and not both.")
        if inputs_embeds is None:
            inputs_embeds = self._scaled(self.embedding(input_ids))
        tokens = inputs_embeds.shape[-2]
        if tokens > self.config.max_len:
            raise ShapeError(
                f"A sequence may have max_len tokens. It has {tokens}, max_len is "
                f"{self.config.max_len}. Build the model with a larger max_len."
            )
        placed = inputs_embeds if self.positions is None else (
            inputs_embeds + self.positions.weight[:tokens]
        )  # fmt: skip
        return self.norm(placed)  # type: ignore[no-any-return]

    def _scaled(self, embedded: Tensor) -> Tensor:
        if self.config.embedding_scale == "none":
            return embedded
        return embedded * (math.sqrt(self.config.width) if self.scale is None else self.scale)

    def weights(self) -> Iterator[Weight]:
        """Its matrices with their roles."""
        yield Weight(self.embedding.weight, "embedding")
        if self.positions is not None:
            yield Weight(self.positions.weight, "position")

    def reset_scale(self) -> None:
        """sqrt(width)."""
        if self.scale is not None:
            nn.init.constant_(self.scale, math.sqrt(self.config.width))
