"""The data flow of a pass as a graph of tensors."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from normwise.anatomy.leaves import Path
from normwise.anatomy.norm_kind import NormKind


@dataclass(frozen=True)
class Tap:
    """A place at a module's edge where a tensor can be seen by a hook.

    Args:
        module: path of the module.
        side: "in", what it is called with as (args, kwargs), or "out", what it gives.
        path: the way to the tensor in that.
        call: of the module within a pass, counted from 0.
    """

    module: str
    side: str
    path: Path
    call: int


@dataclass(eq=False)
class Node:
    """A tensor of the pass, and how it came to be.

    Args:
        index: in the order of the pass.
        kind: "input", "linear", "embedding", "norm", "attention", "add", "scale" (times a number or
            a parameter), "carry" (the same entries) or "other".
        inputs: what it was made from.
        value: the tensor itself.
        module: path of the module that made it, for a node that is one.
        norm: what the norm is, for a norm.
        taps: where modules take or give it, in the order of the pass.
    """

    index: int
    kind: str
    inputs: list["Node"]
    value: Tensor
    module: str = ""
    norm: NormKind | None = None
    taps: list[Tap] = field(default_factory=list)
    before: int = 0  # bits of all nodes it depends on, itself among them

    def depends_on(self, other: "Node") -> bool:
        return bool(self.before >> other.index & 1)


@dataclass
class Graph:
    """All nodes in the order of the pass."""

    nodes: list[Node] = field(default_factory=list)

    def add(self, kind: str, inputs: list[Node], value: Tensor, **rest: Any) -> Node:
        """One more node."""
        node = Node(len(self.nodes), kind, inputs, value, **rest)
        node.before = 1 << node.index
        for one in inputs:
            node.before |= one.before
        self.nodes.append(node)
        return node
