"""Logits and weights of every attention of a pass, from what softmax or torch's fused attention is
called with.

A logit is q.k times the scale. Where a model gives the logits to a softmax itself, with whatever is
added to them, those are read.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from normwise.probe.tally import Tally

MASKED = -3e4  # a logit below it is a mask's: the least one is that of fp16, -65504
Guard = Callable[[object, Callable[[], None]], None]
ROWS = 64  # queries at a time, and of a sample
FEWEST_KEYS = 32  # for an entropy: of fewer it says little
NOTHING = 1e-3  # of the weight: what is left beside the first key says nothing of the others
SAMPLED_SEQUENCES = 1
SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}


class AttentionWatch(TorchFunctionMode):
    """Adds to a tally, for the attention number a of a pass and its H heads:

        sums    ("attended", a)  calls
                ("entropy", a)   H entropies, H counts of queries, one of those skipped
        maxima  ("logit", a)     H largest magnitudes
                ("bound", a)     H bounds max norm2(q) max norm2(k) |scale|

    Args:
        tally: to add to.
        exact: all queries of all sequences; else some of one sequence.
        choose: gives the numbers of some of n queries; None takes the first 64.
        guard: calls what is measured, and keeps its errors from the model.
    """

    def __init__(
        self, tally: Tally, *, exact: bool, choose: Callable[[int], list[int]] | None = None,
        guard: Guard | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tally = tally
        self.exact = exact
        self.choose = choose or (lambda queries: list(range(min(queries, ROWS))))
        self.guard = guard or (lambda where, work: work())
        self.number = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self._within(func):
            out = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self._measure(self._fused, *args, **kwargs)
        elif func in SOFTMAX and _is_attention(args, kwargs):
            self._measure(self._given, args[0] if args else kwargs["input"])
        return out

    def _measure(self, work: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Our own operations are none of the model, not of its precision, and not in its graph."""

        def measured() -> None:
            with (
                torch._C.DisableTorchFunction(), torch.no_grad(),
                torch.autocast(args[0].device.type, enabled=False),
            ):  # fmt: skip
                self.tally.add(("attended", self.number), torch.ones(1))
                work(*args, **kwargs)

        self.guard(("attention", self.number), measured)
        self.number += 1

    @contextmanager
    def _within(self, func: Any) -> Iterator[None]:
        """torch's multi-head attention is one function to a mode, which does not see the attention
        that it calls by the name in its module.
        """
        if func is not F.multi_head_attention_forward:
            yield
            return
        plain = F.scaled_dot_product_attention

        def seen(*args: Any, **kwargs: Any) -> Tensor:
            self._measure(self._fused, *args, **kwargs)
            return plain(*args, **kwargs)

        F.scaled_dot_product_attention = seen
        try:
            yield
        finally:
            F.scaled_dot_product_attention = plain

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        scale: float | None = None,
        enable_gqa: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        query, key = query.detach(), key.detach()
        if enable_gqa and key.shape[-3] != query.shape[-3]:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
        if query.ndim == 3 and attn_mask is not None and attn_mask.ndim == 3:
            attn_mask = attn_mask[:, None]
        query, key = _by_head(query), _by_head(key)
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        longest = [torch.linalg.vector_norm(_wide(x), dim=-1).amax(-1) for x in (query, key)]
        bound = (longest[0] * longest[1]).flatten(0, -2).amax(0) * abs(factor)
        self.tally.rise(("bound", self.number), bound)
        for rows in self._rows(query.shape[-2]):
            seen = self._sequences(max(query.shape[0], key.shape[0]))
            q, k = _wide(query[:seen][..., rows, :]), _wide(key[:seen])
            logits = q @ k.mT * factor
            valid, added = _masked(attn_mask, rows, query.shape[-2], logits, is_causal=is_causal)
            self._add(logits, logits if added is None else logits + added, valid)

    def _given(self, logits: Tensor) -> None:
        logits = logits.detach()
        for rows in self._rows(logits.shape[-2]):
            some = _wide(logits[: self._sequences(logits.shape[0])][..., rows, :])
            self._add(some, some, some > MASKED)

    def _sequences(self, there: int) -> int:
        return there if self.exact else min(there, SAMPLED_SEQUENCES)

    def _rows(self, queries: int) -> Iterator[list[int] | slice]:
        if not self.exact:
            yield self.choose(queries)
            return
        for start in range(0, queries, ROWS):
            yield slice(start, min(start + ROWS, queries))

    def _add(self, logits: Tensor, sums: Tensor, valid: Tensor) -> None:
        """Of (B, H, R, S): logits for their size, `sums` as softmax sees them."""
        size = logits.abs().masked_fill(~valid, 0.0).flatten(2).amax(-1).flatten(0, -2).amax(0)
        self.tally.rise(("logit", self.number), size)
        weights = sums.masked_fill(~valid, -math.inf).softmax(-1)[..., 1:]
        keys = valid[..., 1:].sum(-1)
        rest = weights.sum(-1)
        counts = keys >= FEWEST_KEYS
        told = counts & (rest > NOTHING)
        share = weights / rest.clamp_min(1e-30)[..., None]
        entropy = -torch.xlogy(share, share).sum(-1) / keys.clamp_min(2).log()
        heads = (0, *range(2, entropy.ndim))
        self.tally.add(("entropy", self.number), torch.cat((
            torch.where(told, entropy, 0.0).sum(heads), told.expand_as(entropy).sum(heads),
            (counts & ~told).expand_as(entropy).sum()[None],
        )))  # fmt: skip


def _by_head(x: Tensor) -> Tensor:
    """(B, H, T, K); without a head axis, or one that is one with the batch's, as of one head."""
    if x.ndim == 3:
        return x[:, None]
    return x[None, None] if x.ndim == 2 else x


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _masked(
    mask: Tensor | None, rows: list[int] | slice, queries: int, logits: Tensor, *, is_causal: bool
) -> tuple[Tensor, Tensor | None]:
    """Which pairs count, and what is added to their logits."""
    valid = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device)
    if is_causal:
        own = torch.arange(queries, device=logits.device)[rows]
        valid = torch.arange(logits.shape[-1], device=logits.device) <= own[:, None]
    if mask is None:
        return valid, None
    mask = mask[: logits.shape[0]] if mask.ndim == 4 and mask.shape[0] > 1 else mask
    if mask.shape[-2] != 1:
        mask = mask[..., rows, :]
    if mask.dtype == torch.bool:
        return valid & mask, None
    return valid & (mask > MASKED), mask.float()


def _is_attention(args: Any, kwargs: Any) -> bool:
    """A softmax over keys: of four axes, and over the last."""
    x = args[0] if args else kwargs.get("input")
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return isinstance(x, Tensor) and x.ndim == 4 and dim in (-1, 3)
