"""Where the residual stream of a model runs, and which norm stands where on it.

Read off the data flow of one forward pass (`trace`). A residual add is an addition whose one
operand, the skip, is what the other, the branch, was made from by way of a weight matrix, or is
itself a stream. Norms are named by where they stand:

    pre       its input is a stream that is also a skip
    post      its input is a residual add, and its result the next skip
    output    its result is a branch
    qk        its result reaches attention without passing a matrix
    embed     before the first residual add
    final     on the stream, after the last one
    inner     any other within a branch
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import nn

from normwise.anatomy.graph import Graph, Node
from normwise.anatomy.trace import trace
from normwise.errors import AnatomyUnknown

SUM_WITHIN = 0.02  # of the largest entry; two roundings of bf16 come to 0.008
THROUGH = ("carry", "scale")  # what a value passes and stays the same signal


@dataclass(frozen=True)
class Connection:
    """One residual add.

    Args:
        add: the sum.
        skip: the stream before it.
        branch: what is added.
        start: the stream that the branch starts from; of parallel ones it is not the skip.
        kind: "attention" or "feed_forward".
        norms: names of the norms that belong to it: pre, post, output.
        parallel: another branch starts from the same stream.
    """

    add: Node
    skip: Node
    branch: Node
    start: Node
    kind: str
    norms: tuple[str, ...]
    parallel: bool


@dataclass(frozen=True)
class PlacedNorm:
    """A norm and where it stands."""

    node: Node
    place: str


@dataclass(frozen=True)
class Anatomy:
    """What was found in a model.

    Args:
        graph: what all of it was read from.
        connections: the residual adds in order.
        norms: every norm with its place.
        placement: of the middle of the stack: "pre", "post", "output", "sandwich" or "none".
        parallel: attention and feed-forward start from one stream there.
    """

    graph: Graph
    connections: list[Connection]
    norms: list[PlacedNorm]
    placement: str
    parallel: bool


def anatomy(model: nn.Module, *inputs: Any, **named: Any) -> Anatomy:
    """The anatomy of a model, from one forward pass in evaluation on real inputs.

    Raises:
        AnatomyUnknown: no residual stream was found, or one of which parts do not add up.
    """
    return read(trace(model, *inputs, **named))


def read(graph: Graph) -> Anatomy:
    """The anatomy that a data flow shows."""
    adds = _residual_adds(graph)
    if not adds:
        raise AnatomyUnknown(
            "A residual stream is a sum of a signal and a branch of it that has a weight matrix. "
            "None was found in this pass. Pass a batch of the shape that the model is trained on."
        )
    stack = _Stack(
        adds,
        [node for node in graph.nodes if node.kind == "attention"],
        [node for node in graph.nodes if node.kind == "linear"],
    )
    places = {node: _place(node, stack) for node in graph.nodes if node.kind == "norm"}
    if Counter(places.values())["post"] * 2 > len(adds):
        last = [node for node, place in places.items() if place == "final"]
        places |= dict.fromkeys(last, "post")  # behind the last add, and one of the others
    connections = [_connection(add, stack, places) for add in adds.values()]
    _check_chain(stack)
    _check_sums(connections)
    placement, parallel = _placement(connections)
    norms = [PlacedNorm(node, place) for node, place in places.items()]
    return Anatomy(graph, connections, norms, placement, parallel)


@dataclass(frozen=True)
class _Add:
    node: Node
    skip: Node
    branch: Node


def source(node: Node) -> Node:
    """What a value is but for its shape, place and scale."""
    while node.kind in THROUGH and node.inputs:
        node = node.inputs[0]
    return node


def unnormed(skip: Node) -> Node:
    """The sum that a skip is, or is the norm of."""
    return source(skip.inputs[0]) if skip.kind == "norm" else skip


def _residual_adds(graph: Graph) -> dict[Node, _Add]:
    """All residual adds of the width that most of them have."""
    matrices = [node for node in graph.nodes if node.kind in ("linear", "attention")]
    found: dict[Node, _Add] = {}
    for node in graph.nodes:
        if node.kind == "add":
            first, second = map(source, node.inputs)
            for skip, branch in ((first, second), (second, first)):
                if _is_residual(skip, branch, found, matrices):
                    found[node] = _Add(node, skip, branch)
                    break
    widths = Counter(node.value.shape[-1] for node in found)
    width = max(widths, key=lambda size: widths[size], default=0)
    return {node: add for node, add in found.items() if node.value.shape[-1] == width}


def _is_residual(skip: Node, branch: Node, found: dict[Node, _Add], matrices: list[Node]) -> bool:
    if skip.value.ndim > 3:
        return False
    begins = found[skip].skip if skip in found else skip
    return any(
        branch.depends_on(matrix) and (matrix.depends_on(skip) or matrix.depends_on(begins))
        and not (skip in found and skip.depends_on(matrix))
        for matrix in matrices
    )  # fmt: skip


@dataclass(frozen=True)
class _Stack:
    """What places are told from."""

    adds: dict[Node, _Add]
    attentions: list[Node]
    matrices: list[Node]

    @property
    def skips(self) -> set[Node]:
        return {add.skip for add in self.adds.values()}

    @property
    def branches(self) -> set[Node]:
        return {add.branch for add in self.adds.values()}

    @property
    def ends(self) -> set[Node]:
        """Sums that no stream goes on from: a pair of stacks has two."""
        return set(self.adds) - {unnormed(skip) for skip in self.skips}


def _place(node: Node, stack: _Stack) -> str:
    """Where a norm stands."""
    before = source(node.inputs[0])
    if node in stack.branches:
        return "output"
    if before in stack.adds and node in stack.skips:
        return "post"
    if before in stack.skips:
        return "pre"
    if _reaches_attention(node, stack):
        return "qk"
    if before in stack.ends:
        return "final"
    if not any(node.depends_on(skip) for skip in stack.skips - {node}):
        return "embed"
    return "inner"


def _reaches_attention(node: Node, stack: _Stack) -> bool:
    """Whether a value enters attention without passing a matrix."""
    return any(
        attention.depends_on(node)
        and not any(
            attention.depends_on(matrix) and matrix.depends_on(node) for matrix in stack.matrices
        )
        for attention in stack.attentions
    )


def _connection(add: _Add, stack: _Stack, places: dict[Node, str]) -> Connection:
    start = _start(add, stack.adds)
    own = [node for node in places if add.branch.depends_on(node) and not start.depends_on(node)]
    norms = {places[node] for node in own if places[node] in ("pre", "output")}
    if any(place == "post" and source(n.inputs[0]) is add.node for n, place in places.items()):
        norms.add("post")
    attends = any(_within(add, attention) for attention in stack.attentions)
    return Connection(
        add.node, add.skip, add.branch, start, "attention" if attends else "feed_forward",
        tuple(sorted(norms)), _is_parallel(add, stack),
    )  # fmt: skip


def _start(add: _Add, adds: dict[Node, _Add]) -> Node:
    """The stream that a branch starts from: of parallel ones, the one before the first is added."""
    skip = add.skip
    while skip in adds and not add.branch.depends_on(skip):
        skip = adds[skip].skip
    return skip


def _within(add: _Add, node: Node) -> bool:
    return add.branch.depends_on(node) and not add.skip.depends_on(node)


def _is_parallel(add: _Add, stack: _Stack) -> bool:
    """Whether attention and another branch start from one stream: as a sum of two that is added, or
    as a branch that does not see the sum before it.
    """
    inner = source(add.branch)
    if inner.kind == "add":
        attends = [any(one.depends_on(a) and _within(add, a) for a in stack.attentions)
                   for one in inner.inputs]  # fmt: skip
        if attends.count(True) == 1:
            return True
    return add.skip in stack.adds and not add.branch.depends_on(add.skip)


def _check_chain(stack: _Stack) -> None:
    """Raises `AnatomyUnknown` where a skip starts anew: a part of the stack was not seen."""
    for at, add in enumerate(stack.adds.values()):
        came_from = unnormed(add.skip)
        earlier = list(stack.adds)[:at]
        if came_from not in earlier and any(add.skip.depends_on(node) for node in earlier):
            raise AnatomyUnknown(
                f"A stream runs from one residual add to the next. The skip of number {at} is "
                f"neither the sum before it nor a norm of it, so a part of the model was not "
                f"understood. Name the points of the stream yourself."
            )


def _check_sums(connections: list[Connection]) -> None:
    """Raises `AnatomyUnknown` where a stream is not what it was before and what is added."""
    for at, connection in enumerate(connections):
        total, parts = connection.add.value, [node.value for node in connection.add.inputs]
        apart = (total - parts[0] - parts[1]).abs().max()
        if not float(apart) <= SUM_WITHIN * float(total.abs().max()):
            raise AnatomyUnknown(
                f"A stream is what it was before and what a branch adds. At the residual add "
                f"number {at} the two are {float(apart):.2g} away from their sum. Name the points "
                f"of the stream yourself."
            )


def _placement(connections: list[Connection]) -> tuple[str, bool]:
    """What most connections of the middle third are."""
    third = len(connections) // 3
    middle = connections[third : len(connections) - third] or connections
    kinds = Counter(_name(connection.norms) for connection in middle)
    placement = max(kinds, key=lambda name: kinds[name])
    return placement, sum(connection.parallel for connection in middle) * 2 >= len(middle)


def _name(norms: tuple[str, ...]) -> str:
    if norms == ("output", "pre"):
        return "sandwich"
    return norms[0] if len(norms) == 1 else "+".join(norms) or "none"
