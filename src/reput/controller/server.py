"""A controller: creates its parts, starts and stops them."""

import asyncio
import logging
import time
from typing import Self

from reput import descriptors, limits as shared_limits, small_file
from reput.clock import Clock, SystemClock
from reput.controller import limits
from reput.controller.config import ControllerConfig, CurrentSettings
from reput.controller.elections import Elections
from reput.controller.file_quorum import Disk, FileQuorum
from reput.controller.groups import Groups
from reput.controller.liveness import Liveness
from reput.controller.notices import Notices
from reput.controller.processors import ANSWERED_BY_ALL, PROCESSORS, ControllerParts
from reput.format import command
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.limits import Refusals
from reput.remoting import tls_settings
from reput.remoting.channel import Channel
from reput.remoting.client import RemotingClient
from reput.remoting.client_faults import ClientFaults
from reput.remoting.request_queue import RequestQueue
from reput.remoting.server import RemotingServer
from reput.remoting.server_state import ConnectionLimits, ServerState

_log = logging.getLogger(__name__)


class Controller:
    """A controller. ``async with Controller(config, disk) as controller``, or ``start``, ``stop``.

    Args:
        config: Its settings; ``controller.config.load`` reads them from a controller.conf.
        disk: Writes the state.
        clock: The clock. Silence of brokers is measured in monotonic time.

    Raises:
        InvalidOption: A file of TLS cannot be used.
    """

    def __init__(
        self, config: ControllerConfig | CurrentSettings, disk: Disk, *, clock: Clock | None = None
    ) -> None:
        if not isinstance(config, CurrentSettings):
            config = CurrentSettings(config)
        self.config = config
        value = config.value
        self.clock = clock or SystemClock()
        self._disk = disk
        self._request_tls = (
            tls_settings.client_context(config.tls) if config.tls.is_used_for_requests else None
        )
        self.serving = ServerState(
            ConnectionLimits.of(value, descriptors.connections_max()),
            tls=config.tls,
            proxies=value.proxies,
            seconds=self.clock.work_s,
            used_seconds=self.clock.used_s,
        )
        """Connections, their cost, and refused requests."""
        self._remoting = RemotingServer(
            self,
            host=value.bind_address,
            port=value.port,
            idle_ms=value.server_channel_max_idle_time_seconds * 1000,
            state=self.serving,
        )
        self.start_warnings: list[str] = []
        """Problems with files that were found at the start."""
        self.store: FileQuorum
        """Keeps the state, after ``start``."""
        self.parts: ControllerParts
        """ControllerParts for the processors, after ``start``."""
        self._client: RemotingClient | None = None
        self._notices: Notices
        self._electing: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Port it listens on, after ``start``."""
        return self._remoting.port

    @property
    def refusals(self) -> Refusals:
        """Counts of refusals by limits."""
        return self.serving.refusals

    async def start(self) -> None:
        """Read the state, and start listening.

        Raises:
            StoreUnavailable: Another controller uses the folder of the state.
            CorruptRecord: The state is damaged.
            WriteFailed: The state cannot be written.
            OSError: The address is in use, or does not belong to this machine.
        """
        self._check_files()
        value = self.config.value
        self.store = FileQuorum(value.folder, self._disk)
        try:
            limit = limits.CONTROLLER_GROUPS.at(value.reput_replica_groups_max)
            groups = Groups(self.store, limit)
            await groups.lead()
            self._client = RemotingClient(tls=self._request_tls)
            liveness, self._notices = Liveness(), Notices(self._client, groups.get)
            elections = Elections(
                groups,
                liveness,
                self._notices,
                self.clock,
                lambda: self.config.value.enable_elect_unclean_master,
                lambda: self.config.value.notify_broker_role_changed,
            )
            self.parts = ControllerParts(
                groups=groups,
                liveness=liveness,
                elections=elections,
                setting_requests=RequestQueue(shared_limits.WAITING_SETTINGS),
                config=self.config,
                events=ClientFaults(_log, time.monotonic),
                is_leading=True,
            )
            await self._remoting.start()
            elections.presume()
        except BaseException:
            await self._release()
            raise
        self._electing = asyncio.create_task(elections.run(), name="elections")
        count = len(groups.all())
        text = "controller listens on %s:%d, with %d groups in %s"
        _log.info(text, self._remoting.host, self.port, count, self.store.path)

    async def stop(self) -> None:
        """Stop listening, answer pending requests, and close all connections."""
        if self._electing is None:
            return
        self._electing.cancel()
        await asyncio.wait((self._electing,))
        self._electing = None
        self.parts.is_leading = False
        if self.parts.tasks:
            await asyncio.wait(list(self.parts.tasks))
        await self.parts.setting_requests.close()
        await self._remoting.stop()
        await self.parts.elections.close()
        await self._release()

    async def _release(self) -> None:
        if self._client is not None:
            await self._notices.close()
            await self._client.close()
            self._client = None
        await self.store.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _check_files(self) -> None:
        """Report a file at the start that could not be written later."""
        path = self.config.value.config_store_path
        why = small_file.why_unwritable(path)
        self.start_warnings = []
        if why:
            warning = (
                f"configStorePath={path} cannot be written, so changes of settings will be "
                f"refused: {why}; set configStorePath in controller.conf"
            )
            self.start_warnings.append(warning)
            _log.warning("%s", warning)

    # Callbacks of the remoting server -------------------------------------------------------------

    def on_open(self, channel: Channel) -> None:
        """Do nothing: a connection has no state yet."""

    def on_request(self, channel: Channel, request: Command) -> Command | None:
        """Return the reply to a request; None if it waits for the disk."""
        processor = PROCESSORS.get(request.code)
        if processor is None:
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            return command.reply(request, code, f" request type {request.code} not supported")
        if not self.parts.is_leading and request.code not in ANSWERED_BY_ALL:
            code = ResponseCode.CONTROLLER_NOT_LEADER
            return command.reply(request, code, "The controller is not in leader state")
        return processor(self.parts, channel, request)

    def on_closed(self, channel: Channel) -> None:
        """Elect other masters for the groups of the brokers of a closed connection."""
        for name in self.parts.liveness.close(channel):
            self.parts.events.info("ended", "a connection of %.300r has ended", name)
            if self.parts.is_leading:
                self.parts.elections.check_group(name)
