"""A real broker whose disk is full, read-only, or loses files.

Messages without room are refused by code 14 and with the reason, which ``/health`` reports too. All
messages that were acknowledged under SYNC_FLUSH are kept, over a kill -9 in that state; pulls
continue. The broker recovers without a restart as soon as it can.
"""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import store_fixture
from ports import free_port
from reput.client.config import ProducerConfig
from reput.client.message import Message, SendStatus
from reput.client.producer import Producer
from reput.client.pull_consumer import PullConsumer
from reput.errors import RemotingError
from reput.store.verify import FindingKind
from reput_cluster import DidNotStart, ReputCluster

pytestmark = [pytest.mark.crash, pytest.mark.slow]

GUARD_S = 60
BODY = b":" + random.Random(7).randbytes(50_000)
"""A body that cannot be compressed."""
ONCE = ProducerConfig(retry_times_when_send_failed=0)
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxMessageSize": 500_000,
    "deleteWhen": "04",
    "cleanFileForciblyEnable": "false",
}
DISK_BYTES = 24 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a separate small file system, below ``cluster/store``."""
    path = tmp_path / "cluster/store"
    path.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)],
        check=False,
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def remount(path: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)


def health(port: int) -> tuple[int, dict[str, list[str]]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


async def until(is_so: Callable[[], bool]) -> None:
    """Retry a check until it holds; the broker's own intervals decide how long it takes."""
    async with asyncio.timeout(GUARD_S):
        while not await asyncio.to_thread(is_so):
            await asyncio.sleep(0.2)


class Sender:
    """Sends numbered messages in sequence, and records the acknowledged ones."""

    def __init__(self, producer: Producer, topic: str = "Topic") -> None:
        self._producer = producer
        self._topic = topic
        self._number = 0
        self.acknowledged: list[int] = []
        self.refusal = ""

    async def send(self) -> bool:
        """Send a message; return whether it was acknowledged."""
        self._number += 1
        body = b"%d" % self._number + BODY
        try:
            result = await self._producer.send(Message(self._topic, body))
        except RemotingError as error:
            self.refusal = str(error)
            return False
        if result.status is SendStatus.SEND_OK:
            self.acknowledged.append(self._number)
        return result.status is SendStatus.SEND_OK

    async def send_until_refused(self) -> None:
        async with asyncio.timeout(GUARD_S):
            while await self.send():
                pass

    async def send_until_taken(self) -> None:
        async with asyncio.timeout(GUARD_S):
            while not await self.send():
                await asyncio.sleep(0.2)


async def read_numbers(cluster: ReputCluster, topic: str = "Topic") -> set[int]:
    numbers: set[int] = set()
    async with PullConsumer("others", namesrv=cluster.namesrv) as consumer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues)
        count = 0
        for queue in queues:
            count += await consumer.end_offset(queue) - await consumer.begin_offset(queue)
            await consumer.seek_to_begin(queue)
        async with asyncio.timeout(GUARD_S):
            while len(numbers) < count:
                numbers |= {
                    int(message.body.partition(b":")[0]) for message in await consumer.poll(1000)
                }
    return numbers


async def test_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    port = free_port()
    settings = {**SETTINGS, "metricsPort": port}
    with ReputCluster(tmp_path / "cluster", settings) as cluster:
        async with Producer("producers", namesrv=cluster.namesrv, config=ONCE) as producer:
            sender = Sender(producer)
            assert await sender.send()
            await sender.send_until_refused()
            assert "14" in sender.refusal
            assert str(small_disk) in sender.refusal
            with contextlib.suppress(OSError), (small_disk / "ballast").open("wb") as ballast:
                while True:  # Now there is no room for tables either.
                    ballast.write(bytes(4096))
                    ballast.flush()
            await until(lambda: health(port)[0] == 503)
            _, report = health(port)
            assert any(str(small_disk) in problem for problem in report["problems"])
            assert not await sender.send()
            readable = await read_numbers(
                cluster
            )  # Units of the last messages may have no room yet.
            assert readable
            assert readable <= set(sender.acknowledged)
            # Killed and started while the disk is full.
            cluster.kill_broker()
            with contextlib.suppress(DidNotStart):  # No room even for a small file.
                cluster.start()
            (small_disk / "ballast").unlink()
            cluster.start()
            remount(small_disk, f"size={2 * DISK_BYTES}")
            await sender.send_until_taken()
            await until(lambda: health(port)[0] == 200)
            for _ in range(20):
                assert await sender.send()
        cluster.kill_broker()
        cluster.start()
        assert await read_numbers(cluster) >= set(sender.acknowledged)
        cluster.stop_broker()
        store_fixture.assert_sound(cluster.store, allowed={FindingKind.LOG_HOLE})


@pytest.mark.soak
async def test_a_disk_that_becomes_read_only(tmp_path: Path, small_disk: Path) -> None:
    """Files that are open for writing stay writable; new ones are refused, by name."""
    port = free_port()
    with ReputCluster(tmp_path / "cluster", {**SETTINGS, "metricsPort": port}) as cluster:
        async with Producer("producers", namesrv=cluster.namesrv, config=ONCE) as producer:
            sender = Sender(producer)
            for _ in range(30):
                assert await sender.send()
            cluster.kill_broker()
            remount(small_disk, "ro")
            with pytest.raises(DidNotStart, match="Read-only file system"):
                cluster.start()
            remount(small_disk, "rw")
            cluster.start()
            assert await read_numbers(cluster) == set(sender.acknowledged)
            await sender.send_until_taken()


async def test_a_store_that_is_deleted_while_a_broker_runs(tmp_path: Path) -> None:
    port = free_port()
    with ReputCluster(tmp_path / "cluster", {**SETTINGS, "metricsPort": port}) as cluster:
        async with Producer("producers", namesrv=cluster.namesrv, config=ONCE) as producer:
            sender = Sender(producer)
            assert await sender.send()
            # In one step: the broker may save a table meanwhile.
            cluster.store.rename(tmp_path / "deleted")
            shutil.rmtree(tmp_path / "deleted")
            count = len(sender.acknowledged)
            await sender.send_until_refused()
            assert len(sender.acknowledged) == count, "under SYNC_FLUSH not a single one"
            await until(lambda: health(port)[0] == 503)
            assert any(str(cluster.store) in problem for problem in health(port)[1]["problems"])
            await sender.send_until_refused()
            assert str(cluster.store) in sender.refusal


@pytest.mark.soak
async def test_a_log_file_that_is_cut_while_a_broker_runs(tmp_path: Path) -> None:
    """The cut may kill the process; the messages before it are kept once the file has its size."""
    with ReputCluster(tmp_path / "cluster", SETTINGS) as cluster:
        async with Producer("producers", namesrv=cluster.namesrv, config=ONCE) as producer:
            sender = Sender(producer)
            for _ in range(30):
                assert await sender.send()
            cluster_log = sorted((cluster.store / "commitlog").iterdir())
            data = [path for path in cluster_log if path.read_bytes()[:4] != bytes(4)]
            last = data[-1]
            acknowledged = list(sender.acknowledged)
            position = len(last.read_bytes().rstrip(b"\0")) // 2
            os.truncate(last, position)
            assert not await sender.send() or not cluster.is_broker_running
            cluster.kill_broker()
            with pytest.raises(DidNotStart, match=last.name):
                cluster.start()  # The cause is unknown: the file is refused, and reported.
            os.truncate(last, 1 << 20)
            cluster.start()
            numbers = await read_numbers(cluster)
            lost = set(acknowledged) - numbers
            whole = int(last.name) // (len(BODY) + 300)
            assert set(acknowledged[:whole]) <= numbers
            assert lost == set(acknowledged[len(acknowledged) - len(lost) :]), "only the end"


@pytest.mark.soak
async def test_a_broker_continues_after_a_long_pause(tmp_path: Path) -> None:
    """Examples: a disk that does not answer, or a machine that is suspended."""
    port = free_port()
    with ReputCluster(tmp_path / "cluster", {**SETTINGS, "metricsPort": port}) as cluster:
        async with Producer("producers", namesrv=cluster.namesrv, config=ONCE) as producer:
            sender = Sender(producer)
            assert await sender.send()
            os.kill(cluster.broker_pid, signal.SIGSTOP)
            began = time.monotonic()
            pending = asyncio.create_task(sender.send())
            await asyncio.sleep(1)
            os.kill(cluster.broker_pid, signal.SIGCONT)
            assert await pending, time.monotonic() - began
            assert health(port)[0] == 200
        cluster.kill_broker()
        cluster.start()
        assert await read_numbers(cluster) == set(sender.acknowledged)
