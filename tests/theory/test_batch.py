"""Laws of batch statistics: against the numbers of the design, and against drawn batches."""

import math

import pytest
import torch
from torch import Tensor

import normwise as nw
from normwise.theory.batch import null_discrepancy, padded_moments
from tests.tolerance import STANDARD_ERRORS, assert_close

F64 = torch.float64
# |Z| of a Gaussian has the deviation sqrt(pi/2 - 1) in units of its mean.
SPREAD = math.sqrt(math.pi / 2 - 1)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_padded_moments_by_hand() -> None:
    """norms.md section 7: mu = 1, s^2 = 4, f = 0.635 gives 5 f - f^2; 2.7727 is of an f that was
    rounded to it.
    """
    assert padded_moments(1.0, 4.0, 0.635) == pytest.approx((0.635, 2.771775), abs=1e-12)
    assert padded_moments(1.0, 4.0, 0.635)[1] == pytest.approx(2.7727, abs=0.0005 * (5 - 1.27))
    assert padded_moments(1.0, 4.0, 1.0) == (1.0, 4.0)
    assert padded_moments(1.0, 4.0, 0.0) == (0.0, 0.0)


@pytest.mark.parametrize("offset", [0.0, 1.0, -5.0])
def test_padded_moments_of_any_numbers(offset: float) -> None:
    """The law is an identity between the moments of a sample and of the sample with zeros."""
    valid = offset + randn(635).double()
    padded = torch.cat([valid, torch.zeros(365, dtype=F64)])
    law = padded_moments(valid.mean().item(), valid.var(correction=0).item(), 0.635)
    measured = padded.mean().item(), padded.var(correction=0).item()
    assert measured == pytest.approx(law, abs=1e-10)


def test_padding_pollutes_without_a_mask() -> None:
    """norms.md section 7: 64 sequences of 8 to 32 tokens, N(1, 4): 2.77 unmasked, 4 masked."""
    lengths = torch.randint(8, 33, (64, 1), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(32) < lengths
    x = torch.where(mask.unsqueeze(-1), 1 + 2 * randn(64, 32, 128), 0)
    found = []
    for given in (None, mask):
        norm = nw.BatchNormTokens(128, momentum=1.0)
        norm(x, given)
        found.append((norm.running_mean.mean().item(), norm.running_var.mean().item()))
    valid = mask.double().mean().item()
    # The mean of a channel's variance over 128 channels errs by s^2 sqrt(2/(128 n)).
    error = STANDARD_ERRORS * 4 * math.sqrt(2 / (128 * int(mask.sum())))
    for measured, law in zip(found, (padded_moments(1.0, 4.0, valid), (1.0, 4.0)), strict=True):
        assert measured == pytest.approx(law, abs=error)
    assert found[1][1] - found[0][1] > 10 * error


@pytest.mark.parametrize(
    ("tokens", "mean", "deviation"),
    [(16, 0.1995, 0.141), (64, 0.0997, 0.0705), (256, 0.0499, 0.0353), (4096, 0.0125, 0.0088)],
)
def test_null_discrepancy_by_hand(tokens: int, mean: float, deviation: float) -> None:
    """norms.md section 8, the table."""
    found = null_discrepancy(tokens)
    assert found == pytest.approx((mean, deviation), abs=6e-5 if tokens > 16 else 1e-4)
    assert null_discrepancy(tokens, sequences=4) == found
    assert null_discrepancy(tokens, sequences=tokens, shared=0.5)[0] == pytest.approx(found[0])


@pytest.mark.parametrize(("sequences", "mean"), [(64, 0.0707), (8, 0.200)])
def test_the_effective_batch_is_sequences(sequences: int, mean: float) -> None:
    """norms.md section 8: half of the variance is shared within a sequence, n = 4096."""
    law, of_deviation = null_discrepancy(4096, sequences, 0.5)
    assert law == pytest.approx(mean, abs=6e-4)
    assert of_deviation == null_discrepancy(4096)[1]
    assert law > 5 * null_discrepancy(4096)[0]


def discrepancies(x: Tensor) -> tuple[float, float]:
    """mean_c |mu - mu_B|/s_B and mean_c |s/s_B - 1| for mu = 0 and s = 1; x (tokens, channels)."""
    mean, deviation = x.mean(0), x.std(0, correction=0)
    return (mean.abs() / deviation).mean().item(), (1 / deviation - 1).abs().mean().item()


@pytest.mark.parametrize("tokens", [64, 256, 4096])
def test_null_discrepancy_of_drawn_batches(tokens: int) -> None:
    """Gated from 64 tokens for the mean and from 256 for the deviation, which is asymptotic."""
    channels = 2**20 // tokens
    measured, law = discrepancies(randn(tokens, channels)), null_discrepancy(tokens)
    # 1/s_B of n tokens is 1 + 3/(4n) on average: the laws hold up to some terms of 1/n.
    error = STANDARD_ERRORS * SPREAD / math.sqrt(channels) + 5 / tokens
    assert measured[0] == pytest.approx(law[0], rel=error)
    if tokens >= 256:
        assert measured[1] == pytest.approx(law[1], rel=error)


@pytest.mark.parametrize("sequences", [64, 8])
def test_shared_variance_of_drawn_batches(sequences: int) -> None:
    """The law of independent tokens is off by a factor of 5 and more."""
    channels = 512
    shared = randn(sequences, 1, channels)
    x = (0.5**0.5 * (shared + randn(sequences, 4096 // sequences, channels, seed=1))).flatten(0, 1)
    law, _ = null_discrepancy(4096, sequences, 0.5)
    # The deviation of a batch has few sequences to be measured on.
    error = STANDARD_ERRORS * SPREAD / math.sqrt(channels) + 1 / sequences
    assert discrepancies(x)[0] == pytest.approx(law, rel=error)


def test_the_tables_are_of_the_form_that_is_measured() -> None:
    """`discrepancies` by hand: deviations 2 and 1 of means 1 and 3."""
    x = torch.tensor([[3.0, 4.0], [-1.0, 2.0]])
    assert_close(torch.tensor(discrepancies(x)), torch.tensor([1.75, 0.25], dtype=F64), 1e-6)
