"""The clients of the front: their settings, their connections to brokers, and when they are gone.

A client is known by its id from its first call on. It has separate connections to the brokers
that it uses, so brokers show it, answer its held pops and ask it as they do with other clients.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from reput.clock import Clock
from reput.errors import ConnectionLost, RequestTimedOut
from reput.format import bodies
from reput.format.bodies import ConsumerData, HeartbeatData, ProducerData
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.grpc import limits
from reput.grpc.backend import Backend
from reput.grpc.caller import Caller
from reput.grpc.renewal import MARGIN_MS, Renewals
from reput.remoting.channel import Channel

IDLE_MS = 120_000
"""Time after its last call at which a client without a Telemetry stream is forgotten, in ms."""
SILENT_MS = 25_000
"""Time after its last call at which the messages of such a client become visible, in ms.

SDKs send a heartbeat every 10 s.
"""
LOOK_S = 1.0
"""Interval of the checks for disconnected clients and messages to renew, in seconds."""
RESTART_MS = 30_000
"""Invisible time that messages have at least when the front stops, in ms."""
ASK_MS = 2_500
"""Timeout of a request to a broker, in ms: less than the 3 s for which SDKs wait."""
_NOWHERE = ("0.0.0.0", 0)

_log = logging.getLogger(__name__)

Asked = Callable[["Client", Channel, Command], None]
"""Handles a request of a broker to a client."""


class Telemetry(Protocol):
    """The Telemetry stream of a client."""

    def send(self, command: dict[str, Any]) -> None:
        """Send a TelemetryCommand."""


class Client:
    """A client, with its settings, telemetry stream and connections to brokers.

    Args:
        call: Its first call.
        backend: Connects to brokers.
        asked: Handles the requests of brokers.
    """

    def __init__(self, call: Caller, backend: Backend, asked: Asked) -> None:
        self.client_id = call.client_id
        self.language = call.language_code
        self.address = call.address
        self.signer = call.signer
        self.settings: dict[str, Any] | None = None
        """Settings of the client; None before it has sent them."""
        self.telemetry: Telemetry | None = None
        self.seen_ms = 0
        """Monotonic time of its last call, in ms."""
        self.is_closed = False
        self._backend = backend
        self._asked = asked
        self._renewals: Renewals | None = None  # idle clients, and producers, have none
        self._channels: dict[str, Channel] = {}
        self._connecting: dict[str, asyncio.Task[Channel]] = {}

    @property
    def renewals(self) -> Renewals:
        """The messages that it works on."""
        if self._renewals is None:
            self._renewals = Renewals()
        return self._renewals

    @renewals.setter
    def renewals(self, renewals: Renewals) -> None:
        self._renewals = renewals

    @property
    def is_quiet(self) -> bool:
        """Whether it is connected, and works on no messages."""
        return self.telemetry is not None and (self._renewals is None or self._renewals.is_empty)

    def __repr__(self) -> str:
        """Return id and address."""
        return f"{self.client_id} ({self.address[0]}:{self.address[1]})"

    # Requests ---------------------------------------------------------------------------------

    async def channel(self, broker_name: str) -> Channel:
        """Return its connection to a broker; open it if necessary.

        Raises:
            ReputError: The broker is unknown, or there is no connection.
        """
        channel = self._channels.get(broker_name)
        if channel is not None and not channel.is_closed:
            return channel
        if self.is_closed:
            raise ConnectionLost(broker_name, f"the client {self.client_id} has ended")
        task = self._connecting.get(broker_name)
        if task is None:
            connecting = self._backend.connect(broker_name, self, self.address, self.signer)
            task = self._connecting[broker_name] = asyncio.ensure_future(connecting)
            task.add_done_callback(lambda done: self._connected(broker_name, done))
        return await asyncio.shield(task)

    def _connected(self, broker_name: str, task: "asyncio.Task[Channel]") -> None:
        """Keep a new connection, even if its caller was cancelled."""
        self._connecting.pop(broker_name, None)
        if not self._connecting:
            self._connecting = {}  # an emptied table is larger than a new one
        if task.cancelled() or task.exception() is not None:
            return
        channel = task.result()
        if self.is_closed:
            channel.close()
        elif not channel.is_closed:
            self._channels[broker_name] = channel

    async def ask(self, broker_name: str, request: Command, timeout_ms: int = ASK_MS) -> Command:
        """Send a request to a broker; return the reply.

        Raises:
            ReputError: There is no connection, or no reply in time.
        """
        return await (await self.send(broker_name, request, timeout_ms))

    async def send(
        self, broker_name: str, request: Command, timeout_ms: int = ASK_MS
    ) -> "asyncio.Future[Command]":
        """Send a request to a broker; return the future of its reply. Raises as ``ask``."""
        channel = self._channels.get(broker_name)
        if channel is None or channel.is_closed:
            channel = await self.channel(broker_name)
        if not channel.is_writable:
            writable = asyncio.ensure_future(channel.writable())  # not all callers are tasks
            try:
                await asyncio.wait([writable], timeout=timeout_ms / 1000)
                if not writable.done():
                    raise RequestTimedOut(channel.peer, request.code, timeout_ms)
            finally:
                writable.cancel()
        request.language = self.language
        return channel.send_request(request, timeout_ms)

    def broker_of(self, channel: Channel) -> str:
        """Return the name of the broker of a connection; empty if the client does not have it."""
        return next((name for name, known in self._channels.items() if known is channel), "")

    def close(self) -> None:
        """Close its connections: brokers forget it."""
        self.is_closed = True
        for channel in list(self._channels.values()):
            channel.close()

    # Groups -----------------------------------------------------------------------------------

    def heartbeat(self, producers: Iterable[str], consumer: ConsumerData | None) -> Command:
        """Return the request that registers its groups at a broker."""
        data = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=name) for name in producers],
            consumer_data_set=[] if consumer is None else [consumer],
        )
        return Command(RequestCode.HEART_BEAT, ext_fields={}, body=bodies.encode(data))

    # Callbacks of its connections ---------------------------------------------------------------

    def on_open(self, channel: Channel) -> None:
        """Do nothing: ``channel`` keeps the connection."""

    def on_bytes(self, channel: Channel, view: memoryview, end: int) -> int:
        """Handle the replies and requests of a read; return the end of the last complete one."""
        return channel.take_frames(view, 0, end)

    def on_request(self, channel: Channel, request: Command) -> None:
        """Handle a request of a broker."""
        self._asked(self, channel, request)

    def on_closed(self, channel: Channel, error: Exception | None) -> None:
        """Forget a connection: the next request opens another one."""
        for name, known in list(self._channels.items()):
            if known is channel:
                del self._channels[name]


class Clients:
    """All clients.

    Args:
        backend: Connects to brokers.
        clock: The clock.
        asked: Handles the requests of brokers to clients.
        leave: Called with a client that is gone, before its connections are closed.
        renew: Called with a client that has messages to renew, and a time in ms: messages whose
            invisible time ends within it are renewed.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        asked: Asked,
        leave: Callable[[Client], Awaitable[None]],
        renew: Callable[[Client, int], Awaitable[None]],
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._asked = asked
        self._leave = leave
        self._renew = renew
        self._by_id: dict[str, Client] = {}
        self._kept: dict[str, Renewals] = {}
        """Messages of before a restart, by the id of their client, which has not come yet."""
        self._kept_until_ms = 0
        # Clients that were heard of lately, or work on messages: idle ones are not looked at.
        self._watched: dict[Client, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._busy: dict[str, asyncio.Task[None]] = {}
        """Work for clients that runs, by their ids."""

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._by_id)

    def __contains__(self, client: Client) -> bool:
        """Return whether a client has not ended."""
        return self._by_id.get(client.client_id) is client

    def start(self) -> None:
        """Start the checks for disconnected clients."""
        self._task = asyncio.ensure_future(self._look())

    async def stop(self) -> None:
        """End all clients."""
        await self.stop_looking()
        for client in list(self._by_id.values()):
            self.end(client)
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def suspend(self) -> dict[str, Any]:
        """Close the connections of all clients; return the messages that they keep, for ``resume``.

        The messages stay invisible for long enough to start again.
        """
        await self.stop_looking()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        kept = {client_id: renewals.dump() for client_id, renewals in self._kept.items()}
        for client in list(self._by_id.values()):
            try:
                await self._renew(client, RESTART_MS)
            except Exception:  # noqa: BLE001 - a failure with one client is not one with others
                _log.exception("%r: its messages were not renewed", client)
            kept[client.client_id] = client.renewals.dump()
            client.close()
        self._by_id.clear()
        self._watched.clear()
        return {client_id: entries for client_id, entries in kept.items() if entries}

    def resume(self, kept: dict[str, Any]) -> None:
        """Return messages from before a restart to their clients, as soon as these connect.

        Raises:
            ValueError, TypeError: ``kept`` has not the form of ``suspend``'s result.
        """
        self._kept = {client_id: Renewals.load(entries) for client_id, entries in kept.items()}
        self._kept_until_ms = self._clock.monotonic_ms() + SILENT_MS

    async def stop_looking(self) -> None:
        """Stop the checks for disconnected clients, since all connections are closed now."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, *self._busy.values(), return_exceptions=True)

    def of(self, call: Caller) -> Client:
        """Return the client of a call.

        Raises:
            LimitExceeded: There are too many clients.
        """
        client = self._by_id.get(call.client_id)
        if client is not None and client.signer is not call.signer:
            self.end(client)  # another user, or another secret: its connections are the old one's
            client = None
        if client is None:
            limits.GRPC_CLIENTS.check(len(self._by_id) + 1)
            client = Client(call, self._backend, self._asked)
            if call.client_id in self._kept:
                client.renewals = self._kept.pop(call.client_id)
            self._by_id[call.client_id] = client
        client.seen_ms = self._clock.monotonic_ms()
        self._watched[client] = None
        return client

    def watch(self, client: Client) -> None:
        """Begin to check a client that has messages, or whose Telemetry stream has ended."""
        if client in self:
            self._watched[client] = None

    def has(self, client: Client) -> bool:
        """Return whether a client is known, and not ended."""
        return self._by_id.get(client.client_id) is client

    def end(self, client: Client) -> None:
        """Forget a client: its messages become visible soon, and its connections are closed."""
        if client in self:
            del self._by_id[client.client_id]
            self._watched.pop(client, None)
            self._begin_end(client)

    def _begin_end(self, client: Client) -> None:
        task = asyncio.ensure_future(self._end(client))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _end(self, client: Client) -> None:
        try:
            await self._leave(client)
        except Exception:  # noqa: BLE001 - a failure with one client is not one with others
            _log.exception("%r: its messages stay invisible for their time", client)
        finally:
            client.close()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Remove the disconnected clients, and renew the messages of the other clients."""
        now_ms = self._clock.monotonic_ms()
        if self._kept and now_ms > self._kept_until_ms:
            for client_id, renewals in self._kept.items():
                gone = Client(Caller(client_id, "", _NOWHERE, _NOWHERE), self._backend, self._asked)
                gone.renewals = renewals
                self._begin_end(gone)
            self._kept = {}
        for client in list(self._watched):
            if client.is_quiet:
                self._watched.pop(client, None)
                continue
            client.renewals.leave_lost(self._clock.now_ms())
            silent_ms = 0 if client.telemetry is not None else now_ms - client.seen_ms
            if silent_ms > IDLE_MS:
                _log.info("%r sent nothing for %d ms: forgotten", client, IDLE_MS)
                self.end(client)
                continue
            if client.client_id in self._busy:
                continue
            if silent_ms > SILENT_MS:
                self._begin(client, self._leave)
            elif client.renewals.is_due(self._clock.now_ms()):
                self._begin(client, lambda client: self._renew(client, MARGIN_MS))
        if self._busy:
            await asyncio.wait(self._busy.values(), timeout=LOOK_S)

    def _begin(self, client: Client, work: Callable[[Client], Awaitable[None]]) -> None:
        """Begin work for a client: one whose broker hangs does not hold up others."""

        async def run() -> None:
            try:
                await work(client)
            except Exception:  # noqa: BLE001 - a failure with one client is not one with others
                _log.exception("%r: its messages were not renewed", client)

        task = self._busy[client.client_id] = asyncio.ensure_future(run())
        task.add_done_callback(lambda _: self._busy.pop(client.client_id, None))
