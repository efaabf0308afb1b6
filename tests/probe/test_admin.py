"""Admin's profiling against its recurrence written out."""

import math

import pytest
import torch

import normwise as nw
from normwise.errors import SettingError


def test_omega_is_the_size_of_everything_before() -> None:
    """omega_(i+1)^2 = omega_i^2 Var[x_i] + Var[f_i], measured with omega = 1: post-norm."""
    model = nw.Transformer(nw.reference_config("r1", placement="admin", depth=4), seed=0)
    plain = nw.Transformer(nw.reference_config("r1", placement="post_norm", depth=4), seed=0)
    x = torch.randn(2, 32, 128, generator=torch.Generator().manual_seed(1))
    with nw.StreamRecorder(plain) as recorder:
        plain(inputs_embeds=x)
    profile = recorder.profile()
    expected, square = [], 1.0
    for stream, branch in zip(profile.stream[:-1], profile.branch, strict=True):
        expected.append(math.sqrt(square))
        square = square * stream**2 + branch**2
    assert nw.profile_admin(model, inputs_embeds=x) == pytest.approx(expected, rel=1e-5)
    assert [c.omega[0].item() for c in model.placement.connections] == pytest.approx(expected)
    again = nw.profile_admin(model, inputs_embeds=x)
    assert again == pytest.approx(expected, rel=1e-5)


def test_omega_is_in_the_state_dict_and_trains() -> None:
    config = nw.TransformerConfig(placement="admin", depth=2)
    model, other = nw.Transformer(config, seed=0), nw.Transformer(config, seed=1)
    tokens = torch.arange(16).reshape(2, 8)
    nw.profile_admin(model, tokens)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(tokens), model(tokens))
    model(tokens).square().mean().backward()
    gradients = [c.omega.grad for c in model.placement.connections]
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)


def test_a_model_without_admin_is_refused() -> None:
    model = nw.Transformer(nw.TransformerConfig(depth=1), seed=0)
    with pytest.raises(SettingError, match="needs a model with the placement admin"):
        nw.profile_admin(model, torch.zeros(1, 4, dtype=torch.long))
