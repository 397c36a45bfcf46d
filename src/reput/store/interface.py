"""The interface of a store: ``MessageStore``, and the model of it in ``tests/memory_store.py``.

The scripts in ``tests/scripts/store/behaviour`` run on both. ``BrokerStore`` is all that a broker
uses: it has few parts, with only those members that a broker needs.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, Self

from reput.errors import WriteFailed
from reput.store.config import StoreConfig
from reput.store.durations import Durations
from reput.store.getting import GetResult, MessageFilter, QueryResult
from reput.store.hot_state import HotState
from reput.store.log.commit_log import LogPiece, LogView
from reput.store.log.mapped_file_queue import BufferPool
from reput.store.log.replica_acks import ReplicaAcks
from reput.store.queues.batch_queue import BatchQueue
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.reader import END_OF_TIME_MS, Boundary
from reput.store.tables.config_tables import ConsumerOffset
from reput.store.writing.copying import Copier
from reput.store.writing.dispatch import Listener
from reput.store.writing.flush import PendingPut
from reput.store.writing.incoming import IncomingMessage, PutResult
from reput.store.writing.pop_reader import PopReader
from reput.store.writing.putting import Putter
from reput.store.writing.removal import Removal
from reput.store.writing.replica_log import ReplicaLog


class Store(Protocol):
    """Stores messages; for one thread at a time. ``MessageStore`` documents the methods."""

    # Putting ----------------------------------------------------------------------------------

    @property
    def refusal(self) -> str:
        """Reason why puts are refused now; empty if they are tried."""

    @property
    def why_no_puts(self) -> str:
        """Reason why no message can be stored now; empty if puts have not failed."""

    def put(self, message: IncomingMessage, now_ms: int | None = None) -> PutResult:
        """Store a message."""

    def put_many(
        self, messages: Sequence[IncomingMessage], now_ms: int | None = None
    ) -> list[PutResult]:
        """Store messages that are independent of each other."""

    def put_batch(self, message: IncomingMessage, now_ms: int | None = None) -> PutResult:
        """Store the messages in a client's batch: all, or none."""

    def begin_put(self, message: IncomingMessage, now_ms: int | None = None) -> PendingPut:
        """Store a message without waiting for the disk."""

    # Steps ------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make what was put durable; may run in another thread."""

    def step(self, now_ms: int | None = None) -> bool:
        """Do a part of the background work; return whether there was any."""

    def add_listener(self, listener: Listener) -> None:
        """Notify a listener of new messages once they can be read."""

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
        """Return messages of a queue from a queue offset on."""

    def query(
        self,
        topic: str,
        key: str,
        max_count: int = 32,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
    ) -> QueryResult:
        """Return the newest messages with a key."""

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset; None if there is none."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the oldest message."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the newest message."""

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset for a store time."""

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time of a message, in ms; None if the queue does not have it."""

    def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of a queue's oldest message, in ms; None if it is empty."""

    def lag_bytes(self, topic: str, queue_id: int, consumer_offset: int) -> int:
        """Return a consumer's distance to the end of the log, in bytes."""

    @property
    def min_physical_offset(self) -> int:
        """Minimum physical offset of the log."""

    @property
    def max_physical_offset(self) -> int:
        """Physical offset after the last record that can be read."""

    # Ending -----------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> int:
        """Delete the queues of a topic; return their number."""

    def close(self) -> None:
        """Stop; stored messages stay if the store is in files."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


# --- the store of a broker --------------------------------------------------------------------


class LogPart(Protocol):
    """The commit log, as far as a broker uses it."""

    @property
    def pool(self) -> BufferPool | None:
        """The transient pool; None without one."""

    @property
    def min_offset(self) -> int:
        """Physical offset of the oldest byte; 0 without files."""

    @property
    def readable_offset(self) -> int:
        """Physical offset after the last readable byte; bytes only in a pool buffer are not."""

    @property
    def written_offset(self) -> int:
        """Physical offset of the next record."""

    @property
    def flushed_offset(self) -> int:
        """Physical offset up to which everything is durable."""

    def read_all(self, places: Iterable[tuple[int, int]]) -> list[bytes | None]:
        """Return the bytes at each (physical offset, size); None where they are not readable."""

    def store_timestamp_at(self, physical_offset: int) -> int | None:
        """Return the store time of the record at an offset, in ms; None if it is unreadable."""

    def map_file(self, physical_offset: int) -> None:
        """Map the file that contains an offset for the kernels, or mark it as missing."""


class QueuesPart(Protocol):
    """The consume queues, as far as a broker uses them."""

    def __len__(self) -> int: ...

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue; None if it was never written to."""

    def of_topic(self, topic: str) -> dict[int, ConsumeQueue]:
        """Return the queues of a topic by id."""

    def topics(self) -> list[str]:
        """Return the topics with queues."""


class IndexPart(Protocol):
    """The index, as far as a broker uses it."""

    @property
    def end_physical_offset(self) -> int:
        """Physical offset of the last indexed record; -1 if there is none."""

    @property
    def end_timestamp(self) -> int:
        """Store time of the last indexed record, in ms; 0 if there is none."""

    def publish_rows(self) -> None:
        """Give kernels the rows of all files, unless they have them."""


class FlushPart(Protocol):
    """Flushing, as far as a broker uses it."""

    @property
    def is_sync(self) -> bool:
        """True if puts wait until they are on disk."""

    @property
    def failure(self) -> WriteFailed | None:
        """Error of a failed sync, after which puts are refused."""

    @property
    def problem(self) -> str:
        """Error of a failed sync, with the remedy; empty if there is none."""

    @property
    def sync_durations(self) -> Durations:
        """Durations of syncs of the log."""

    @property
    def commit_durations(self) -> Durations:
        """Durations of commits of pool buffers."""

    @property
    def is_due(self) -> bool:
        """True if the log should be flushed now, although no put waits for it."""

    def commit(self) -> int:
        """Write pool buffers to the files."""


class DispatchPart(Protocol):
    """Dispatch, as far as a broker uses it."""

    on_unusable: Callable[[str, Exception], None]
    """Called with the place of a record that is skipped, and the error."""
    on_begun_again: Callable[[str, Sequence[int]], None]
    """Called with a topic, and the ids of its queues that have begun again at queue offset 0."""

    @property
    def dispatched_offset(self) -> int:
        """Physical offset after the last dispatched record."""


class AgesPart(Protocol):
    """The ages of log files, as far as a broker uses them."""

    @property
    def warning(self) -> str:
        """Reason why time does not count towards ages now; empty if it counts."""


class RetentionPart(Protocol):
    """Retention, as far as a broker uses it."""

    consumer_offsets: Callable[[], Iterable[ConsumerOffset]] | None
    """Source of consumer offsets; set by the broker."""

    @property
    def ages(self) -> AgesPart:
        """The ages of log files."""

    def reconfigure(self, config: StoreConfig) -> None:
        """Use the hours, ages and limits of a new configuration."""

    def expire_now(self) -> None:
        """Delete expired files at any hour."""


class WatchPart(Protocol):
    """Detection of changes by other programs, as far as a broker uses it."""

    @property
    def problems(self) -> Mapping[str, str]:
        """Path -> problem."""


class RemovalsPart(Protocol):
    """The deletion of queues, as far as a broker uses it."""

    def release(self, removal: Removal) -> Iterator[None]:
        """Free the memory of queues, with pauses."""

    def finish(self) -> list[Removal]:
        """Move the files of all queues that are being deleted, durably; in any thread."""


class BrokerStore(Store, Protocol):
    """The store of a broker; ``MessageStore`` documents the methods."""

    # Parts ------------------------------------------------------------------------------------

    @property
    def config(self) -> StoreConfig:
        """The options of the store."""

    @property
    def root(self) -> str:
        """The store's folder."""

    @property
    def log(self) -> LogPart:
        """The commit log."""

    @property
    def queues(self) -> QueuesPart:
        """The consume queues."""

    @property
    def index(self) -> IndexPart:
        """The index."""

    @property
    def flusher(self) -> FlushPart:
        """Flushing."""

    @property
    def dispatcher(self) -> DispatchPart:
        """Dispatch."""

    @property
    def retention(self) -> RetentionPart:
        """Retention."""

    @property
    def watch(self) -> WatchPart:
        """Detection of changes by other programs."""

    @property
    def removals(self) -> RemovalsPart:
        """Queues that are being deleted."""

    # The fast path ----------------------------------------------------------------------------

    @property
    def copier(self) -> Copier:
        """Copies stored messages to queues, on the fast path."""

    @property
    def pop_reader(self) -> PopReader:
        """Serves pops on the fast path."""

    before_release: list[Callable[[], None]]
    """Called before queues are removed, or the store is closed: kernels know where they are."""

    @property
    def hot_state(self) -> HotState:
        """The memory that kernels and Python share."""

    @property
    def putter(self) -> Putter:
        """Provides what appended records lack: queues, files, room."""

    def begin_wait(self) -> PendingPut | None:
        """Return the pending put of the records that the fast path has just appended."""

    def set_write_queues(self, topic: str, count: int) -> None:
        """Set the number of queues of a topic that the fast path puts to."""

    def take_halves(self, *, is_on: bool) -> None:
        """Set whether the fast path puts half messages."""

    def take_timers(self, *, is_on: bool) -> None:
        """Set whether the fast path puts messages that wait for the timer."""

    # Putting ----------------------------------------------------------------------------------

    def begin_put(
        self, message: IncomingMessage, now_ms: int | None = None, *, is_batch: bool = False
    ) -> PendingPut:
        """Store a message or batch without waiting for the disk."""

    def put_encoded(
        self, data: bytes, count: int, now_ms: int | None = None
    ) -> tuple[int, memoryview]:
        """Append records made by ``incoming.encode``; return their number and offsets."""

    def store_time_of_put(self, now_ms: int) -> int:
        """Return the store time of a message that is put at the given time."""

    def keep_batches(self, topic: str, *, is_on: bool) -> None:
        """Set whether the queues of a topic are batch queues."""

    def put_news(self) -> Iterator[tuple[str, int, int]]:
        """Yield the puts since the last call: topic, number of messages, bytes of their records."""

    # Steps ------------------------------------------------------------------------------------

    def step_disk(self) -> bool:
        """Do the half of ``step`` that waits for the disk; may run in a worker thread."""

    def step_memory(self, now_ms: int | None = None) -> bool:
        """Do the half of ``step`` that must run in the thread that puts."""

    @property
    def has_more_to_do(self) -> bool:
        """True if the last ``step_memory`` left work that the next one can do at once."""

    def notify(self) -> None:
        """Notify the listeners of readable messages now."""

    # Replication ------------------------------------------------------------------------------

    @property
    def replicas(self) -> ReplicaAcks:
        """The slaves of a master."""

    @property
    def lacks_replicas(self) -> bool:
        """True if puts that wait are refused: too few brokers are available."""

    def replicas_changed(self) -> None:
        """Settle the puts that are safe or late, after slaves have acknowledged or left."""

    @property
    def replication_limit(self) -> int:
        """Physical offset up to which slaves may have the log."""

    def log_view(self, physical_offset: int, size_max: int) -> LogView | None:
        """Return bytes of the log without a copy, to be released; None if there are none."""

    def log_file(self, physical_offset: int) -> LogPiece | None:
        """Return where bytes of the log are on disk; None if there are none."""

    def records_before(self, physical_offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield physical offset and bytes of the records before an offset, newest first."""

    @property
    def replica_log(self) -> ReplicaLog:
        """The log of a slave, for its master's bytes."""

    # Getting ----------------------------------------------------------------------------------

    def query_in_steps(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        *,
        is_tags: bool,
        bytes_max: int,
    ) -> Generator[None, None, QueryResult]:
        """Query in steps, between which the store can be used for other things."""

    def is_on_disk(self, topic: str, queue_id: int) -> bool:
        """Return True if the first message of a queue is probably too old to be in memory."""

    def last_record(self) -> bytes | None:
        """Return the last record of the log; None if that record is in no queue."""

    def queue_counts(self, since: int = -1) -> dict[str, int]:
        """Return the number of queues that each topic needs, for messages from an offset on."""

    def has_batch_queues(self, topic: str) -> bool:
        """Return True if the queues of a topic are batch queues."""

    # Deleting ---------------------------------------------------------------------------------

    def begin_deletion(self, topics: Iterable[str]) -> Removal | None:
        """Remove the queues of topics from the tables; None if there are no queues."""

    def begin_deletion_before(self, topic: str, physical_offset: int) -> Removal | None:
        """Remove the queues of a topic that have no message at an offset or after it."""

    def begin_removal(self, queues: Iterable[ConsumeQueue | BatchQueue]) -> Removal | None:
        """Remove those of the given queues from the tables that are still unused."""

    def unknown_topics(self, known: Collection[str]) -> list[str]:
        """Return topics with queues that are not in ``known``."""

    def unused_queues(self) -> list[ConsumeQueue | BatchQueue]:
        """Return queues whose last message has left the log."""
