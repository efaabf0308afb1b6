"""Remedies that can be tried: each changes one thing in the settings of a model of ours.

A model is rebuilt with the changed settings and checked again. Nothing is trained, so this shows
what a remedy does to the signal, and not what it does to a loss.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from normwise.errors import PairingWarning, SettingError
from normwise.model.config import TransformerConfig, init_mismatch
from normwise.norms.registry import NORMS
from normwise.residual.registry import PLACEMENTS
from normwise.table import Table

SMALL_EPS = 1e-8

Change = Callable[[TransformerConfig], TransformerConfig]


@dataclass(frozen=True)
class RemedyRow:
    """A remedy as the registry knows it: what it changes, and what `normwise list` shows."""

    change: Change
    summary: str


def _placed(placement: str) -> Change:
    """Another placement, with its own query/key norm, and its own initialisation where the one that
    is there does not go with it.
    """

    def change(config: TransformerConfig) -> TransformerConfig:
        own = PLACEMENTS[config.placement].inside.query_key == config.query_key_norm
        fits = init_mismatch(placement, str(config.init)) is None
        return replace(
            config, placement=placement, placement_options={},
            init=config.init if fits else None,
            query_key_norm=None if own else config.query_key_norm,
        )  # fmt: skip

    return change


def _small_eps(config: TransformerConfig) -> TransformerConfig:
    if not NORMS[config.norm].has_eps:
        return config
    rules = tuple(
        replace(rule, options={**rule.options, "eps": SMALL_EPS}) if "eps" in rule.options else rule
        for rule in config.norms
    )
    return replace(config, norm_eps=SMALL_EPS, norms=rules)


def _set(**fields: object) -> Change:
    return lambda config: replace(config, **fields)  # type: ignore[arg-type]


REMEDIES: Table[RemedyRow] = Table(
    "remedy",
    {
        "depth-scaled-init": RemedyRow(
            _set(init="gpt2"), "N(0, 0.02), last matrix of each branch divided by sqrt(2L)"
        ),
        "declared-init": RemedyRow(_set(init=None), "the initialisation of the placement itself"),
        "pre-norm": RemedyRow(_placed("pre_norm"), "a norm before each branch"),
        "peri-norm": RemedyRow(_placed("peri_norm"), "a norm before and after each branch"),
        "depth-scaled-norm": RemedyRow(
            _placed("depth_scaled_norm"), "norms before the branches, divided by sqrt(layer)"
        ),
        "layer-scale": RemedyRow(
            _placed("layer_scale"), "a small learned factor on each channel of a branch"
        ),
        "embedding-scale": RemedyRow(
            _set(embedding_scale="sqrt"), "the embedding times sqrt(width)"
        ),
        "embedding-norm": RemedyRow(_set(embedding_norm=True), "a norm on the embedding"),
        "small-eps": RemedyRow(_small_eps, f"eps {SMALL_EPS:.0e} in every norm"),
        "query-key-norm": RemedyRow(
            _set(query_key_norm="head"), "a norm of queries and keys over each head"
        ),
    },
)


def changed(config: TransformerConfig, name: str) -> TransformerConfig:
    """The settings with a remedy.

    >>> changed(nw.TransformerConfig(), "peri-norm").placement
    'peri_norm'

    Raises:
        UnknownName: no remedy of this name.
        SettingError: the remedy changes nothing in this model.
    """
    row = REMEDIES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PairingWarning)  # the check's own result says what it does
        new = row.change(config)
    if new == config:
        raise SettingError(
            f"A remedy must change something. {name} ({row.summary}) does not: this model has it "
            f"already, or has no place for it. Try another of `normwise list remedies`."
        )
    return new


def changing(config: TransformerConfig, names: tuple[str, ...]) -> list[str]:
    """Those of the remedies that change something in a model."""
    return [name for name in names if name in set(REMEDIES) and _changes(config, name)]


def _changes(config: TransformerConfig, name: str) -> bool:
    try:
        changed(config, name)
    except SettingError:
        return False
    return True
