"""The encoder-decoder: who sees whom, and the constants of the pair."""

import pytest
import torch
from torch import Tensor

import normwise as nw
from normwise.residual.registry import PLACEMENTS
from normwise.weight_init import CROSS

SOURCE, TARGET = torch.arange(14).reshape(2, 7), torch.arange(10).reshape(2, 5)


def pair(placement: str = "pre_norm", **changes: object) -> nw.EncoderDecoder:
    config = nw.TransformerConfig(
        vocab_size=16, width=16, heads=2, placement=placement, bias=False, **changes
    )
    return nw.EncoderDecoder(config, 2, 3, seed=0)


@pytest.mark.parametrize("placement", list(PLACEMENTS))
def test_a_target_sees_what_came_before_it_and_the_whole_source(placement: str) -> None:
    model = pair(placement)
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(seed)
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    before = model(SOURCE, TARGET)
    assert before.shape == (2, 5, 16)
    later = TARGET.clone()
    later[:, 3:] = 11
    assert torch.equal(model(SOURCE, later)[:, :3], before[:, :3])
    other = SOURCE.clone()
    other[:, -1] = 11
    assert ((model(other, TARGET) - before).abs().amax(-1) > 1e-6).all()
    before.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_padding_of_the_source_is_seen_by_nobody() -> None:
    model = pair()
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    other = torch.where(mask, SOURCE, 15)
    expected = model(SOURCE, TARGET, source_mask=mask)
    assert torch.equal(model(other, TARGET, source_mask=mask), expected)
    assert (model(other, TARGET) - model(SOURCE, TARGET)).abs().max() > 1e-4
    short = model(SOURCE[1:, :4], TARGET[1:])
    torch.testing.assert_close(short, expected[1:], atol=1e-6, rtol=0)


def test_batch_norms_see_no_padding_of_either_side() -> None:
    """Keys of cross-attention are of the source, and are masked with it."""
    model = pair("post_norm", norm="batch_norm_position", query_key_norm="full")
    ids = torch.arange(28).reshape(4, 7) % 16
    mask = torch.ones(4, 7, dtype=torch.bool)
    mask[1, 4:] = mask[3, 5:] = False
    masks = {"source_mask": mask, "target_mask": mask}
    expected = model(ids, ids, **masks)
    padded = torch.where(mask, ids, 15)
    assert torch.equal(model(padded, padded, **masks)[mask], expected[mask])


# figure 2 of 2203.00555 at 6 and 6 layers; torchscale has 0.6569 for the encoder's beta
def test_deep_norms_constants_of_the_pair() -> None:
    config = nw.TransformerConfig(width=64, placement="deep_norm")
    model = nw.EncoderDecoder(config, 6, 6, seed=0)
    alphas = [
        {round(c.alpha, 4) for c in stack.placement.connections}
        for stack in (model.encoder, model.decoder)
    ]
    assert alphas == [{1.4179}, {2.0598}]
    betas = (0.4970, 0.3433)
    for (_, weights), beta in zip(model.weights(), betas, strict=True):
        stds: dict[str, list[Tensor]] = {}
        for weight in weights:
            stds.setdefault(weight.role, []).append(weight.tensor.detach().flatten())
        query, value = (torch.cat(stds[role]).std() for role in ("query", "value"))
        assert value / query == pytest.approx(beta, rel=0.03)
        if CROSS + "value" in stds:
            cross = torch.cat(stds[CROSS + "value"]).std()
            assert cross / query == pytest.approx(beta, rel=0.03)


def test_sub_norms_gain_skips_cross_attention() -> None:
    model = nw.EncoderDecoder(nw.TransformerConfig(placement="sub_norm"), 6, 6, seed=0)
    stds = [
        {weight.role: float(weight.tensor.detach().std()) for weight in weights}
        for _, weights in model.weights()
    ]
    gains = [of["value"] / of["query"] for of in stds]
    assert gains == pytest.approx([1.5473, 1.7001], rel=0.06)
    assert stds[1][CROSS + "value"] / stds[1][CROSS + "query"] == pytest.approx(1.0, rel=0.06)


def test_a_pair_built_on_meta_equals_a_normal_one() -> None:
    config = nw.TransformerConfig(width=16, heads=2, placement="rezero", tied_head=True)
    with torch.device("meta"):
        model = nw.EncoderDecoder(config, 1, 1)
    model.to_empty(device="cpu")
    model.reset_parameters(seed=3)
    normal = nw.EncoderDecoder(config, 1, 1, seed=3)
    assert torch.equal(model(SOURCE, TARGET), normal(SOURCE, TARGET))
    assert model.head.weight is model.target.embedding.weight


def test_admin_is_profiled_on_both_stacks() -> None:
    model = pair("admin")
    omegas = nw.profile_admin(model, SOURCE, TARGET)
    assert len(omegas) == 2 * 2 + 3 * 3
    assert omegas[0] == omegas[4] == 1.0
    for own in (omegas[1:4], omegas[5:]):  # the first stream is the embedding, which is smaller
        assert own == sorted(own)
