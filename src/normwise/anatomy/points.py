"""Where hooks see the residual stream, its branches and its norms, as plain data.

Made from an `Anatomy`, whose tensors can go afterwards; or, for a model that `anatomy` does not
understand, from the modules that a pattern names.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from normwise.anatomy.graph import Graph, Node, Tap
from normwise.anatomy.leaves import leaf, leaves
from normwise.anatomy.module_kind import module_key
from normwise.anatomy.norm_semantics import norm_semantics
from normwise.anatomy.stream import Anatomy, Connection, PlacedNorm, source
from normwise.errors import AnatomyUnknown, SettingError


@dataclass(frozen=True)
class At:
    """A place that a hook reads.

    Args:
        tap: where.
        factor: what the tensor there is multiplied with, in RMS, before it is used.
        read: gives the tensor of what lies there; None where it is a tensor itself.
    """

    tap: Tap
    factor: float = 1.0
    read: Callable[[Any], Tensor | None] | None = None

    def tensor(self, tree: Any) -> Tensor | None:
        """The tensor in what a module takes or gives; None where there is none of floats."""
        there = leaf(tree, self.tap.path)
        if self.read is not None and there is not None:
            there = self.read(there)
        return there if isinstance(there, Tensor) and there.is_floating_point() else None


@dataclass(frozen=True)
class ConnectionPoints:
    """One residual add: what goes in, and whose weights make the branch.

    Args:
        kind: "attention", "feed_forward" or "block" (both at once).
        layer: within its stack, counted from 0.
        skip: the stream before it, its factor that on the skip; None where no module takes or gives
            it.
        branch: what is added. None where no module gives it: then it is read as a difference of
            the streams around it.
        modules: paths of the leaf modules that the branch runs through.
        attention: numbers of the attentions in it, in the order of the pass.
    """

    kind: str
    layer: int
    skip: At | None
    branch: At | None
    modules: tuple[str, ...]
    attention: tuple[int, ...] = ()


@dataclass(frozen=True)
class StackPoints:
    """The connections of one stream, and the stream after the last of them; its width, 0 where it
    is not known.
    """

    connections: list[ConnectionPoints]
    last: At | None
    width: int = 0


@dataclass(frozen=True)
class NormPoint:
    """A norm: where it stands, what it computes, and what it is given.

    Args:
        name: path of its module; empty for one that is written out in single operations.
        place: as in `stream`.
        layer: of the connection that it belongs to or stands before; None outside of them.
        formula: "layer_norm" or "rms_norm".
        eps: its own; None where it could not be told.
        semantics: rounding order and offset, in words for a reader; empty where unknown.
        unit_offset: its gain is 1 + weight.
        at: what it is given; None where no module takes it.
    """

    name: str
    place: str
    layer: int | None
    formula: str
    eps: float | None
    semantics: str
    unit_offset: bool
    at: At | None


@dataclass(frozen=True)
class Points:
    """All there is to be read in a model.

    Args:
        placement: "pre", "post", "output", "sandwich", "none", or several with a plus.
        parallel: attention and feed-forward start from one stream.
        stacks: one, or an encoder and a decoder.
        norms: all of them.
        missing: what no hook can see, a line each.
        attentions: in a pass, those outside of the stacks too.
    """

    placement: str
    parallel: bool
    stacks: list[StackPoints]
    norms: list[NormPoint] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    attentions: int = 0


def points(model: nn.Module, found: Anatomy) -> Points:
    """The points of a model whose anatomy is known."""
    taps = _Taps(found.graph)
    attentions = _attentions(found.graph)
    stacks = [
        _stack(part, taps, found.graph, attentions) for part in _parts(found.connections)
    ]  # fmt: skip
    layers = _layers_of_nodes(found.connections, stacks)
    semantics = _Semantics(model)
    norms = [
        semantics.point(norm.node, norm.place, layers(norm), taps)
        for norm in found.norms
    ]  # fmt: skip
    return Points(
        found.placement, found.parallel, stacks, norms, _missing(stacks, norms), len(attentions)
    )  # fmt: skip


def named_points(model: nn.Module, pattern: str) -> Points:
    """Points at the blocks whose path matches `pattern`: each takes and gives the stream as its
    first tensor, and its branch is what it adds.

    Raises:
        AnatomyUnknown: fewer than two modules match.
        SettingError: the pattern is no regular expression.
    """
    try:
        names = [name for name, _ in model.named_modules() if re.fullmatch(pattern, name)]
    except re.error as error:
        raise SettingError(
            f"pattern must be a regular expression. {pattern!r} is none: {error}."
        ) from error
    if len(names) < 2:
        raise AnatomyUnknown(
            f"A pattern must match the paths of at least two blocks. {pattern!r} matches "
            f"{len(names)}. Take it from model.named_modules(), as in 'model\\.layers\\.\\d+'."
        )
    connections = [
        ConnectionPoints(
            "block", layer, At(Tap(name, "in", (), 0), read=_first), None,
            tuple(f"{name}.{leaf}" for leaf, module in model.get_submodule(name).named_modules()
                  if not any(module.children())),
        )
        for layer, name in enumerate(names)
    ]  # fmt: skip
    last = At(Tap(names[-1], "out", (), 0), read=_first)
    return Points("not told", parallel=False, stacks=[StackPoints(connections, last)])


def _first(tree: Any) -> Tensor | None:
    """The first tensor of floats with an axis of tokens in what a block takes or gives."""
    floats = (x for _, x in leaves(tree) if x.is_floating_point() and x.ndim >= 2)
    return next(floats, None)


def _attentions(graph: Graph) -> list[list[Node]]:
    """The results of each attention in the order of the pass: some kernels give several."""
    found: list[list[Node]] = []
    for node in graph.nodes:
        if node.kind == "attention":
            if found and node.inputs is found[-1][0].inputs:
                found[-1].append(node)
            else:
                found.append([node])
    return found


class _Taps:
    """Taps by node: its own, or those of a node with the same entries."""

    def __init__(self, graph: Graph) -> None:
        self.same: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            self.same.setdefault(_origin(node), []).append(node)

    def at(self, node: Node, *, last: bool = False) -> At | None:
        """The first place, or the last, where a hook sees a value; behind a factor, before it."""
        alike = [one for one in self.same[_origin(node)] if one.index <= node.index or not last]
        taps = node.taps or [tap for one in alike for tap in one.taps]
        if taps:
            return At(taps[-1] if last else taps[0])
        origin = _origin(node)
        if origin.kind == "scale" and origin.inputs:
            inner = self.at(origin.inputs[0], last=last)
            return inner and At(inner.tap, inner.factor * _ratio(origin))
        return None


def _origin(node: Node) -> Node:
    """The first node with the same entries."""
    while (
        node.kind == "carry" and node.inputs and node.value.numel() == node.inputs[0].value.numel()
    ):
        node = node.inputs[0]
    return node


def _ratio(scaled: Node) -> float:
    """RMS after a factor over that before it."""
    before = scaled.inputs[0].value.float().square().mean().sqrt()
    return float(scaled.value.float().square().mean().sqrt() / before) if before else 1.0


def _parts(connections: list[Connection]) -> list[list[Connection]]:
    """Connections by stream: a new one begins where a skip does not come from the add before."""
    parts: list[list[Connection]] = []
    for connection in connections:
        if parts and connection.add.depends_on(parts[-1][-1].add) and _continues(
            connection, parts[-1]
        ):  # fmt: skip
            parts[-1].append(connection)
        else:
            parts.append([connection])
    return parts


def _continues(connection: Connection, part: list[Connection]) -> bool:
    return any(connection.skip.depends_on(before.add) for before in part)


def _stack(
    part: list[Connection], taps: _Taps, graph: Graph, attentions: list[list[Node]]
) -> StackPoints:
    kinds = [connection.kind for connection in part]
    return StackPoints(
        [
            _connection(connection, layer, taps, graph, attentions)
            for connection, layer in zip(part, _layers(kinds), strict=True)
        ],
        taps.at(_last(part[-1], graph)),
        part[0].add.value.shape[-1],
    )


def _last(connection: Connection, graph: Graph) -> Node:
    """The stream after a connection: its sum, or the norm of the sum in a post-norm stack."""
    if "post" in connection.norms:
        for node in graph.nodes:
            if node.kind == "norm" and _origin(node.inputs[0]) is _origin(connection.add):
                return node
    return connection.add


def _connection(
    connection: Connection, layer: int, taps: _Taps, graph: Graph, attentions: list[list[Node]]
) -> ConnectionPoints:
    first, second = connection.add.inputs
    skip, branch = (
        (first, second) if source(first) is connection.skip else (second, first)
    )  # fmt: skip
    within = [
        node for node in graph.nodes
        if node.index > connection.start.index  # an encoder lies before it
        and connection.branch.depends_on(node) and not connection.skip.depends_on(node)
    ]  # fmt: skip
    return ConnectionPoints(
        connection.kind, layer, taps.at(skip), taps.at(branch, last=True),
        tuple(dict.fromkeys(node.module for node in within if node.module)),
        tuple(number for number, one in enumerate(attentions) if one[0] in within),
    )  # fmt: skip


def _layers(kinds: list[str]) -> list[int]:
    """The layer of each connection: it begins with an attention behind a feed-forward branch; where
    one kind is all there is, every connection is one.
    """
    if len(set(kinds)) == 1:
        return list(range(len(kinds)))
    layers, layer = [], 0
    for at, kind in enumerate(kinds):
        layer += at > 0 and kind == "attention" and kinds[at - 1] == "feed_forward"
        layers.append(layer)
    return layers


def _layers_of_nodes(
    connections: list[Connection], stacks: list[StackPoints]
) -> Callable[[PlacedNorm], int | None]:
    """The layer that a norm belongs to: of the first add that it goes into or stands behind."""
    flat = [one.layer for stack in stacks for one in stack.connections]

    def layer(norm: PlacedNorm) -> int | None:
        node = norm.node
        if norm.place in ("embed", "final"):
            return None
        for at, connection in enumerate(connections):
            behind = node.inputs and _origin(node.inputs[0]) is _origin(connection.add)
            if connection.branch.depends_on(node) or (behind and "post" in connection.norms):
                return flat[at]
        return None

    return layer


class _Semantics:
    """What norm modules compute; each kind of module is tried once."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = dict(model.named_modules())
        self.known: dict[object, tuple[float | None, str, bool]] = {}

    def point(self, node: Node, place: str, layer: int | None, taps: _Taps) -> NormPoint:
        formula = node.norm.formula if node.norm else ""
        return NormPoint(
            node.module, place, layer, formula, *self._told(node), taps.at(node.inputs[0])
        )  # fmt: skip

    def _told(self, node: Node) -> tuple[float | None, str, bool]:
        if not node.module:
            eps = node.norm.eps if node.norm else None
            return eps, "written out in single operations", False
        module, width = self.modules[node.module], node.value.shape[-1]
        key = module_key(module, width)
        if key not in self.known:
            self.known[key] = _spelled(module, width)
        return self.known[key]


def _spelled(module: nn.Module, width: int) -> tuple[float | None, str, bool]:
    """eps, words for a reader, and whether the gain is 1 + weight."""
    found = norm_semantics(module, width)
    if found is None:
        return getattr(module, "eps", getattr(module, "variance_epsilon", None)), "", False
    words = [f"rounding {found.rounding}" if found.rounding else "",
             "gain 1 + weight" if found.unit_offset else ""]  # fmt: skip
    return found.eps, ", ".join(word for word in words if word), found.unit_offset


def _missing(stacks: list[StackPoints], norms: list[NormPoint]) -> list[str]:
    lines = []
    connections = [one for stack in stacks for one in stack.connections]
    unseen = sum(one.skip is None for one in connections) + sum(s.last is None for s in stacks)
    if unseen:
        lines.append(f"{unseen} points of the stream, which no module takes or gives")
    written = sum(norm.at is None for norm in norms)
    if written:
        lines.append(f"the inputs of {written} norms, which no module takes")
    return lines
