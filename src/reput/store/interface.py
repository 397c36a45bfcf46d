"""The interface of a store: ``MessageStore``, and the model of it in ``tests/memory_store.py``.

The scripts in ``tests/scripts/store/behaviour`` run on both.
"""

from collections.abc import Sequence
from typing import Protocol, Self

from reput.store.dispatch import Listener
from reput.store.flush import PendingPut
from reput.store.getting import GetResult, MessageFilter, QueryResult
from reput.store.incoming import IncomingMessage, PutResult
from reput.store.reader import END_OF_TIME_MS, Boundary


class Store(Protocol):
    """Keeps messages; used by one thread at a time. What each verb does: ``MessageStore``."""

    # Putting ----------------------------------------------------------------------------------

    @property
    def refusal(self) -> str:
        """Why nothing can be put now; empty if it can."""

    def put(self, message: IncomingMessage, now_ms: int | None = None) -> PutResult:
        """Store a message."""

    def put_many(
        self, messages: Sequence[IncomingMessage], now_ms: int | None = None
    ) -> list[PutResult]:
        """Store messages that have nothing to do with each other."""

    def put_batch(self, message: IncomingMessage, now_ms: int | None = None) -> PutResult:
        """Store the messages in a client's batch: all, or none."""

    def begin_put(self, message: IncomingMessage, now_ms: int | None = None) -> PendingPut:
        """Store a message without waiting for the disk."""

    def is_page_cache_busy(self) -> bool:
        """Whether a put has been at work for too long."""

    # Steps ------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make what was put durable; may run in another thread."""

    def step(self, now_ms: int | None = None) -> bool:
        """Do a piece of the background work; return whether there was any."""

    def add_listener(self, listener: Listener) -> None:
        """Tell somebody of new messages, once they can be read."""

    # Getting ----------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int = 32,
        *,
        tags_codes: Sequence[int] = (),
        message_filter: MessageFilter | None = None,
    ) -> GetResult:
        """Return messages of a queue from an offset on."""

    def query(
        self,
        topic: str,
        key: str,
        max_count: int = 32,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
    ) -> QueryResult:
        """Return the newest messages that carry a key."""

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the oldest message."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset behind the newest message."""

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset that a time names."""

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return when a message was stored, ms."""

    def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Return when the oldest message of a queue was stored, ms."""

    def lag_bytes(self, topic: str, queue_id: int, consumer_offset: int) -> int:
        """Return how far back in the log a consumer reads, bytes."""

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins."""

    @property
    def max_physical_offset(self) -> int:
        """Behind the last record that can be read."""

    # Ending -----------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> int:
        """Delete the queues of a topic; return how many there were."""

    def close(self) -> None:
        """Stop; what was put stays, where there is a place for it to stay."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
