"""A master and its slave, each ours or Java's, with one name server.

with Pair("4.9.7", "reput", tmp_path) as pair:
    ...  # any client, at pair.namesrv
    pair.until_caught_up("T")
    pair.master.kill_broker()
    pair.master.start()
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from interop import wire
from interop.clusters import start_cluster, until
from interop.java_cluster import Settings
from interop.wire import Remote
from reput.format import bodies, fastjson
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import ConsumerGroupHeader, QueryConsumerOffsetHeader, QueueHeader

REPUT = "reput"
MASTER: Settings = {"brokerRole": "ASYNC_MASTER", "brokerIP2": "127.0.0.1"}
SLAVE: Settings = {"brokerRole": "SLAVE", "brokerId": 1, "brokerIP2": "127.0.0.1"}


class Pair:
    """A running master ``broker-a`` and its slave 1.

    Args:
        master: ``reput`` or a version of RocketMQ. The name server is of the same kind.
        slave: The same, for the slave.
        folder: Folder for both.
        settings: Further settings of the master.
        slave_settings: Further settings of the slave.
    """

    def __init__(
        self,
        master: str,
        slave: str,
        folder: Path,
        settings: Settings | None = None,
        slave_settings: Settings | None = None,
    ) -> None:
        with ExitStack() as stack:
            more = {**MASTER, **(settings or {})}
            self.master = stack.enter_context(
                start_cluster(master, master, folder / "master", more)
            )
            # Those of 5.x refuse all pulls without it.
            reads = {"slaveReadEnable": True} if slave.startswith("5.") else {}
            more = {**SLAVE, **reads, **(slave_settings or {})}
            self.namesrv = self.master.namesrv
            self.slave = stack.enter_context(
                start_cluster(slave, slave, folder / "slave", more, namesrv=self.namesrv)
            )
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def until_caught_up(self, topic: str, queue_count: int = 1) -> None:
        """Wait until the slave serves all messages that the master has of a topic."""

        def is_caught_up() -> bool:
            ends = [max_offset(self.master.address, topic, queue) for queue in range(queue_count)]
            return all(serves(self.slave.address, topic, *end) for end in enumerate(ends))

        self.until_synced(is_caught_up)

    def until_equal(self) -> int:
        """Wait until the slave has and has dispatched the master's log; return the log's end."""

        def ends() -> set[str]:
            tables = [runtime_table(broker.address) for broker in (self.master, self.slave)]
            lags = {table["dispatchBehindBytes"] for table in tables}
            return {table["commitLogMaxOffset"] for table in tables} | (lags - {"0"})

        until(lambda: len(ends()) == 1)
        return int(ends().pop())

    def until_synced(self, look: Callable[[], bool]) -> None:
        """Wait until the slave has the tables of the master: within 10 s; in 5.x, within 65 s."""
        until(look)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop all threads of a process meanwhile: requests to it get no answer."""
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: all(map(_is_stopped, Path(f"/proc/{pid}/task").iterdir())))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _is_stopped(thread: Path) -> bool:
    """Return whether a thread is stopped; on a busy machine that takes a while."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


# --- stores ------------------------------------------------------------------------------


def log_of(store: Path, end: int) -> dict[int, bytes]:
    """Return the bytes of the log's files up to a physical offset, by the offset of their start."""
    files = sorted((store / "commitlog").glob("[0-9]" * 20))
    starts = {int(file.name): file for file in files}
    return {
        start: file.read_bytes()[: end - start] for start, file in starts.items() if start < end
    }


def queues_of(store: Path) -> dict[str, bytes]:
    """Return the units of all queues, without the zeros at their ends."""
    queues = {}
    for folder in sorted((store / "consumequeue").glob("*/*")):
        units = b"".join(path.read_bytes() for path in sorted(folder.iterdir())).rstrip(b"\0")
        if units:
            queues[str(folder.relative_to(store))] = units
    return queues


def assert_same_logs(master: Path, slave: Path, end: int, begin: int = 0) -> int:
    """Compare two logs from the start of a file on; return the number of their files."""
    expected, copied = log_of(master, end), log_of(slave, end)
    assert list(copied) == [start for start in expected if start >= begin]
    # No diff: it would take minutes.
    assert [start for start, data in copied.items() if expected[start] != data] == []
    return len(copied)


def assert_same_stores(master: Path, slave: Path, end: int) -> int:
    """Compare the logs and the queues of two stores; return the number of the logs' files."""
    assert queues_of(slave) == queues_of(master)
    return assert_same_logs(master, slave, end)


# --- requests to one broker ----------------------------------------------------------


def asked(address: str, question: Callable[[Remote], Any]) -> Any:
    """Return the answer of a broker to a question: a function that awaits replies."""

    async def ask() -> Any:
        async with wire.connected(address) as remote:
            return await question(remote)

    return asyncio.run(ask())


def max_offset(address: str, topic: str, queue_id: int) -> int:
    """Return the queue offset after the last message of a queue."""

    async def question(remote: Remote) -> int:
        header = QueueHeader(topic=topic, queue_id=queue_id)
        reply = await remote.ask(RequestCode.GET_MAX_OFFSET, header)
        return int((reply.ext_fields or {}).get("offset", 0))

    return int(asked(address, question))


TABLES = {
    RequestCode.GET_ALL_TOPIC_CONFIG: "topicConfigTable",
    RequestCode.GET_ALL_CONSUMER_OFFSET: "offsetTable",
    RequestCode.GET_ALL_DELAY_OFFSET: "offsetTable",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "subscriptionGroupTable",
}
"""Requests for the tables that all slaves copy, and the members of the replies that have them."""


def tables(address: str) -> dict[str, Any]:
    """Return the tables of a broker that its slaves copy."""

    async def question(remote: Remote) -> dict[str, Any]:
        replies = {code: await remote.ask(code) for code in TABLES}
        return {
            code.name: fastjson.parse(reply.body.decode()).get(TABLES[code])
            for code, reply in replies.items()
        }

    answer: dict[str, Any] = asked(address, question)
    return answer


def runtime_table(address: str) -> dict[str, str]:
    """Return what a broker reports about itself."""

    async def question(remote: Remote) -> dict[str, str]:
        while True:
            reply = await remote.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
            if reply.code == ResponseCode.SUCCESS:
                return bodies.decode(bodies.KvTable, reply.body).table
            # In its first second 4.x has no sample of its rates, and throws this.
            assert "NoSuchElementException" in (reply.remark or ""), reply.remark
            await asyncio.sleep(0.05)

    answer: dict[str, str] = asked(address, question)
    return answer


def log_end(address: str) -> int:
    """Return the physical offset after the last byte of a broker's log."""
    return int(runtime_table(address)["commitLogMaxOffset"])


def serves(address: str, topic: str, queue_id: int, end: int) -> bool:
    """Return whether a broker serves the messages of a queue before an offset."""

    async def question(remote: Remote) -> bool:
        reply = await remote.pull(topic, queue_id, max(end - 1, 0))
        if end == 0:
            return bool(reply.code == ResponseCode.PULL_NOT_FOUND)
        return bool(reply.code == ResponseCode.SUCCESS)

    return bool(asked(address, question))


def committed(address: str, group: str, topic: str, queue_id: int) -> int | None:
    """Return the consumer offset of a group that a broker has; None if it has none."""

    async def question(remote: Remote) -> int | None:
        header = QueryConsumerOffsetHeader(
            consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=False
        )
        reply = await remote.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
        if reply.code != ResponseCode.SUCCESS:
            return None
        return int((reply.ext_fields or {})["offset"])

    answer: int | None = asked(address, question)
    return answer


def member_count(address: str, group: str) -> int:
    """Return the number of members of a consumer group that a broker has."""

    async def question(remote: Remote) -> int:
        header = ConsumerGroupHeader(consumer_group=group)
        reply = await remote.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        if reply.code != ResponseCode.SUCCESS:
            return 0
        return len(bodies.decode(bodies.ConsumerList, reply.body).consumer_id_list)

    return int(asked(address, question))
