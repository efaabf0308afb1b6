"""Runs a test once on the kernels and once on the reference."""

from collections.abc import Iterator

import pytest

import normwise as nw


@pytest.fixture(params=["auto", "reference"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with nw.backend(request.param):
        yield request.param
