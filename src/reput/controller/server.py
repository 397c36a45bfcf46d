"""A controller: creates its parts, starts and stops them."""

import asyncio
import logging
import ssl
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
from reput.controller.quorum import QuorumStore
from reput.errors import InvalidOption, ReputError
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

_AGAIN_S = 1.0
"""Delay after which a controller whose turn it is to lead tries again to read the state."""

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
        self.store: QuorumStore
        """Keeps the state, after ``start``."""
        self.parts: ControllerParts
        """ControllerParts for the processors, after ``start``."""
        self._client: RemotingClient | None = None
        self._notices: Notices
        self._term = 0
        """Term of the store in which this controller has led last."""
        self.leading_failure = ""
        """Why this controller, whose turn it is, cannot lead; empty if it can."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """Port it listens on, after ``start``."""
        return self._remoting.port

    @property
    def refusals(self) -> Refusals:
        """Counts of refusals by limits."""
        return self.serving.refusals

    async def start(self) -> None:
        """Read the state, and start listening; with an etcd, look who leads.

        Raises:
            StoreUnavailable: Another controller uses the folder of the state, or there is no etcd
                at its address.
            InvalidOption: A file for TLS with etcd cannot be used.
            CorruptRecord: The state is damaged.
            WriteFailed: The state cannot be written.
            OSError: The address is in use, or does not belong to this machine.
        """
        self._check_files()
        value = self.config.value
        self._term = 0
        self.store = await self._opened_store()
        try:
            limit = limits.CONTROLLER_GROUPS.at(value.reput_replica_groups_max)
            groups = Groups(self.store, limit)
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
                store=self.store,
                liveness=liveness,
                elections=elections,
                setting_requests=RequestQueue(shared_limits.WAITING_SETTINGS),
                config=self.config,
                events=ClientFaults(_log, time.monotonic),
            )
            if value.etcd is None:
                await self._lead()
            await self._remoting.start()
        except BaseException:
            await self._release()
            raise
        create = asyncio.get_running_loop().create_task
        self._tasks = [
            create(elections.run(), name="elections"),
            create(self._keep_leading(), name="leading"),
        ]
        text = "controller listens on %s:%d, with the state in %s"
        _log.info(text, self._remoting.host, self.port, self.store.place)

    async def stop(self) -> None:
        """Stop listening, answer pending requests, and close all connections."""
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._tasks = []
        self.parts.groups.step_down()
        if self.parts.tasks:
            await asyncio.wait(list(self.parts.tasks))
        await self.parts.setting_requests.close()
        await self._remoting.stop()
        await self.parts.elections.close()
        await self.parts.groups.close()
        await self._release()

    async def _opened_store(self) -> QuorumStore:
        """Return the store that the settings name."""
        value = self.config.value
        address, own = value.etcd, value.peer
        if address is None or own is None:
            return FileQuorum(value.folder, self._disk)
        # Only here, as most controllers need no h11.
        from reput.controller.etcd_client import EtcdClient
        from reput.controller.etcd_quorum import EtcdQuorum

        client = EtcdClient(address.endpoints, _tls_context(value) if address.is_tls else None)
        lease_s = value.reput_quorum_lease_seconds
        store = EtcdQuorum(client, address.prefix, own, self.clock, lease_s)
        await store.open()
        return store

    async def _keep_leading(self) -> None:
        """Lead whenever it is this controller's turn."""
        groups = self.parts.groups
        while True:
            try:
                if not groups.has_led:
                    await self._lead()
                self.leading_failure = ""
                await groups.until_deposed()
                groups.step_down()
            except ReputError as error:
                _log.error("this controller cannot lead: %s", error)
                self.leading_failure = str(error)
                await asyncio.sleep(_AGAIN_S)

    async def _lead(self) -> None:
        """Wait for this controller's turn, and read the state."""
        await self.parts.groups.lead()
        if self.store.term != self._term:
            self._term = self.store.term
            self.parts.elections.presume()
        _log.info("this controller leads %d groups", len(self.parts.groups.all()))

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
        counts = self.parts.request_counts
        try:
            reply = processor(self.parts, channel, request)
        except Exception:
            counts[request.code, "failed"] += 1
            raise
        if reply is not None:
            counts[request.code, "success"] += 1
        return reply

    def on_closed(self, channel: Channel) -> None:
        """Elect other masters for the groups of the brokers of a closed connection."""
        for name in self.parts.liveness.close(channel):
            self.parts.events.info("ended", "a connection of %.300r has ended", name)
            self.parts.elections.check_group(name)


def _tls_context(config: ControllerConfig) -> ssl.SSLContext:
    """Return the context for connections to etcd. Raises ``InvalidOption``."""
    key, path = "reputQuorumCaFile", config.reput_quorum_ca_file
    try:
        context = ssl.create_default_context(cafile=path or None)
        if config.reput_quorum_cert_file:
            key, path = "reputQuorumCertFile", config.reput_quorum_cert_file
            context.load_cert_chain(path, config.reput_quorum_key_file)
    except OSError as error:
        allowed = f"a readable PEM file: {error.strerror or error}"
        raise InvalidOption(key, path, allowed) from error
    return context
