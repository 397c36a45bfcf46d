"""One thread puts, another waits for the disk, both as fast as they can: no message is lost.

Files are so small that log, queues and index roll all the time, and threads switch so often that
they interleave at every point.
"""

import itertools
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import seeds
import store_fixture
from reput.clock import SystemClock
from reput.format import batch, java, message as record, properties as props
from reput.store.message_store import MessageStore
from reput.store.verify import FindingKind
from reput.store.writing import incoming
from reput.store.writing.flush import PendingPut
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus

pytestmark = [pytest.mark.crash, pytest.mark.slow]

WAIT_S = 60.0
"""Time that a busy machine has until both threads have run, in s."""
LIFE_S = 2.0 if hypothesis.settings.default.max_examples <= 100 else 30.0
AT_ONCE: dict[str, Any] = {
    "flush_interval_commit_log": 1,
    "flush_commit_log_least_pages": 0,
    "flush_interval_consume_queue": 1,
    "flush_consume_queue_least_pages": 0,
    "flush_consume_queue_thorough_interval": 3,
    "commit_interval_commit_log": 1,
    "commit_commit_log_least_pages": 0,
}
"""Settings with which all background work is always due."""
POOL: dict[str, Any] = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
EXPIRY: dict[str, Any] = {"file_reserved_time": 0}

Known = dict[tuple[str, int], dict[int, bytes]]


@pytest.fixture(autouse=True)
def _many_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


class Writer:
    """A writer that puts in all ways, and records the acknowledged messages."""

    def __init__(self, store: MessageStore, *, begins: bool) -> None:
        self.known: Known = defaultdict(dict)
        self._store = store
        self._begins = begins
        self._chance = seeds.random("two threads")
        self._numbers = itertools.count()
        self._pending: list[tuple[IncomingMessage, PendingPut]] = []

    def put_something(self) -> None:
        """Put once, and sometimes run the writer's half of a step."""
        ways = [self._put, self._put_many, self._put_batch]
        if self._begins:
            ways = [*ways, self._begin, self._begin, self._begin]
        else:
            ways.append(self._put_encoded)
        self._chance.choice(ways)()
        if self._chance.random() < 0.3:
            self.step()

    def step(self) -> None:
        """Run the writer's half of a step, and check which puts it has completed."""
        self._store.step_memory()
        while self._pending and (result := self._pending[0][1].result) is not None:
            message, _ = self._pending.pop(0)
            self._note(message, result)

    @property
    def waits(self) -> bool:
        """Return whether a put waits for the disk."""
        return bool(self._pending)

    def _message(self) -> IncomingMessage:
        number = next(self._numbers)
        body = b"%d-".ljust(self._chance.randrange(8, 900), b"x") % number
        named = {"UNIQ_KEY": f"U{number}", "KEYS": f"k{number}", "TAGS": "TagA"}
        topic = self._chance.choice(("TopicA", "TopicB"))
        return IncomingMessage(topic, body, self._chance.randrange(3), props.encode(named))

    def _note(self, message: IncomingMessage, result: PutResult) -> None:
        assert result.status is PutStatus.PUT_OK, result
        self._know(message, result.queue_offset, message.body)

    def _know(self, message: IncomingMessage, queue_offset: int, body: bytes) -> None:
        queue = self.known[message.topic, message.queue_id]
        assert queue.setdefault(queue_offset, body) == body, "a queue offset was given twice"

    def _put(self) -> None:
        message = self._message()
        self._note(message, self._store.put(message))

    def _begin(self) -> None:
        message = self._message()
        self._pending.append((message, self._store.begin_put(message)))

    def _put_many(self) -> None:
        messages = [self._message() for _ in range(self._chance.choice((2, 30)))]
        for message, result in zip(messages, self._store.put_many(messages), strict=True):
            self._note(message, result)

    def _put_encoded(self) -> None:
        messages = [self._message() for _ in range(20)]
        data = b"".join(incoming.encode(sent, java.encode_utf8(sent.topic)) for sent in messages)
        count, places = self._store.put_encoded(data, len(messages))
        assert count == len(messages)
        for i, message in enumerate(messages):
            self._know(message, places[2 * i + 1], message.body)

    def _put_batch(self) -> None:
        outer = self._message()
        bodies = [self._message().body for _ in range(5)]
        parts = [batch.InnerMessage(0, body, outer.property_bytes) for body in bodies]
        message = IncomingMessage(outer.topic, batch.encode(parts), outer.queue_id)
        result = self._store.put_batch(message)
        assert result.status is PutStatus.PUT_OK, result
        for i, body in enumerate(bodies):
            self._know(message, result.queue_offset + i, body)


class DiskThread(threading.Thread):
    """A thread that runs the disk's half of the steps until it is stopped."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__()
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self.step_count = 0
        self._store = store

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._store.step_disk()
                self._store.sync()
                self.step_count += 1
        except BaseException as error:  # noqa: BLE001 - the test reports every exception
            self.failure = error


@pytest.mark.parametrize(
    ("settings", "is_expiring"),
    [
        pytest.param({}, False, id="async"),
        pytest.param({"flush_disk_type": "SYNC_FLUSH"}, False, id="sync"),
        pytest.param(POOL, False, id="pool"),
        pytest.param(EXPIRY, True, id="expiry"),
        pytest.param(EXPIRY | POOL, True, id="pool-expiry"),
    ],
)
@pytest.mark.parametrize("closes_at_once", [False, True], ids=["joined", "closed"])
@pytest.mark.sampled(4)
def test_the_disk_half_of_steps_runs_concurrently_with_puts(
    tmp_path: Path, settings: dict[str, Any], is_expiring: bool, closes_at_once: bool
) -> None:
    """With ``closed``, the store is closed while the other thread is at work."""
    config = store_fixture.config(
        tmp_path / "store",
        **AT_ONCE,
        **settings,
        delete_when=";".join(f"{h:02}" for h in range(24)),
    )
    disk = store_fixture.RoomyDisk()
    store = MessageStore.open(config=config, clock=SystemClock(), disk=disk)
    if is_expiring:
        store.retention.expire_now(1 << 40)
    writer = Writer(store, begins="flush_disk_type" in settings)
    thread = DiskThread(store)
    thread.start()
    begun_s = time.monotonic()

    def is_over() -> bool:
        """Return whether the time is over, and each thread had some of it."""
        had_turns = thread.step_count > 10 and (store.retention.counts.log_files or not is_expiring)
        return time.monotonic() > begun_s + (LIFE_S / 2 if had_turns else WAIT_S)

    try:
        while thread.failure is None and not is_over():
            writer.put_something()
        while writer.waits and thread.failure is None:
            writer.step()
        if closes_at_once:
            store.close()
    finally:
        thread.stopping.set()
        thread.join()
        store.close()
    if thread.failure is not None:
        raise thread.failure
    assert thread.step_count > 10
    assert bool(store.retention.counts.log_files) is is_expiring
    files = [file.stat().st_size for file in (tmp_path / "store" / "commitlog").iterdir()]
    assert set(files) == {config.mapped_file_size_commit_log}

    store = MessageStore.open(config=config, clock=SystemClock(), disk=disk)
    assert store.recovery.was_clean
    compare(store, writer.known)
    store.close()
    store_fixture.assert_sound(tmp_path / "store", allowed={FindingKind.CLOCK_BACK})


def compare(store: MessageStore, known: Known) -> None:
    """Check that every acknowledged message is stored, except expired ones."""
    for (topic, queue_id), bodies in known.items():
        queue_offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        assert sorted(bodies) == list(range(end))
        bodies_by_place: dict[int, bytes] = {}
        while queue_offset < end:
            result = store.get(topic, queue_id, queue_offset)
            assert result.records, f"{topic}/{queue_id} has nothing at {queue_offset}"
            for message in map(record.decode, result.records):
                bodies_by_place[message.queue_offset] = message.body
            queue_offset = result.next_offset
        first = store.min_offset(topic, queue_id)
        assert bodies_by_place == {place: body for place, body in bodies.items() if place >= first}
