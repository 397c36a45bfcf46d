"""A store under test, of any kind, so that one suite tests all kinds.

Kinds: ``async`` and ``sync`` flush, ``pool`` (transient store pool), ``reference`` (kernels in
Python), all of them ``MessageStore``; and ``memory``, the ``MemoryStore``.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memory_store import MemoryStore
from reput.clock import ManualClock
from reput.format import batch, message as record, properties as props
from reput.format.batch import InnerMessage
from reput.format.message import StoredMessage
from reput.store.getting import GetResult
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus
from store_fixture import START_MS, Stores, config

FILE_KINDS = ("async", "sync", "pool", "reference")
KINDS = (*FILE_KINDS, "memory")

_SETTINGS: dict[str, dict[str, Any]] = {
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "pool": {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
}


def message(
    topic: str = "TopicA",
    body: bytes = b"hello",
    queue_id: int = 0,
    *,
    tags: str = "",
    keys: str = "",
    unique_key: str = "",
    properties: Mapping[str, str] | None = None,
    **fields: Any,
) -> IncomingMessage:
    """Return a message to put; ``fields`` are further fields of ``IncomingMessage``."""
    known = {props.UNIQ_KEY: unique_key, props.KEYS: keys, props.TAGS: tags, **(properties or {})}
    fields.setdefault("property_bytes", props.encode({k: v for k, v in known.items() if v}))
    fields.setdefault("born_timestamp", START_MS - 5)
    return IncomingMessage(topic, body, queue_id, **fields)


def batch_body(*messages: IncomingMessage) -> bytes:
    """Return the body of a client's batch."""
    return batch.encode(
        InnerMessage(sent.flag, sent.body, sent.property_bytes) for sent in messages
    )


def decoded(result: GetResult) -> list[StoredMessage]:
    """Return the messages of a get, with checked checksums."""
    return [record.decode(data) for data in result.records]


def messages_of(store: MessageStore, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    """Return the messages in a queue, from its begin on."""
    messages: list[StoredMessage] = []
    queue_offset = store.min_offset(topic, queue_id)
    while records := store.get(topic, queue_id, queue_offset).records:
        messages += [record.decode(bytes(data)) for data in records]
        queue_offset = messages[-1].queue_offset + 1
    return messages


class Delivering:
    """A store where messages wait for their delivery to topic T, queue 2; and its clock."""

    def __init__(self, stores: Stores, **settings: Any) -> None:
        self.stores = stores
        self._settings = {"mapped_file_size_consume_queue": 20 * 1000, **settings}
        self.clock = ManualClock(START_MS)
        self.open()

    def open(self, **settings: Any) -> None:
        self._settings |= settings
        self.take(self.stores.open(clock=self.clock, **self._settings))

    def take(self, store: MessageStore) -> None:
        """Continue with a store."""
        self.store = store

    def store_message(self, message: IncomingMessage) -> PutResult:
        message.born_timestamp = START_MS - 5
        result = self.store.put(message)
        assert result.status is PutStatus.PUT_OK, result.reason
        self.store.step()
        return result

    def messages(self, topic: str = "T", queue_id: int = 2) -> list[StoredMessage]:
        return messages_of(self.store, topic, queue_id)

    def bodies(self, topic: str = "T", queue_id: int = 2) -> list[bytes]:
        return [message.body for message in self.messages(topic, queue_id)]

    def crash(self) -> None:
        """Stop like a killed process: written data survives."""
        self.store.abandon()


class Subject:
    """A store and its clock."""

    def __init__(self, kind: str, stores: Stores, **settings: Any) -> None:
        self.kind = kind
        self.clock = ManualClock(START_MS)
        self.store: MessageStore | MemoryStore
        if kind == "memory":
            root: Path = stores.root()
            self.store = MemoryStore(config(root, **settings), clock=self.clock)
        else:
            settings = _SETTINGS.get(kind, {}) | settings
            self.store = stores.open(clock=self.clock, **settings)

    def put(self, *args: Any, **fields: Any) -> PutResult:
        """Put a message that must be accepted, and make it readable; see ``message``."""
        result = self.store.put(message(*args, **fields))
        assert result.status is PutStatus.PUT_OK, result.reason
        self.settle()
        return result

    def settle(self) -> None:
        """Let background work run for some time: the messages that were put become readable."""
        now_ms = self.clock.now_ms()
        self.clock.advance(200)
        self.clock.set(now_ms)
        step_to_the_end(self.store)

    def bodies(self, topic: str = "TopicA", queue_id: int = 0) -> list[bytes]:
        """Return the bodies of the messages in a queue, from its first one on."""
        received: list[bytes] = []
        queue_offset = self.store.min_offset(topic, queue_id)
        while queue_offset < self.store.max_offset(topic, queue_id):
            result = self.store.get(topic, queue_id, queue_offset)
            assert result.next_offset > queue_offset
            received += [stored.body for stored in decoded(result)]
            queue_offset = result.next_offset
        return received

    def expire(self, physical_offset: int) -> int:
        """Let the log files before an offset expire; return the new start of the log."""
        if isinstance(self.store, MemoryStore):
            self.store.expire(physical_offset)
        else:
            expire_files(self.store, physical_offset)
        return self.store.min_physical_offset


def step_to_the_end(store: MessageStore | MemoryStore) -> None:
    """Run steps until no work is left."""
    for _ in range(1000):
        if not store.step():
            return
    raise AssertionError("there is no end to the work in the background")


def expire_files(store: MessageStore, physical_offset: int) -> None:
    """Let log files that end before an offset expire, except the last; derived files too."""
    for file in store.log.files.files:
        if file.end <= physical_offset:
            os.utime(file.path, (0, 0))
    store.retention.expire_now()
    step_to_the_end(store)
