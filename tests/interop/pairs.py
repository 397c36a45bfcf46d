"""A master and its slave, each ours or Java's, with one name server.

with Pair("4.9.7", "reput", tmp_path) as pair:
    ...  # any client, at pair.namesrv
    pair.until_caught_up("T")
    pair.master.kill_broker()
    pair.master.start()
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from interop import wire
from interop.clusters import until
from interop.java_cluster import JavaCluster, Settings
from interop.wire import Remote
from reput.format import bodies
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import ConsumerGroupHeader, QueryConsumerOffsetHeader, QueueHeader
from reput_cluster import ReputCluster

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
            self.master = stack.enter_context(start(master, folder / "master", more))
            # Those of 5.x refuse all pulls without it.
            reads = {"slaveReadEnable": True} if slave.startswith("5.") else {}
            more = {**SLAVE, **reads, **(slave_settings or {})}
            self.slave = stack.enter_context(
                start(slave, folder / "slave", more, self.master.namesrv)
            )
            self.namesrv = self.master.namesrv
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def until_caught_up(self, topic: str, queue_count: int = 1) -> None:
        """Wait until the slave serves all messages that the master has of a topic."""

        def is_caught_up() -> bool:
            ends = [max_offset(self.master.address, topic, queue) for queue in range(queue_count)]
            return all(serves(self.slave.address, topic, *end) for end in enumerate(ends))

        self.until_synced(is_caught_up)

    def until_synced(self, look: Callable[[], bool]) -> None:
        """Wait until the slave has the tables of the master: within 10 s; in 5.x, within 65 s."""
        until(look, 120)


def start(
    kind: str, folder: Path, settings: Settings, namesrv: str | None = None
) -> ReputCluster | JavaCluster:
    """Start a broker of a kind: ``reput``, or a version of RocketMQ."""
    if kind == REPUT:
        return ReputCluster(folder, settings, namesrv=namesrv)
    return JavaCluster(kind, folder, settings, namesrv=namesrv)


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


def topics(address: str) -> set[str]:
    """Return the names of a broker's topics."""

    async def question(remote: Remote) -> set[str]:
        reply = await remote.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        return set(bodies.decode(bodies.TopicConfigTable, reply.body).topic_config_table)

    answer: set[str] = asked(address, question)
    return answer


def log_end(address: str) -> int:
    """Return the physical offset after the last byte of a broker's log."""

    async def question(remote: Remote) -> int:
        reply = await remote.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        return int(bodies.decode(bodies.KvTable, reply.body).table["commitLogMaxOffset"])

    return int(asked(address, question))


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
