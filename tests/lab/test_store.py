"""Run folders: whole files, checked content, one text."""

import json
from pathlib import Path
from typing import IO

import pytest

from normwise.errors import StoreError
from normwise.files import write_whole
from normwise.lab.data import Corpus, load_corpus
from normwise.lab.store import FORMAT, Contents, Store


@pytest.fixture
def corpus() -> Corpus:
    return load_corpus(["some text " * 20])


@pytest.fixture
def store(tmp_path: Path, corpus: Corpus) -> Store:
    store = Store(tmp_path / "run")
    store.open(corpus)
    return store


def test_records_come_back(store: Store) -> None:
    record = {"id": "abc", "validation_loss": 1.5, "train_loss": [2.0, 1.75]}
    store.write(record)
    assert store.read() == Contents({"abc": record}, [], [], [])


def test_the_text_comes_back(store: Store, corpus: Corpus) -> None:
    found = store.corpus()
    assert found.tokens.tolist() == corpus.tokens.tolist()
    assert found.describe() == corpus.describe()


def test_a_folder_opens_again_for_the_same_text(store: Store, corpus: Corpus) -> None:
    store.write({"id": "abc"})
    store.open(corpus)
    assert list(store.read().records) == ["abc"]


def test_another_text_is_refused(store: Store) -> None:
    other = load_corpus(["other text " * 20])
    mine = store.corpus().sha256[:12]
    with pytest.raises(StoreError) as caught:
        store.open(other)
    assert str(caught.value) == (
        f"A run folder holds runs on one text. {store.folder} was made for strings "
        f"(sha256 {mine}), this is strings (sha256 {other.sha256[:12]}). "
        f"Name another folder with out."
    )


def test_a_folder_that_cannot_be_made(tmp_path: Path, corpus: Corpus) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"The run folder must be writable\. .* is not: "):
        Store(tmp_path / "file" / "run").open(corpus)


def damage(store: Store, change: str) -> Path:
    store.write({"id": "good"})
    store.write({"id": "bad", "validation_loss": 1.5})
    path = store.results / "bad.json"
    if change == "cut":
        path.write_bytes(path.read_bytes()[:20])
    elif change == "altered":
        path.write_text(path.read_text().replace("1.5", "1.4"))
    elif change == "renamed":
        path = path.rename(store.results / "other.json")
    elif change == "no object":
        path.write_text("[]")
    return path


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("cut", "cannot be read"),
        ("altered", "its checksum does not match its content"),
        ("renamed", "its name is not the id of its settings"),
        ("no object", "it is not an object"),
    ],
)
def test_a_damaged_record_is_named_and_left_out(store: Store, change: str, reason: str) -> None:
    path = damage(store, change)
    found = store.read()
    assert list(found.records) == ["good"]
    assert [item.path for item in found.damaged] == [path]
    assert reason in found.damaged[0].reason


def test_a_damaged_record_is_replaced_by_a_new_one(store: Store) -> None:
    damage(store, "cut")
    store.write({"id": "bad", "validation_loss": 2.0})
    assert store.read().damaged == []


def full_disk(file: IO[bytes]) -> None:
    file.write(b"half of it")
    raise OSError(28, "No space left on device")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("before")
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, full_disk)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_value_that_json_does_not_know_is_not_stored(store: Store) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.write({"id": "abc", "validation_loss": float("nan")})
    assert list(store.results.iterdir()) == []


def test_results_are_plain_json(store: Store) -> None:
    store.write({"id": "abc", "validation_loss": 1.5})
    content = json.loads((store.results / "abc.json").read_text())
    assert content.pop("checksum")
    assert content.pop("format") == FORMAT
    assert content == {"id": "abc", "validation_loss": 1.5}
