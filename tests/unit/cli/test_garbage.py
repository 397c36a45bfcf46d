"""Garbage collections visit few objects, however many there are."""

import gc
from collections.abc import Iterator, Mapping

import pytest

from reput.cli import garbage

KEPT = 400_000


@pytest.fixture
def collector() -> Iterator[None]:
    """The collector with the settings of a server, for one test."""
    threshold, callbacks = gc.get_threshold(), list(gc.callbacks)
    # Python defers a full collection until a quarter more objects exist than after the last one.
    start = [[number] for number in range(3 * KEPT)]
    gc.collect()
    del start
    garbage.keep_pauses_short()
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*threshold)
    gc.unfreeze()


@pytest.mark.soak
def test_collections_skip_frozen_objects(collector: None) -> None:
    looked_at: list[int] = []

    def note(phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            looked_at.append(
                sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1))
            )

    gc.callbacks.append(note)
    kept = [[number] for number in range(KEPT)]
    gc.callbacks.remove(note)
    assert len(looked_at) >= KEPT // garbage.YOUNG_MAX - 1
    assert max(looked_at) < 20 * garbage.YOUNG_MAX
    assert len(kept) == KEPT


@pytest.mark.soak
def test_cycles_are_still_collected(collector: None) -> None:
    class Link:
        alive = 0

        def __init__(self) -> None:
            self.other = self
            Link.alive += 1

        def __del__(self) -> None:
            Link.alive -= 1

    for _ in range(5 * garbage.YOUNG_MAX):
        Link()
    assert Link.alive <= 2 * garbage.YOUNG_MAX
