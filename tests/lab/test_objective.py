"""What a run is asked: the next token, or hidden ones in padded sentences."""

import numpy as np
import pytest
import torch

from normwise.errors import DataError
from normwise.lab.data import Corpus, load_corpus
from normwise.lab.grid import expand
from normwise.lab.objective import OBJECTIVES, UNASKED, HiddenTokens, sentences, token_loss
from normwise.lab.settings import CompareSettings, RunSettings
from normwise.lab.train import model_config, train

TEXT = b"One is short. No. Two is a little longer! Is this three?\n\nFour has no end"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus()


def run(**changes: object) -> RunSettings:
    settings = CompareSettings(
        seeds=1, warmup=0, depth=2, width=16, heads=2, seq_len=32, steps=3, batch_size=8,
        placements="pre_norm", **changes,
    )  # fmt: skip
    (only,) = expand(settings).runs
    return only


def test_sentences_end_with_a_mark_or_an_empty_line() -> None:
    tokens = np.frombuffer(TEXT, dtype=np.uint8)
    found = [bytes(tokens[start:end]) for start, end in sentences(tokens)]
    assert found == [
        b"One is short.", b" Two is a little longer!", b" Is this three?", b"\nFour has no end",
    ]  # fmt: skip


def test_hidden_tokens_are_asked_for_and_padding_is_not(corpus: Corpus) -> None:
    objective = HiddenTokens(run(objective="hidden"), corpus)
    batches = objective.batches()
    inputs, targets, masks = [], [], []
    for _ in range(200):
        batch = next(batches)
        assert batch.mask is not None
        assert batch.inputs.shape[1] <= 32
        asked = batch.targets != UNASKED
        assert asked.any(-1).all()
        assert not (asked & ~batch.mask).any()
        assert ((batch.inputs == objective.padding) == ~batch.mask).all()
        kept = batch.mask & ~asked
        assert (batch.inputs[kept] < corpus.vocab_size).all()
        inputs.append(batch.inputs[asked])
        targets.append(batch.targets[asked])
        masks.append(batch.mask.flatten())
    shown, wanted = torch.cat(inputs), torch.cat(targets)
    share = len(wanted) / int(torch.cat(masks).sum())
    assert share == pytest.approx(0.15, abs=0.02)
    assert (shown == objective.hidden).double().mean() == pytest.approx(0.8, abs=0.02)
    assert (shown == wanted).double().mean() == pytest.approx(0.1, abs=0.015)  # 0.1/256 by chance
    assert (~torch.cat(masks)).any()


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_one_seed_gives_one_sequence_of_batches(name: str, corpus: Corpus) -> None:
    first, second = (OBJECTIVES[name](run(objective=name), corpus).batches() for _ in range(2))
    for _ in range(3):
        one, other = next(first), next(second)
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)


def test_the_validation_is_the_same_for_every_run(corpus: Corpus) -> None:
    runs = (run(objective="hidden"), run(objective="hidden", norms="rms_norm"))
    one, other = (list(HiddenTokens(made, corpus).validation()) for made in runs)
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(one, other, strict=True))
    assert sum(len(batch.inputs) for batch in one) == 256


def test_targets_that_are_not_asked_for_are_no_part_of_the_loss() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, UNASKED, 2], [UNASKED, UNASKED, 4]])
    shares = torch.log_softmax(logits.double(), -1)
    expected = -(shares[0, 0, 1] + shares[0, 2, 2] + shares[1, 2, 4]) / 3
    assert token_loss(logits, targets).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    "norm", ["layer_norm", "batch_norm_tokens", "batch_norm_position", "regularized_batch_norm"]
)
def test_an_encoder_trains_on_padded_sentences(norm: str, corpus: Corpus) -> None:
    made = run(objective="hidden", norms=norm)
    config = model_config(made, corpus.vocab_size)
    assert not config.causal
    assert config.vocab_size == corpus.vocab_size + 2
    record = train(made, corpus)
    assert record["diverged_at"] is None
    assert record["predicted_stream"] is None
    assert record["tokens_per_second"] > 0


def test_text_without_sentences_is_told(corpus: Corpus) -> None:
    words = Corpus(np.zeros(9000, dtype=np.uint8) + 97, 256, "a text", "bytes", "")
    with pytest.raises(DataError, match="two sentences for training"):
        HiddenTokens(run(objective="hidden"), words)
    other = Corpus(corpus.tokens, 256, "a text", "gpt2", "")
    with pytest.raises(DataError, match="The tokenizer is gpt2"):
        HiddenTokens(run(objective="hidden"), other)
