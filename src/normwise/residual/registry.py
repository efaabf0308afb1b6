"""Placements by name, each with what belongs to it."""

import inspect
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from normwise.norms.registry import make_norm
from normwise.residual.base import NormFactory, PerSublayer, Residual
from normwise.residual.layered import (
    GPAS,
    BottomToTop,
    LayerState,
    Parallel,
    ParallelNorms,
    ReZero,
)
from normwise.residual.learned import Admin, LayerScale, SkipInit
from normwise.residual.placements import (
    HybridNorm,
    HybridNormStar,
    MixNorm,
    NormFormer,
    OutputNorm,
    PeriNorm,
    PlainSum,
    PostNorm,
    PreNorm,
    SubNorm,
)
from normwise.residual.scaled import DeepNorm, DepthScaledNorm, Keel, ScaledResidual
from normwise.residual.streams import (
    Attended,
    AttentionResidual,
    Copies,
    HyperConnection,
    ResiDual,
    SiameseNorm,
    SiameseScaled,
    TwoNormedStreams,
    TwoStreams,
)
from normwise.table import Table
from normwise.theory.stack import Stack


@dataclass(frozen=True)
class Inside:
    """What a placement asks for inside its branches; building it is the block's business.

    Args:
        query_key: norm of queries and keys: "none", "head" (over each head) or "full" (over the
            whole projection).
        value: a norm of the values over each head.
        attention_output: a norm before the last matrix of attention.
        ff_output: a norm before the last matrix of the feed-forward branch.
        head_scale: a learned number for each head, "before" the last matrix of attention or
            "after" it; or "none".
    """

    query_key: str = "none"
    value: bool = False
    attention_output: bool = False
    ff_output: bool = False
    head_scale: str = "none"


@dataclass(frozen=True)
class PlacementRow:
    """A placement as the registry knows it.

    Args:
        connection: the class of its connections.
        init: the initialisation it uses when none is named.
        warm_up: "required", "optional" or "not needed", at about 12 layers and more; "not known"
            where nobody says.
        final_norm: the stack ends with a norm of its own.
        only_own_init: its constants assume that initialisation, and no other makes sense.
        norms_stream: the stream itself passes through a norm, so the placement is nothing
            without one.
        has_norms: False where there is no norm at all.
        placement: the class of the whole.
        inside: what it asks for inside the branches.
    """

    connection: type[Residual]
    init: str
    warm_up: str
    final_norm: bool = True
    only_own_init: bool = False
    norms_stream: bool = False
    has_norms: bool = True
    placement: type[PerSublayer] = PerSublayer
    inside: Inside = field(default=Inside())

    @property
    def formula(self) -> str:
        """The first clause of the connection's docstring."""
        return " ".join((self.connection.__doc__ or "").split(";")[0].split())

    @property
    def constants(self) -> dict[str, Any]:
        """The keywords that its connections take, with their defaults."""
        parameters = inspect.signature(self.connection).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


PLACEMENTS = Table(
    "placement",
    {
        "pre_norm": PlacementRow(PreNorm, "gpt2", "optional"),
        "post_norm": PlacementRow(
            PostNorm, "xavier_packed", "required", final_norm=False, norms_stream=True
        ),
        "deep_norm": PlacementRow(
            DeepNorm, "deep_norm", "optional", final_norm=False, only_own_init=True,
            norms_stream=True,
        ),
        "peri_norm": PlacementRow(PeriNorm, "xavier_packed", "optional"),
        "output_norm": PlacementRow(
            OutputNorm, "xavier_packed", "optional", inside=Inside(query_key="full")
        ),
        "depth_scaled_norm": PlacementRow(DepthScaledNorm, "normal", "optional"),
        "rezero": PlacementRow(
            ReZero, "xavier_packed", "not needed", final_norm=False, has_norms=False,
            placement=LayerState,
        ),
        "skip_init": PlacementRow(
            SkipInit, "xavier_packed", "not needed", final_norm=False, has_norms=False
        ),
        "t_fixup": PlacementRow(
            PlainSum, "t_fixup", "not needed", final_norm=False, only_own_init=True,
            has_norms=False,
        ),
        "layer_scale": PlacementRow(LayerScale, "normal", "optional"),
        "keel": PlacementRow(
            Keel, "xavier_packed", "not needed", final_norm=False, norms_stream=True
        ),
        "b2t": PlacementRow(
            BottomToTop, "xavier_packed", "required", final_norm=False, norms_stream=True,
            placement=LayerState,
        ),
        "mix_norm": PlacementRow(MixNorm, "xavier_packed", "required", norms_stream=True),
        "sub_norm": PlacementRow(
            SubNorm, "sub_norm", "optional", only_own_init=True,
            inside=Inside(attention_output=True, ff_output=True),
        ),
        "norm_former": PlacementRow(
            NormFormer, "gpt2", "optional", inside=Inside(ff_output=True, head_scale="before")
        ),
        "norm_former_fairseq": PlacementRow(
            NormFormer, "gpt2", "optional", inside=Inside(ff_output=True, head_scale="after")
        ),
        "resi_dual": PlacementRow(
            ResiDual, "xavier_packed", "optional", norms_stream=True, placement=TwoStreams
        ),
        "admin": PlacementRow(
            Admin, "xavier_packed", "optional", final_norm=False, norms_stream=True
        ),
        "hybrid_norm": PlacementRow(
            HybridNorm, "gpt2", "not known", norms_stream=True,
            inside=Inside(query_key="head", value=True),
        ),
        "hybrid_norm_star": PlacementRow(
            HybridNormStar, "gpt2", "not known", norms_stream=True,
            inside=Inside(query_key="head", value=True),
        ),
        "parallel": PlacementRow(Parallel, "gpt2", "optional", placement=LayerState),
        "parallel_norms": PlacementRow(ParallelNorms, "gpt2", "optional", placement=LayerState),
        "scaled_residual": PlacementRow(
            ScaledResidual, "scaled_residual", "not known", only_own_init=True
        ),
        "gpas": PlacementRow(GPAS, "gpt2", "optional", placement=LayerState),
        "siamese_norm": PlacementRow(
            SiameseNorm, "xavier_packed", "not known", norms_stream=True, placement=TwoStreams
        ),
        "siamese_norm_scaled": PlacementRow(
            SiameseScaled, "xavier_packed", "not known", norms_stream=True,
            placement=TwoNormedStreams,
        ),
        "hyper_connections": PlacementRow(HyperConnection, "gpt2", "optional", placement=Copies),
        "attention_residuals": PlacementRow(
            AttentionResidual, "gpt2", "optional", placement=Attended
        ),
    },
    aliases={
        "pre_ln": "pre_norm", "post_ln": "post_norm", "deepnorm": "deep_norm",
        "peri_ln": "peri_norm", "sandwich": "peri_norm", "reordered": "output_norm",
        "res_post": "output_norm", "norm_after": "output_norm", "lns": "depth_scaled_norm",
        "layer_norm_scaling": "depth_scaled_norm", "post_ln_is_back": "keel",
        "bottom_to_top": "b2t", "mix_ln": "mix_norm", "sub_ln": "sub_norm", "magneto": "sub_norm",
        "residual_dual": "resi_dual", "parallel_block": "parallel",
        "deepscale_lm": "scaled_residual", "hc": "hyper_connections",
        "attn_res": "attention_residuals",
    },
)  # fmt: skip


def make_placement(
    name: str,
    dim: int,
    depth: int,
    norm: str = "layer_norm",
    *,
    branches: int = 2,
    **options: Any,
) -> PerSublayer:
    """A placement for a stack of `depth` layers on a stream of width `dim`.

    What belongs inside the branches, such as norms of queries and keys, is the caller's to build:
    see `PLACEMENTS[name].inside`. So is the initialisation: see `PLACEMENTS[name].init`.

    Args:
        name: a row of `normwise list placements`.
        norm: a row of `normwise list norms`; every place gets an instance of its own.
        branches: residual branches in a layer: 1 without attention, 2 with it, 3 with
            cross-attention.
        options: constants of the placement, such as keel's `alpha`; the others are keywords of
            `make_norm`.

    Raises:
        UnknownName: no placement or norm of this name.

    >>> placement = nw.make_placement("deep_norm", dim=64, depth=12)
    >>> round(placement.connections[0].alpha, 4)
    2.2134
    """
    constants = {key: options.pop(key) for key in PLACEMENTS[name].constants if key in options}
    stack = Stack(depth, branches)
    return build_placement(
        name, stack, dim, lambda kind, layer: make_norm(norm, dim, **options), constants
    )


def build_placement(
    name: str, stack: Stack, dim: int, norm: NormFactory, constants: dict[str, Any]
) -> PerSublayer:
    """A placement from a factory that knows the norm of every place."""
    row = PLACEMENTS[name]
    return row.placement(
        partial(row.connection, **constants), norm, stack, dim, final_norm=row.final_norm
    )
