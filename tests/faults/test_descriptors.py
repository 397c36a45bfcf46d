"""No descriptor left: some requests are refused, stored data is kept, and the broker recovers.

A real broker gets a limit of descriptors that idle connections use up. Its store continues:
messages to new topics, with new files, are acknowledged under SYNC_FLUSH. Connections beyond the
limit are closed. After the idle ones are closed, the broker works as before without a restart; no
acknowledged message is lost by a kill -9.
"""

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

import store_fixture
from reput import descriptors
from reput.client.config import ProducerConfig
from reput.client.message import Message, SendStatus
from reput.client.producer import Producer
from reput.client.pull_consumer import PullConsumer
from reput.clock import ManualClock
from reput.descriptors import SpareDescriptors
from reput.errors import OutOfResources
from reput.format import checkpoint_page
from reput.remoting.client_faults import LINES_PER_S
from reput.remoting.http_listener import HttpAnswer, HttpListener
from reput.store.files.disk import Disk
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage, PutStatus
from reput_cluster import ReputCluster
from store_fixture import START_MS, Stores
from waiting import wait_until

pytestmark = pytest.mark.crash

TOPIC_COUNT = 12
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": 1 << 20,
    "maxMessageSize": 500_000,
    "flushConsumeQueueThoroughInterval": 3_000,
}


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Prevent this process from opening more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- one process ----------------------------------------------------------------------------------


def test_a_folder_that_is_kept_open_is_synced_without_a_descriptor(tmp_path: Path) -> None:
    disk = Disk()
    disk.keep_open(str(tmp_path))
    descriptors.spares.close()
    with no_descriptor_left():
        disk.sync_folder(str(tmp_path))
        disk.sync_filesystem(str(tmp_path))
        other = Disk()
        for sync in (other.sync_folder, other.sync_filesystem, other.open):
            with pytest.raises(OutOfResources, match="for now: Too many open files"):
                sync(str(tmp_path))
    disk.close_kept()


def test_a_port_without_descriptors_logs_limited_lines(caplog: pytest.LogCaptureFixture) -> None:
    """The port of metrics wrote 38,393 tracebacks in 45 s."""

    async def answer(path: str) -> HttpAnswer:
        return HttpAnswer(HTTPStatus.OK, "text/plain", path.encode())

    listener = HttpListener(answer)
    listener.start()
    with socket.socket() as client:
        with no_descriptor_left():
            client.connect(("127.0.0.1", listener.port))
            wait_until(lambda: caplog.records)  # the thread of the listener logs it
        # A descriptor is free: it is accepted with the next attempt.
        client.sendall(b"GET /x HTTP/1.1\r\n\r\n")
        client.settimeout(60)
        assert b"/x" in client.recv(1 << 16) + client.recv(1 << 16)
    asyncio.run(listener.stop())
    assert len(caplog.records) <= LINES_PER_S * 2
    for record in caplog.records:
        assert record.getMessage().startswith("no connection can be accepted: Too many open files")
        assert record.exc_info is None


def test_a_spare_descriptor_is_released_for_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    descriptors.spares.close()
    descriptors.spares.fill()
    disk = Disk()
    with no_descriptor_left():
        opened = [disk.open(str(path)) for _ in range(descriptors.SPARES)]
        with pytest.raises(OutOfResources):
            disk.open(str(path))
        assert len(descriptors.spares) == 0
        assert not descriptors.spares.fill()
    for descriptor in opened:
        os.close(descriptor)
    assert descriptors.spares.fill()
    assert len(descriptors.spares) == descriptors.SPARES


def test_other_errors_release_no_spare_descriptor(tmp_path: Path) -> None:
    descriptors.spares.fill()
    with pytest.raises(FileNotFoundError):
        descriptors.open_descriptor(str(tmp_path / "nowhere"), os.O_RDONLY)
    assert len(descriptors.spares) == descriptors.SPARES


def test_a_reserve_releases_its_descriptors() -> None:
    reserve = SpareDescriptors(3)
    assert reserve.fill()
    assert [reserve.give_up() for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1024, 1024 - descriptors.FILES_RESERVED), (300, 150), (64, 32), (1 << 20, (1 << 20) - 256)],
)
def test_connections_leave_descriptors_for_files(
    monkeypatch: pytest.MonkeyPatch, limit: int, expected: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert descriptors.connections_max() == expected


class ExhaustedDisk(Disk):
    """A disk that temporarily cannot open files."""

    is_exhausted = False

    def _refuse(self, path: str) -> None:
        if self.is_exhausted:
            raise OutOfResources(path, f"cannot open for now: {os.strerror(errno.EMFILE)}")

    def open(self, path: str) -> int:
        self._refuse(path)
        return super().open(path)

    def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
        self._refuse(path)
        return super().create(path, size, is_durable=is_durable)

    def sync_folder(self, path: str) -> None:
        self._refuse(path)
        super().sync_folder(path)

    def sync_filesystem(self, path: str) -> None:
        self._refuse(path)
        super().sync_filesystem(path)

    def usage(self, path: str) -> float:
        return 0.5


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_requests_are_refused_while_no_file_can_be_opened(stores: Stores, flush: str) -> None:
    disk, clock = ExhaustedDisk(), ManualClock(START_MS)
    store = stores.open(disk=disk, clock=clock, flush_disk_type=flush)
    stored, refused = 0, 0
    for number in range(600):
        disk.is_exhausted = 100 <= number < 500
        result = store.put(IncomingMessage(f"Topic{number % 40}", bytes(700)))
        if result.status is PutStatus.PUT_OK:
            stored += 1
        else:
            assert result.status is PutStatus.CREATE_MAPPED_FILE_FAILED
            assert "cannot open for now: Too many open files" in result.reason
            refused += 1
        clock.advance(1_000)
        with contextlib.suppress(OutOfResources):
            store.step()
        assert store.flusher.failure is None
    assert refused, "there was no file for the log"
    assert store.refusal == ""
    while store.step():
        pass
    ends = [store.max_offset(f"Topic{number}", 0) for number in range(40)]
    assert sum(ends) == stored


def test_units_of_a_file_that_cannot_be_opened_do_not_count_as_missing(stores: Stores) -> None:
    disk = ExhaustedDisk()
    store = stores.open(disk=disk)
    for _ in range(40):
        store.put(IncomingMessage("TopicA", b"x"))
    while store.step():
        pass
    store.flusher.flush_all()
    store.queues.close()
    disk.is_exhausted = True
    with pytest.raises(OutOfResources):
        store.get("TopicA", 0, 3)
    disk.is_exhausted = False
    assert store.get("TopicA", 0, 3).records


# --- a real broker --------------------------------------------------------------------------------


def descriptor_count(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def queues_durable(cluster: ReputCluster) -> int:
    """Return the physical offset up to which queues are synced according to the checkpoint."""
    return checkpoint_page.unpack((cluster.store / "checkpoint").read_bytes()).queue_physical_offset


async def send(producer: Producer, topic: str, body: bytes, sent: dict[str, list[bytes]]) -> None:
    result = await producer.send(Message(topic, body))
    assert result.status is SendStatus.SEND_OK
    sent.setdefault(topic, []).append(body)


async def read_all(cluster: ReputCluster, topics: list[str]) -> dict[str, list[bytes]]:
    received: dict[str, list[bytes]] = {}
    for topic in topics:
        async with PullConsumer("others", namesrv=cluster.namesrv) as consumer:
            queues = await consumer.queues(topic)
            await consumer.assign(queues)
            ends = [await consumer.end_offset(queue) for queue in queues]
            for queue in queues:
                await consumer.seek_to_begin(queue)
            async with asyncio.timeout(60):
                while len(received.get(topic, [])) < sum(ends):
                    received.setdefault(topic, []).extend(
                        [message.body for message in await consumer.poll(1000)]
                    )
    return {topic: sorted(bodies) for topic, bodies in received.items()}


@pytest.mark.soak
@pytest.mark.slow
async def test_idle_connections_do_not_affect_the_store(tmp_path: Path) -> None:
    with ReputCluster(tmp_path / "cluster", SETTINGS) as cluster:
        sent: dict[str, list[bytes]] = {}
        once = ProducerConfig(retry_times_when_send_failed=0)
        async with Producer("producers", namesrv=cluster.namesrv, config=once) as producer:
            await send(producer, "Topic", b"before", sent)
            pid = cluster.broker_pid
            limit = descriptor_count(pid) + 20
            _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] == hard, "raised at the start"
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
            idle = [
                socket.create_connection(("127.0.0.1", cluster.port), timeout=5)
                for _ in range(limit + 20)
            ]
            async with asyncio.timeout(60):
                durable = queues_durable(cluster)
                while queues_durable(cluster) == durable:
                    await send(producer, "Topic", b"more", sent)
            for number in range(TOPIC_COUNT):
                # Each has a new folder, a new file and names to be synced.
                await send(producer, f"Topic{number}", b"while", sent)
                assert descriptor_count(pid) <= limit
            for connection in idle:
                connection.close()
            for number in range(TOPIC_COUNT, 2 * TOPIC_COUNT):
                await send(producer, f"Topic{number}", b"after", sent)
        cluster.kill_broker()
        assert "the store accepts no more puts" not in cluster.log()
        cluster.start()
        assert await read_all(cluster, list(sent)) == {
            topic: sorted(bodies) for topic, bodies in sent.items()
        }
        cluster.stop_broker()
        store_fixture.assert_sound(cluster.store)


def test_a_store_reopens_after_it_ran_out_of_descriptors(tmp_path: Path) -> None:
    root = tmp_path / "store"
    MessageStore.open(config=store_fixture.config(root)).close()
    descriptors.spares.close()
    with no_descriptor_left(), pytest.raises(Exception, match="Too many open files"):
        MessageStore.open(config=store_fixture.config(root))
    with MessageStore.open(config=store_fixture.config(root)) as store:
        assert store.put(IncomingMessage("TopicA", b"x")).status is PutStatus.PUT_OK
