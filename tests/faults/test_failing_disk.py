"""A disk that fails at any single step: of opening, of queues, of the checkpoint, of tables.

A failed opening names the file; later failures are in health. All data that was durable before is
kept; the next opening, or the next try, works as if there had been no failure.
"""

import asyncio
import contextlib
import itertools
import shutil
from pathlib import Path

import pytest

import store_fixture
import world
from reput.broker.tables.failures import LOGGED_AGAIN_MS, WriteFailures
from reput.clock import ManualClock
from reput.errors import DiskFull, WriteFailed
from reput.format import message as record
from reput.store.files.disk import Disk
from reput.store.message_store import MessageStore
from reput.store.tables.offsets import ConsumerOffsetTable
from reput.store.writing.incoming import IncomingMessage
from store_fixture import START_MS, RoomyDisk, some

pytestmark = pytest.mark.crash

COUNT = 120


class FaultyDisk(Disk):
    """A disk that fails its n-th change, once.

    Args:
        number: Number of the change, from 1.
        is_full: True if the error is a full disk.
    """

    def __init__(self, number: int, *, is_full: bool) -> None:
        super().__init__()
        self.left = number
        self._is_full = is_full

    def _count(self, path: str) -> None:
        self.left -= 1
        if self.left == 0:
            if self._is_full:
                raise DiskFull(path, 1, "no room: a test")
            raise WriteFailed(path, "input/output error: a test")

    def _count_sync(self, path: str) -> None:
        if not self._is_full:  # A sync without room has lost bytes: it counts as any other error.
            self._count(path)

    def sync_file(self, descriptor: int, path: str) -> None:
        self._count_sync(path)
        super().sync_file(descriptor, path)

    def sync_folder(self, path: str) -> None:
        self._count_sync(path)
        super().sync_folder(path)

    def sync_filesystem(self, path: str) -> None:
        self._count_sync(path)

    def reserve(self, descriptor: int, path: str, start: int, length: int) -> None:
        self._count(path)
        super().reserve(descriptor, path, start, length)

    def write(self, descriptor: int, path: str, position: int, data: bytes | memoryview) -> None:
        self._count(path)
        super().write(descriptor, path, position, data)

    def rename(self, source: str, target: str) -> None:
        self._count(source)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._count(path)
        super().unlink(path)

    def usage(self, path: str) -> float:
        return 0.5


def open_store(root: Path, disk: Disk | None = None) -> MessageStore:
    return MessageStore.open(
        config=store_fixture.config(root, flush_disk_type="SYNC_FLUSH"),
        clock=ManualClock(START_MS),
        disk=disk or RoomyDisk(),
    )


def numbers(store: MessageStore) -> list[int]:
    bodies = []
    for queue_id in range(3):
        position = 0
        while position < store.max_offset("TopicA", queue_id):
            result = store.get("TopicA", queue_id, position)
            bodies += [int(record.decode(data).body.rstrip(b".")) for data in result.records]
            position = result.next_offset
    return sorted(bodies)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store as a kill -9 left it: with a torn tail, and units that no file has."""
    root = tmp_path_factory.mktemp("crashed") / "store"
    store = open_store(root)
    for number in range(COUNT):
        body = b"%d" % number + b"." * 900
        keys = f"KEYS\x01k{number}\x02".encode()
        store.put(IncomingMessage("TopicA", body, number % 3, keys))
        if number == COUNT // 2:
            store.flusher.flush_all()
    last = store.log.files.last
    assert last is not None
    store.abandon()
    with Path(last.path).open("r+b") as file:
        data = file.read()
        file.seek(len(data.rstrip(b"\0")) + 8)
        file.write(b"\0\0\0\x80torn")
    return root


@pytest.mark.parametrize("is_full", [False, True], ids=["error", "full"])
def test_a_recovery_that_failed_at_any_step_succeeds_the_next_time(
    crashed: Path, tmp_path: Path, is_full: bool
) -> None:
    root = tmp_path / "store"
    counting = FaultyDisk(1 << 30, is_full=is_full)
    shutil.copytree(crashed, root)
    open_store(root, counting).abandon()
    step_count = (1 << 30) - counting.left
    assert step_count > 5
    for number in some(range(1, step_count + 1)):
        shutil.rmtree(root)
        shutil.copytree(crashed, root)
        disk = FaultyDisk(number, is_full=is_full)
        problem = ""
        try:
            open_store(root, disk).abandon()  # A file that is created in advance is optional.
        except WriteFailed as error:
            problem = str(error)
        assert disk.left <= 0
        assert problem == "" or str(root) in problem
        again = open_store(root)
        assert numbers(again) == list(range(COUNT))
        assert len(again.query("TopicA", "k7").records) == 1
        again.close()
    store_fixture.assert_sound(root)


@pytest.mark.parametrize("is_full", [False, True], ids=["error", "full"])
@pytest.mark.sampled(2)
def test_acknowledged_messages_are_kept_whichever_step_fails(tmp_path: Path, is_full: bool) -> None:
    root = tmp_path / "store"
    for number in itertools.chain(range(1, 60, 7), [100, 200]):
        shutil.rmtree(root, ignore_errors=True)
        open_store(root).close()
        disk = FaultyDisk(1 << 30, is_full=is_full)
        store = open_store(root, disk)
        disk.left = number
        acknowledged = []
        for message in range(COUNT):
            body = b"%d" % message + b"." * 900
            status = store.put(IncomingMessage("TopicA", body, message % 3)).status
            if status.name == "PUT_OK":
                acknowledged.append(message)
            if message % 10 == 0:
                with contextlib.suppress(WriteFailed):
                    store.flusher.write_out_queues()
                    store.step()
        if is_full:
            assert store.refusal == "", "puts continue without a restart"
        with contextlib.suppress(WriteFailed):
            store.close()
        again = open_store(root)
        assert set(acknowledged) <= set(numbers(again)), number
        again.close()


# --- tables and loops -----------------------------------------------------------------------------


async def test_a_table_that_cannot_be_saved_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"flush_consumer_offset_interval": 1}
    async with world.broker(tmp_path, **settings) as subject:
        await subject.send("T", b"x")
        broker = subject.broker
        has_tried = asyncio.Event()
        loop = asyncio.get_running_loop()

        def fail(*_: object, **__: object) -> None:
            loop.call_soon_threadsafe(has_tried.set)
            raise WriteFailed("config/consumerOffset.json", "cannot write: Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(ConsumerOffsetTable, "write", fail)
            broker.parts.deliveries.consumer_offsets.put("T", "readers", 0, 1)
            async with asyncio.timeout(30):
                await has_tried.wait()
                while not broker.parts.write_failures.current:
                    await asyncio.sleep(0.01)
            health = world.health_of(broker)
            assert health.problems == (
                "table config/consumerOffset.json cannot be written at present: "
                "config/consumerOffset.json: cannot write: Input/output error",
            )
            assert (await subject.send("T", b"y")).code == 0, "messages are still accepted"
        broker.parts.deliveries.consumer_offsets.put("T", "readers", 0, 1)
        async with asyncio.timeout(30):
            while broker.parts.write_failures.current:
                await asyncio.sleep(0.01)
        assert world.health_of(broker).is_well


def test_the_same_failure_is_logged_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    failures = WriteFailures(clock.monotonic_ms)
    for _ in range(100):
        failures.add("disk", WriteFailed("a", "b"))
        clock.advance(LOGGED_AGAIN_MS // 10)
    assert len(caplog.records) == 10
    failures.add("disk", WriteFailed("a", "another"))
    assert caplog.records[-1].getMessage() == "disk cannot be written at present: a: another"
    failures.clear("disk")
    failures.clear("disk")
    assert len(caplog.records) == 12
    assert failures.current == {}
