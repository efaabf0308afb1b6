"""A small Transformer whose blocks can be called and answer in every way that models do."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

VOCAB, WIDTH, HEADS, TOKENS = 32, 16, 2, 40


@dataclass
class Answer:
    """An output that is no tensor."""

    nothing: None
    mask: Tensor
    hidden: Tensor


class Branch(nn.Module):
    """Causal attention, or a feed-forward layer."""

    def __init__(self, *, attends: bool, dropout: float = 0.0, inplace: bool = False) -> None:
        super().__init__()
        self.attends = attends
        self.inner = nn.Linear(WIDTH, 3 * WIDTH)
        self.relu = nn.ReLU(inplace=inplace)
        self.outer = nn.Linear(WIDTH if attends else 3 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner(x)
        if not self.attends:
            return self.dropout(self.outer(self.relu(inner)))
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in inner.chunk(3, dim=-1)
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dropout(self.outer(mixed.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    """Two pre-norm connections."""

    def __init__(self, style: str = "tensor", **options: Any) -> None:
        super().__init__()
        self.style = style
        self.before_attention = nn.LayerNorm(WIDTH)
        self.attention = Branch(attends=True, **options)
        self.before_feed_forward = nn.LayerNorm(WIDTH)
        self.feed_forward = Branch(attends=False, **options)

    def forward(self, hidden: Tensor, *, mask: Tensor | None = None) -> Any:
        hidden = hidden + self.attention(self.before_attention(hidden))
        hidden = hidden + self.feed_forward(self.before_feed_forward(hidden))
        valid = torch.ones(1, dtype=torch.bool)
        answers: dict[str, Any] = {
            "tensor": hidden, "tuple": (hidden, None, valid), "list": [None, valid, hidden],
            "dict": {"valid": valid, "hidden": hidden}, "dataclass": Answer(None, valid, hidden),
        }  # fmt: skip
        return answers[self.style]


PICK: dict[str, Callable[[Any], Tensor]] = {
    "tensor": lambda out: out,
    "tuple": lambda out: out[0],
    "list": lambda out: out[2],
    "dict": lambda out: out["hidden"],
    "dataclass": lambda out: out.hidden,
}


class Tiny(nn.Module):
    """Tokens (B, T) to logits.

    Args:
        style: how a block answers, a key of `PICK`.
        recompute: activation checkpointing of each block: None, "reentrant" or "saved".
        shared: one block is called at every depth.
    """

    def __init__(
        self, depth: int = 3, style: str = "tensor", recompute: str | None = None, *,
        shared: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        torch.manual_seed(0)
        self.style, self.recompute, self.depth = style, recompute, depth
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(style, **options) for _ in range(1 if shared else depth))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids)
        for index in range(self.depth):
            block = self.blocks[index % len(self.blocks)]
            called = partial(block, hidden=hidden, mask=None)
            if self.recompute is not None:
                reentrant = self.recompute == "reentrant"
                called = partial(checkpoint, block, hidden, use_reentrant=reentrant)
            hidden = PICK[self.style](called())
        out: Tensor = self.head(self.norm(hidden))
        return out


def ids(seed: int = 1, rows: int = 4) -> Tensor:
    return torch.randint(0, VOCAB, (rows, TOKENS), generator=torch.Generator().manual_seed(seed))


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
