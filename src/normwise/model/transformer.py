"""A Transformer in which norm, placement and initialisation are settings."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from normwise.model.config import TransformerConfig
from normwise.model.entry import Entry
from normwise.model.layers import LayerStack, mask_norms, reset_gains
from normwise.model.recipe import recipe, why_no_recipe
from normwise.theory.recipe import Recipe
from normwise.weight_init import Weight, initialize


class Transformer(LayerStack):
    """Tokens (B, T) to logits (B, T, vocab_size).

    >>> model = nw.Transformer(nw.TransformerConfig(depth=2, placement="post_norm"), seed=0)
    >>> model(torch.zeros(1, 8, dtype=torch.long)).shape
    torch.Size([1, 8, 256])

    Args:
        config: what it is made of.
        seed: of the initial weights; None draws them from torch's global generator.
    """

    def __init__(self, config: TransformerConfig, seed: int | None = None) -> None:
        super().__init__(config, config.stack)
        self.entry = Entry(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.reset_parameters(seed)

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, vocab_size) of tokens (B, T), or of embeddings (B, T, width) as given.

        A mask (B, T) is True for valid tokens: the others are seen by no token and no norm, and
        their logits mean nothing.
        """
        mask_norms(self, self.config, mask)
        logits: Tensor = self.head(self.run(self.entry(input_ids, inputs_embeds), mask))
        return logits

    def weights(self) -> Iterator[Weight]:
        """Every weight matrix with its role, for `weight_init`."""
        yield from self.entry.weights()
        yield from self.layer_weights()
        yield Weight(self.head.weight, "head")

    def recipes(self, tokens: int) -> list[Recipe | None] | str:
        """The recipe of its stack for sequences of this length, or why theory expects nothing."""
        return why_no_recipe(self.config) or [recipe(self.config, tokens)]

    def reset_parameters(self, seed: int | None = None) -> None:
        """Draws the weights as `config.init` says; biases, gains and factors as they start.

        Ties the head again, which torch's `to_empty` unties.
        """
        if self.config.tied_head:
            self.head.weight = self.entry.embedding.weight
        generator = None
        if seed is not None:
            generator = torch.Generator(self.head.weight.device).manual_seed(seed)
        self.entry.reset_scale()
        reset_gains(self)
        if not self.head.weight.is_meta:
            initialize(self.weights(), str(self.config.init), self.config.stack, generator)
