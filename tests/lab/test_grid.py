"""Which runs a comparison is made of."""

import pytest

from normwise.lab.grid import expand
from normwise.lab.settings import CompareSettings
from normwise.model.config import init_mismatch
from normwise.residual.registry import PLACEMENTS
from normwise.weight_init import INITS


def pairs(settings: CompareSettings) -> list[tuple[str, str]]:
    return list(dict.fromkeys((run.placement, run.init) for run in expand(settings).runs))


def reasons(settings: CompareSettings) -> dict[str, str]:
    return {item.what: item.reason for item in expand(settings).skipped}


def test_the_demonstration_has_twelve_runs() -> None:
    grid = expand(CompareSettings())
    assert len(grid.runs) == 12
    assert pairs(CompareSettings()) == [
        ("pre_norm", "xavier_packed"),
        ("post_norm", "xavier_packed"),
        ("deep_norm", "deep_norm"),
    ]


def test_a_placement_with_constants_keeps_its_own_initialisation() -> None:
    assert reasons(CompareSettings()) == {
        "deep_norm with xavier_packed": "its constants assume its own initialisation, deep_norm, "
        "which runs instead"
    }


def test_an_initialisation_with_an_owner_goes_nowhere_else() -> None:
    settings = CompareSettings(placements=("pre_norm", "deep_norm"), inits=("deep_norm", "gpt2"))
    assert pairs(settings) == [("pre_norm", "gpt2"), ("deep_norm", "deep_norm")]
    assert reasons(settings) == {
        "pre_norm with deep_norm": "deep_norm belongs to the constants of deep_norm",
        "deep_norm with gpt2": "its constants assume its own initialisation, deep_norm, "
        "which runs instead",
    }


WITH_AN_INIT_OF_THEIR_OWN = ("deep_norm", "sub_norm", "t_fixup", "scaled_residual")


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
@pytest.mark.parametrize("init", sorted(INITS))
def test_which_initialisation_goes_with_which_placement(placement: str, init: str) -> None:
    settings = CompareSettings(placements=(placement,), inits=(init,))
    if placement == init or not {placement, init} & set(WITH_AN_INIT_OF_THEIR_OWN):
        expected = None
    elif placement in WITH_AN_INIT_OF_THEIR_OWN:
        expected = f"its constants assume its own initialisation, {placement}"
    else:
        expected = f"{init} belongs to the constants of {init}"
    assert init_mismatch(placement, init) == expected
    if expected is None:
        assert (pairs(settings), reasons(settings)) == ([(placement, init)], {})
        return
    own = PLACEMENTS[placement].init
    instead = ", which runs instead" if placement in WITH_AN_INIT_OF_THEIR_OWN else ""
    assert pairs(settings) == [(placement, own)]
    assert reasons(settings) == {f"{placement} with {init}": expected + instead}


def test_default_is_each_placement_s_own() -> None:
    settings = CompareSettings(placements=("pre_norm", "post_norm"), inits=("default",))
    assert pairs(settings) == [("pre_norm", "gpt2"), ("post_norm", "xavier_packed")]


def test_without_a_norm_only_the_plain_sum_is_run() -> None:
    settings = CompareSettings(norms=("no_norm",), placements=("pre_norm", "post_norm"))
    assert pairs(settings) == [("pre_norm", "xavier_packed")]
    assert list(reasons(settings)) == ["post_norm with no_norm"]


@pytest.mark.parametrize(
    "norms", [("layer_norm",), ("layer_norm", "rms_norm", "dyt"), ("no_norm",)], ids=str
)
@pytest.mark.parametrize(
    ("placement", "init"),
    [("rezero", "xavier_packed"), ("skip_init", "xavier_packed"), ("t_fixup", "t_fixup")],
)
def test_a_placement_without_norms_runs_once_whatever_the_norms(
    placement: str, init: str, norms: tuple[str, ...]
) -> None:
    settings = CompareSettings(
        norms=norms, placements=(placement,), inits=("default",), warmup=(0,), seeds=2
    )
    runs = expand(settings).runs
    assert [(run.norm, run.placement, run.init, run.seed) for run in runs] == [
        ("no_norm", placement, init, 0),
        ("no_norm", placement, init, 1),
    ]
    assert reasons(settings) == {}


def test_the_other_placements_still_run_with_every_norm() -> None:
    settings = CompareSettings(
        norms=("layer_norm", "rms_norm"), placements=("rezero", "keel"), warmup=(0,), seeds=1
    )
    assert [(run.norm, run.placement) for run in expand(settings).runs] == [
        ("no_norm", "rezero"), ("layer_norm", "keel"), ("rms_norm", "keel"),
    ]  # fmt: skip


def test_a_curve_by_entry_runs_before_branches_only() -> None:
    settings = CompareSettings(norms=("dyt", "derf"), placements=("pre_norm", "peri_norm"))
    assert set(pairs(settings)) == {("pre_norm", "xavier_packed")}
    assert set(reasons(settings)) == {"peri_norm with dynamic_tanh", "peri_norm with derf"}
    assert "does not bring the stream back to one size" in "".join(reasons(settings).values())


def test_a_warm_up_longer_than_the_run_is_skipped() -> None:
    settings = CompareSettings(steps=100, warmup=(0, 150), placements=("pre_norm",))
    assert {run.warmup for run in expand(settings).runs} == {0}
    assert reasons(settings) == {"warm-up 150": "a run has 100 steps, fewer than the warm-up"}


def test_names_are_found_under_aliases_and_run_once() -> None:
    settings = CompareSettings(norms=("LN", "layer_norm"), placements=("pre-ln",), warmup=(0,))
    runs = expand(settings).runs
    assert [(run.norm, run.placement, run.seed) for run in runs] == [
        ("layer_norm", "pre_norm", 0),
        ("layer_norm", "pre_norm", 1),
    ]


def test_seeds_are_outermost() -> None:
    seeds = [run.seed for run in expand(CompareSettings()).runs]
    assert seeds == sorted(seeds)


def test_a_wider_grid_holds_the_narrow_one() -> None:
    narrow = {run.id for run in expand(CompareSettings()).runs}
    wide = {run.id for run in expand(CompareSettings(lr=(1e-3, 4e-3), seeds=3)).runs}
    assert narrow < wide
