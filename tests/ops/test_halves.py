"""fp16 to fp32 and back, by the machine and by integers, as numpy converts them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import njit

from normwise.ops.numba_cpu import halves, memory

Convert = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
EVERY = np.arange(1 << 16, dtype=np.uint16)


@pytest.fixture(params=["machine", "integers"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "integers":
        monkeypatch.setattr(halves, "_machine_converts_fp16", lambda: False)
    return str(request.param)


def converter(source: type, target: type) -> Convert:
    """Copies an array through lanes; made anew, since what is made once is kept."""
    read = memory.reader.__wrapped__(source, np.float32, paired=False)
    write = memory.writer.__wrapped__(target, np.float32, paired=False, tame=False)

    @njit
    def copy(x: Any, y: Any) -> None:
        for j in range(0, x.size, 32):
            write(y.ctypes.data, j, x.size, read(x.ctypes.data, j, x.size))

    def convert(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        y = np.empty(x.size, target)
        copy(x, y)
        return y

    return convert


def test_every_fp16(way: str) -> None:
    """All 65536: normal and subnormal, infinite and NaN."""
    wide = converter(np.int16, np.float32)(EVERY.view(np.int16))
    right = EVERY.view(np.float16).astype(np.float32)
    assert np.array_equal(np.isnan(wide), np.isnan(right))
    number = ~np.isnan(right)
    assert np.array_equal(wide[number].view(np.uint32), right[number].view(np.uint32))


def test_around_every_middle(way: str) -> None:
    """Each fp16, the middle to the next, and the fp32 on both sides of it; and what overflows."""
    finite = EVERY[:0x7C00].view(np.float16).astype(np.float32)
    middle = finite + np.diff(finite, append=np.float32(65536.0)) / 2
    sides = [np.nextafter(middle, np.float32(to)) for to in (0.0, np.inf)]
    ends = np.array([0.0, 1e-45, 1e-30, 65520.0, 1e5, 3e38, np.inf, np.nan], np.float32)
    x = np.concatenate([finite, middle, *sides, ends])
    x = np.concatenate([x, -x]).astype(np.float32)
    narrow = converter(np.float32, np.int16)(x).view(np.float16)
    with np.errstate(over="ignore"):
        right = x.astype(np.float16)
    assert np.array_equal(np.isnan(narrow), np.isnan(right))
    number = ~np.isnan(right)
    assert np.array_equal(narrow[number].view(np.uint16), right[number].view(np.uint16))
