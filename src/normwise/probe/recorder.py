"""Hooks at the points of a model that add what passes to a tally on the device.

Nothing waits for the device, nothing is kept beyond the pass, and hooks give nothing that the model
sees. A pass inside backward, of activation checkpointing, is not counted again.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normwise.anatomy.leaves import leaf
from normwise.anatomy.points import At, NormPoint, Points
from normwise.probe.attention import AttentionWatch
from normwise.probe.hook import Hook
from normwise.probe.record import EPS_SHARES, SMALL_GAIN, UNSEEN_IN_BF16
from normwise.probe.stats import angles, by_channel, one_and, pairs, powers
from normwise.probe.tally import Tally
from normwise.probe.updates import local

MEDIAN_OF = 4096  # entries

Action = Callable[[Tensor], None]


class Recorder:
    """Hooks at points, that record while `recording` is true.

    Tally keys, with s a stack, i a point of its stream, c a connection, k a norm:

        sums    ("stream", s, i)    entries, x, x^2, x^4, medians, their sum, angles, their sum
                ("entry", s)        entries of pairs of tokens of a sequence, their products
                ("exit", s)         the same of the last point
                ("gradient", s, i)  entries, g^2
                ("branch", s, c)    entries, f, f^2, f^4, entries compared, swallowed
                ("norm", k)         rows, zero rows, shares of eps, rows above 5 %, above 25 %
                ("gain", k)         entries of the gain, those below 0.01
                ("output",)         entries, x^2, tokens, log Z
                ("output gradient",)    entries, g^2
        maxima  ("stream", s, i)    largest magnitude of each channel
                ("gain", k)         largest of the gain, and median of its magnitudes
                ("gradient", s, i), ("branch", s, c), ("output",)   largest magnitude
        and those of `AttentionWatch`

    Args:
        model: whose points they are.
        points: of the model.
        stride: every how many tokens is looked at, the first always; of the stream itself the
            largest entries are those of all tokens.
        exact_attention: all queries of each attention, else a sample.
        strict: an error in a hook is raised. Else that point is switched off, with a warning.
        training_only: passes in evaluation or without gradients are not recorded.
        gains: of the norms are looked at.
    """

    def __init__(
        self, model: nn.Module, points: Points, *, stride: int = 1, exact_attention: bool = True,
        strict: bool = True, training_only: bool = False, gains: bool = True,
    ) -> None:  # fmt: skip
        self.model = model
        self.points = points
        self.stride = stride
        self.offset = 0
        self.exact_attention = exact_attention
        self.strict = strict
        self.training_only = training_only
        self.gains = gains
        self.recording = True
        self._active = False  # in a pass that is recorded, and in its backward pass
        self.compiled = False  # a compiled graph holds the hooks
        self.tally = Tally(_device(model))
        self.choose: Callable[[int], list[int]] | None = None
        self.dtypes: dict[Any, str] = {}
        self.broken: dict[Any, str] = {}
        self._generation = 0  # of passes, whose backward passes are recorded while it is the same
        self._actions = self._planned()
        self.tally.plan()
        self._handles: list[RemovableHandle] = []
        self._gradient_handles: list[RemovableHandle] = []
        self._held: dict[tuple[int, int], Tensor] = {}
        self._calls: dict[str, int] = defaultdict(int)
        self._graded: set[Any] = set()
        self._watch: AttentionWatch | None = None

    def attach(self) -> None:
        """Registers the hooks; twice is once."""
        if self._handles:
            return
        modules = dict(self.model.named_modules())
        self._handles.append(self.model.register_forward_pre_hook(Hook(self.begin)))
        for name, sides in self._actions.items():
            module = modules[name]
            self._handles += [
                module.register_forward_pre_hook(
                    Hook(self._before(name, sides["in"])), with_kwargs=True
                ),
                module.register_forward_hook(Hook(self._after(name, sides["out"]))),
            ]
        self._handles.append(self.model.register_forward_hook(Hook(self._end), always_call=True))

    def renew(self) -> None:
        """Backward passes of the passes so far are not recorded any more."""
        self._generation += 1

    def detach(self) -> None:
        """Takes the hooks away."""
        self._end(self.model, (), None)
        self._active = False
        self.renew()
        for handle in (*self._handles, *self._gradient_handles):
            handle.remove()
        self._handles.clear()
        self._gradient_handles.clear()
        self._held.clear()

    def unseen(self, sums: dict[Any, list[float]]) -> list[str]:
        """Points at which nothing passed, from the collected sums."""
        return [
            f"{key[0]} {' '.join(map(str, key[1:]))}" for key, values in sums.items()
            if key[0] in ("stream", "branch", "norm") and not values[0]
        ]  # fmt: skip

    def _planned(self) -> dict[str, dict[str, list[tuple[At, Action]]]]:
        """What is done at the taps of each module, and room in the tally for it."""
        plan: dict[str, dict[str, list[tuple[At, Action]]]] = {}

        def place(at: At, action: Action) -> None:
            sides = plan.setdefault(at.tap.module, {"in": [], "out": []})
            sides[at.tap.side].append((at, action))

        for s, stack in enumerate(self.points.stacks):
            for end in ("entry", "exit"):
                self._room((end, s), sums=2)
            skips = [connection.skip for connection in stack.connections]
            for i, at in enumerate([*skips, stack.last]):
                self._room(("stream", s, i), sums=8, maxima=stack.width)
                self._room(("gradient", s, i), sums=2, maxima=1)
                if at is not None:
                    place(at, self._stream(s, i))
            for c, connection in enumerate(stack.connections):
                self._room(("branch", s, c), sums=6, maxima=1)
                if connection.branch is not None:
                    place(connection.branch, self._branch(s, c, connection.branch.factor))
        for k, norm in enumerate(self.points.norms):
            if norm.at is not None and norm.eps is not None:
                self._room(("norm", k), sums=5)
                self._room(("gain", k), sums=2, maxima=2)
                place(norm.at, self._norm(k, norm))
        return plan

    def _room(self, key: Any, *, sums: int, maxima: int = 0) -> None:
        self.tally.prepare(key, sums=sums, maxima=maxima)

    def begin(self, module: nn.Module, args: object) -> None:
        """A pass begins; the hook of the model itself."""
        if _in_backward():
            return
        self._active = self.recording and not (
            self.training_only and not (module.training and torch.is_grad_enabled())
        )
        if not self._active:
            return
        self._calls.clear()
        self._graded.clear()
        self._held.clear()
        if torch.compiler.is_compiling():
            return
        for handle in self._gradient_handles:
            handle.remove()
        self._gradient_handles.clear()
        self._watch_attention(on=True)

    def _watch_attention(self, *, on: bool) -> None:
        """A watch that an interrupt has left open is closed before the next one."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._watch = None
        if on:
            self._watch = AttentionWatch(
                self.tally, exact=self.exact_attention, choose=self.choose, guard=self._safely
            )
            self._watch.__enter__()  # type: ignore[no-untyped-call]

    def _end(self, module: nn.Module, args: object, out: Any) -> None:
        if not torch.compiler.is_compiling():
            self._watch_attention(on=False)
        if self._active and not _in_backward() and out is not None:
            logits = out if isinstance(out, Tensor) else leaf(out, ("logits",))
            if isinstance(logits, Tensor) and logits.is_floating_point() and logits.ndim >= 2:
                self._guarded("output", self._output, logits)
            self._held.clear()

    def _before(self, name: str, taps: list[tuple[At, Action]]) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, options: Any) -> None:
            if self._active:
                self._at(name, taps, (args, options))

        return hook

    def _after(self, name: str, taps: list[tuple[At, Action]]) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, out: Any) -> None:
            if self._active:
                self._at(name, taps, out)
                self._calls[name] += 1

        return hook

    def _at(self, name: str, taps: list[tuple[At, Action]], tree: Any) -> None:
        if torch.compiler.is_compiling():
            self.compiled = True
        call = self._calls[name]
        for at, action in taps:
            if at.tap.call == call or (_in_backward() and at.tap.call == 0):
                self._guarded(at.tap, action, at.tensor(tree))

    def _guarded(self, where: Any, action: Action, tensor: Tensor | None) -> None:
        if tensor is None:
            return
        if torch.compiler.is_compiling():
            action(tensor)
            return

        def work() -> None:
            with torch._C.DisableTorchFunction():  # our operations are none that attention watches
                action(tensor)

        self._safely(where, work)

    def _safely(self, where: Any, work: Callable[[], None]) -> None:
        """A strict recorder raises an error; another one leaves the place out from then on."""
        if where in self.broken:
            return
        try:
            work()
        except Exception as error:
            if self.strict:
                raise
            self.broken[where] = f"{type(error).__name__}: {error}"
            warnings.warn(f"normwise: {where} is not measured any more: {error}", stacklevel=2)

    def _stream(self, s: int, i: int) -> Action:
        def action(x: Tensor) -> None:
            self._grade(("gradient", s, i), x)
            if _in_backward():
                return
            self.dtypes["stream", s, i] = str(x.dtype).removeprefix("torch.")
            x = x.detach()
            self.tally.rise(("stream", s, i), by_channel(x))
            rows = self._rows(x)
            before = self._held.get((s, i - 1))
            angle = rows.new_zeros(2) if before is None else angles(before, rows)
            flat = rows.flatten()
            some = flat[:: max(1, flat.numel() // MEDIAN_OF)].abs().median()
            self.tally.add(
                ("stream", s, i), torch.cat((powers(rows), one_and(some), angle.double()))
            )  # fmt: skip
            same = before is not None and before.shape == rows.shape
            if i and self._differs(s, i - 1) and before is not None and same:
                self._add_branch(s, i - 1, rows - before, before)
            self._held[s, i] = rows
            end = {0: "entry", len(self.points.stacks[s].connections): "exit"}.get(i)
            if end is not None:
                self.tally.add((end, s), pairs(rows))

        return action

    def _differs(self, s: int, c: int) -> bool:
        """Whether a branch is read as a difference of the stream."""
        connection = self.points.stacks[s].connections[c]
        return connection.branch is None and connection.skip is not None

    def _branch(self, s: int, c: int, factor: float) -> Action:
        def action(x: Tensor) -> None:
            if not _in_backward():
                self.dtypes["branch", s, c] = str(x.dtype).removeprefix("torch.")
                rows = self._rows(x.detach())
                if factor != 1.0:
                    rows = rows * factor
                self.tally.rise(("branch", s, c), rows.abs().amax()[None])
                self._add_branch(s, c, rows, self._held.get((s, c)))

        return action

    def _add_branch(self, s: int, c: int, rows: Tensor, skip: Tensor | None) -> None:
        compared = rows.new_zeros(2)
        at = self.points.stacks[s].connections[c].skip
        if skip is not None and at is not None and skip.shape == rows.shape:
            swallowed = (rows.abs() < UNSEEN_IN_BF16 * abs(at.factor) * skip.abs()).sum()
            compared = torch.stack((torch.full_like(swallowed, rows.numel()), swallowed))
        self.tally.add(("branch", s, c), torch.cat((powers(rows), compared.double())))

    def _norm(self, k: int, norm: NormPoint) -> Action:
        centred, eps = norm.formula == "layer_norm", float(norm.eps or 0.0)
        module = self.model.get_submodule(norm.name) if norm.name and self.gains else None
        offset = float(norm.unit_offset)

        def action(x: Tensor) -> None:
            if _in_backward():
                return
            rows = self._rows(x.detach()).flatten(0, -2)
            if centred:
                rows = rows - rows.mean(-1, keepdim=True)
            square = rows.square().mean(-1)
            zero = square == 0.0
            share = torch.where(zero, 0.0, eps / (square + eps).clamp_min(1e-38))
            self.tally.add(("norm", k), torch.stack((
                torch.full_like(share.sum(), share.numel()), zero.sum(), share.sum(),
                *((share > limit).sum() for limit in EPS_SHARES),
            )))  # fmt: skip
            weight = getattr(module, "weight", None)  # sharding puts another one there
            if isinstance(weight, Tensor):
                self._gain(k, (local(weight.detach()).float() + offset).abs())

        return action

    def _gain(self, k: int, gain: Tensor) -> None:
        small = (gain < SMALL_GAIN).sum()
        self.tally.add(("gain", k), torch.stack((torch.full_like(small, gain.numel()), small)))
        self.tally.rise(("gain", k), torch.stack((gain.max(), gain.median())))

    def _output(self, logits: Tensor) -> None:
        self._grade(("output gradient",), logits)
        logits = logits.detach()
        self.dtypes["output"] = str(logits.dtype).removeprefix("torch.")
        self.tally.rise(("output",), logits.abs().amax()[None])
        rows = self._rows(logits).flatten(0, -2)
        log_z = torch.logsumexp(rows, -1)
        self.tally.add(("output",), torch.stack((
            torch.full_like(rows[0, 0], rows.numel()), rows.double().square().sum(),
            torch.full_like(rows[0, 0], len(rows)), log_z.sum(),
        )))  # fmt: skip

    def _grade(self, key: Any, x: Tensor) -> None:
        """Watches the gradient of a tensor: once a pass, also where the pass is made again."""
        if key in self._graded or not x.requires_grad:
            return
        self._graded.add(key)
        traced = torch.compiler.is_compiling()  # into the graph of a pass that is recorded
        generation = 0 if traced else self._generation

        def hook(gradient: Tensor) -> None:
            if traced or self._generation == generation:
                rows = self._rows(gradient.detach())
                self.tally.rise(key, rows.abs().amax()[None])
                entries = torch.full_like(rows.sum(), rows.numel())
                self.tally.add(key, torch.stack((entries, rows.double().square().sum())))

        handle = x.register_hook(hook)
        if x.is_leaf and not torch.compiler.is_compiling():
            self._gradient_handles.append(handle)  # a leaf outlives its pass

    def _rows(self, x: Tensor) -> Tensor:
        """The sampled tokens, in fp32 or wider."""
        tokens = -2 if x.ndim > 2 else 0
        if self.stride > 1 and x.ndim > 1 and x.shape[tokens] >= 2 * self.stride:
            start = 1 + self.offset % self.stride
            some = x[start :: self.stride] if tokens == 0 else x[..., start :: self.stride, :]
            x = torch.cat((x.narrow(tokens, 0, 1), some), tokens)
        return x if x.dtype == torch.float64 else x.float()


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _in_backward() -> bool:
    """Whether this pass is made within a backward pass, by activation checkpointing."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1
