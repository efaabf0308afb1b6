"""The data flow of one forward pass of any model, as a graph.

Every module without children is one node, and so is every operation between them, as torch's
dispatcher sees it. Names of modules are kept as labels and decide nothing.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from normwise.anatomy.leaves import Path, leaves
from normwise.anatomy.norm_kind import NormKind, norm_kind, probe_rows

# Operations whose result holds the entries of their first input, in another shape, dtype or place.
CARRIED = {
    "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "squeeze",
    "unsqueeze", "clone", "contiguous", "_to_copy", "alias", "detach", "slice", "select", "index",
    "split", "unbind", "chunk", "native_dropout", "dropout", "lift_fresh",
}  # fmt: skip


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


def trace(model: nn.Module, *inputs: Any, **named: Any) -> Graph:
    """One forward pass without gradients, in evaluation; modes, buffers and random state are as
    before.

    torch's fused encoder layers are switched off meanwhile, since a whole layer would be one
    operation.
    """
    recorder = _Recorder(model)
    modes = [(module, module.training) for module in model.modules()]
    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            buffers_kept(model), torch.no_grad(), torch.random.fork_rng(devices=cuda),
            recorder.open(),
        ):  # fmt: skip
            model.eval()(*inputs, **named)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, training in modes:
            module.training = training
    _find_written_out(recorder.graph)
    return recorder.graph


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Puts back the buffers, those that a module has put another tensor in the place of, too."""
    kept = [
        (module._buffers, name, buffer, buffer.clone())
        for module in model.modules() for name, buffer in module._buffers.items()
        if buffer is not None
    ]  # fmt: skip
    try:
        yield
    finally:
        with torch.no_grad():
            for buffers, name, buffer, value in kept:
                buffers[name] = buffer
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


STEPS_BACK = 10  # operations from a norm's result to its input: 7 in a LayerNorm with gain and bias


def _find_written_out(graph: Graph) -> None:
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


class _Recorder(TorchDispatchMode):
    """Sees every operation outside of leaf modules, and each of those as one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.model = model
        self.known: dict[int, Node] = {}  # by identity of the tensor, which its node keeps alive
        self.kept: list[Tensor] = []  # alive as long as their identity is looked up
        self.closed: list[bool] = []  # of the modules without children that are being called
        self.inside = 0  # how many of them are one node
        self.calls: Counter[str] = Counter()  # of each module so far
        self.kinds: dict[object, NormKind | None] = {}  # of modules that compute the same

    @contextmanager
    def open(self) -> Iterator[None]:
        """Watches while it is open."""
        with ExitStack() as hooks:
            for name, module in self.model.named_modules():
                if not isinstance(module, torch.jit.ScriptModule):
                    before = module.register_forward_pre_hook(self._enter(name), with_kwargs=True)
                    after = module.register_forward_hook(
                        self._leave(name), with_kwargs=True, always_call=True
                    )
                    hooks.callback(before.remove)
                    hooks.callback(after.remove)
            with self:
                yield

    def _enter(self, name: str) -> Callable[..., None]:
        """A leaf module is one node, unless it is handed a function: then it calls others, children
        or not, and is looked into.
        """

        def hook(module: nn.Module, args: Any, options: Any) -> None:
            closed = not any(module.children()) and not any(
                callable(leaf) for leaf in tree_leaves((args, options))
            )
            if not self.inside:
                self._tap(name, "in", (args, options))
            self.closed.append(closed)
            self.inside += closed

        return hook

    def _leave(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, options: Any, out: Any) -> None:
            closed = self.closed.pop()
            self.inside -= closed
            if self.inside:
                return
            if closed:
                with _disable_current_modes():  # our own operations are no part of the model
                    self._module(name, module, _tensors((args, options)), _tensors(out))
            self._tap(name, "out", out)
            self.calls[name] += 1

        return hook

    def _tap(self, name: str, side: str, tree: Any) -> None:
        for path, tensor in leaves(tree):
            self._node(tensor).taps.append(Tap(name, side, path, self.calls[name]))

    def _module(
        self, name: str, module: nn.Module, inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        sources = [self._node(tensor) for tensor in inputs]
        norm = self._norm(module, inputs[0], outputs[0]) if inputs and len(outputs) == 1 else None
        kind = "norm" if norm else _module_kind(module, inputs, outputs)
        for value in outputs:
            if not any(value is tensor for tensor in inputs):
                made = self.graph.add(kind, sources, value, module=name, norm=norm)
                self.known[id(value)] = made

    def _norm(self, module: nn.Module, x: Tensor, y: Tensor) -> NormKind | None:
        """The norm that a leaf module is. One of each kind is tried, which takes a tenth of a
        second: a model of 30 layers has 61 norms and 30 activations.
        """
        key = module_key(module, x.shape[-1] if x.ndim else 0)
        if key in self.kinds:
            return self.kinds[key]
        norm = _norm_of(module, x, y)
        # gains of zero hide a norm, and not those of its kind
        if norm is not None or not any(True for _ in module.parameters()):
            self.kinds[key] = norm
        return norm

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            self._keep(args)
        out = func(*args, **(kwargs or {}))
        if not self.inside:
            with _disable_current_modes():
                self._operation(
                    func, _tensors((args, kwargs)), _tensors(out),
                    scaled=(kwargs or {}).get("alpha", 1) != 1,
                )  # fmt: skip
        return out

    def _keep(self, args: Any) -> None:
        """The value that an operation in place is about to overwrite."""
        for tensor in _tensors(args[:1]):
            if id(tensor) in self.known:
                with _disable_current_modes():
                    self.known[id(tensor)].value = tensor.clone()
                self.kept.append(tensor)

    def _operation(
        self, func: Any, inputs: list[Tensor], outputs: list[Tensor], *, scaled: bool
    ) -> None:
        sources = [self._node(tensor) for tensor in inputs]
        name = func.overloadpacket.__name__
        for value in outputs:
            kind = _operation_kind(name, inputs, value)
            if kind == "add" and scaled:
                kind = "other"  # a sum with a factor is none of the two as they are
            norm = norm_kind(inputs[0], value) if name == "native_layer_norm" else None
            self.known[id(value)] = self.graph.add(
                "norm" if norm else kind, sources, value, norm=norm
            )

    def _node(self, tensor: Tensor) -> Node:
        """The node of a tensor; one that nothing has made is an input, be it data or a weight."""
        if id(tensor) not in self.known:
            self.known[id(tensor)] = self.graph.add("input", [], tensor)
        return self.known[id(tensor)]


def module_key(module: nn.Module, width: int) -> object:
    """Equal for modules that compute the same, but for their parameters: of one class, with one
    `forward`, and the same numbers and parameters' names.
    """
    numbers = sorted(
        (name, repr(value)) for name, value in vars(module).items()
        if isinstance(value, int | float | str | tuple | torch.Size) and name != "training"
    )  # fmt: skip
    own = tuple(name for name, _ in module.named_parameters(recurse=False))
    return (
        type(module),
        getattr(module.forward, "__func__", module.forward),
        width,
        tuple(numbers),
        own,
    )


def _tensors(tree: Any) -> list[Tensor]:
    return [tensor for _, tensor in leaves(tree)]


def _norm_of(module: nn.Module, x: Tensor, y: Tensor) -> NormKind | None:
    """The norm that a leaf module is: a copy in fp32 is tried on rows of many sizes, since the
    model's own may be few, rounded to bf16, or so small that eps makes a factor of the norm. One
    that does not take them is told from its own rows.
    """
    matrices = any(p.ndim >= 2 for p in module.parameters(recurse=False))
    if x.shape != y.shape or not x.is_floating_point() or matrices:
        return None
    probe = probe_rows(x.shape[-1]).reshape(*[1] * (x.ndim - 2), -1, x.shape[-1])
    try:
        made = copy.deepcopy(module).cpu().float().forward(probe)
    except Exception:  # noqa: BLE001 - a module may refuse these rows in any way
        return norm_kind(x, y)
    return norm_kind(probe, made) if isinstance(made, Tensor) else norm_kind(x, y)


def _module_kind(module: nn.Module, inputs: list[Tensor], outputs: list[Tensor]) -> str:
    """What a leaf module does, by its weights and its input."""
    matrices = [p for p in module.parameters(recurse=False) if p.ndim >= 2]
    looked_up = inputs and not inputs[0].is_floating_point()
    if matrices and (looked_up or isinstance(module, nn.Embedding)):
        return "embedding"
    if matrices:
        return "linear"
    same = inputs and outputs and inputs[0].shape == outputs[0].shape
    return "carry" if same and torch.equal(inputs[0], outputs[0]) else "other"


def _operation_kind(name: str, inputs: list[Tensor], value: Tensor) -> str:
    name = name.rstrip("_") if not name.startswith("_") else name
    if "scaled_dot_product" in name or ("softmax" in name and value.ndim == 4):
        return "attention"
    if name in ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "convolution", "_grouped_mm"):
        return "linear"
    if name == "add" and len(inputs) == 2 and inputs[0].shape == inputs[1].shape:
        return "add"
    if name in ("mul", "div") and (len(inputs) == 1 or inputs[1].ndim <= 1):
        return "scale"
    return "carry" if name in CARRIED else "other"
