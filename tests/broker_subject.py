"""A broker in this process, and a client that speaks to it in plain commands."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import pytest_asyncio

from reput.broker.monitoring import health, metrics
from reput.broker.parts import Parts
from reput.broker.server import Broker
from reput.broker.settings.access import AccessSettings
from reput.broker.settings.config import BrokerConfig
from reput.clock import Clock
from reput.format import bodies, headers, message as record, properties as props
from reput.format.codes import RequestCode
from reput.format.command import Command, Serialization
from reput.format.headers import Header, PullMessageHeader, SendMessageHeader
from reput.format.message import StoredMessage
from reput.format.signing import Signer
from reput.remoting.client import RemotingClient
from reput.remoting.health import Health
from reput.remoting.tls_settings import TlsSettings
from reput.store.config import StoreConfig

_T = TypeVar("_T")

CLUSTER = "DefaultCluster"
NAME = "broker-a"
TIMEOUT_MS = 20_000
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
        header = with_fields(
            SendMessageHeader(
                producer_group="producers",
                topic=topic,
                default_topic="TBW102",
                default_topic_queue_nums=4,
                queue_id=queue_id,
                sys_flag=0,
                born_timestamp=1_700_000_000_000,
                flag=0,
                properties=props.encode(properties or {}).decode() or None,
            ),
            fields,
        )
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
        header = with_fields(
            PullMessageHeader(
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
            ),
            fields,
        )
        return await self.ask(RequestCode.PULL_MESSAGE, header)


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


async def kill(broker: Broker) -> None:
    """Take a broker off the network, without anything that a stop does."""
    for task in broker.loops._tasks:
        task.cancel()
    await asyncio.gather(*broker.loops._tasks, return_exceptions=True)
    await broker.parts.replication.stop()
    for server in broker._servers:
        await server.stop()


@contextlib.asynccontextmanager
async def running(
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

    broker = Broker(
        broker_config(**settings),
        store_config(root, **(store or {})),
        clock=clock,
        tls=tls,
        access=access,
    )
    async with broker, RemotingClient(handler=listen, signer=signer) as client:
        yield Subject(broker, client, received)


@pytest_asyncio.fixture
async def subject(tmp_path: Path) -> AsyncIterator[Subject]:
    """Return a broker with a topic ``T`` of four queues."""
    async with running(tmp_path) as running_subject:
        await running_subject.send("T", b"first", queue_id=3)
        yield running_subject
