"""Norms that a model writes out in single operations."""

from collections.abc import Iterator

from normwise.anatomy.graph import Graph, Node
from normwise.anatomy.norm_kind import norm_kind

STEPS_BACK = 10  # operations from a norm's result to its input: 7 in a LayerNorm with gain and bias


def find_written_out(graph: Graph) -> None:
    """Makes a norm of what a model computes by single operations, from its rows to the last of them
    that is still one.
    """
    for node in graph.nodes:
        if node.kind not in ("other", "scale", "add"):
            continue
        fits = [
            (source, norm)
            for source in _through_a_row_statistic(node)
            if (norm := norm_kind(source.value, node.value)) is not None
        ]
        if fits:
            # the farthest source: a LayerNorm is also an RMSNorm of the rows that it has centred
            source, norm = fits[-1]
            for before in node.inputs:
                if before.kind == "norm" and before.inputs[:1] == [source]:
                    before.kind = "carry"
            node.kind, node.norm, node.inputs = "norm", norm, [source]


def _through_a_row_statistic(node: Node) -> Iterator[Node]:
    """Nodes of the same shape from which a value came by way of one number a row, nearest first."""
    shape = node.value.shape
    if len(shape) < 2 or not node.value.is_floating_point():
        return
    seen: set[Node] = set()
    front, statistic = list(node.inputs), False
    for _ in range(STEPS_BACK):
        statistic = statistic or any(one.value.shape == (*shape[:-1], 1) for one in front)
        following = [
            before
            for one in front
            if one.kind not in ("linear", "attention", "embedding", "input") and not one.module
            for before in one.inputs
        ]
        yield from (
            one for one in front if statistic and one.value.shape == shape and one not in seen
        )
        seen |= set(front)
        front = list(dict.fromkeys(following))
