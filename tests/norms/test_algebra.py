"""What LayerNorm and RMSNorm are to each other, and what each leaves unchanged."""

import pytest
import torch
from torch import Tensor, nn

import normwise as nw
from tests.tolerance import FLOAT64_OUTPUT, assert_close


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_layer_norm_is_rms_norm_of_the_centred_row() -> None:
    """LN(x) = RMS(C x) + b with C = I - 1 1^T/d, the same eps, gain and bias."""
    x, gain, bias = 3 + drawn(5, 48), drawn(48, seed=1), drawn(48, seed=2)
    centred = x - x.mean(-1, keepdim=True)
    one = nw.layer_norm(x, 48, gain, bias, 1e-5)
    assert_close(one, nw.rms_norm(centred, 48, gain, 1e-5) + bias, 1e-12)


# microsoft/TransformerCompression#110, #129
def test_P50_a_centred_writer_turns_layer_norm_into_rms_norm() -> None:
    """P50: weight columns and bias without their mean; a bias that is left, or a plain swap, is
    another model.
    """
    writer = nn.Linear(6, 8, dtype=torch.float64)
    x, gain, bias = drawn(10, 6), 1 + 0.3 * drawn(8, seed=1), drawn(8, seed=2)
    with torch.no_grad():
        writer.weight.copy_(drawn(8, 6, seed=3))
        writer.bias.copy_(drawn(8, seed=4))
    expected = nw.layer_norm(writer(x), 8, gain, bias, 1e-5).detach()

    def swapped(weight: Tensor, offset: Tensor) -> Tensor:
        y = nn.functional.linear(x, weight, offset)
        return (nw.rms_norm(y, 8, gain, 1e-5) + bias).detach()

    weight, offset = writer.weight, writer.bias
    assert_close(swapped(weight - weight.mean(0), offset - offset.mean()), expected, 1e-14)
    assert (swapped(weight - weight.mean(0), offset) - expected).abs().max() > 0.1
    assert (swapped(weight, offset) - expected).abs().max() > 0.1


@pytest.mark.parametrize("scale", [3.0, 1e-3])
@pytest.mark.parametrize(
    ("name", "scales", "shifts"),
    [
        ("layer_norm", True, True), ("rms_norm", True, False), ("partial_rms_norm", True, False),
        ("scale_norm", True, False), ("group_norm", True, True), ("dynamic_tanh", False, False),
        ("derf", False, False),
    ],
)  # fmt: skip
def test_invariances(name: str, scale: float, *, scales: bool, shifts: bool) -> None:
    """f(a x) = f(x) and <x, dx> = 0 for a norm, sum(dx) = 0 for one that centres, with eps = 0."""
    norm = nw.make_norm(name, 48, eps=0.0, dtype=torch.float64)
    x = drawn(4, 48).requires_grad_()
    y = norm(x)
    (dx,) = torch.autograd.grad(y, x, drawn(4, 48, seed=1))
    along, total = (x * dx).sum(-1).abs().max(), dx.sum(-1).abs().max()
    assert (along < FLOAT64_OUTPUT) == scales
    assert (total < FLOAT64_OUTPUT) == shifts
    assert ((norm(scale * x) - y).abs().max() < FLOAT64_OUTPUT) == scales
    assert ((norm(x + 2.0) - y).abs().max() < FLOAT64_OUTPUT) == shifts


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_a_token_comes_out_with_mean_square_1(name: str) -> None:
    """E|y|^2 = d exactly with gain 1 and eps 0."""
    y = nw.make_norm(name, 48, eps=0.0, dtype=torch.float64)(2 + drawn(6, 48))
    assert_close(y.detach().square().sum(-1), torch.full((6,), 48.0, dtype=torch.float64), 1e-12)
