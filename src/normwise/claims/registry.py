"""The claims by id, in the order of the notes."""

from normwise.claims import batch, encoders, rms, shallow, signal, training, why
from normwise.claims.claim import Claim
from normwise.table import Table

_ALL: dict[str, Claim] = {
    name: claim
    for part in (why, signal, training, shallow, batch, encoders, rms)
    for name, claim in part.CLAIMS.items()
}

ORDER = (
    "why-scale", "why-token", "why-gradient", "why-logits",
    "post-expansion", "post-gradient", "pre-growth", "last-layer-gradient", "pre-easy",
    "post-warmup", "pre-shallow", "post-better", "deep-norm",
    "ln-formula", "ln-independent", "bn-batch-size", "bn-padding", "bn-train-eval", "bn-devices",
    "bn-worse-text",
    "rms-is-ln", "rms-invariance", "rms-faster", "rms-quality", "rms-offset", "rms-cast",
)  # fmt: skip

CLAIMS = Table("claim", {name: _ALL[name] for name in ORDER})
