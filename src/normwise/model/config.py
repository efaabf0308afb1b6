"""What a Transformer is made of, and the three reference models that figures are measured on."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from normwise.errors import PairingWarning, SettingError
from normwise.norms.registry import NORMS
from normwise.residual.registry import PLACEMENTS, PlacementRow
from normwise.table import Table
from normwise.theory.stack import Stack
from normwise.weight_init import INITS

ACTIVATIONS = Table("activation", {"relu": "ReLU", "gelu": "GELU", "swiglu": "SwiGLU"})
POSITIONS = Table(
    "position encoding",
    {"learned": "a learned vector each", "rotary": "rotary", "none": "no positions"},
)
QUERY_KEY_NORMS = Table(
    "query/key norm",
    {
        "none": "no norm",
        "head": "over each head",
        "full": "over the whole projection",
        "unit": "to length 1 over each head, with a learned factor on the logits",
    },
)
EMBEDDING_SCALES = Table(
    "embedding scale",
    {"none": "as drawn", "sqrt": "times sqrt(width)", "learned": "times a number from sqrt(width)"},
)
SITES = Table(
    "site of a norm",
    {
        "attention": "before or after attention",
        "cross_attention": "before or after cross-attention",
        "feed_forward": "before or after the feed-forward branch",
        "query_key": "on queries and keys",
        "value": "on values",
        "inner": "before the last matrix of a branch",
        "embedding": "on the embedding",
        "final": "after the last layer",
    },
)


@dataclass(frozen=True)
class NormAt:
    """A norm for some of a model's places, instead of its `norm`.

    >>> nw.NormAt("dynamic_tanh", sites=("attention",), options={"alpha": 0.8})
    NormAt(norm='dynamic_tanh', sites=('attention',), layers=None, options={'alpha': 0.8})

    Args:
        norm: a row of `normwise list norms`.
        sites: rows of `SITES`; None for all.
        layers: counted from 0; None for all.
        options: keywords of the norm.
    """

    norm: str
    sites: tuple[str, ...] | None = None
    layers: tuple[int, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", NORMS.resolve(self.norm))
        if self.sites is not None:
            object.__setattr__(self, "sites", tuple(map(SITES.resolve, self.sites)))
        if self.layers is not None:
            object.__setattr__(self, "layers", tuple(self.layers))

    def holds(self, site: str, layer: int) -> bool:
        """Whether a place is one of these."""
        at_site = self.sites is None or site in self.sites
        return at_site and (self.layers is None or layer in self.layers)


@dataclass(frozen=True)
class TransformerConfig:
    """Settings of a `Transformer`; immutable, and checked when made.

    Args:
        vocab_size: number of tokens.
        max_len: longest sequence.
        width: width of the stream, d.
        depth: layers.
        heads: attention heads; must divide the width.
        norm: a row of `normwise list norms`, used at every place but those in `norms`.
        norms: norms for some sites and layers; the last that holds for a place is taken.
        norm_eps: None for the norm's own default.
        affine: norms with learned gains.
        placement: a row of `normwise list placements`.
        placement_options: constants of the placement, such as keel's alpha.
        init: a row of `normwise list inits`; None for the one that belongs to the placement.
        activation: "relu", "gelu" or "swiglu".
        ff_ratio: width of the feed-forward layer over the width of the stream.
        bias: biases in linear layers and in norms that have one.
        positions: "learned", "rotary" or "none".
        query_key_norm: "none", "head" (over each head), "full" (over the whole projection) or
            "unit" (length 1 over each head, with one learned factor a layer on the logits, from
            log2(max_len^2 - max_len)); None for what the placement asks for.
        embedding_scale: "none", "sqrt" (times sqrt(width)) or "learned" (a number that starts
            there); None for "learned" under a curve and "none" under a norm.
        embedding_norm: a norm of what enters the stack.
        attention: False leaves feed-forward branches only.
        causal: True for a decoder, False for an encoder that sees both sides.
        tied_head: the head shares the embedding's matrix.

    Raises:
        SettingError, UnknownName: a value that cannot be built.

    Warns:
        PairingWarning: an initialisation or a query/key norm that the placement's constants do not
            go with.
    """

    vocab_size: int = 256
    max_len: int = 64
    width: int = 64
    depth: int = 12
    heads: int = 4
    norm: str = "layer_norm"
    norms: tuple[NormAt, ...] = ()
    norm_eps: float | None = None
    affine: bool = True
    placement: str = "pre_norm"
    placement_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    init: str | None = None
    activation: str = "relu"
    ff_ratio: float = 4.0
    bias: bool = True
    positions: str = "learned"
    query_key_norm: str | None = None
    embedding_scale: str | None = None
    embedding_norm: bool = False
    attention: bool = True
    causal: bool = True
    tied_head: bool = False

    def __post_init__(self) -> None:
        self._fill_in()
        for name, table in _NAMED.items():
            object.__setattr__(self, name, table.resolve(getattr(self, name)))
        object.__setattr__(self, "norms", tuple(self.norms))
        self._check_sizes()
        self._check_batch_norms()
        unknown = set(self.placement_options) - set(self.placement_row.constants)
        if unknown:
            raise SettingError(
                f"placement_options must be constants of {self.placement}: "
                f"{', '.join(self.placement_row.constants) or 'it has none'}. "
                f"They are {', '.join(sorted(unknown))}."
            )
        for reason in self.mismatches():
            warnings.warn(reason, PairingWarning, stacklevel=3)

    def _fill_in(self) -> None:
        """Puts what belongs to norm and placement where nothing is named."""
        row = PLACEMENTS[self.placement]
        curve = not NORMS[self.norm].normalizes and NORMS[self.norm].has_parameters
        own = {
            "init": row.init,
            "query_key_norm": row.inside.query_key if self.attention else "none",
            "embedding_scale": "learned" if curve else "none",
        }
        for name, value in own.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def _check_sizes(self) -> None:
        for name in ("vocab_size", "max_len", "width", "depth", "heads"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be at least 1. It is {getattr(self, name)}.")
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

    def _check_batch_norms(self) -> None:
        over_batch = {name: NORMS[name].batch for name in self.norm_names if NORMS[name].batch}
        for name, kind in over_batch.items():
            if kind == "tokens" and self.causal:
                raise SettingError(
                    f"{name} normalizes a token with the ones after it, so a causal model would "
                    f"see the future. Pass causal=False, or norm='batch_norm_position'."
                )
        per_head = self.query_key_norm == "head" or self.placement_row.inside.value
        if NORMS[self.norm_at("query_key", 0)[0]].batch and self.attention and per_head:
            raise SettingError(
                "A norm over a batch takes (batch, tokens, width), and heads come without one. "
                "Pass query_key_norm 'full' or 'none', and another norm for the sites query_key "
                "and value."
            )

    @property
    def norm_names(self) -> set[str]:
        """All norms that stand somewhere."""
        return {self.norm, *(rule.norm for rule in self.norms)}

    def mismatches(self) -> Iterator[str]:
        """Why this is not what the papers of the placement describe."""
        reason = init_mismatch(self.placement, str(self.init))
        if reason is not None:
            yield f"{self.placement} with {self.init}: {reason}."
        asked = self.placement_row.inside.query_key
        if self.attention and asked != "none" and self.query_key_norm == "none":
            yield (
                f"{self.placement} without a query/key norm: nothing stands before its branches, "
                f"so the logits grow with the layer. It belongs with query_key_norm {asked!r}."
            )

    def norm_at(self, site: str, layer: int) -> tuple[str, Mapping[str, Any]]:
        """The norm of a place, and its keywords."""
        for rule in reversed(self.norms):
            if rule.holds(site, layer):
                return rule.norm, rule.options
        return self.norm, {}

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
    def stack(self) -> Stack:
        """Depth and branches, for constants that depend on them."""
        return Stack(self.depth, 2 if self.attention else 1)


def init_mismatch(placement: str, init: str) -> str | None:
    """Why an initialisation does not go with a placement; None where it does."""
    row, owner = PLACEMENTS[placement], INITS[init].belongs_to
    if row.only_own_init and init != row.init:
        return f"its constants assume its own initialisation, {row.init}"
    if owner is not None and owner != placement:
        return f"{init} belongs to the constants of {owner}"
    return None


_NAMED: dict[str, Table[Any]] = {
    "norm": NORMS,
    "placement": PLACEMENTS,
    "activation": ACTIVATIONS,
    "positions": POSITIONS,
    "query_key_norm": QUERY_KEY_NORMS,
    "embedding_scale": EMBEDDING_SCALES,
    "init": INITS,
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

    A placement with an initialisation or a query/key norm of its own brings it, unless it is among
    the changes.
    """
    config = REFERENCE_MODELS[name]
    row = PLACEMENTS[changes.get("placement", config.placement)]
    if row.only_own_init:
        changes.setdefault("init", row.init)
    changes.setdefault("query_key_norm", None)
    return replace(config, **changes)
