"""A table of named choices: the one way a norm, a placement or a schedule is looked up."""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from normwise.errors import UnknownName

Row = TypeVar("Row")


class Table(Mapping[str, Row], Generic[Row]):
    """Rows by name. Case and hyphens do not matter, aliases are accepted, and a name that is
    not there raises `UnknownName` with the known names and the nearest one.

    Args:
        kind: what a row is, for the message: "norm", "placement".
        rows: the rows by their full name.
        aliases: short names that users know, each to a full name.
    """

    def __init__(
        self, kind: str, rows: Mapping[str, Row], aliases: Mapping[str, str] | None = None
    ) -> None:
        self._kind = kind
        self._rows = dict(rows)
        self._aliases = dict(aliases or {})
        self._plain = {_plain(name): name for name in rows} | self._aliases

    def resolve(self, name: str) -> str:
        """The full name behind a name or an alias."""
        if name in self._rows:
            return name
        if name not in self:
            raise UnknownName(self._kind, name, self._rows)
        return self._full(name)

    def _full(self, name: str) -> str:
        return self._plain.get(_plain(name), name)

    def aliases(self, name: str) -> list[str]:
        """The other names under which a row is found."""
        return [alias for alias, full in self._aliases.items() if full == name]

    def __getitem__(self, name: str) -> Row:
        return self._rows[self.resolve(name)]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._full(name) in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _plain(name: str) -> str:
    """A name as it is looked up: rows may have hyphens themselves."""
    return name.strip().lower().replace("-", "_")
