"""Set-ups of tests: brokers in this process, master and slave, name servers, plain commands.

Tests of a package import what they test and this module, which knows how the parts are made.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest_asyncio

from log_copy import copy_log
from reput.broker.monitoring import health, metrics
from reput.broker.parts import Parts
from reput.broker.replication.master_requests import MasterRequests
from reput.broker.server import Broker
from reput.broker.settings.access import AccessSettings
from reput.broker.settings.config import BrokerConfig
from reput.clock import Clock
from reput.format import bodies, headers, message as record, properties as props
from reput.format.codes import RequestCode
from reput.format.command import Command, Serialization
from reput.format.headers import Header, PullMessageHeader, SendMessageHeader
from reput.format.message import StoredMessage
from reput.format.signing import Credentials, Signer
from reput.namesrv.config import CurrentConfig, NamesrvConfig
from reput.namesrv.server import NameServer
from reput.remoting.client import RemotingClient
from reput.remoting.health import Health
from reput.remoting.tls_settings import TlsSettings
from reput.secret import Secret
from reput.store.config import BrokerRole, StoreConfig
from reput.store.message_store import MessageStore
from waiting import GUARD_S as GUARD_S, until as until

_T = TypeVar("_T")

CLUSTER = "DefaultCluster"
NAME = "broker-a"
TIMEOUT_MS = 20_000
ROOT, ROOT_PASSWORD = "root", "word-of-root"
"""Name and password of the super user of brokers with access control 2.0."""
HAS_FAST_PATH = os.environ.get("REPUT_TEST_FAST_PATH", "on") != "off"
"""Whether brokers have their fast path: the tests pass with it and without it."""


def broker_config(**settings: Any) -> BrokerConfig:
    """Return settings for a broker on this machine alone, on any free port.

    It refuses no sends after a slow put, as puts are slow on a busy machine.
    """
    known = {"broker_name": NAME, "broker_ip1": "127.0.0.1", "bind_address": "127.0.0.1"}
    known |= {"listen_port": 0, "reput_fast_path": HAS_FAST_PATH}
    known |= {"broker_fast_failure_enable": False}
    return BrokerConfig(**{**known, **settings})


def store_config(root: Path, **settings: Any) -> StoreConfig:
    """Return settings for a small store."""
    sizes = {
        "mapped_file_size_commit_log": 16 << 20,
        "mapped_file_size_consume_queue": 20 * 20_000,
        "max_hash_slot_num": 10_000,
        "max_index_num": 40_000,
    }
    return StoreConfig(store_path_root_dir=str(root), **{**sizes, **settings})


def reconfigure(broker: Broker, changes: dict[str, str]) -> None:
    """Apply settings, in memory only."""
    broker.settings.apply(broker.settings.plan(changes), broker.clock.now_ms())


def meter(broker: Broker, names_max: int = metrics.NAMES_MAX) -> metrics.BrokerMeter:
    """Return a broker's meter."""
    return metrics.BrokerMeter(broker.parts, broker.loops, broker.connection_counts, names_max)


def health_of(broker: Broker) -> Health:
    """Return the health of a broker that has just started."""
    return health.check(broker.parts, broker.loops, broker.clock.monotonic_ms())


class Subject:
    """A broker, and a connection to it."""

    def __init__(self, broker: Broker, client: RemotingClient, received: list[Command]) -> None:
        self.broker = broker
        self.client = client
        self.received = received
        """Requests that the broker sent to the client."""

    @property
    def parts(self) -> Parts:
        return self.broker.parts

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.broker.identity.port}"

    async def ask(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        client: RemotingClient | None = None,
        serialization: Serialization = Serialization.JSON,
        **more: Any,
    ) -> Command:
        fields = headers.encode(header) if header is not None else None
        request = Command(code, ext_fields=fields, body=body, serialization=serialization, **more)
        return await (client or self.client).invoke(self.address, request, TIMEOUT_MS)

    async def send_body(self, code: int, body: object, **more: Any) -> Command:
        """Send a request with a JSON body; return the reply."""
        return await self.ask(code, body=bodies.encode(body), **more)

    async def send(
        self,
        topic: str,
        body: bytes = b"body",
        *,
        queue_id: int = 0,
        code: int = RequestCode.SEND_MESSAGE_V2,
        properties: dict[str, str] | None = None,
        serialization: Serialization = Serialization.JSON,
        flag: int = 0,
        **fields: Any,
    ) -> Command:
        """Send a message; ``fields`` are those of the header."""
        header = send_header(topic, queue_id, properties, **fields)
        if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
            ext_fields = headers.encode(header)
        else:
            ext_fields = headers.encode_v2(header)
        request = Command(
            code, ext_fields=ext_fields, body=body, serialization=serialization, flag=flag
        )
        if request.is_oneway:
            await self.client.send_oneway(self.address, request)
            return Command(0)
        return await self.client.invoke(self.address, request, TIMEOUT_MS)

    async def pull(
        self, topic: str, queue_id: int = 0, queue_offset: int = 0, **fields: Any
    ) -> Command:
        """Pull messages, with the subscription in the request; ``fields`` are the header's."""
        header = pull_header(topic, queue_id, queue_offset, **fields)
        return await self.ask(RequestCode.PULL_MESSAGE, header)


def send_header(
    topic: str, queue_id: int = 0, properties: dict[str, str] | str | None = None, **fields: Any
) -> SendMessageHeader:
    """Return a send; its properties may be encoded."""
    if not isinstance(properties, str):
        properties = props.encode(properties or {}).decode() or None
    header = SendMessageHeader(
        producer_group="producers",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=properties,
    )
    return with_fields(header, fields)


def pull_header(
    topic: str, queue_id: int = 0, queue_offset: int = 0, **fields: Any
) -> PullMessageHeader:
    """Return a pull with the subscription in the request."""
    header = PullMessageHeader(
        consumer_group="consumers",
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=32,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
    )
    return with_fields(header, fields)


def messages_in(data: bytes) -> list[StoredMessage]:
    """Return the messages in the reply to a pull, which are concatenated records."""
    messages = []
    while data:
        messages.append(record.decode(data))
        data = data[messages[-1].store_size :]
    return messages


def with_fields(header: _T, fields: dict[str, Any]) -> _T:
    """Return a header with other values in some fields."""
    for name, value in fields.items():
        assert hasattr(header, name), name
        setattr(header, name, value)
    return header


def name_server(folder: Path, *, tls: TlsSettings | None = None, **settings: Any) -> NameServer:
    """Return a name server on any free port, to be entered."""
    known = {"bind_address": "127.0.0.1", "listen_port": 0}
    known |= {"kv_config_path": str(folder / "kvConfig.json")}
    known |= {"config_store_path": str(folder / "namesrv.properties")}
    return NameServer(CurrentConfig(NamesrvConfig(**{**known, **settings}), tls=tls))


def address_of(server: NameServer) -> str:
    return f"127.0.0.1:{server.port}"


# --- access control 2.0 ---------------------------------------------------------------------------


def access_settings(**more: Any) -> AccessSettings:
    """Return settings with which only the super user may do anything."""
    first = Secret(json.dumps({"username": ROOT, "password": ROOT_PASSWORD}))
    known = {"authentication_enabled": True, "authorization_enabled": True}
    return AccessSettings(**{**known, "init_authentication_user": first, **more})


def signer(name: str = ROOT, password: str = ROOT_PASSWORD) -> Signer:
    return Signer(Credentials(name, Secret(password)))


# --- brokers --------------------------------------------------------------------------------------


async def kill(broker: Broker) -> None:
    """Take a broker off the network, without anything that a stop does."""
    for task in broker.loops._tasks:
        task.cancel()
    await asyncio.gather(*broker.loops._tasks, return_exceptions=True)
    await broker.parts.replication.stop()
    for server in broker._servers:
        await server.stop()


@contextlib.asynccontextmanager
async def broker(
    root: Path,
    *,
    clock: Clock | None = None,
    store: dict[str, Any] | None = None,
    access: AccessSettings | None = None,
    signer: Signer | None = None,
    tls: TlsSettings | None = None,
    **settings: Any,
) -> AsyncIterator[Subject]:
    """Run a broker on a folder; the signer signs the requests to it."""
    received: list[Command] = []

    def listen(address: str, request: Command) -> None:
        received.append(request)

    started = Broker(
        broker_config(**settings),
        store_config(root, **(store or {})),
        clock=clock,
        tls=tls,
        access=access,
    )
    async with started, RemotingClient(handler=listen, signer=signer) as client:
        yield Subject(started, client, received)


@pytest_asyncio.fixture
async def subject(tmp_path: Path) -> AsyncIterator[Subject]:
    """Return a broker with a topic ``T`` of four queues."""
    async with broker(tmp_path) as running:
        await running.send("T", b"first", queue_id=3)
        yield running


def slave(
    root: Path, *, store: dict[str, Any] | None = None, **settings: Any
) -> contextlib.AbstractAsyncContextManager[Subject]:
    """Run a slave on a folder; without a name server it finds no master."""
    role = {"broker_role": BrokerRole.SLAVE}
    return broker(root, store=role | (store or {}), broker_id=1, **settings)


class Pair:
    """A master, and its slave, which can be stopped and started again."""

    def __init__(self, master: Subject, start_slave: Callable[[], Any]) -> None:
        self.master = master
        self.slave: Subject
        self._start_slave = start_slave
        self._stack = contextlib.AsyncExitStack()

    async def start_slave(self) -> None:
        self.slave = await self._stack.enter_async_context(self._start_slave())
        if self.slave.broker.settings.broker.name_servers:
            await self.slave.parts.registration.register()

    async def stop_slave(self) -> None:
        await self._stack.aclose()

    @property
    def stores(self) -> tuple[MessageStore, MessageStore]:
        return self.master.broker.store, self.slave.broker.store

    def copy_log(self) -> None:
        """Give the slave what the master's log has now."""
        theirs, ours = self.stores
        theirs.step()
        copy_log(theirs, ours)
        ours.step()

    async def copy_tables(self, address: str = "") -> None:
        """Copy the tables of the master, or of the server with an address."""
        requests = MasterRequests(self.slave.client, address or self.master.address)
        await self.slave.parts.replication.metadata.copy(requests)

    async def copy(self, address: str = "") -> None:
        self.copy_log()
        await self.copy_tables(address)

    async def promote(self) -> Subject:
        """Kill the master, and promote the slave; return it."""
        await kill(self.master.broker)
        await self.slave.broker.change_role(BrokerRole.ASYNC_MASTER, 0)
        return self.slave


@contextlib.asynccontextmanager
async def pair(
    folder: Path,
    *,
    role: BrokerRole = BrokerRole.ASYNC_MASTER,
    follows: bool = False,
    store: dict[str, Any] | None = None,
    of_master: dict[str, Any] | None = None,
    of_slave: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Pair]:
    """Run a master and its slave.

    Args:
        folder: Folder of both.
        role: Role of the master.
        follows: Whether the slave follows; otherwise the test copies log and tables.
        store: Settings of both stores.
        of_master: Settings of the master alone.
        of_slave: Settings of the slave alone.
        settings: Settings of both, and the clock.
    """
    async with contextlib.AsyncExitStack() as stack:
        if follows:
            tls = settings.get("tls")
            servers = await stack.enter_async_context(name_server(folder, tls=tls))
            settings |= {"namesrv_addr": address_of(servers), "broker_ip2": "127.0.0.1"}
        known = {"store": {**(store or {}), "broker_role": role}, **settings, **(of_master or {})}
        master = await stack.enter_async_context(broker(folder / "master", **known))
        if follows:
            await master.parts.registration.register()
        known = {"store": store, **settings, **(of_slave or {})}
        running = Pair(master, lambda: slave(folder / "slave", **known))
        await running.start_slave()
        stack.push_async_callback(running.stop_slave)
        yield running
