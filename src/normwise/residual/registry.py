"""Placements by name, each with what belongs to it."""

from dataclasses import dataclass
from typing import Any

from normwise.norms.registry import make_norm
from normwise.residual.base import PerSublayer, Placement, Residual
from normwise.residual.placements import PeriNorm, PostNorm, PreNorm
from normwise.residual.scaled import DeepNorm
from normwise.table import Table


@dataclass(frozen=True)
class PlacementRow:
    """A placement as the registry knows it.

    Args:
        connection: the class of its connections.
        final_norm: the stack ends with a norm of its own.
        init: the initialisation it uses when none is named.
        only_own_init: its constants assume that initialisation, and no other makes sense.
        warm_up: "required", "optional" or "not needed", at about 12 layers and more.
        norms_stream: the stream itself passes through a norm, so the placement is nothing
            without one.
    """

    connection: type[Residual]
    final_norm: bool
    init: str
    warm_up: str
    only_own_init: bool = False
    norms_stream: bool = False

    @property
    def formula(self) -> str:
        """The first clause of the connection's docstring."""
        return (self.connection.__doc__ or "").split(";")[0]


PLACEMENTS = Table(
    "placement",
    {
        "pre_norm": PlacementRow(PreNorm, final_norm=True, init="gpt2", warm_up="optional"),
        "post_norm": PlacementRow(
            PostNorm, final_norm=False, init="xavier_packed", warm_up="required", norms_stream=True
        ),
        "deep_norm": PlacementRow(
            DeepNorm, final_norm=False, init="deep_norm", warm_up="not needed",
            only_own_init=True, norms_stream=True,
        ),
        "peri_norm": PlacementRow(
            PeriNorm, final_norm=True, init="xavier_packed", warm_up="optional"
        ),
    },
    aliases={
        "pre_ln": "pre_norm", "post_ln": "post_norm", "deepnorm": "deep_norm",
        "peri_ln": "peri_norm", "sandwich": "peri_norm",
    },
)  # fmt: skip


def make_placement(
    name: str,
    dim: int,
    depth: int,
    norm: str = "layer_norm",
    *,
    branches: int = 2,
    **norm_options: Any,
) -> Placement:
    """A placement for a stack of `depth` layers on a stream of width `dim`.

    Args:
        name: a row of `normwise list placements`.
        norm: a row of `normwise list norms`; every place gets an instance of its own.
        branches: residual branches in a layer, 2 with attention and 1 without.
        norm_options: keywords of `make_norm`.

    Raises:
        UnknownName: no placement or norm of this name.

    >>> placement = nw.make_placement("deep_norm", dim=64, depth=12)
    >>> round(placement.connections[0].alpha, 4)
    2.2134
    """
    row = PLACEMENTS[name]
    return PerSublayer(
        row.connection,
        lambda: make_norm(norm, dim, **norm_options),
        depth,
        branches,
        final_norm=row.final_norm,
    )
