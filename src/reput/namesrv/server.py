"""A name server: creates its parts, starts and stops them.

Several name servers can run in one process. They are independent: brokers register with each.
"""

import asyncio
import logging
import time
from typing import Self

from reput import descriptors, limits as shared_limits, small_file
from reput.clock import Clock, SystemClock
from reput.format import command
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.limits import Refusals
from reput.namesrv import limits
from reput.namesrv.config import CurrentConfig, NamesrvConfig
from reput.namesrv.kv_saver import KvSaver
from reput.namesrv.kv_table import KvTable
from reput.namesrv.member_notices import MemberNotices
from reput.namesrv.processors import PROCESSORS, Parts
from reput.namesrv.route_table import RouteLimits, RouteTable
from reput.remoting import time_slices, tls_settings
from reput.remoting.channel import Channel
from reput.remoting.client_faults import ClientFaults
from reput.remoting.request_queue import RequestQueue
from reput.remoting.server import LongReply, RemotingServer
from reput.remoting.server_state import ConnectionLimits, ServerState

_log = logging.getLogger(__name__)


class NameServer:
    """A name server. ``async with NameServer(config) as server``, or ``start`` and ``stop``.

    Args:
        config: Its settings; ``namesrv.config.load`` reads them from a namesrv.conf.
        clock: The clock. Silence of brokers is measured in monotonic time: setting the clock does
            not remove brokers.

    Raises:
        InvalidOption: The file of shared settings, or a file of TLS, cannot be used.
    """

    def __init__(
        self, config: NamesrvConfig | CurrentConfig | None = None, *, clock: Clock | None = None
    ) -> None:
        if not isinstance(config, CurrentConfig):
            config = CurrentConfig(config or NamesrvConfig())
        value = config.value
        self.clock = clock or SystemClock()
        kv = KvTable(value.kv_config_path, limits.KV_TABLE_BYTES.at(value.reput_kv_bytes_max))
        bounds = RouteLimits(
            limits.NAMESRV_BROKERS.at(value.reput_brokers_max),
            limits.NAMESRV_TOPICS.at(value.reput_routed_topics_max),
            limits.NAMESRV_QUEUES.at(value.reput_routed_queues_max),
        )
        self.serving = ServerState(
            ConnectionLimits.of(value, descriptors.connections_max()),
            tls=config.tls,
            proxies=value.proxies,
            seconds=self.clock.work_s,
            used_seconds=self.clock.used_s,
        )
        """Connections, their cost, and refused requests."""
        request_tls = (
            tls_settings.client_context(config.tls) if config.tls.is_used_for_requests else None
        )
        self._notices = MemberNotices(
            request_tls, lambda: config.value.notify_min_broker_id_changed
        )
        self.parts = Parts(
            routes=RouteTable(bounds, self._notices.send),
            kv=kv,
            kv_saver=KvSaver(kv),
            setting_requests=RequestQueue(shared_limits.WAITING_SETTINGS),
            config=config,
            clock=self.clock,
            events=ClientFaults(_log, time.monotonic),
            refusals=self.serving.refusals,
            ready_ms=self.clock.monotonic_ms() + value.wait_seconds_for_service * 1000,
        )
        """Parts for the processors."""
        self.start_warnings: list[str] = []
        """Problems with files that were found at the start."""
        self.expired_ms = self.clock.monotonic_ms()
        """Monotonic time of the latest check for silent brokers, in ms."""
        self.expiry_failure = ""
        """Error of the latest check; empty if it succeeded."""
        self._remoting = RemotingServer(
            self,
            host=value.bind_address,
            port=value.listen_port,
            idle_ms=value.server_channel_max_idle_time_seconds * 1000,
            state=self.serving,
        )
        self._expiring: asyncio.Task[None] | None = None
        self._is_tidying = False

    @property
    def port(self) -> int:
        """Port it listens on, after ``start``."""
        return self._remoting.port

    @property
    def routes(self) -> RouteTable:
        """The table of brokers and topics."""
        return self.parts.routes

    @property
    def refusals(self) -> Refusals:
        """Counts of refusals by limits."""
        return self.serving.refusals

    async def start(self) -> None:
        """Start listening.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        self._check_files()
        await self._remoting.start()
        self.expired_ms = self.clock.monotonic_ms()
        self._expiring = asyncio.create_task(self._keep_expiring(), name="namesrv expiry")
        _log.info("name server listens on %s:%d", self._remoting.host, self.port)

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        if self._expiring is not None:
            self._expiring.cancel()
            await asyncio.wait((self._expiring,))
            self._expiring = None
        await self.parts.kv_saver.close()
        await self.parts.setting_requests.close()
        await self._remoting.stop()
        await self._notices.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def expire(self) -> bool:
        """Remove silent brokers; return True if there were any: there may be more."""
        gone = self.parts.routes.expire(self.clock.monotonic_ms())
        for broker in gone:
            text = "broker %.300r removed: silent for %d ms"
            self.parts.events.warn("silent", text, broker.address, broker.silent_ms)
            if isinstance(broker.connection, Channel):
                broker.connection.close()
        self._tidy()
        return bool(gone)

    async def _keep_expiring(self) -> None:
        while True:
            interval_ms = self.parts.config.value.scan_not_active_broker_interval
            await asyncio.sleep(interval_ms / 1000)
            try:
                has_more = True
                while has_more:
                    has_more = self.expire()
                    await asyncio.sleep(0)
                self.expiry_failure = ""
            except Exception as error:  # noqa: BLE001 - a turn of a loop; the next may succeed
                _log.exception("removing silent brokers failed")
                self.expiry_failure = f"{type(error).__name__}: {error}"
            self.expired_ms = self.clock.monotonic_ms()

    def _check_files(self) -> None:
        """Report files at the start that could not be written later."""
        config = self.parts.config.value
        self.start_warnings = [
            f"{key}={path} cannot be written, so {what} will be refused: {why}; "
            f"set {key} in namesrv.conf"
            for key, path, what in (
                ("kvConfigPath", config.kv_config_path, "changes of shared settings"),
                ("configStorePath", config.config_store_path, "changes of settings"),
            )
            if (why := small_file.why_unwritable(path))
        ]
        for warning in self.start_warnings:
            _log.warning("%s", warning)

    def _tidy(self) -> None:
        """Remove topics of removed brokers in time slices."""
        routes = self.parts.routes
        if self._is_tidying or routes.is_tidy:
            return
        self._is_tidying = True

        def step(deadline: float) -> bool:
            has_ended = True
            try:
                has_ended, _ = time_slices.advance(work, deadline, self.serving.slices.seconds)
            finally:
                self._is_tidying = not has_ended
            return not has_ended

        work = routes.tidy()
        self.serving.slices.add(step)

    # Callbacks of the remoting server ---------------------------------------------------------

    def on_open(self, channel: Channel) -> None:
        """Do nothing: a connection has no state yet."""

    def on_request(self, channel: Channel, request: Command) -> Command | LongReply | None:
        """Return the reply to a request. 4.9 does not reply to unknown codes."""
        processor = PROCESSORS.get(request.code)
        if processor is None:
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            return command.reply(request, code, f"request type {request.code} not supported")
        return processor(self.parts, channel, request)

    def on_closed(self, channel: Channel) -> None:
        """Remove the brokers of a closed connection."""
        for address in self.parts.routes.disconnect(channel):
            text = "broker %.300r removed: its connection ended"
            self.parts.events.info("ended", text, address)
        self._tidy()
