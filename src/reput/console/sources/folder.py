"""Store folders of ``console.toml``: their messages for searches, and what their files say.

Files are read in a thread, one read of a store at a time: a reader caches what it has seen. It is
kept for a while, so that a search that continues does not look for the end of the log again. What
reads stores is imported in that thread, with the first one: a console without stores starts sooner.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from reput.client.core.key_search import Window
from reput.clock import Clock
from reput.console.scan import Lookup, ScanPart, Spans
from reput.console.search import Question, Span
from reput.console.settings import StorePlace
from reput.errors import InvalidOption

if TYPE_CHECKING:
    from reput.console.sources.open_store import OpenStore

KEEP_MS = 30_000
"""Time for which a reader of a store is used again."""

_T = TypeVar("_T")


@dataclass
class _Kept:
    store: "OpenStore"
    opened_ms: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class UnknownStore(InvalidOption):
    """A store that the configuration does not have."""


class StoreFolders:
    """The stores of the configuration; only these are read.

    Args:
        places: The stores, by name.
        clock: The time.
    """

    def __init__(self, places: Mapping[str, StorePlace], clock: Clock) -> None:
        self.places = places
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._facts: dict[tuple[str, str], tuple[int, asyncio.Task[Any]]] = {}
        """Reads of facts and their begins, by store and name of the read."""

    def check(self, name: str) -> StorePlace:
        """Return a store of the configuration. Raises ``UnknownStore``."""
        place = self.places.get(name)
        if place is None:
            allowed = ", ".join(sorted(self.places)) or "none: console.toml has no stores"
            raise UnknownStore("store", name, allowed)
        return place

    async def read(self, name: str, read: Callable[["OpenStore"], _T]) -> _T:
        """Call a function with an open store, in a thread.

        Raises:
            UnknownStore: There is no such store in the configuration.
            StoreUnavailable: The folder is no store, or is in use.
        """
        kept = await self._kept_store(name)
        async with kept.lock:
            return await asyncio.to_thread(read, kept.store)

    def info(self, name: str) -> asyncio.Task[Mapping[str, Any]]:
        """Return the task that reads an overview of a store. Raises ``UnknownStore``."""
        return self._read_once(name, "info", lambda store: store.info())

    def facts(self, name: str) -> asyncio.Task[Mapping[str, Any]]:
        """Return the task that reads all facts on the page of a store. Raises ``UnknownStore``."""
        return self._read_once(name, "facts", lambda store: store.facts())

    def _read_once(
        self, name: str, what: str, read: Callable[["OpenStore"], _T]
    ) -> asyncio.Task[_T]:
        """Return the task of a read; the same one while the store is kept open."""
        self.check(name)
        now_ms = self._clock.monotonic_ms()
        begun = self._facts.get((name, what))
        if begun is None or (begun[1].done() and now_ms - begun[0] >= KEEP_MS):
            begun = now_ms, asyncio.create_task(self.read(name, read))
            self._facts[name, what] = begun
        return begun[1]

    async def _kept_store(self, name: str) -> _Kept:
        place = self.check(name)
        kept = self._kept.get(name)
        now_ms = self._clock.monotonic_ms()
        if kept is None or now_ms - kept.opened_ms >= KEEP_MS:
            store = await asyncio.to_thread(_open, place)
            kept = self._kept[name] = _Kept(store, now_ms)
        return kept


def _open(place: StorePlace) -> "OpenStore":
    from reput.console.sources.open_store import OpenStore

    return OpenStore.open(place)


class FolderMessages:
    """The messages of a store folder, as the source of searches.

    Args:
        folders: The stores.
        name: Name of the store.
    """

    def __init__(self, folders: StoreFolders, name: str) -> None:
        self._folders = folders
        self._name = name

    async def spans(self, question: Question) -> Spans:
        """Return the queues of a topic within the question's interval.

        Raises:
            InvalidOption: The store has no queues of the topic.
        """
        return await self._folders.read(self._name, lambda store: store.spans(question))

    async def read(self, part: Span, question: Question) -> ScanPart:
        """Read the messages of a part."""
        return await self._folders.read(self._name, lambda store: store.part(part, question))

    async def query(self, topic: str, key: str, window: Window, *, is_unique: bool) -> Lookup:
        """Look a key up in all index files."""
        return await self._folders.read(self._name, lambda store: store.query(topic, key, window))

    async def at_offset_id(self, offset_id: str) -> Lookup:
        """Read the record at the physical offset of an offset id."""
        return await self._folders.read(self._name, lambda store: store.at_offset_id(offset_id))
