"""Self-attention. Shapes: B batch, T tokens, D width, H heads, K width of a head."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from normwise.model.config import TransformerConfig
from normwise.norms.registry import make_norm


class Attention(nn.Module):
    """softmax(q k^T/sqrt(K)) v over the heads, (B, T, D) to (B, T, D).

    Norms of queries and keys come before the rotation, as in Qwen 3 and OLMo 2.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.causal = config.causal
        self.query = nn.Linear(config.width, config.width, bias=config.bias)
        self.key = nn.Linear(config.width, config.width, bias=config.bias)
        self.value = nn.Linear(config.width, config.width, bias=config.bias)
        self.output = nn.Linear(config.width, config.width, bias=config.bias)
        self.norm_axis = config.query_key_norm
        self.query_norm = _query_key_norm(config)
        self.key_norm = _query_key_norm(config)
        self.rotary = Rotary(config.head_width) if config.positions == "rotary" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        query = self._rotated(self.query(x), self.query_norm)
        key = self._rotated(self.key(x), self.key_norm)
        value = self._by_head(self.value(x))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))  # (B, H, T, K) to (B, T, D)
        return out

    def _rotated(self, x: Tensor, norm: nn.Module) -> Tensor:
        if self.norm_axis == "full":
            return self.rotary(self._by_head(norm(x)))  # type: ignore[no-any-return]
        return self.rotary(norm(self._by_head(x)))  # type: ignore[no-any-return]

    def _by_head(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, H, T, K)."""
        heads: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return heads


def _query_key_norm(config: TransformerConfig) -> nn.Module:
    if config.query_key_norm == "none":
        return nn.Identity()
    width = config.head_width if config.query_key_norm == "head" else config.width
    return make_norm(
        config.norm, width, eps=config.norm_eps, affine=config.affine, bias=config.bias
    )


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
