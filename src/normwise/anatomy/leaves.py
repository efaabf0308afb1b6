"""Tensors within what a module takes and gives: tuples, dicts and dataclasses of any depth."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

Path = tuple[str | int, ...]


def leaves(tree: Any) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor with the way to it; whatever else there is, is passed over."""
    if isinstance(tree, Tensor):
        yield (), tree
        return
    for key, value in _parts(tree):
        for path, tensor in leaves(value):
            yield (key, *path), tensor


def _parts(tree: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(tree, Mapping):
        yield from ((key, value) for key, value in tree.items() if isinstance(key, str | int))
    elif isinstance(tree, list | tuple):
        yield from enumerate(tree)
    elif is_dataclass(tree) and not isinstance(tree, type):
        yield from ((field.name, getattr(tree, field.name)) for field in fields(tree))


def leaf(tree: Any, path: Path) -> Any:
    """What lies at the end of a way; None where there is no such way."""
    for key in path:
        if isinstance(tree, Mapping):
            tree = tree.get(key)
        elif isinstance(tree, list | tuple):
            tree = tree[key] if isinstance(key, int) and key < len(tree) else None
        else:
            tree = getattr(tree, str(key), None)
    return tree
