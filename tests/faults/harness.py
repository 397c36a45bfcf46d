"""A pair of brokers, ours or Java's, as processes, with a proxy before each port that a slave uses.

    async with Pair(folder, ("reput", "5.5.0"), chance) as pair:
        pair.ha_links[1].stop_traffic()      # what node 1 sends to its master and receives
        await pair.kill(pair.master)
        await pair.promote(pair.slave)

The name server is ours, in this process. It gives each slave the addresses of the slave's proxies.
"""

import asyncio
import os
import random
import shutil
import signal
import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from faults.history import Guarantee, LogCopy
from faults.proxy import Link
from interop.java_cluster import JavaCluster
from interop.java_oracle import JavaError
from ports import free_port_of_broker
from reput.errors import ReputError
from reput.format import bodies, headers
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.server import NameServer
from reput.remoting.channel import Channel
from reput.remoting.client import RemotingClient
from reput.remoting.server import LongReply
from reput_cluster import DidNotStart, ReputCluster

REPUT = "reput"
"""Kind of our broker; the kind of Java's is its version."""
TOPIC = "Faults"
QUEUE_COUNT = 3
LOG_FILE_BYTES = 1 << 20
HEARTBEAT_MS = 1_000
SELDOM_MS = 30_000
SLAVE_TIMEOUT_MS = 1_500
MASTER_ID, SLAVE_ID = 0, 1
VIP_DISTANCE = 2
"""Slaves ask their master for some tables at its port minus this."""
POLL_S = 0.1
RETURN_S = 22.0
"""Time in which an old master finds whether it can follow. If it has taken the new one's place at
the name server, that registers again within 10 s, and the old one asks every 10 s."""
REFUSALS = ("does not follow, ahead", "does not follow, diverged")
FOLLOWS = "INFO reput.broker.replication.follower following"
"""Words in the log of a slave of ours."""
ADMIN_TIMEOUT_MS = 5_000

Settings = dict[str, str | int | bool]
StartFailure = (DidNotStart, JavaError)

COMMON: Settings = {
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "maxMessageSize": 200_000,
    "haSendHeartbeatInterval": HEARTBEAT_MS,
    "haHousekeepingInterval": 5 * HEARTBEAT_MS,
    "slaveTimeout": SLAVE_TIMEOUT_MS,
    "registerNameServerPeriod": 10_000,
    "defaultTopicQueueNums": QUEUE_COUNT,
}
SLAVE_KEYS: Settings = {"brokerRole": "SLAVE", "brokerId": SLAVE_ID, "slaveReadEnable": True}


class RoutingNameServer(NameServer):
    """A name server that gives a slave other addresses of its master.

    Attributes:
        routes_by_broker: Address of a broker -> real address -> the address that it gets.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(
            NamesrvConfig(
                listen_port=0,
                bind_address="127.0.0.1",
                kv_config_path=str(folder / "kvConfig.json"),
                config_store_path=str(folder / "namesrv.properties"),
            )
        )
        self.routes_by_broker: dict[str, dict[str, str]] = {}

    def on_request(self, channel: Channel, request: Command) -> Command | LongReply | None:
        reply = super().on_request(channel, request)
        if request.code != RequestCode.REGISTER_BROKER:
            return reply
        broker_address = (request.ext_fields or {}).get("brokerAddr", "")
        routes = self.routes_by_broker.get(broker_address, {})
        if isinstance(reply, Generator):
            return self._rewritten_later(reply, routes)
        return None if reply is None else _rewritten(reply, routes)

    def _rewritten_later(self, work: LongReply, routes: Mapping[str, str]) -> LongReply:
        reply = yield from work
        return None if reply is None else _rewritten(reply, routes)


def _rewritten(reply: Command, routes: Mapping[str, str]) -> Command:
    for name in ("haServerAddr", "masterAddr"):
        address = (reply.ext_fields or {}).get(name)
        if address in routes:
            assert reply.ext_fields is not None
            reply.ext_fields[name] = routes[address]
    return reply


class LossyCluster(ReputCluster):
    """Our broker on a disk that loses power on SIGUSR1; a seed decides the loss."""

    def __init__(self, folder: Path, settings: Settings, *, namesrv: str, seed: int) -> None:
        self.program = (str(Path(__file__).with_name("lossy_broker.py")), str(seed))
        super().__init__(folder, settings, namesrv=namesrv)


class Node:
    """A broker and its folder, over several processes.

    Attributes:
        is_master: Role of the current or next process.
        is_frozen: Whether it is stopped by SIGSTOP.
        settings: Further settings of each process.
        loss: Source of the losses of power cuts; None: it cannot lose power.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        folder: Path,
        namesrv: str,
        settings: Settings,
        *,
        loss: random.Random | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.folder = folder
        self.port = free_port_of_broker()
        self.is_master = False
        self.is_frozen = False
        self.settings = settings
        self.loss = loss
        self._namesrv = namesrv
        self._cluster: ReputCluster | JavaCluster | None = None
        self._log_start = 0
        # A run that ends while a thread starts a process waits for it, and ends it.
        self._starting = threading.Lock()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def ha_address(self) -> str:
        return f"127.0.0.1:{self.port + 1}"

    @property
    def is_ours(self) -> bool:
        return self.kind == REPUT

    @property
    def is_running(self) -> bool:
        return self._cluster is not None

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def start(self, settings: Settings) -> None:
        """Start a process; it is registered on return. Raises one of ``StartFailure``."""
        log = self.folder / "broker.log"
        self._log_start = log.stat().st_size if log.exists() else 0
        known: Settings = {**COMMON, "listenPort": self.port, **self.settings, **settings}
        with self._starting:
            self._cluster = self._launch(known)

    def _launch(self, settings: Settings) -> ReputCluster | JavaCluster:
        if not self.is_ours:
            return JavaCluster(
                self.kind, self.folder, settings, heap_megabytes=256, namesrv=self._namesrv
            )
        if self.loss is None:
            return ReputCluster(self.folder, settings, namesrv=self._namesrv)
        seed = self.loss.randrange(1 << 32)
        return LossyCluster(self.folder, settings, namesrv=self._namesrv, seed=seed)

    def signal(self, number: signal.Signals) -> None:
        assert self._cluster is not None
        os.kill(self._cluster.broker_pid, number)
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self.is_frozen = number is signal.SIGSTOP

    def end(self, *, is_kill: bool) -> None:
        """End the process, by SIGKILL or as an operator would."""
        with self._starting:
            if self._cluster is None:
                return
            if self.is_frozen:
                self.signal(signal.SIGCONT if not is_kill else signal.SIGKILL)
                self.is_frozen = False
            if is_kill:
                self._cluster.kill_broker()
            else:
                self._cluster.stop_broker()
            self._cluster = None

    def cut_power(self) -> None:
        """End the process as a power cut of its machine would."""
        assert self.loss is not None
        assert isinstance(self._cluster, ReputCluster)
        self.signal(signal.SIGUSR1)
        self._cluster.wait()
        self._cluster = None

    def wipe(self) -> None:
        """Remove the store of an ended process."""
        assert not self.is_running
        shutil.rmtree(self.store)

    def new_log(self) -> str:
        """Return the log of the current process of ours."""
        path = self.folder / "broker.log"
        return path.read_bytes()[self._log_start :].decode() if path.exists() else ""

    def log(self) -> str:
        """Return the end of the log of the current process."""
        return "" if self._cluster is None else self._cluster.log()

    def log_copy(self, min_offset: int, max_offset: int) -> LogCopy:
        """Return the bytes of the commit log between two physical offsets."""
        files = sorted((self.store / "commitlog").glob("[0-9]" * 20))
        starts = [int(file.name) for file in files]
        start = max([min_offset, *starts[:1]])
        parts = []
        for file, file_start in zip(files, starts, strict=True):
            first, last = max(start - file_start, 0), max_offset - file_start
            if last > 0:
                parts.append(file.read_bytes()[first:last])
        return LogCopy(self.name, start, b"".join(parts))


class Pair:
    """A master and a slave.

    Args:
        folder: Folder for the files of all processes.
        kinds: Kind of the first master and of its slave.
        chance: Source of choices of the proxies.
        guarantee: Guarantee of acknowledgements: the role and settings of masters.
        settings: Further settings of both.
        is_lossy: Whether our brokers can lose power.
        diverged_policy: What a slave of ours does whose log differs from its master's.
    """

    def __init__(
        self,
        folder: Path,
        kinds: tuple[str, str],
        chance: random.Random,
        guarantee: Guarantee = Guarantee.SYNC,
        settings: Settings | None = None,
        *,
        is_lossy: bool = False,
        diverged_policy: str = "refuse",
    ) -> None:
        self.diverged_policy = diverged_policy
        self.rebuilt_count = 0
        self.guarantee = guarantee
        self.is_lossy = is_lossy
        self._folder = folder
        self._kinds = kinds
        self._chance = chance
        self._settings = settings or {}
        self.term = 0
        self.nodes: list[Node] = []
        self.ha_links: list[Link] = []
        """Link of each node to the other node's port for slaves."""
        self.request_links: list[tuple[Link, Link]] = []
        """Links of each node to the other node's ports for requests."""
        self.master: Node
        self.client: RemotingClient
        folder.mkdir(parents=True, exist_ok=True)
        self.name_server = RoutingNameServer(folder)

    @property
    def slave(self) -> Node:
        """The node that is not the master."""
        return self.nodes[1 - self.nodes.index(self.master)]

    @property
    def slave_link(self) -> Link:
        """The slave's link to its master's port for slaves."""
        return self.ha_links[self.nodes.index(self.slave)]

    @property
    def slave_request_links(self) -> tuple[Link, Link]:
        """The slave's links to its master's ports for requests."""
        return self.request_links[self.nodes.index(self.slave)]

    @property
    def links(self) -> list[Link]:
        return [*self.ha_links, *(link for links in self.request_links for link in links)]

    async def __aenter__(self) -> Self:
        await self.name_server.start()
        self.client = RemotingClient(connect_timeout_ms=1_000)
        namesrv = f"127.0.0.1:{self.name_server.port}"
        for name, kind in zip("ab", self._kinds, strict=True):
            settings = dict(self._settings)
            if kind == REPUT:
                settings["haDivergedPolicy"] = self.diverged_policy
            loss = random.Random(self._chance.random()) if self.is_lossy else None
            node = Node(name, kind, self._folder / name, namesrv, settings, loss=loss)
            self.nodes.append(node)
        self.master = self.nodes[0]
        for node, other in zip(self.nodes, reversed(self.nodes), strict=True):
            await self._add_links(node, other)
        try:
            await self.start(self.master, is_master=True)
            await self.start(self.slave, is_master=False)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _add_links(self, node: Node, other: Node) -> None:
        ha_link = Link(other.ha_address, self._chance)
        port = free_port_of_broker()
        request_links = (
            Link(other.address, self._chance, port),
            Link(f"127.0.0.1:{other.port - VIP_DISTANCE}", self._chance, port - VIP_DISTANCE),
        )
        for link in (ha_link, *request_links):
            await link.start()
        self.ha_links.append(ha_link)
        self.request_links.append(request_links)
        self.name_server.routes_by_broker[node.address] = {
            other.ha_address: ha_link.address,
            other.address: request_links[0].address,
        }

    async def _stop(self) -> None:
        for node in self.nodes:
            await asyncio.to_thread(node.end, is_kill=True)
        await self.client.close()
        for link in self.links:
            await link.stop()
        await self.name_server.stop()

    # --- processes ---------------------------------------------------------------

    def role_settings(self, node: Node, *, is_master: bool) -> Settings:
        """Return the settings of a role."""
        keys: Settings
        if not is_master:
            keys = dict(SLAVE_KEYS)
            if self.guarantee is Guarantee.DISK:
                # Nothing but its acknowledgements makes the slave's log durable.
                keys |= {"haAckAfter": "disk", "flushDiskType": "ASYNC_FLUSH"}
                keys |= {"flushIntervalCommitLog": SELDOM_MS}
            return keys
        role = "ASYNC_MASTER" if self.guarantee is Guarantee.ASYNC else "SYNC_MASTER"
        keys = {"brokerRole": role, "brokerId": MASTER_ID}
        if self.guarantee is Guarantee.DISK:
            keys["flushDiskType"] = "SYNC_FLUSH"
        if node.kind.startswith("5"):
            keys["inSyncReplicas"] = 1 if self.guarantee is Guarantee.ASYNC else 2
            keys["totalReplicas"] = 2
        return keys

    async def start(self, node: Node, *, is_master: bool) -> None:
        """Start a node in a role. Raises one of ``StartFailure``."""
        node.is_master = is_master
        await asyncio.to_thread(node.start, self.role_settings(node, is_master=is_master))
        if is_master or not node.is_ours:
            # A slave of ours copies it, and closes its ports for a moment if it cuts its log.
            await self._create_topic(node)

    async def kill(self, node: Node) -> None:
        """Kill a node's process."""
        await asyncio.to_thread(node.end, is_kill=True)

    async def cut_power(self, *nodes: Node) -> None:
        """Cut the power of nodes at the same time."""
        await asyncio.gather(*(asyncio.to_thread(node.cut_power) for node in nodes))

    async def stop(self, node: Node) -> None:
        """Stop a node as an operator would."""
        await asyncio.to_thread(node.end, is_kill=False)

    async def promote(self, node: Node) -> None:
        """Make the slave the master; the other node must be dead or frozen."""
        assert node is self.slave
        await self.stop(node)
        await self.start(node, is_master=True)
        self.master = node
        self.term += 1

    async def return_as_slave(self, node: Node) -> None:
        """Start an old master as slave; rebuild it if it refuses to follow.

        With ``haDivergedPolicy=refuse`` that is what its operator does.
        """
        await self.start(node, is_master=False)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETURN_S
        while node.is_ours and loop.time() < deadline:
            states = node.new_log()
            if any(text in states for text in REFUSALS):
                if self.diverged_policy == "refuse":
                    await self.rebuild(node)
                return
            if FOLLOWS in states:
                return
            await asyncio.sleep(POLL_S)

    async def rebuild(self, node: Node) -> None:
        """Let a slave begin with an empty store."""
        await self.kill(node)
        node.wipe()
        self.rebuilt_count += 1
        await self.start(node, is_master=False)

    async def _create_topic(self, node: Node) -> None:
        """Create the topic on a node: a Java slave would copy it only a minute later."""
        fields = {
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "readQueueNums": str(QUEUE_COUNT),
            "writeQueueNums": str(QUEUE_COUNT),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        request = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)
        await self.client.invoke(node.address, request, ADMIN_TIMEOUT_MS)

    # --- what nodes report ----------------------------------------------------------

    async def runtime(self, node: Node) -> Mapping[str, str]:
        """Return the table of code 28. Raises ``ReputError``."""
        request = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
        reply = await self.client.invoke(node.address, request, ADMIN_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            raise ReputError(reply.remark or f"code {reply.code}")
        return bodies.decode(bodies.KvTable, reply.body).table

    async def log_ends(self, node: Node) -> tuple[int, int]:
        """Return the first physical offset of a node's log and its end. Raises ``ReputError``."""
        table = await self.runtime(node)
        return int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])

    async def queue_end(self, node: Node, queue_id: int) -> int:
        """Return the end of a queue. Raises ``ReputError``."""
        fields = headers.encode(headers.QueueHeader(topic=TOPIC, queue_id=queue_id))
        request = Command(RequestCode.GET_MAX_OFFSET, ext_fields=fields)
        reply = await self.client.invoke(node.address, request, ADMIN_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            raise ReputError(reply.remark or f"code {reply.code}")
        return headers.decode(headers.OffsetReplyHeader, reply.ext_fields).offset

    @property
    def is_reput(self) -> bool:
        """Whether both brokers are ours."""
        return set(self._kinds) == {REPUT}

    async def has_topic(self, node: Node) -> bool:
        """Return whether a node has the topic. Raises ``ReputError``."""
        request = Command(RequestCode.GET_ALL_TOPIC_CONFIG)
        reply = await self.client.invoke(node.address, request, ADMIN_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            raise ReputError(reply.remark or f"code {reply.code}")
        return TOPIC in bodies.decode(bodies.TopicConfigTable, reply.body).topic_config_table

    async def is_in_sync(self) -> bool:
        """Return whether both have the topic, and logs and queues that end at the same offsets."""
        try:
            if not all([await self.has_topic(node) for node in self.nodes]):
                return False
            ends = [(await self.log_ends(node))[1] for node in self.nodes]
            if ends[0] != ends[1]:
                return False
            for queue_id in range(QUEUE_COUNT):
                queue_ends = [await self.queue_end(node, queue_id) for node in self.nodes]
                if queue_ends[0] != queue_ends[1]:
                    return False
        except ReputError:
            return False
        return True

    async def wait_in_sync_under_load(self, within_s: float = 10.0) -> bool:
        """Wait until the slave has what the master had before; return whether it has."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        target: int | None = None
        while loop.time() < deadline:
            try:
                if target is None:
                    target = (await self.log_ends(self.master))[1]
                elif (await self.log_ends(self.slave))[1] >= target:
                    return True
            except ReputError:
                pass
            await asyncio.sleep(POLL_S)
        return False

    async def wait_in_sync(self, within_s: float) -> bool:
        """Wait until the slave has everything; return whether it has."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not await self.is_in_sync():
            if loop.time() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True


def text_of(value: Any) -> str:
    return f"{type(value).__name__}: {value}"
