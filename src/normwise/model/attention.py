"""Attention. Shapes: B batch, T tokens, D width, H heads, K width of a head."""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

from normwise.model.config import TransformerConfig
from normwise.model.places import place_norm
from normwise.theory.scaling import query_key_scale


class Attention(nn.Module):
    """softmax(q k^T/sqrt(K)) v over the heads, (B, T, D) to (B, T, D).

    Norms of queries and keys come before the rotation, as in Qwen 3 and OLMo 2.

    Args:
        config: what it is made of; its placement says which norms stand inside.
        layer: counted from 0.
        cross: keys and values come from another stack, without positions of their own.
    """

    def __init__(self, config: TransformerConfig, layer: int, *, cross: bool = False) -> None:
        super().__init__()
        self.heads = config.heads
        self.causal = config.causal and not cross
        self.query = nn.Linear(config.width, config.width, bias=config.bias)
        self.key = nn.Linear(config.width, config.width, bias=config.bias)
        self.value = nn.Linear(config.width, config.width, bias=config.bias)
        self.output = nn.Linear(config.width, config.width, bias=config.bias)
        self.norm_axis = config.query_key_norm
        self.query_norm, self.key_norm = _query_key_norms(config, layer)
        inside = config.placement_row.inside
        self.value_norm = _norm_if(inside.value, config, "value", layer, config.head_width)
        self.output_norm = _norm_if(inside.attention_output, config, "inner", layer, config.width)
        self.scale_before = _head_scale(config, "before")
        self.scale_after = _head_scale(config, "after")
        rotates = config.positions == "rotary" and not cross
        self.rotary = Rotary(config.head_width) if rotates else nn.Identity()

    def forward(
        self, x: Tensor, source: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Attends from x to itself or to `source`; a mask (B, 1, T or 1, keys) is True for the keys
        that a query may see, and takes the place of the causal one.
        """
        source = x if source is None else source
        query, key = self._query_and_key(x, source)
        value = self.value_norm(self._by_head(self.value(source)))
        mixed = scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=self.causal and mask is None
        )
        joined = self.scale_before(mixed.transpose(1, 2).flatten(2))  # (B, H, T, K) to (B, T, D)
        out: Tensor = self.scale_after(self.output(self.output_norm(joined)))
        return out

    def logits(self, x: Tensor, source: Tensor | None = None) -> Tensor:
        """q k^T/sqrt(K), (B, H, T, keys), as the softmax gets them but for the mask."""
        query, key = self._query_and_key(x, x if source is None else source)
        scaled: Tensor = query @ key.mT / query.shape[-1] ** 0.5
        return scaled

    def _query_and_key(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        query = self._rotated(self.query(x), self.query_norm)
        return query, self._rotated(self.key(source), self.key_norm)

    def _rotated(self, x: Tensor, norm: nn.Module) -> Tensor:
        if self.norm_axis == "full":
            return self.rotary(self._by_head(norm(x)))  # type: ignore[no-any-return]
        return self.rotary(norm(self._by_head(x)))  # type: ignore[no-any-return]

    def _by_head(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, H, T, K)."""
        heads: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return heads


def _query_key_norms(config: TransformerConfig, layer: int) -> tuple[nn.Module, nn.Module]:
    if config.query_key_norm == "unit":
        return UnitQuery(config.head_width, query_key_scale(config.max_len)), Unit()
    width = config.head_width if config.query_key_norm == "head" else config.width
    present = config.query_key_norm != "none"
    query, key = (_norm_if(present, config, "query_key", layer, width) for _ in range(2))
    return query, key


def _norm_if(
    present: bool,  # noqa: FBT001
    config: TransformerConfig,
    site: str,
    layer: int,
    width: int,
) -> nn.Module:
    return place_norm(config, site, layer, width) if present else nn.Identity()


def _head_scale(config: TransformerConfig, place: str) -> nn.Module:
    present = config.placement_row.inside.head_scale == place
    return HeadScale(config.heads) if present else nn.Identity()


class Unit(nn.Module):
    """x/norm2(x) over the last axis; 0 stays 0."""

    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, dim=-1)


class UnitQuery(nn.Module):
    """g sqrt(K) x/norm2(x) over the last axis, K wide: with unit keys and attention's own
    1/sqrt(K) a logit is g times a cosine. Henry et al. 2020 (2010.04245), equation 5.
    """

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.root = width**0.5
        self.scale = nn.Parameter(torch.tensor(start))

    def reset_parameters(self) -> None:
        """g as it starts."""
        nn.init.constant_(self.scale, self.start)

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.scale * self.root * normalize(x, dim=-1)
        return scaled


class HeadScale(nn.Module):
    """A learned number for each head of (..., H K), 1 at the start; Shleifer et al. 2021
    (2110.09456), section 2.1.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads))

    def reset_parameters(self) -> None:
        """1 for each head."""
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        by_head = x.unflatten(-1, (len(self.weight), -1))
        scaled: Tensor = (self.weight[:, None] * by_head).flatten(-2)
        return scaled


class Rotary(nn.Module):
    """Rotates pairs of (..., T, K) by position * base^(-2i/K); Su et al. 2021 (2104.09864)."""

    def __init__(self, width: int, base: float = 10000.0) -> None:
        super().__init__()
        self.width = width
        self.base = base

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.arange(0, self.width, 2, device=x.device, dtype=torch.float32)
        tokens = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
        angle = torch.outer(tokens, self.base ** (-pairs / self.width))
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
