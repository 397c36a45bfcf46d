"""The cache of texts keeps the recently used ones, within its bounds."""

import tracemalloc

import pytest
from hypothesis import given, strategies as st

from reput.format.text_cache import TextCache


def cache_of(calls: list[str], count_max: int = 8, letters_max: int = 80) -> TextCache[str, str]:
    def make(text: str) -> str:
        calls.append(text)
        return text.upper()

    return TextCache(make, count_max=count_max, letters_max=letters_max, letters_of=len)


@given(st.lists(st.text(max_size=30), max_size=60))
def test_the_cache_returns_the_functions_results_within_its_bounds(texts: list[str]) -> None:
    calls: list[str] = []
    cache = cache_of(calls)
    for text in texts:
        assert cache(text) == text.upper()
        assert len(cache) <= 8
        assert sum(map(len, cache._newer)) + sum(map(len, cache._older)) <= 80


def test_recently_used_texts_are_kept() -> None:
    calls: list[str] = []
    cache = cache_of(calls)
    for i in range(100):
        cache("used")
        cache(f"other{i}")
    assert calls.count("used") == 1
    assert len(calls) == 101


def test_a_long_text_is_not_kept() -> None:
    calls: list[str] = []
    cache = cache_of(calls, letters_max=80_000)
    tracemalloc.start()
    for i in range(50):
        cache(f"{i}" + "x" * 1_000_000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    calls.clear()
    assert len(cache) == 0
    assert kept < 120_000_000
    cache("x" * 10_000)
    assert len(cache) == 1


def test_an_exception_is_not_cached() -> None:
    calls: list[str] = []

    def make(text: str) -> str:
        calls.append(text)
        raise ValueError(text)

    cache = TextCache(make, count_max=8, letters_max=80, letters_of=len)
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            cache("bad")
    assert calls == ["bad", "bad"]
