"""Hooks that stay with the model that they were registered on."""

from collections.abc import Callable
from typing import Any


class Hook:
    """A hook that does nothing in a copy of the model, and in one read from a file."""

    def __init__(self, call: Callable[..., object]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> None:
        self.call(*args)

    def __deepcopy__(self, memo: object) -> "Hook":
        return Hook(_nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (_nothing,)


def _nothing(*args: object) -> None:
    """What a hook does in a copy."""
