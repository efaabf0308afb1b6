"""A stack of layers as the constants of papers see it."""

from dataclasses import dataclass

BRANCHES = {
    1: ("feed_forward",),
    2: ("attention", "feed_forward"),
    3: ("attention", "cross_attention", "feed_forward"),
}


@dataclass(frozen=True)
class Stack:
    """Depth of a stack, and whether another one stands beside it.

    Args:
        depth: its layers.
        branches: residual branches in a layer: 1 without attention, 2 with it, 3 with
            cross-attention.
        part: "whole", or "encoder" or "decoder" of a pair.
        other_depth: layers of the other stack of a pair.
    """

    depth: int
    branches: int = 2
    part: str = "whole"
    other_depth: int = 0

    @property
    def sublayers(self) -> int:
        """Residual branches in the stack: 2 L where a layer has attention and feed-forward."""
        return self.depth * self.branches

    @property
    def kinds(self) -> tuple[str, ...]:
        """The branches of a layer in order."""
        return BRANCHES[self.branches]
