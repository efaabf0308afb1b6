"""The norm of a place in a model."""

from typing import Any

from torch import nn

from normwise.model.config import TransformerConfig
from normwise.norms.registry import NORMS, make_norm


def place_norm(config: TransformerConfig, site: str, layer: int, width: int) -> nn.Module:
    """A fresh norm for a site (a row of `SITES`) of a layer, over `width` channels."""
    name, options = config.norm_at(site, layer)
    own: dict[str, Any] = {"eps": config.norm_eps, "affine": config.affine, "bias": config.bias}
    if NORMS[name].batch == "position":
        own["max_len"] = config.max_len
    return make_norm(name, width, **{**own, **options})
