"""Collections of garbage never look at much, however much there is."""

import gc
from collections.abc import Iterator, Mapping

import pytest

from reput.cli import garbage

KEPT = 400_000


@pytest.fixture
def collector() -> Iterator[None]:
    """The collector as a server has it, for this test alone."""
    threshold, callbacks = gc.get_threshold(), list(gc.callbacks)
    # Python delays full collections by a quarter of what the last one has kept.
    start = [[number] for number in range(3 * KEPT)]
    gc.collect()
    del start
    garbage.keep_pauses_short()
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*threshold)
    gc.unfreeze()


def test_no_collection_looks_at_all_that_a_server_holds(collector: None) -> None:
    looked_at: list[int] = []

    def note(phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            looked_at.append(sum(len(gc.get_objects(one)) for one in range(info["generation"] + 1)))

    gc.callbacks.append(note)
    kept = [[number] for number in range(KEPT)]
    gc.callbacks.remove(note)
    assert len(looked_at) >= KEPT // garbage.YOUNG_MAX - 1
    assert max(looked_at) < 20 * garbage.YOUNG_MAX
    assert len(kept) == KEPT


def test_garbage_in_cycles_is_still_found(collector: None) -> None:
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
