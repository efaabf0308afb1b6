"""Reading text."""

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest

from normwise.errors import DataError
from normwise.lab.data import load_corpus


def test_the_default_text_is_python_s_manual() -> None:
    corpus = load_corpus()
    assert corpus.vocab_size == 256
    assert len(corpus.tokens) > 400_000
    assert 3.1 < corpus.unigram_loss < 3.4


def test_a_file_is_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("gr\u00fcn")
    corpus = load_corpus(str(path))
    assert corpus.tokens.tolist() == list("gr\u00fcn".encode())
    assert corpus.sha256 == hashlib.sha256("gr\u00fcn".encode()).hexdigest()
    assert corpus.source == str(path)


def test_a_glob_joins_files_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.txt").write_text(name * 2)
    assert bytes(load_corpus(str(tmp_path / "*.txt")).tokens) == b"aa\nbb"


def test_strings_are_joined_by_lines() -> None:
    assert bytes(load_corpus(["one", "two"]).tokens) == b"one\ntwo"
    assert bytes(load_corpus(word for word in ("one", "two")).tokens) == b"one\ntwo"


def test_the_last_tenth_is_for_validation() -> None:
    corpus = load_corpus(["0123456789" * 3])
    assert bytes(corpus.validation) == b"789"
    assert len(corpus.train) == 27


def test_levels_by_hand() -> None:
    corpus = load_corpus(["a" * 90 + "b" * 10])
    share = 91 / (90 + 256)
    assert corpus.frequencies[ord("a")] == pytest.approx(share)
    assert corpus.unigram_loss == pytest.approx(-math.log(1 / (90 + 256)))
    assert corpus.collision == pytest.approx(share**2 + 255 / 346**2)


def test_a_hugging_face_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    loaded = datasets.Dataset.from_dict({"text": ["one", "two"], "body": ["three", "four"]})
    assert bytes(load_corpus(loaded).tokens) == b"one\ntwo"
    assert bytes(load_corpus(loaded, text_column="body").tokens) == b"three\nfour"
    (tmp_path / "train.jsonl").write_text('{"text": "five"}\n{"text": "six"}\n')
    assert bytes(load_corpus(f"hf:{tmp_path}").tokens) == b"five\nsix"


def test_a_hugging_face_tokenizer_from_a_folder(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    model = tokenizers.models.WordLevel({"yes": 0, "no": 1, "?": 2}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")
    fast.save_pretrained(tmp_path)
    corpus = load_corpus(["yes no no", "maybe"], tokenizer=str(tmp_path))
    assert corpus.tokens.tolist() == [0, 1, 1, 2]
    assert corpus.vocab_size == 3
    assert corpus.tokens.dtype == np.int32


def refusal(data: object, **options: str) -> str:
    with pytest.raises(DataError) as caught:
        load_corpus(data, **options)
    return str(caught.value)


def test_a_missing_file() -> None:
    assert refusal("no/such.txt") == (
        "The text must exist. There is no file no/such.txt. Check the path."
    )


def test_a_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        f"The text must be a file or a glob. {tmp_path} is a folder. "
        f"Pass '{tmp_path}/*.txt' or the like."
    )


@pytest.mark.parametrize("content", ["", " \n"])
def test_an_empty_file(content: str, tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text(content)
    assert refusal(path) == (f"The text must not be empty. {path} is. Pass a file with text in it.")


@pytest.mark.parametrize("content", [b"\xff\xfe\xfa", b"text\0text"])
def test_a_binary_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(content)
    assert refusal(path) == (
        f"The text must be UTF-8. {path} holds binary data. Convert it, or pass another file."
    )


def test_things_that_are_no_strings() -> None:
    assert refusal([b"bytes"]) == (
        "The text must be strings. One of them is a bytes. "
        "Pass a path, a list of str, or a dataset with a text column."
    )


def test_a_column_that_is_not_there() -> None:
    datasets = pytest.importorskip("datasets")
    loaded = datasets.Dataset.from_dict({"body": ["one"]})
    assert refusal(loaded) == (
        "The dataset must have a column of text. There is no 'text' among body. "
        "Name it with text_column."
    )


def test_a_dataset_and_a_tokenizer_that_are_not_there(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    pytest.importorskip("transformers")
    nowhere = tmp_path / "nowhere"
    assert "must be a folder or a name that loads" in refusal(f"hf:{nowhere}")
    nowhere.mkdir()
    assert "must be a folder or a name that loads" in refusal(["text"], tokenizer=str(nowhere))


def test_a_text_shorter_than_a_sequence() -> None:
    corpus = load_corpus(["x" * 300])
    corpus.check_length(29)
    with pytest.raises(DataError) as caught:
        corpus.check_length(30)
    assert str(caught.value) == (
        "The text must hold a sequence for training and one for validation: 310 tokens for "
        "seq_len 30. strings has 300. Pass more text or a smaller seq_len."
    )
