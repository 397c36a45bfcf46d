"""What a stream follows: queues as they stand at one trigger, in stores or on brokers.

``reput.spark.streaming.stream`` decides with nothing but these verbs how far a micro-batch goes.
"""

import enum
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reput.spark.streaming.positions import QueueKey


class Sizes(NamedTuple):
    """Messages of a queue, or batches of them, in order."""

    stops: npt.NDArray[np.int64]
    """Queue offset behind each."""
    byte_counts: npt.NDArray[np.int64]
    """Of its record."""


NO_SIZES = Sizes(np.empty(0, np.int64), np.empty(0, np.int64))


class FollowedQueue(Protocol):
    """A queue as it stands at one trigger."""

    @property
    def identity(self) -> Hashable:
        """What tells it from others as long as the query runs."""

    @property
    def first(self) -> int:
        """The first queue offset whose message is there."""

    @property
    def end(self) -> int:
        """The queue offset behind the last message that can be read."""

    @property
    def reach(self) -> int:
        """The queue offset up to which a position may be, once one was handed out."""

    def has(self, queue_offset: int) -> bool:
        """Whether a message in front of ``end`` is still there."""

    def sizes(self, start: int, stop: int, most: int | None = None) -> Sizes:
        """Return the sizes of ``[start, stop)``, of the first ``most`` messages only."""

    def byte_count(self, start: int, stop: int) -> int:
        """Return how many bytes of log a range takes, exactly or about."""

    def batch_stop(self, start: int, stop: int) -> int:
        """Return where to stop so that no batch is cut: at or before ``stop``, but behind one."""

    def store_timestamp(self, queue_offset: int) -> int:
        """Return a message's store time, ms; 0 if it cannot be read."""


class Part(NamedTuple):
    """Messages ``[start, stop)`` of a queue."""

    key: QueueKey
    queue: FollowedQueue
    start: int
    stop: int


class Whereabouts(enum.Enum):
    """What has become of a queue."""

    HERE = enum.auto()
    GONE = enum.auto()
    AWAY = enum.auto()
    """Nobody can tell: its broker is not there at the moment."""


class Followed(Protocol):
    """Queues of stores, or of brokers. Each look at them is one trigger's."""

    @property
    def places(self) -> str:
        """Where the queues are, for errors."""

    def starts(self) -> dict[QueueKey, int]:
        """Return the queue offset at which a new query starts each wanted queue.

        Raises:
            StoreUnavailable: A path is no store, or is in use; or stores share a broker's name.
            InvalidOption: Topics, brokers, offsets or times that were named do not fit.
            DataLoss: What was named is gone, unless ``failOnDataLoss`` is false.
            ReadFailed: A broker or name server does not answer, or refuses.
        """

    def wanted(self, positions: Iterable[QueueKey]) -> Mapping[QueueKey, FollowedQueue]:
        """Look again, and return the wanted queues; ``positions`` are those known so far."""

    def those(self, positions: Iterable[QueueKey]) -> Mapping[QueueKey, FollowedQueue]:
        """Look again, and return those of these queues that are here, wanted or not."""

    def whereabouts(self, key: QueueKey) -> Whereabouts:
        """Return what has become of a queue, as of the last look."""

    def look_at(self, parts: Iterable[Part]) -> None:
        """Find out at once what sizes and times at the starts of parts are told from."""

    def oldest(self, parts: Sequence[Part]) -> int | None:
        """Return the store time of the oldest of the parts' first messages, ms."""

    def tasks(self, parts: Sequence[Part]) -> list[Any]:
        """Cut what a micro-batch reads into tasks, which can be pickled."""

    def read(self, task: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, as a batch read does."""

    def commit(self, positions: Mapping[QueueKey, int]) -> None:
        """Note, where that is wanted, that everything before these positions is through."""
