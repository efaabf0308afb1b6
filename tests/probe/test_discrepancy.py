"""Discrepancy between training and inference of batch norms: by hand, by chance, in models."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import normwise as nw
from normwise.errors import UnknownName
from normwise.probe.discrepancy import FORMS, Discrepancy, discrepancy
from normwise.theory.batch import null_discrepancy
from tests.tolerance import STANDARD_ERRORS

CHANNELS = 3
Call = Callable[[nn.Module, Tensor, Tensor | None], Tensor]
SPREAD = math.sqrt(math.pi / 2 - 1)  # of |Z| for a Gaussian, in units of its mean

forms = pytest.mark.parametrize("form", list(FORMS))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Model(nn.Module):
    """Two norms over tokens, one over positions, and a LayerNorm."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.first = nw.BatchNormTokens(CHANNELS)
        self.layers = nn.ModuleList([nw.LayerNorm(CHANNELS), nw.BatchNormPosition(CHANNELS, 8)])
        self.last = nw.make_norm("regularized_batch_norm", CHANNELS)
        self.call = CALLS[call]
        for seed, norm in enumerate((self.first, self.last), 1):
            norm.running_mean.add_(randn(CHANNELS, seed=seed))
            norm.running_var.add_(randn(CHANNELS, seed=seed + 2).abs())

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.call(self.first, x, mask)
        for layer in self.layers:
            x = layer(x)
        return self.call(self.last, x, mask)


def after_setting(norm: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    norm.mask = mask
    return norm(x)


CALLS: dict[str, Call] = {
    "positional": lambda norm, x, mask: norm(x, mask),
    "keyword": lambda norm, x, mask: norm(x, mask=mask),
    "keywords": lambda norm, x, mask: norm(x=x, mask=mask),
    "attribute": after_setting,
}


def by_hand(norm: nn.Module, rows: Tensor, form: str) -> tuple[float, float]:
    """Of rows (tokens, channels), in float64."""
    rows, mean, s = rows.double(), norm.running_mean.double(), norm.running_var.double().sqrt()
    batch, s_b = rows.mean(0), rows.std(0, correction=0)
    if form == "code":
        return ((mean - batch).abs() / s_b).mean().item(), (s / s_b - 1).abs().mean().item()
    length = s.square().sum().sqrt()
    of_mean = (batch - mean).square().sum().sqrt() / length
    return of_mean.item(), ((s_b - s).square().sum().sqrt() / length).item()


def test_both_forms_by_hand() -> None:
    """norms.md section 8: channels of deviation 1 and 10, batches of deviation 2 and 5."""
    given = [torch.tensor(v).double() for v in ([1, 2], [1, 100], [2, 4], [4, 25])]
    found = {form: tuple(t.item() for t in discrepancy(*given, form)) for form in FORMS}
    assert found["code"] == pytest.approx(((1 / 2 + 2 / 5) / 2, (1 / 2 + 1) / 2))
    assert found["paper"] == pytest.approx((math.sqrt(5 / 101), math.sqrt(26 / 101)))
    assert discrepancy(*given) == discrepancy(*given, "code")


def test_both_forms_agree_where_scales_are_equal() -> None:
    """One deviation everywhere, and one distance: the case that tells nothing."""
    given = [torch.full((4,), v).double() for v in (1.0, 4.0, 3.0, 4.0)]
    for form in FORMS:
        assert [t.item() for t in discrepancy(*given, form)] == pytest.approx([1.0, 0.0])


@forms
@pytest.mark.parametrize("call", list(CALLS))
@pytest.mark.parametrize("masked", [False, True])
def test_layers_of_a_model(form: str, call: str, *, masked: bool) -> None:
    """Every norm over tokens in the order of the pass, on valid tokens, however it is called."""
    model = Model(call)
    x = 1 + 2 * randn(4, 5, CHANNELS)
    mask = torch.arange(5) < torch.tensor([5, 3, 2, 1]).unsqueeze(1) if masked else None
    seen: dict[str, Tensor] = {}
    for norm in (model.first, model.last):
        norm.register_forward_pre_hook(
            lambda norm, args, named: seen.update({norm: args[0] if args else named["x"]}),
            with_kwargs=True,
        )
    found = nw.batch_discrepancy(model, x, mask, form=form)
    assert [each.layer for each in found] == ["first", "last"]
    for each, norm in zip(found, (model.first, model.last), strict=True):
        rows = seen[norm].flatten(0, 1) if mask is None else seen[norm][mask]
        assert each.tokens == len(rows)
        assert (each.mean, each.deviation) == pytest.approx(by_hand(norm, rows, form), rel=1e-5)
        assert each.chance == null_discrepancy(len(rows))


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(*, fails: bool) -> None:
    """Modes of single modules, running statistics and hooks, also after an error."""
    model = Model("positional").train()
    model.first.eval()
    model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if fails:
        with pytest.raises(nw.NormwiseError, match="BatchNormPosition: x must be"):
            nw.batch_discrepancy(model, randn(4, 9, CHANNELS))
    else:
        nw.batch_discrepancy(model, randn(4, 5, CHANNELS))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_an_unknown_form_is_answered() -> None:
    with pytest.raises(UnknownName, match="Unknown discrepancy 'tid'"):
        nw.batch_discrepancy(nw.BatchNormTokens(2), randn(4, 2), form="tid")


def test_layers_with_nothing_to_compare_are_left_out() -> None:
    """Without running statistics, or without a valid token, there is no discrepancy."""
    assert nw.batch_discrepancy(nw.BatchNormTokens(2, track_running_stats=False), randn(4, 2)) == []
    assert nw.batch_discrepancy(nw.BatchNormTokens(2), randn(0, 2)) == []
    nothing = torch.zeros(4, dtype=torch.bool)
    assert nw.batch_discrepancy(nw.BatchNormTokens(2), randn(4, 2), nothing) == []
    assert nw.batch_discrepancy(nw.LayerNorm(2), randn(4, 2)) == []


def test_a_transformer_and_its_mask() -> None:
    """The mask of the model reaches what is measured."""
    config = nw.TransformerConfig(depth=2, norm="batch_norm_tokens", causal=False)
    model = nw.Transformer(config, seed=0)
    tokens, mask = torch.arange(12).reshape(2, 6), torch.arange(6) < torch.tensor([[6], [3]])
    found = nw.batch_discrepancy(model, tokens, mask=mask)
    names = {name for name, m in model.named_modules() if isinstance(m, nw.BatchNormTokens)}
    assert {each.layer for each in found} == names
    assert {each.tokens for each in found} == {9}


@pytest.mark.parametrize("tokens", [64, 256, 4096])
def test_chance_is_what_is_found(tokens: int) -> None:
    """norms.md section 8: exact running statistics, N(0, 1) tokens; the deviation from 256 on."""
    channels = 2**20 // tokens
    (found,) = nw.batch_discrepancy(nw.BatchNormTokens(channels), randn(tokens, channels))
    assert isinstance(found, Discrepancy)
    # 1/s_B of n tokens is 1 + 3/(4n) on average: the laws hold up to some terms of 1/n.
    error = STANDARD_ERRORS * SPREAD / math.sqrt(channels) + 5 / tokens
    assert found.mean == pytest.approx(found.chance[0], rel=error)
    if tokens >= 256:
        assert found.deviation == pytest.approx(found.chance[1], rel=error)
