"""What a model can whatever its placement: copies, pickles, state dicts, bf16, compilers."""

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import normwise as nw
from normwise.residual.registry import PLACEMENTS
from tests.tolerance import assert_close

PLACES = list(PLACEMENTS)
every = pytest.mark.parametrize("placement", PLACES)
torchs_own_warnings = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its compiler
BF16_LOGITS = 0.05  # some 40 roundings of 2^-8 in a row, which add up like a random walk


@pytest.fixture(autouse=True)
def no_graphs_of_other_tests() -> None:
    torch._dynamo.reset()


def small(placement: str, seed: int = 0) -> nw.Transformer:
    """Two layers whose parameters are not where they start, so that a lost one shows."""
    config = nw.TransformerConfig(
        vocab_size=11, max_len=6, width=16, depth=2, heads=2, placement=placement
    )
    model = nw.Transformer(config, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def tokens(batch: int = 2) -> Tensor:
    return torch.arange(6 * batch).reshape(batch, 6) % 11


def gradients(model: nn.Module) -> list[Tensor]:
    """Of a loss on `tokens`, by parameter."""
    model.zero_grad()
    logits = model(tokens())
    cross_entropy(logits.flatten(0, 1).float(), tokens().flatten().roll(1)).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@every
def test_copies_pickles_and_state_dicts(placement: str) -> None:
    model = small(placement)
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    stream.seek(0)
    with torch.device("meta"):
        empty = nw.Transformer(model.config)
    loaded = empty.to_empty(device="cpu")
    loaded.load_state_dict(torch.load(stream))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        assert torch.equal(other(tokens()), model(tokens()))
        for theirs, ours in zip(gradients(other), gradients(model), strict=True):
            assert torch.equal(theirs, ours)


@every
def test_a_copy_is_apart_from_its_original(placement: str) -> None:
    """Training a copy changes nothing of the original: what is shared is shared within each."""
    model = small(placement)
    before = model(tokens())
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    assert torch.equal(model(tokens()), before)
    assert (other(tokens()) - before).abs().max() > 1e-3


@every
def test_bf16(placement: str) -> None:
    """A model in bf16 computes what the same weights give in fp32, up to its roundings."""
    model = small(placement).bfloat16()
    wide = copy.deepcopy(model).float()
    logits = model(tokens())
    assert logits.dtype == torch.bfloat16
    expected = wide(tokens()).detach().double()
    assert_close(logits, expected, BF16_LOGITS * expected.abs().max().item())
    assert all(gradient.isfinite().all() for gradient in gradients(model))


@torchs_own_warnings
@every
def test_one_graph(placement: str) -> None:
    """Traced without a break, forward and backward are those of eager mode."""
    model = small(placement)
    eager, expected = gradients(model), model(tokens()).detach()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_close(compiled(tokens()), expected.double(), 1e-5)
    for theirs, ours in zip(gradients(compiled), eager, strict=True):
        assert_close(theirs, ours.double(), 1e-5 * (1 + ours.abs().max().item()))


@torchs_own_warnings
@pytest.mark.parametrize("placement", ["deep_norm", "gpas", "siamese_norm", "hyper_connections"])
def test_inductor(placement: str) -> None:
    """One of each family in the code that torch.compile makes by default."""
    model = small(placement)
    eager, expected = gradients(model), model(tokens()).detach()
    compiled = torch.compile(model, fullgraph=True)
    assert_close(compiled(tokens()), expected.double(), 1e-5)
    for theirs, ours in zip(gradients(compiled), eager, strict=True):
        assert_close(theirs, ours.double(), 1e-5 * (1 + ours.abs().max().item()))
