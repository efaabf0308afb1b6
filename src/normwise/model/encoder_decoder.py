"""An encoder and a decoder with cross-attention."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn

from normwise.model.config import TransformerConfig
from normwise.model.entry import Entry
from normwise.model.layers import LayerStack, mask_norms, reset_gains
from normwise.model.recipe import recipe, why_no_recipe
from normwise.theory.recipe import Recipe
from normwise.theory.stack import Stack
from normwise.weight_init import Weight, initialize


class EncoderDecoder(nn.Module):
    """Source tokens (B, S) and target tokens (B, T) to logits (B, T, vocab_size).

    For placements with constants for such a pair: deep_norm, sub_norm, t_fixup. The others have
    those of each stack by itself. The encoder sees its whole sequence; a target token sees those
    before it and the source.

    >>> pair = nw.EncoderDecoder(nw.TransformerConfig(placement="deep_norm"), 6, 6, seed=0)
    >>> round(pair.encoder.placement.connections[0].alpha, 4)
    1.4179

    Args:
        config: what both are made of; its `depth` and `causal` have no use here.
        encoder_depth: layers of the encoder.
        decoder_depth: layers of the decoder.
        seed: of the initial weights; None draws them from torch's global generator.
    """

    def __init__(
        self,
        config: TransformerConfig,
        encoder_depth: int,
        decoder_depth: int,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        encoder = replace(config, causal=False, depth=encoder_depth)
        decoder = replace(config, causal=True, depth=decoder_depth)
        self.config = config
        self.source = Entry(encoder)
        self.encoder = LayerStack(encoder, Stack(encoder_depth, 2, "encoder", decoder_depth))
        self.target = Entry(decoder)
        self.decoder = LayerStack(decoder, Stack(decoder_depth, 3, "decoder", encoder_depth))
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.reset_parameters(seed)

    def forward(
        self,
        source_ids: Tensor,
        target_ids: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, vocab_size); masks (B, S) and (B, T) are True for valid tokens."""
        for part, mask in ((self.source, source_mask), (self.encoder, source_mask),
                           (self.target, target_mask), (self.decoder, target_mask)):  # fmt: skip
            mask_norms(part, self.config, mask)
        for layer in self.decoder.layers:
            if layer.cross_attention is not None:
                mask_norms(layer.cross_attention.key_norm, self.config, source_mask)
        memory = self.encoder.run(self.source(source_ids, None), source_mask)
        out = self.decoder.run(self.target(target_ids, None), target_mask, memory, source_mask)
        logits: Tensor = self.head(out)
        return logits

    def weights(self) -> Iterator[tuple[Stack, Iterator[Weight]]]:
        """Every weight matrix with its role, by the stack whose constants it follows."""
        yield self.encoder.stack, chain(self.source.weights(), self.encoder.layer_weights())
        yield (
            self.decoder.stack,
            chain(
                self.target.weights(),
                self.decoder.layer_weights(),
                [Weight(self.head.weight, "head")],
            ),
        )

    def recipes(self, tokens: int) -> list[Recipe | None] | str:
        """The encoder's recipe, and none for the decoder, whose cross-attention reads another
        stream; or why theory expects nothing.
        """
        encoder = self.encoder
        return why_no_recipe(self.config) or [recipe(encoder.config, tokens, encoder.stack), None]

    def reset_parameters(self, seed: int | None = None) -> None:
        """Draws the weights as `config.init` says; biases, gains and factors as they start."""
        if self.config.tied_head:
            self.head.weight = self.target.embedding.weight
        generator = None
        if seed is not None:
            generator = torch.Generator(self.head.weight.device).manual_seed(seed)
        for entry in (self.source, self.target):
            entry.reset_scale()
        reset_gains(self)
        if not self.head.weight.is_meta:
            for stack, weights in self.weights():
                initialize(weights, str(self.config.init), stack, generator)
