"""RMS of the residual stream and its branches, and of their gradients, at every connection."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normwise.probe.stats import MeanSquare
from normwise.residual.base import Branch, Residual


@dataclass(frozen=True)
class StreamProfile:
    """RMS by position. With S connections the stream has S + 1 points, from its entry on, and
    there are S branches, each as it leaves its sublayer, before any norm of the placement.
    """

    stream: list[float]
    branch: list[float]
    stream_gradient: list[float]
    branch_gradient: list[float]


@dataclass
class _Point:
    value: MeanSquare = field(default_factory=MeanSquare)
    gradient: MeanSquare = field(default_factory=MeanSquare)
    handles: list[RemovableHandle] = field(default_factory=list)

    def watch(self, x: Tensor) -> None:
        self.value.add(x)
        if x.is_leaf:
            self.release()  # a leaf outlives its pass, and so would the hook of the pass before
        if x.requires_grad:
            self.handles.append(x.register_hook(lambda gradient: self.gradient.add(gradient)))

    def release(self) -> None:
        while self.handles:
            self.handles.pop().remove()


class StreamRecorder:
    """Records a model built from `Residual` connections while it is open.

        with StreamRecorder(model) as recorder:
            loss(model(batch)).backward()
        recorder.profile()

    Several passes add up. A model without such connections has an empty profile. The hooks return
    nothing that the model sees, keep no tensor, and are gone when the block ends, also after an
    exception.
    """

    def __init__(self, model: nn.Module) -> None:
        self._connections = [m for m in model.modules() if isinstance(m, Residual)]
        self._handles: list[RemovableHandle] = []
        self._entry = _Point()
        self._streams = [_Point() for _ in self._connections]
        self._branches = [_Point() for _ in self._connections]

    def __enter__(self) -> "StreamRecorder":
        for index, connection in enumerate(self._connections):
            self._handles.append(connection.register_forward_pre_hook(self._before(index)))
            self._handles.append(connection.register_forward_hook(self._after(index)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._handles:
            self._handles.pop().remove()
        for point in (self._entry, *self._streams, *self._branches):
            point.release()

    def profile(self) -> StreamProfile:
        """What was recorded so far."""
        streams = [self._entry, *self._streams] if self._streams else []
        return StreamProfile(
            stream=[point.value.rms for point in streams],
            branch=[point.value.rms for point in self._branches],
            stream_gradient=[point.gradient.rms for point in streams],
            branch_gradient=[point.gradient.rms for point in self._branches],
        )

    def _before(self, index: int) -> Callable[[nn.Module, tuple[Any, Branch]], object]:
        """Watches the entry of the stack, and hands the connection a watched branch."""

        def hook(module: nn.Module, args: tuple[Any, Branch]) -> tuple[Any, Branch]:
            state, branch = args
            if index == 0:
                self._entry.watch(self._connections[index].stream(state))
            return state, self._watched(index, branch)

        return hook

    def _watched(self, index: int, branch: Branch) -> Branch:
        def watched(x: Tensor) -> Tensor:
            out = branch(x)
            self._branches[index].watch(out)
            return out

        return watched

    def _after(self, index: int) -> Callable[[nn.Module, object, Any], None]:
        def hook(module: nn.Module, args: object, out: Any) -> None:
            self._streams[index].watch(self._connections[index].stream(out))

        return hook
