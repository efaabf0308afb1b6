"""Norms by site and layer, scales of the embedding, and what does not go together."""

import pytest
import torch
from torch import nn

import normwise as nw
from normwise.errors import PairingWarning, SettingError, UnknownName


def norms(model: nn.Module) -> dict[str, str]:
    return {
        name: type(module).__name__
        for name, module in model.named_modules()
        if hasattr(module, "normalized_shape")
    }


def test_a_norm_for_every_site_and_layer() -> None:
    """The last rule that holds for a place wins (x-transformers#199)."""
    config = nw.TransformerConfig(
        depth=2, norm="rms_norm", placement="sub_norm", query_key_norm="head", embedding_norm=True,
        norms=(
            nw.NormAt("layer_norm", sites=("attention",)),
            nw.NormAt("scale_norm", sites=("attention", "feed_forward"), layers=(1,)),
            nw.NormAt("group_norm", sites=("inner",), options={"groups": 2}),
            nw.NormAt("ln", sites=("query_key", "final")),
            nw.NormAt("dyt", sites=("embedding",)),
        ),
    )  # fmt: skip
    found = norms(nw.Transformer(config, seed=0))
    of = {site: {kind for name, kind in found.items() if site in name} for site in (
        "connections.0", "connections.1", "connections.2", "connections.3", "query_norm",
        "attention.output_norm", "feed_forward.output_norm", "final_norm", "entry.norm",
    )}  # fmt: skip
    assert of == {
        "connections.0": {"LayerNorm"}, "connections.1": {"RMSNorm"},
        "connections.2": {"ScaleNorm"}, "connections.3": {"ScaleNorm"},
        "query_norm": {"LayerNorm"}, "attention.output_norm": {"GroupNorm"},
        "feed_forward.output_norm": {"GroupNorm"}, "final_norm": {"LayerNorm"},
        "entry.norm": {"DynamicTanh"},
    }  # fmt: skip
    assert hash(config) == hash(nw.TransformerConfig(**vars(config)))


def test_options_reach_the_norm() -> None:
    """A 7B language model's alpha: 0.8 before attention, 0.2 elsewhere (2503.10622)."""
    rules = (
        nw.NormAt("dynamic_tanh", options={"alpha": 0.2}),
        nw.NormAt("dynamic_tanh", sites=("attention",), options={"alpha": 0.8}),
    )
    config = nw.TransformerConfig(depth=1, norm="dynamic_tanh", norms=rules)
    model = nw.Transformer(config, seed=0)
    alphas = {n: round(p.item(), 6) for n, p in model.named_parameters() if n.endswith("alpha")}
    assert alphas == {
        "placement.connections.0.norm.alpha": 0.8,
        "placement.connections.1.norm.alpha": 0.2,
        "placement.final_norm.alpha": 0.2,
    }


@pytest.mark.parametrize(
    ("norm", "own"), [("dynamic_tanh", "learned"), ("derf", "learned"), ("rms_norm", "none")]
)
def test_a_curve_brings_a_scale_of_the_embedding(norm: str, own: str) -> None:
    config = nw.TransformerConfig(depth=1, width=16, norm=norm)
    assert config.embedding_scale == own
    model = nw.Transformer(config, seed=0)
    scale = dict(model.named_parameters()).get("entry.scale")
    assert (scale is None) == (own == "none")
    if scale is not None:
        assert scale.item() == 4.0
        model(torch.zeros(1, 3, dtype=torch.long)).square().mean().backward()
        assert scale.grad is not None


def test_a_fixed_scale_of_the_embedding() -> None:
    plain = nw.TransformerConfig(depth=1, width=16, positions="none")
    scaled = nw.TransformerConfig(depth=1, width=16, positions="none", embedding_scale="sqrt")
    ids = torch.arange(3)[None]
    one, other = (nw.Transformer(c, seed=0).entry(ids, None) for c in (plain, scaled))
    assert torch.equal(other, 4.0 * one)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"placement": "deep_norm", "init": "xavier"}, "its constants assume its own init"),
        ({"placement": "pre_norm", "init": "deep_norm"}, "belongs to the constants of deep_norm"),
        ({"placement": "output_norm", "query_key_norm": "none"}, "the logits grow with the layer"),
    ],
)
def test_an_unmatched_pair_warns_and_is_built(changes: dict[str, str], message: str) -> None:
    """Section 2: alpha without beta, and output_norm without its query/key norm."""
    with pytest.warns(PairingWarning, match=message) as warned:
        config = nw.TransformerConfig(depth=1, **changes)  # type: ignore[arg-type]
    assert warned[0].filename == __file__
    with pytest.warns(PairingWarning):
        nw.Transformer(nw.TransformerConfig(**vars(config)), seed=0)


@pytest.mark.parametrize("placement", ["pre_norm", "deep_norm", "output_norm", "hybrid_norm"])
def test_a_placement_brings_what_belongs_to_it(placement: str) -> None:
    config = nw.TransformerConfig(placement=placement)
    assert config.query_key_norm == {"output_norm": "full", "hybrid_norm": "head"}.get(
        placement, "none"
    )
    assert config.init == {"deep_norm": "deep_norm", "output_norm": "xavier_packed"}.get(
        placement, "gpt2"
    )


@pytest.mark.parametrize("norm", ["batch_norm_tokens", "regularized_batch_norm", "power_norm"])
def test_a_causal_model_may_not_see_its_future(norm: str) -> None:
    with pytest.raises(SettingError, match=f"^{norm} normalizes a token with the ones after it"):
        nw.TransformerConfig(norm=norm)
    assert nw.TransformerConfig(norm=norm, causal=False).norm == norm


@pytest.mark.parametrize("changes", [{"query_key_norm": "head"}, {"placement": "hybrid_norm"}])
def test_a_batch_norm_has_no_heads(changes: dict[str, str]) -> None:
    with pytest.raises(SettingError, match="heads come without one"):
        nw.TransformerConfig(norm="batch_norm_position", **changes)  # type: ignore[arg-type]
    rules = (nw.NormAt("rms_norm", sites=("query_key", "value")),)
    config = nw.TransformerConfig(depth=1, norm="batch_norm_position", norms=rules, **changes)  # type: ignore[arg-type]
    nw.Transformer(config, seed=0)(torch.zeros(2, 3, dtype=torch.long))


@pytest.mark.parametrize("norm", ["batch_norm_position", "batch_norm_tokens"])
def test_padding_is_seen_by_no_valid_token(norm: str) -> None:
    """In attention and in the statistics, in training and in evaluation."""
    config = nw.TransformerConfig(
        depth=2, norm=norm, init="xavier", causal=False, query_key_norm="full"
    )
    model = nw.Transformer(config, seed=0)
    ids = torch.arange(36).reshape(4, 9)
    mask = torch.ones(4, 9, dtype=torch.bool)
    mask[1, 5:] = mask[2, :3] = False
    for mode in (True, False):
        model.train(mode)
        expected = model(ids, mask=mask)
        assert torch.equal(model(torch.where(mask, ids, 99), mask=mask)[mask], expected[mask])
        assert (model(torch.where(mask, ids, 99)) - expected)[mask].abs().max() > 1e-3
        assert expected.isfinite().all()


def test_constants_of_a_placement() -> None:
    config = nw.TransformerConfig(depth=2, placement="keel", placement_options={"alpha": 7.0})
    assert nw.Transformer(config, seed=0).placement.connections[1].alpha == 7.0
    with pytest.raises(SettingError, match=r"constants of keel: alpha\. They are beta"):
        nw.TransformerConfig(placement="keel", placement_options={"beta": 1.0})
    with pytest.raises(UnknownName, match="Did you mean attention"):
        nw.NormAt("rms_norm", sites=("atention",))
