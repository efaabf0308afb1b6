"""One forward pass of any model, watched and made a graph.

Every module without children is one node, and so is every operation between them, as torch's
dispatcher sees it. Names of modules are kept as labels and decide nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from normwise.anatomy.graph import Graph, Node, Tap
from normwise.anatomy.leaves import leaves
from normwise.anatomy.module_kind import module_key, module_kind, norm_of
from normwise.anatomy.norm_kind import NormKind, norm_kind
from normwise.anatomy.written_out import find_written_out

# Operations whose result holds the entries of their first input, in another shape, dtype or place.
CARRIED = {
    "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "squeeze",
    "unsqueeze", "clone", "contiguous", "_to_copy", "alias", "detach", "slice", "select", "index",
    "split", "unbind", "chunk", "native_dropout", "dropout", "lift_fresh",
}  # fmt: skip


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
    find_written_out(recorder.graph)
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
        kind = "norm" if norm else module_kind(module, inputs, outputs)
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
        norm = norm_of(module, x, y)
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


def _tensors(tree: Any) -> list[Tensor]:
    return [tensor for _, tensor in leaves(tree)]


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
