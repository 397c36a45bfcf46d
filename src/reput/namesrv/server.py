"""A name server: its parts, put together, and when it starts and stops.

Several may run in one process. They know nothing of each other: brokers register with each.
"""

import asyncio
import logging
from typing import Self

from reput.clock import Clock, SystemClock
from reput.format import command
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.namesrv.config import CurrentConfig, NamesrvConfig
from reput.namesrv.kv_table import KvTable
from reput.namesrv.processors import PROCESSORS, Parts
from reput.namesrv.route_table import RouteTable
from reput.remoting.channel import Channel
from reput.remoting.server import RemotingServer

_log = logging.getLogger(__name__)


class NameServer:
    """One name server. ``async with NameServer(config) as server``, or ``start`` and ``stop``.

    Args:
        config: Its settings; ``namesrv.config.load`` makes them from a namesrv.conf.
        clock: How long brokers were silent is measured with its monotonic time: a clock that is
            set does not make the cluster disappear.

    Raises:
        InvalidOption: The file of shared settings cannot be read.
    """

    def __init__(
        self, config: NamesrvConfig | CurrentConfig | None = None, *, clock: Clock | None = None
    ) -> None:
        if not isinstance(config, CurrentConfig):
            config = CurrentConfig(config or NamesrvConfig())
        value = config.value
        self._clock = clock or SystemClock()
        self._parts = Parts(
            routes=RouteTable(),
            kv=KvTable(value.kv_config_path),
            config=config,
            clock=self._clock,
            ready_ms=self._clock.monotonic_ms() + value.wait_seconds_for_service * 1000,
        )
        self._remoting = RemotingServer(
            self,
            host=value.bind_address,
            port=value.listen_port,
            idle_ms=value.server_channel_max_idle_time_seconds * 1000,
        )
        self._expiring: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port it listens on, once it is started."""
        return self._remoting.port

    @property
    def routes(self) -> RouteTable:
        """What it knows."""
        return self._parts.routes

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            OSError: The address is in use, or not one of this machine.
        """
        await self._remoting.start()
        self._expiring = asyncio.create_task(self._keep_expiring(), name="namesrv expiry")
        _log.info("name server listens on %s:%d", self._remoting.host, self.port)

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        if self._expiring is not None:
            self._expiring.cancel()
            await asyncio.wait((self._expiring,))
            self._expiring = None
        await self._remoting.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def expire(self) -> bool:
        """Remove the brokers that are silent; return whether there were any."""
        gone = self._parts.routes.expire(self._clock.monotonic_ms())
        for one in gone:
            _log.warning("broker %s removed: silent for %d ms", one.address, one.silent_ms)
            if isinstance(one.connection, Channel):
                one.connection.close()
        return bool(gone)

    async def _keep_expiring(self) -> None:
        while True:
            interval_ms = self._parts.config.value.scan_not_active_broker_interval
            await asyncio.sleep(interval_ms / 1000)
            try:
                self.expire()
            except Exception:  # noqa: BLE001 - a turn of a loop; the next may succeed
                _log.exception("removing silent brokers failed")

    # What the remoting server calls -----------------------------------------------------------

    def on_open(self, channel: Channel) -> None:
        """Take note of a new connection: nothing is known of it yet."""

    def on_request(self, channel: Channel, request: Command) -> Command:
        """Return the reply to a request. 4.9 answers nothing to a code it does not know."""
        processor = PROCESSORS.get(request.code)
        if processor is None:
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            return command.reply(request, code, f"request type {request.code} not supported")
        return processor(self._parts, channel, request)

    def on_closed(self, channel: Channel) -> None:
        """Remove the brokers of a connection that ended."""
        for address in self._parts.routes.disconnect(channel):
            _log.info("broker %s removed: its connection ended", address)
