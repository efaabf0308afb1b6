"""What a Transformer is made of, and the three reference models that figures are measured on."""

from dataclasses import dataclass, replace
from typing import Any

from normwise.errors import SettingError
from normwise.norms.registry import NORMS
from normwise.residual.registry import PLACEMENTS, PlacementRow
from normwise.table import Table
from normwise.weight_init import INITS

ACTIVATIONS = Table("activation", {"relu": "ReLU", "gelu": "GELU", "swiglu": "SwiGLU"})
POSITIONS = Table(
    "position encoding",
    {"learned": "a learned vector each", "rotary": "rotary", "none": "no positions"},
)
QUERY_KEY_NORMS = Table(
    "query/key norm",
    {"none": "no norm", "head": "over each head", "full": "over the whole projection"},
)


@dataclass(frozen=True)
class TransformerConfig:
    """Settings of a `Transformer`; immutable, and checked when made.

    Args:
        vocab_size: number of tokens.
        max_len: longest sequence.
        width: width of the stream, d.
        depth: layers.
        heads: attention heads; must divide the width.
        norm: a row of `normwise list norms`, used at every place.
        norm_eps: None for the norm's own default.
        affine: norms with learned gains.
        placement: a row of `normwise list placements`.
        init: a row of `normwise list inits`; None for the one that belongs to the placement.
        activation: "relu", "gelu" or "swiglu".
        ff_ratio: width of the feed-forward layer over the width of the stream.
        bias: biases in linear layers and in norms that have one.
        positions: "learned", "rotary" or "none".
        query_key_norm: "none", "head" (over each head) or "full" (over the whole projection).
        attention: False leaves feed-forward branches only.
        causal: True for a decoder, False for an encoder that sees both sides.
        tied_head: the head shares the embedding's matrix.

    Raises:
        SettingError, UnknownName: a value that cannot be built.
    """

    vocab_size: int = 256
    max_len: int = 64
    width: int = 64
    depth: int = 12
    heads: int = 4
    norm: str = "layer_norm"
    norm_eps: float | None = None
    affine: bool = True
    placement: str = "pre_norm"
    init: str | None = None
    activation: str = "relu"
    ff_ratio: float = 4.0
    bias: bool = True
    positions: str = "learned"
    query_key_norm: str = "none"
    attention: bool = True
    causal: bool = True
    tied_head: bool = False

    def __post_init__(self) -> None:
        for field, table in _NAMED.items():
            object.__setattr__(self, field, table.resolve(getattr(self, field)))
        object.__setattr__(self, "init", INITS.resolve(self.init or self.placement_row.init))
        for field in ("vocab_size", "max_len", "width", "depth", "heads"):
            if getattr(self, field) < 1:
                raise SettingError(f"{field} must be at least 1. It is {getattr(self, field)}.")
        if self.width % self.heads:
            raise SettingError(
                f"heads must divide width. There are {self.heads} heads and the width is "
                f"{self.width}. Pass a width that is a multiple of {self.heads}."
            )
        if self.positions == "rotary" and self.head_width % 2:
            raise SettingError(
                f"Rotary positions turn pairs, so width/heads must be even. It is "
                f"{self.head_width}. Change width or heads."
            )
        if self.ff_width < 1:
            raise SettingError(f"ff_ratio must give at least one unit. It is {self.ff_ratio}.")

    @property
    def placement_row(self) -> PlacementRow:
        return PLACEMENTS[self.placement]

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def ff_width(self) -> int:
        return round(self.ff_ratio * self.width)

    @property
    def branches(self) -> int:
        """Residual branches in a layer."""
        return 2 if self.attention else 1

    @property
    def sublayers(self) -> int:
        """Residual branches in the stack."""
        return self.depth * self.branches


_NAMED: dict[str, Table[Any]] = {
    "norm": NORMS,
    "placement": PLACEMENTS,
    "activation": ACTIVATIONS,
    "positions": POSITIONS,
    "query_key_norm": QUERY_KEY_NORMS,
}

_R1 = TransformerConfig(
    vocab_size=128, max_len=32, width=128, heads=1, norm_eps=1e-5, affine=False, init="xavier",
    activation="relu", ff_ratio=1.0, bias=False, positions="none",
)  # fmt: skip

REFERENCE_MODELS = Table(
    "reference model",
    {
        "r1": _R1,
        "r2": replace(_R1, heads=4, norm="rms_norm", norm_eps=1e-6),
        "r3": TransformerConfig(init="xavier_packed", bias=False),
    },
)


def reference_config(name: str, **changes: Any) -> TransformerConfig:
    """One of the models that this project's figures are measured on, with fields changed.

    R1: width 128, one head, causal softmax attention, a d-to-d ReLU feed-forward without biases,
    all weights N(0, 1/d), affine-free LayerNorm, to be fed unit Gaussian `inputs_embeds`.
    R2: as R1 with four heads and affine-free RMSNorm, eps 1e-6.
    R3: a byte-level language model, 12 layers of width 64, packed Xavier; `compare`'s default.

    A placement with an initialisation of its own brings it, unless `init` is among the changes.
    """
    config = REFERENCE_MODELS[name]
    row = PLACEMENTS[changes.get("placement", config.placement)]
    if row.only_own_init:
        changes.setdefault("init", row.init)
    return replace(config, **changes)
