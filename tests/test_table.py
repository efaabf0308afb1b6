"""Looking up a name."""

import pytest

from normwise.errors import NormwiseError, UnknownName
from normwise.table import Table

COLOURS = Table("colour", {"light_red": 1, "blue": 2}, aliases={"red": "light_red"})


@pytest.mark.parametrize("name", ["light_red", "LIGHT_RED", "light-red", " red "])
def test_case_hyphens_and_aliases(name: str) -> None:
    assert COLOURS[name] == 1
    assert COLOURS.resolve(name) == "light_red"
    assert name in COLOURS


def test_an_unknown_name_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        COLOURS["blu"]
    assert str(caught.value) == "Unknown colour 'blu'. Did you mean blue? Known: blue, light_red."
    assert isinstance(caught.value, NormwiseError) and isinstance(caught.value, ValueError)
    assert "blu" not in COLOURS


def test_nothing_near_gives_no_hint() -> None:
    with pytest.raises(UnknownName) as caught:
        COLOURS["zzzzzz"]
    assert str(caught.value) == "Unknown colour 'zzzzzz'. Known: blue, light_red."


def test_it_is_a_mapping_of_full_names() -> None:
    assert dict(COLOURS) == {"light_red": 1, "blue": 2}
    assert COLOURS.aliases("light_red") == ["red"]
    assert 3 not in COLOURS


def test_rows_may_have_hyphens() -> None:
    table = Table("check", {"signal-growth": 1})
    for name in ("signal-growth", "signal_growth", "Signal-Growth"):
        assert name in table and table[name] == 1 and table.resolve(name) == "signal-growth"
    assert "growth" not in table
