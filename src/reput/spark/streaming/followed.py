"""Interfaces of followed queues, in stores or on brokers, as seen at one trigger.

``reput.spark.streaming.stream`` uses only these to decide the end of a micro-batch.
"""

import enum
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reput.spark.streaming.positions import QueueKey


class Sizes(NamedTuple):
    """Sizes of messages of a queue, or batches of them, in order."""

    stops: npt.NDArray[np.int64]
    """Queue offset after each."""
    byte_counts: npt.NDArray[np.int64]
    """Size of its record, in bytes."""


NO_SIZES = Sizes(np.empty(0, np.int64), np.empty(0, np.int64))


class FollowedQueue(Protocol):
    """A queue at one trigger."""

    @property
    def identity(self) -> Hashable:
        """Identity of the queue during the query."""

    @property
    def first(self) -> int:
        """Queue offset of the first existing message."""

    @property
    def end(self) -> int:
        """Queue offset after the last readable message."""

    @property
    def reach(self) -> int:
        """Largest valid queue offset of an earlier position."""

    def has(self, queue_offset: int) -> bool:
        """Return whether a message before ``end`` still exists."""

    def sizes(self, start: int, stop: int, most: int | None = None) -> Sizes:
        """Return the sizes of ``[start, stop)``, of the first ``most`` messages only."""

    def byte_count(self, start: int, stop: int) -> int:
        """Return the size of a range in the log, in bytes, exact or estimated."""

    def batch_stop(self, start: int, stop: int) -> int:
        """Return a stop that splits no batch: at or before ``stop``, but after at least one."""

    def store_timestamp(self, queue_offset: int) -> int:
        """Return the store time of a message, in ms; 0 if it cannot be read."""


class Part(NamedTuple):
    """Messages ``[start, stop)`` of a queue."""

    key: QueueKey
    queue: FollowedQueue
    start: int
    stop: int


class Whereabouts(enum.Enum):
    """State of a queue."""

    HERE = enum.auto()
    GONE = enum.auto()
    AWAY = enum.auto()
    """Unknown: its broker is not registered at the moment."""


class Followed(Protocol):
    """Queues of stores, or of brokers. Each refresh belongs to one trigger."""

    @property
    def places(self) -> str:
        """Location of the queues, for errors."""

    def starts(self) -> dict[QueueKey, int]:
        """Return the start queue offset of each selected queue for a new query.

        Raises:
            StoreUnavailable: A path is not a store, or is in use; or stores share a broker's name.
            InvalidOption: Topics, brokers, offsets or times in the options do not fit.
            DataLoss: Messages in the options are deleted, unless ``failOnDataLoss`` is false.
            ReadFailed: A broker or name server does not reply, or refuses.
        """

    def wanted(self, positions: Iterable[QueueKey]) -> Mapping[QueueKey, FollowedQueue]:
        """Refresh, and return the selected queues; ``positions`` are the known ones."""

    def queues_of(self, positions: Iterable[QueueKey]) -> Mapping[QueueKey, FollowedQueue]:
        """Refresh; return the queues at these positions that exist, selected or not."""

    def whereabouts(self, key: QueueKey) -> Whereabouts:
        """Return the state of a queue at the last refresh."""

    def wait_for(self, keys: Iterable[QueueKey]) -> None:
        """Wait until the brokers of queues are registered, for ``retryTimeout`` at most."""

    def prefetch(self, parts: Iterable[Part]) -> None:
        """Fetch the data from which sizes and times at the starts of parts are estimated."""

    def oldest(self, parts: Sequence[Part]) -> int | None:
        """Return the store time of the oldest first message of the parts, in ms."""

    def tasks(self, parts: Sequence[Part]) -> list[Any]:
        """Split a micro-batch into picklable tasks."""

    def read(self, task: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, as in a batch read."""

    def commit(self, positions: Mapping[QueueKey, int]) -> None:
        """Record, if configured, that everything before these positions was processed."""
