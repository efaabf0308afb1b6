"""What `normwise check` can be pointed at, the batch that is made for it, and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn

import normwise as nw
from normwise.errors import MissingExtra, SettingError, UnknownName
from normwise.lab.batches import limit_of
from normwise.lab.check import run_check
from normwise.lab.check_settings import CheckSettings
from normwise.lab.targets import UNLIKE_DATA, Target, load_target
from tests.anatomy.families import FAMILIES

GPT2 = {"bos_token_id": 0, "eos_token_id": 0}
VISION = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 16, "patch_size": 8,
}  # fmt: skip


def target(name: object, **changes: Any) -> Target:
    return load_target(CheckSettings(target=str(name), **changes))


def saved(family: str, folder: Path, **changes: Any) -> Path:
    """The configuration of a tiny model, in a folder."""
    fields = VISION if family == "vit" else FAMILIES[family][0]
    config = transformers.AutoConfig.for_model(family, **{**fields, **changes})
    config.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose norms' gains have moved, with a tokenizer beside it."""
    folder = tmp_path_factory.mktemp("trained")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=300, n_embd=32, n_layer=3, n_head=4, n_positions=64, **GPT2
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        ["the words of the manual"],
        trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, special_tokens=["<unk>"]),
    )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.save_pretrained(folder)
    return folder


def test_a_line_of_fields_is_a_model_of_ours() -> None:
    found = target("own:depth=3,placement=post_norm,bias=no,norm_eps=1e-6,tied_head=true")
    assert found.config == nw.TransformerConfig(
        depth=3, placement="post_norm", bias=False, norm_eps=1e-6, tied_head=True
    )
    assert (found.stage, tuple(found.batch.shape)) == ("initial", (2, 64))


def test_a_file_of_fields_is_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    rule = {"norm": "rms_norm", "sites": ["final"]}
    path.write_text(json.dumps({"depth": 3, "norms": [rule], "max_len": 256}))
    found = target(path)
    assert found.config == nw.TransformerConfig(
        depth=3, norms=(nw.NormAt("rms_norm", sites=("final",)),), max_len=256
    )
    assert tuple(found.batch.shape) == (2, 128)


def test_the_same_seed_is_the_same_model_and_batch() -> None:
    one, same, other = (target("own:depth=2", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.batch, same.batch) and not torch.equal(one.batch, other.batch)
    first = [next(found.model.parameters()) for found in (one, same, other)]
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])


def test_what_a_configuration_warns_about_is_a_remark() -> None:
    found = target("own:placement=deep_norm,init=xavier,depth=2")
    assert found.remarks == [
        "deep_norm with xavier: its constants assume its own initialisation, deep_norm."
    ]


class Tiny(nn.Module):
    """No model of a library: it has a vocabulary in its configuration and takes ids alone."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, 8)
        self.layer = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        return torch.as_tensor(x + self.layer(x))


def tiny() -> Tiny:
    return Tiny(nw.TransformerConfig(vocab_size=7))


def unknown() -> nn.Module:
    return nn.Linear(2, 2)


def number() -> int:
    return 3


def ids() -> Tensor:
    return torch.randint(0, 7, (1, 5))


def test_a_function_gives_a_model_and_another_one_a_batch() -> None:
    made = target(f"{__name__}:tiny", batch_size=3)
    assert isinstance(made.model, Tiny) and tuple(made.batch.shape) == (3, 64)
    assert made.batch.max() < 7
    given = target(f"{__name__}:tiny", batch=f"{__name__}:ids")
    assert tuple(given.batch.shape) == (1, 5)


def test_a_function_is_found_in_the_folder_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside.py").write_text("from torch import nn\nmodel = lambda: nn.Linear(1, 1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SettingError, match="configuration of Linear tells no vocab_size"):
        target("beside:model")


@pytest.mark.parametrize(
    ("family", "kind", "keys"),
    [
        ("gpt2", "GPT2LMHeadModel", ["input_ids"]),
        ("bert", "BertForMaskedLM", ["input_ids", "labels"]),
        ("t5", "T5ForConditionalGeneration", ["decoder_input_ids", "input_ids", "labels"]),
        ("vit", "ViTForImageClassification", ["labels", "pixel_values"]),
    ],
)
def test_a_configuration_alone_is_a_model_with_fresh_weights(
    family: str, kind: str, keys: list[str], tmp_path: Path
) -> None:
    options = GPT2 if family == "gpt2" else {}
    folder = saved(family, tmp_path / "model", **options)
    for path in (folder, folder / "config.json"):
        found = target(f"hf:{path}")
        assert (type(found.model).__name__, sorted(found.batch)) == (kind, keys)
        assert found.stage == "initial"
        assert found.remarks == ["Fresh weights: there are none beside the configuration."]
    result = run_check(CheckSettings(target=f"hf:{folder}", checks=("signal-growth",))).result
    assert result.record.trial is not None  # the loss is the model's own, and no projection


def test_a_masked_model_is_asked_for_some_of_the_tokens(tmp_path: Path) -> None:
    batch = target(f"hf:{saved('bert', tmp_path)}", batch_size=8).batch
    asked = batch["labels"] != -100
    assert 0.1 < asked.float().mean() < 0.25
    assert (batch["input_ids"] != 0).all()  # 0 is padding
    changed = batch["input_ids"] != torch.where(asked, batch["labels"], batch["input_ids"])
    assert changed.any()


def test_positions_that_begin_after_padding_leave_fewer_tokens(tmp_path: Path) -> None:
    found = target(f"hf:{saved('roberta', tmp_path)}")
    assert limit_of(found.model) == 62
    assert tuple(found.batch["input_ids"].shape) == (2, 62)
    found.model(**found.batch)


def test_a_checkpoint_is_asked_about_text_by_its_own_tokenizer(trained: Path) -> None:
    found = target(f"hf:{trained}")
    assert (found.stage, found.missing, found.remarks) == ("trained", [], [])
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained)
    text = tokenizer.decode(found.batch["input_ids"].flatten()).replace(" ", "")
    assert 'assert"\u0120statement' in text  # the manual's first topic, by a byte-level tokenizer


def test_without_a_tokenizer_the_result_says_what_is_missing(trained: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    result = run_check(CheckSettings(target=f"hf:{tmp_path}", checks=("signal-growth",))).result
    assert UNLIKE_DATA in result.record.missing
    assert result.record.stage == "trained"


def test_weights_that_a_checkpoint_lacks_are_named(tmp_path: Path) -> None:
    config = transformers.GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, tie_word_embeddings=False, **GPT2
    )
    transformers.GPT2Model(config).save_pretrained(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**told, "architectures": ["GPT2LMHeadModel"]})
    )
    assert target(f"hf:{tmp_path}").remarks == ["Not in the checkpoint, and fresh: lm_head.weight."]


def test_a_pickle_is_loaded_on_request_alone(trained: Path, tmp_path: Path) -> None:
    model = transformers.GPT2LMHeadModel.from_pretrained(trained)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(SettingError, match="and loading a pickle can run"):
        target(f"hf:{tmp_path}")
    found = target(f"hf:{tmp_path}", allow_pickle=True)
    assert torch.equal(found.model.lm_head.weight, model.lm_head.weight)  # type: ignore[union-attr]


def test_code_beside_weights_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("raise SystemExit('this was run')\n")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config"}})
    )
    with pytest.raises(SettingError, match="a configuration that transformers knows"):
        target(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("gpt2", SettingError, "A target must be hf:PATH, MODULE:FUNCTION, own:"),
        ("hf:nowhere", SettingError, "There is none at nowhere. Nothing is downloaded"),
        ("own:depht=3", UnknownName, "Did you mean depth?"),
        ("own:depth", SettingError, "One of them is 'depth'"),
        ("own:depth=deep", SettingError, "depth must be a whole number. It is 'deep'."),
        ("own:norm_eps=small", SettingError, "norm_eps must be a number. It is 'small'."),
        ("own:bias=maybe", SettingError, "bias must be true or false. It is 'maybe'."),
        ("own:norms=rms_norm", SettingError, "Put the fields into a .json file."),
        ("own:depth=0", SettingError, "depth must be at least 1. It is 0."),
        ("own:placement=posst", UnknownName, "Did you mean post_norm?"),
        ("nowhere.json", SettingError, "nowhere.json cannot be read: No such file"),
        ("nowhere:model", SettingError, "No module named 'nowhere'"),
        (f"{__name__}:nothing", SettingError, "has no attribute 'nothing'"),
        (f"{__name__}:number", SettingError, "must give a torch module. It gave one of int."),
        (f"{__name__}:unknown", SettingError, "Pass --batch MODULE:FUNCTION"),
    ],
)
def test_another_target_is_refused_in_a_sentence(
    name: str, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as caught:
        target(name)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "must hold the fields of TransformerConfig"),
        ("{", "The target must be JSON"),
        ('{"model_type": "gpt2"}', "is a configuration of Hugging Face: write hf:"),
        ('{"depth": "deep"}', "has a value of another kind"),
        ('{"dept": 3}', "Did you mean depth?"),
    ],
)
def test_another_file_is_refused_in_a_sentence(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(nw.NormwiseError) as caught:
        target(path)
    assert message in str(caught.value)


def test_a_sequence_that_is_too_long_is_refused() -> None:
    with pytest.raises(SettingError, match="The model takes 64 tokens"):
        target("own:depth=2", seq_len=65)


def test_without_transformers_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"Run: pip install 'normwise\[hf\]'"):
        target(f"hf:{tmp_path}")


def test_a_model_that_does_not_run_on_its_batch_says_so() -> None:
    settings = CheckSettings(target=f"{__name__}:tiny", batch=f"{__name__}:floats")
    with pytest.raises(SettingError, match="It gave RuntimeError: "):
        run_check(settings)


def floats() -> Tensor:
    return torch.zeros(1, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq_len": 1}, "seq_len must be at least 2. It is 1."),
        ({"batch_size": 0}, "batch_size must be at least 1. It is 0."),
        ({"seed": -1}, "seed must be at least 0. It is -1."),
        ({"lr": -1e-3}, "lr must be a rate, or 0 to try no step. It is -0.001."),
        ({"lr": float("inf")}, "lr must be a rate"),
    ],
)
def test_a_number_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        CheckSettings(target="own:", **changes)
