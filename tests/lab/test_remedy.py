"""Remedies: what each changes, a planted fault that goes, and that checks name known ones."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
import torch

import normwise as nw
from normwise.errors import SettingError, UnknownName
from normwise.lab.check import run_check
from normwise.lab.check_settings import CheckSettings
from normwise.lab.remedy import REMEDIES, changed, changing
from normwise.probe import checks
from normwise.probe.causes import RULES
from normwise.probe.findings import Remedy, Standard

PLAIN = nw.TransformerConfig(
    depth=2, width=16, placement="post_norm", init="xavier", norm_eps=1e-3, max_len=32
)
CHANGED = {
    "depth-scaled-init": {"init": "gpt2"},
    "declared-init": {"init": "xavier_packed"},
    "pre-norm": {"placement": "pre_norm"},
    "peri-norm": {"placement": "peri_norm"},
    "depth-scaled-norm": {"placement": "depth_scaled_norm"},
    "layer-scale": {"placement": "layer_scale"},
    "embedding-scale": {"embedding_scale": "sqrt"},
    "embedding-norm": {"embedding_norm": True},
    "small-eps": {"norm_eps": 1e-8},
    "query-key-norm": {"query_key_norm": "head"},
}


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_changes_what_it_says_and_the_model_runs(name: str) -> None:
    new = changed(PLAIN, name)
    fields = vars(PLAIN)
    assert {key: value for key, value in vars(new).items() if fields[key] != value} == CHANGED[name]
    assert nw.Transformer(new, seed=0)(torch.zeros(1, 4, dtype=torch.long)).isfinite().all()
    assert REMEDIES[name].summary


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_that_is_there_already_is_an_error(name: str) -> None:
    with pytest.raises(SettingError, match=f"A remedy must change something. {name} "):
        changed(changed(PLAIN, name), name)


def test_another_placement_brings_its_own_where_the_old_one_s_does_not_go_with_it() -> None:
    deep = nw.TransformerConfig(placement="deep_norm")
    assert changed(deep, "pre-norm").init == "gpt2"
    olmo = nw.TransformerConfig(placement="output_norm")
    assert (olmo.query_key_norm, changed(olmo, "pre-norm").query_key_norm) == ("full", "none")
    keel = nw.TransformerConfig(placement="keel", placement_options={"alpha": 5.0})
    assert changed(keel, "peri-norm").placement_options == {}


def test_a_norm_without_eps_has_no_place_for_a_smaller_one() -> None:
    with pytest.raises(SettingError, match="has no place for it"):
        changed(nw.TransformerConfig(norm="dynamic_tanh"), "small-eps")


def test_norms_of_single_sites_get_the_small_eps_too() -> None:
    rule = nw.NormAt("rms_norm", sites=("attention",), options={"eps": 1e-2})
    new = changed(nw.TransformerConfig(norms=(rule,)), "small-eps")
    assert new.norms[0].options == {"eps": 1e-8}


def test_an_unknown_remedy_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="Did you mean small-eps"):
        changed(PLAIN, "small-epsilon")


def test_only_remedies_that_change_something_are_proposed() -> None:
    asked = ("small-eps", "pre-norm", "no-such-remedy")
    assert changing(nw.TransformerConfig(norm_eps=1e-8, placement="post_norm"), asked) == [
        "pre-norm"
    ]


def test_a_planted_fault_goes_with_its_remedy() -> None:
    """Half of each norm's root is eps at the embedding's 0.03; with 1e-8 nothing of it is."""
    bad = "own:norm_eps=1e-3,depth=4,width=32"
    found = run_check(CheckSettings(target=bad, remedy="small-eps"))
    assert found.before is not None
    assert (found.before.verdict, found.result.verdict) == ("fail", "ok")
    assert {one.check for one in found.before.findings if one.severity == "fail"} == {
        "norm-eps-share"
    }
    assert not [one for one in found.result.findings if one.check == "norm-eps-share"]
    assert found.result.remedy == "small-eps" and found.before.remedy == ""


def named() -> Iterator[tuple[str, str]]:
    """Every remedy that a check or a rule proposes, and where."""
    for _, name, _ in pkgutil.iter_modules(checks.__path__, f"{checks.__name__}."):
        for value in vars(importlib.import_module(name)).values():
            remedy = value.remedy if isinstance(value, Standard) else value
            if isinstance(remedy, Remedy):
                yield from ((word, name) for word in remedy.tries)
    yield from ((word, rule.title) for rule in RULES for word in rule.tries)


def test_what_checks_propose_can_be_tried() -> None:
    found = list(named())
    assert len(found) > 5
    unknown = [(w, where) for w, where in found if w not in REMEDIES]
    assert unknown == []
