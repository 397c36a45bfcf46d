"""Values of a proxy: their ages, shared loads, and loads that fail."""

import asyncio
from dataclasses import dataclass

import pytest

from reput.errors import RemotingError
from reput.grpc import limits
from reput.grpc.proxy.aging_cache import AgingCache


@dataclass
class Clock:
    ms: int = 0

    def monotonic_ms(self) -> int:
        return self.ms

    def now_ms(self) -> int:
        return self.ms


class Source:
    """Loads values, or fails."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.failure: Exception | None = None
        self.load_count = 0

    async def load(self, name: str) -> int | None:
        self.load_count += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return self.values.get(name)


def cache_of(source: Source, clock: Clock, count: int = 10) -> AgingCache[int]:
    return AgingCache(
        source.load, clock, fresh_ms=20, kept_ms=3_000, count_max=limits.PROXY_KNOWN.at(count)
    )


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_concurrent_callers_share_a_load() -> None:
    source, clock = Source(), Clock()
    source.values["a"] = 1
    cache = cache_of(source, clock)
    assert await asyncio.gather(*(cache.get("a") for _ in range(5))) == [1] * 5
    assert await cache.get("a") == 1
    assert source.load_count == 1


async def test_a_missing_value_is_asked_for_each_time() -> None:
    source = Source()
    cache = cache_of(source, Clock())
    assert await cache.get("a") is None
    source.values["a"] = 1
    assert await cache.get("a") == 1


async def test_an_old_value_is_used_while_it_is_loaded_again() -> None:
    source, clock = Source(), Clock()
    source.values["a"] = 1
    cache = cache_of(source, clock)
    await cache.get("a")
    source.values["a"] = 2
    clock.ms = 1_020
    assert await cache.get("a") == 1
    await settle()
    assert await cache.get("a") == 2
    del source.values["a"]
    clock.ms = 2_040
    assert await cache.get("a") == 2
    await settle()
    assert await cache.get("a") is None


async def test_a_value_that_cannot_be_loaded_is_used_until_it_is_too_old() -> None:
    source, clock = Source(), Clock()
    source.values["a"] = 1
    cache = cache_of(source, clock)
    await cache.get("a")
    source.failure = RemotingError("no answer")
    for clock.ms in (1_000, 1_001, 2_000, 2_999):
        assert await cache.get("a") == 1
        await settle()
    assert source.load_count == 3  # an attempt a second
    clock.ms = 3_000
    with pytest.raises(RemotingError, match="no answer"):
        await cache.get("a")


async def test_the_first_value_makes_room() -> None:
    source = Source()
    source.values = {"a": 1, "b": 2, "c": 3}
    cache = cache_of(source, Clock(), count=2)
    for name in "abc":
        await cache.get(name)
    assert len(cache) == 2
    await cache.get("a")
    assert source.load_count == 4


async def test_a_cancelled_caller_does_not_end_the_load_of_others() -> None:
    source = Source()
    source.values["a"] = 1
    cache = cache_of(source, Clock())
    first, second = (asyncio.ensure_future(cache.get("a")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1
    assert source.load_count == 1
