"""Text as tokens: from a file, a glob, strings, a Hugging Face dataset, or Python's own manual."""

import glob
import hashlib
import importlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normwise.errors import DataError, MissingExtra

VALIDATION_SHARE = 0.1
BYTES = 256


@dataclass(frozen=True)
class Corpus:
    """A text as one row of tokens, the last tenth of it for validation.

    Args:
        tokens: token ids in order.
        vocab_size: ids are below this.
        source: where the text came from, for people.
        tokenizer: "bytes", or the tokenizer's name.
        sha256: of the text's bytes.
    """

    tokens: NDArray[np.integer[Any]]
    vocab_size: int
    source: str
    tokenizer: str
    sha256: str

    @property
    def train(self) -> NDArray[np.integer[Any]]:
        return self.tokens[: self._cut]

    @property
    def validation(self) -> NDArray[np.integer[Any]]:
        return self.tokens[self._cut :]

    @property
    def _cut(self) -> int:
        return len(self.tokens) - int(len(self.tokens) * VALIDATION_SHARE)

    @cached_property
    def frequencies(self) -> NDArray[np.float64]:
        """Share of each token in the training text, every count raised by one."""
        counts = np.bincount(self.train, minlength=self.vocab_size) + 1.0
        shares: NDArray[np.float64] = counts / counts.sum()
        return shares

    @property
    def unigram_loss(self) -> float:
        """Validation loss, in nats a token, of a model that knows the frequencies and no more."""
        counts = np.bincount(self.validation, minlength=self.vocab_size)
        return float(-(counts * np.log(self.frequencies)).sum() / counts.sum())

    @property
    def collision(self) -> float:
        """Probability that two tokens of the training text are the same."""
        return float(np.square(self.frequencies).sum())

    def check_length(self, seq_len: int) -> None:
        """Raises `DataError` unless both parts hold a sequence and the token after it."""
        needed = math.ceil((seq_len + 1) / VALIDATION_SHARE)
        if min(len(self.train), len(self.validation)) < seq_len + 1:
            raise DataError(
                f"The text must hold a sequence for training and one for validation: "
                f"{needed} tokens for seq_len {seq_len}. {self.source} has {len(self.tokens)}. "
                f"Pass more text or a smaller seq_len."
            )

    def describe(self) -> dict[str, Any]:
        """What identifies the data, and its levels, as plain values."""
        return {
            "source": self.source,
            "sha256": self.sha256,
            "tokenizer": self.tokenizer,
            "tokens": len(self.tokens),
            "vocab_size": self.vocab_size,
            "unigram_loss": self.unigram_loss,
            "collision": self.collision,
        }


def load_corpus(data: Any = None, tokenizer: str = "bytes", text_column: str = "text") -> Corpus:
    """Reads and tokenizes a text.

    Args:
        data: None for the default text, a path, a glob, "hf:NAME" for a Hugging Face dataset by
            name or folder, an iterable of strings, or a loaded dataset.
        tokenizer: "bytes", or a Hugging Face tokenizer by name or folder.
        text_column: column of a Hugging Face dataset.

    Raises:
        DataError: nothing there, empty, or not text.
        MissingExtra: a Hugging Face package is needed and not installed.
    """
    source, parts = _parts(data, text_column)
    text = b"\n".join(parts)
    if not text.strip():
        raise DataError(f"The text must not be empty. {source} is. Pass a file with text in it.")
    tokens, vocab_size = _tokenized(text, tokenizer)
    return Corpus(tokens, vocab_size, source, tokenizer, hashlib.sha256(text).hexdigest())


def _parts(data: Any, text_column: str) -> tuple[str, Iterable[bytes]]:
    if data is None:
        return "the Python manual (pydoc_data.topics)", _manual()
    if isinstance(data, str) and data.startswith("hf:"):
        name = data.removeprefix("hf:")
        return f"dataset {name}", _column(_dataset(name), text_column)
    if isinstance(data, str | Path):
        return str(data), [_read(path) for path in _paths(str(data))]
    if hasattr(data, "column_names"):
        return "a dataset", _column(data, text_column)
    return "strings", _strings(data)


def _manual() -> Iterator[bytes]:
    """CPython's help topics: about 466 kB of English, a little different in each version."""
    topics = importlib.import_module("pydoc_data.topics").topics
    return (topics[name].encode() for name in sorted(topics))


def _paths(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_file():
        return [path]
    if path.is_dir():
        raise DataError(
            f"The text must be a file or a glob. {pattern} is a folder. "
            f"Pass '{path / '*.txt'}' or the like."
        )
    matches = glob.glob(pattern, recursive=True)  # noqa: PTH207 - Path.glob refuses absolute ones
    files = [path for path in map(Path, sorted(matches)) if path.is_file()]
    if not files:
        raise DataError(f"The text must exist. There is no file {pattern}. Check the path.")
    return files


def _read(path: Path) -> bytes:
    content = path.read_bytes()
    try:
        readable = "\0" not in content.decode("utf-8")
    except UnicodeDecodeError:
        readable = False
    if not readable:
        raise DataError(
            f"The text must be UTF-8. {path} holds binary data. Convert it, or pass another file."
        )
    return content


def _strings(data: Iterable[Any]) -> list[bytes]:
    parts = list(data)
    for part in parts:
        if not isinstance(part, str):
            raise DataError(
                f"The text must be strings. One of them is a {type(part).__name__}. "
                f"Pass a path, a list of str, or a dataset with a text column."
            )
    return [part.encode() for part in parts]


def _dataset(name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "hf", f"hf:{name}") from None
    try:
        return datasets.load_dataset(name, split="train")
    except (FileNotFoundError, ValueError, ConnectionError, OSError) as error:
        raise DataError(
            f"The dataset {name} must be a folder or a name that loads. {_first_line(error)}"
        ) from error


def _column(dataset: Any, text_column: str) -> list[bytes]:
    if text_column not in dataset.column_names:
        raise DataError(
            f"The dataset must have a column of text. There is no {text_column!r} among "
            f"{', '.join(dataset.column_names)}. Name it with text_column."
        )
    return _strings(row[text_column] for row in dataset)


def _tokenized(text: bytes, tokenizer: str) -> tuple[NDArray[np.integer[Any]], int]:
    if tokenizer == "bytes":
        return np.frombuffer(text, dtype=np.uint8), BYTES
    try:
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "hf", f"The tokenizer {tokenizer}") from None
    try:
        encoder = transformers.AutoTokenizer.from_pretrained(tokenizer)
    except (OSError, ValueError) as error:
        raise DataError(
            f"The tokenizer must be a folder or a name that loads. {_first_line(error)}"
        ) from error
    ids = encoder(text.decode(), add_special_tokens=False)["input_ids"]
    return np.asarray(ids, dtype=np.int32), len(encoder)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
