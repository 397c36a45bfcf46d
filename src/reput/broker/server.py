"""The broker: starts and stops its parts, and changes its role. No part imports this module.

    connection -> Port -> fastpath.Frontend -> store
                       -> processors        -> topics, groups, consumer offsets, store
    store -> held pulls and pops -> processors -> connection

Everything runs on the event loop, except work that waits for the disk (``loops``).
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Self

from reput import descriptors, kernel_choice
from reput.broker import assembly, closing, master_guard
from reput.broker.access.refusals import AccessRefusals
from reput.broker.assembly import Basis, PlainAccess, SqlFilters
from reput.broker.fastpath.frontend import Frontend
from reput.broker.identity import Identity, host_of
from reput.broker.kernels import hot as fast_kernels
from reput.broker.loops import Loops
from reput.broker.machine import Machine
from reput.broker.master_guard import AnotherMaster
from reput.broker.parts import Parts
from reput.broker.port import Port
from reput.broker.registration import Registration
from reput.broker.replicas.roles import GroupRoles
from reput.broker.replication.reverse_fetch import ReverseFetch
from reput.broker.replication.slave_port import open_port
from reput.broker.settings.access import AccessSettings
from reput.broker.settings.config import FAST_PORT_DISTANCE, BrokerConfig
from reput.broker.settings.live import Change, CheckedChange, LiveConfig
from reput.clock import Clock, SystemClock
from reput.errors import InvalidOption
from reput.format.signing import Signer
from reput.remoting.channel import Owner
from reput.remoting.connection import READ_BYTES
from reput.remoting.inner_channel import InnerChannel
from reput.remoting.pipe import Pipe
from reput.remoting.server import BytesService, RemotingServer, Service
from reput.remoting.server_state import ConnectionLimits, ServerState
from reput.remoting.tls_settings import TlsSettings
from reput.store.config import BrokerRole, StoreConfig
from reput.store.kernels import hot
from reput.store.message_store import MessageStore
from reput.store.opening.log_cut import cut_log

_FORCE = "haForceMaster"

_log = logging.getLogger(__name__)


class Broker:
    """A broker on a store folder.

    Args:
        config: Names, addresses and limits.
        store_config: The settings of its store.
        clock: The clock.
        config_path: Path of broker.conf; settings that are changed at run time are written there.
        tls: Settings of TLS; by default RocketMQ's.
        access: Settings of access control; by default all requests are served.
        wrap_port: Wraps the service of each port; tests inject faults there.
        machine: Its disks, threads and sockets.

    Raises:
        InvalidOption: A file of TLS cannot be used.
    """

    parts: Parts
    """The parts; from ``start`` on."""
    frontend: Frontend | None
    """The fast path; None if it is off."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        clock: Clock | None = None,
        config_path: str | None = None,
        tls: TlsSettings | None = None,
        access: AccessSettings | None = None,
        wrap_port: Callable[[BytesService], Service] = lambda port: port,
        machine: Machine | None = None,
    ) -> None:
        self.settings = LiveConfig(config, store_config, config_path, tls=tls, access=access)
        self.clock = clock or SystemClock()
        self.identity = Identity(self.settings, self.clock.now_ms())
        self.serving = ServerState(
            ConnectionLimits.of(config, descriptors.connections_max()),
            tls=self.settings.tls,
            proxies=config.proxies,
            seconds=self.clock.work_s,
            used_seconds=self.clock.used_s,
        )
        self._access_refusals = AccessRefusals(self.clock.monotonic_ms)
        self.failure: Exception | None = None
        """Reason why the store could not be reopened, which leaves the broker closed."""
        self.ended = asyncio.Event()
        """Set when ``failure`` is set."""
        self.on_open: Callable[[], object] = lambda: None
        """Called when store and parts are new: at the start, and after a change of the role."""
        self._wrap_port = wrap_port
        self._machine = machine or Machine()
        self._plain: PlainAccess | None = None
        self._group: GroupRoles | None = None
        self._slave_socket: socket.socket | None = None
        """The port for slaves of a broker that becomes master."""
        self._changing = asyncio.Lock()
        self._change_task: asyncio.Task[None] | None = None
        self._is_stop_wanted = False
        self._is_open = False

    # Starting and stopping ----------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, listen, and register with the name servers.

        Raises:
            AnotherMaster: This broker is a master, and another one of its name is alive.
            StoreUnavailable: The folder is in use, or cannot be opened.
            InvalidOption: An address is wrong, or a file of access control.
            OSError: The port is in use.
        """
        self._is_stop_wanted = False
        self.failure = None
        self.identity.port = 0
        config = self.settings.broker
        self.load_accounts()
        if self.identity.is_master:
            await self.check_alone(f"{config.broker_ip1}:{config.listen_port}")
        if config.enable_controller_mode:
            disk = self._machine.disk()
            disk.make_folder(self.settings.store.store_path_root_dir)
            self._group = GroupRoles(self, disk, self.clock)
        await self._open()
        await self._begin()
        if self._group is not None:
            self._group.member.start()

    def load_accounts(self) -> None:
        """Read the accounts of access control 1.0, if that is on. Raises ``InvalidOption``."""
        self._plain = assembly.load_accounts(self.settings.broker, self.clock.monotonic_ms())

    async def check_alone(self, own_address: str, *, is_forced: bool = False) -> None:
        """Refuse to be master if another master of this broker's name is alive.

        Args:
            own_address: The address of this broker, as name servers list it.
            is_forced: Only log it.

        Raises:
            AnotherMaster: There is one.
        """
        try:
            live = self.settings
            await master_guard.check(
                live.broker, own_address, live.request_tls, live.request_signer
            )
        except AnotherMaster as error:
            if not (is_forced or self.settings.store.ha_force_master):
                raise
            _log.warning(
                "this broker becomes master nevertheless, as haForceMaster=true: %s", error
            )

    async def _begin(self) -> None:
        """Register, and begin the work of the role."""
        self.identity.is_stopping = False
        self.parts.registration.start()
        if self._group is not None:
            self._group.begin()
        self.loops.start()
        await self.parts.replication.start()
        config, identity, store = self.settings.broker, self.identity, self.store
        _log.info(
            "broker %s serves %s as %s with id %d; its log ends at physical offset %d",
            config.broker_name,
            identity.address,
            store.config.broker_role,
            config.broker_id,
            store.max_physical_offset,
        )
        engine = hot.engine()
        level = logging.WARNING if engine == kernel_choice.REFERENCE else logging.INFO
        _log.log(level, "kernels: %s", kernel_choice.engine_text(engine))
        if identity.is_master:
            needed = store.config.replicas_needed - 1
            _log.info(
                "slaves connect to %s; sends wait for %d of them", identity.ha_address, needed
            )

    async def _open(self) -> None:
        """Open the store, create the parts, and listen."""
        filters = assembly.load_filters(self._basis())
        begun_ms = self.clock.monotonic_ms()
        self.store = MessageStore.open(
            config=self.settings.store,
            clock=self.clock,
            disk=self._machine.disk(),
            filters=filters.by_group,
        )
        self._log_recovery(self.clock.monotonic_ms() - begun_ms)
        await self._serve_store(filters)

    @property
    def registration(self) -> Registration:
        """The registration with name servers."""
        return self.parts.registration

    def settle(self) -> None:
        """Send the replies of puts that are safe or late."""
        if self._is_open:
            self.parts.replication.slave_port.settle()

    def _log_recovery(self, took_ms: int) -> None:
        """Log what the recovery did, if the broker was not stopped cleanly, or had losses."""
        report = self.store.recovery
        if report.was_clean and not report.has_losses:
            return
        level = logging.WARNING if report.has_losses else logging.INFO
        end = "stopped cleanly" if report.was_clean else "not stopped cleanly"
        _log.log(level, "the store was %s; recovered in %d ms: %s", end, took_ms, report)

    def _basis(self) -> Basis:
        return Basis(
            self.settings,
            self.identity,
            self.clock,
            self.serving,
            self._access_refusals,
            self.change_settings,
            self._begin_reopening,
            self._plain,
            self._machine,
            self._group,
        )

    async def _serve_store(self, filters: SqlFilters) -> None:
        """Create the parts of an open store, and listen; if that fails, close the store."""
        self._servers: list[RemotingServer] = []
        try:
            if self._group is not None:
                self._group.opened(self.store)
            self.parts = assembly.assemble(self._basis(), self.store, filters)
            self.loops = Loops(self.parts)
            self._buffer = bytearray(READ_BYTES)
            has_fast_path = self.settings.broker.reput_fast_path and fast_kernels.is_compiled
            self.frontend = Frontend(self.parts, self._buffer) if has_fast_path else None
            if self._group is None:
                await self._take_offsets_back()
            await self._listen()
        except BaseException:
            for server in self._servers:
                await server.stop()
            self.store.close()
            raise
        self._is_open = True
        self.on_open()

    async def _take_offsets_back(self) -> None:
        """Copy newer consumer offsets from slaves to this master before it serves clients."""
        table = self.parts.deliveries.consumer_offsets
        if not self.identity.is_master:
            table.current_version(self.clock.now_ms())  # from now on it rises with changes
            return
        config, identity, parts = self.settings.broker, self.identity, self.parts
        own_address = f"{config.broker_ip1}:{identity.port or config.listen_port}"
        await ReverseFetch(
            config,
            own_address,
            self.store,
            parts.topics,
            table,
            parts.commits,
            self.settings.request_tls,
            self.settings.request_signer,
            self.clock.work_s,
        ).run()

    async def stop(self) -> None:
        """Stop: unregister, answer the held requests, save and close everything.

        A change of the role is finished before, or not begun.
        """
        self._is_stop_wanted = True
        async with self._changing:
            if self._group is not None:
                await self._group.member.stop()
            self._close_slave_socket()
            if not self._is_open:  # its store could not be reopened
                return
            try:
                await self._close()
            finally:
                self._is_open = False
                self.store.close()
        _log.info("broker %s stopped", self.settings.broker.broker_name)

    async def _close(self) -> None:
        """Stop everything except the store."""
        if self._group is not None:
            await self._group.end()
        await closing.close(self.parts, self.store, self.loops, self._servers)

    @property
    def is_open(self) -> bool:
        """False before the start, after the end, and while the store is reopened."""
        return self._is_open

    # Roles --------------------------------------------------------------------------------------

    async def change_role(self, role: BrokerRole, broker_id: int) -> None:
        """Write a new role and id to broker.conf, and reopen the store in that role.

        Args:
            role: The new role.
            broker_id: The new id: 0 for a master, 1 or more for a slave.

        Raises:
            AnotherMaster: The new role is that of a master, and another one is alive.
            InvalidOption: The id contradicts the role.
            WriteFailed: broker.conf cannot be written; nothing is changed.
            ReputError: The store could not be reopened; the broker is closed.
        """
        changes = {"brokerRole": str(role), "brokerId": str(broker_id)}
        await self.change_settings(changes)
        if self._change_task is not None:
            await asyncio.shield(self._change_task)
        if self.failure is not None:
            raise self.failure

    async def change_settings(self, changes: Mapping[str, str]) -> Change:
        """Check, write and apply a change of settings; a change of the role begins afterwards.

        ``haForceMaster=true`` counts for a change of the role in the same request only, and is
        never written: after a crash it would permit a second master at every start.

        Raises:
            AnotherMaster: The broker would become a second master.
            InvalidOption: A key is unknown, or a value not allowed; or the broker would become
                master, and its port for slaves is in use. Nothing is changed.
            WriteFailed: broker.conf cannot be written; nothing is changed.
        """
        live = self.settings
        plan = live.plan(changes)
        is_forced = _FORCE in changes and plan.store.ha_force_master
        if is_forced:
            plan = live.plan({key: text for key, text in changes.items() if key != _FORCE})
            if not live.changes_role(plan):
                allowed = "true together with another brokerRole, for that change only"
                raise InvalidOption(_FORCE, changes[_FORCE], allowed)
        becomes_master = plan.store.broker_role is not BrokerRole.SLAVE
        if live.changes_role(plan) and becomes_master and not self.identity.is_master:
            await self.check_alone(self.identity.address, is_forced=is_forced)
            self.open_slave_port(plan)
        try:
            await asyncio.to_thread(live.write, plan)
        except BaseException:
            self._close_slave_socket()
            raise
        change = live.apply(plan, self.clock.now_ms())
        if change.role:
            _log.warning("the role changes from %s to %s", live.store.broker_role, change.role)
            self._begin_reopening(None)
        return change

    def open_slave_port(self, plan: CheckedChange | None = None) -> None:
        """Open the port for slaves of a slave that becomes master, while it is still a slave.

        Raises:
            InvalidOption: It cannot be opened.
        """
        if self._slave_socket is not None:
            return
        broker = self.settings.broker if plan is None else plan.broker
        store = self.settings.store if plan is None else plan.store
        try:
            self._slave_socket = open_port(broker, store, self.identity.port, self._machine)
        except OSError as error:
            allowed = f"a port that can be opened: {error.strerror or error}"
            raise InvalidOption("haListenPort", store.ha_listen_port, allowed) from error

    def _close_slave_socket(self) -> None:
        if self._slave_socket is not None:
            self._slave_socket.close()
            self._slave_socket = None

    def _begin_reopening(self, cut_at: int | None) -> None:
        """Reopen the store in a task: its callers are among the parts that are closed."""
        if self._change_task is None or self._change_task.done():
            self._change_task = asyncio.create_task(self.reopen(cut_at), name="reopening")

    async def reopen(self, cut_at: int | None = None) -> None:
        """Close the store and all parts, and open them again on the same ports, in the wanted role.

        The recovery of the store cuts an incomplete record, dispatches all records, and computes
        the next queue offsets before the first put. Clients connect again.

        If that fails, ``failure`` is set, and the broker is closed: nothing listens, and the folder
        is released.

        Args:
            cut_at: Physical offset from which on the log is cut; None: nothing.
        """
        async with self._changing:
            if self._is_stop_wanted:
                return
            try:
                await self._reopen(cut_at)
                while self.settings.is_role_due and not self._is_stop_wanted:
                    await self._reopen(None)  # the role was changed again meanwhile
            except Exception as error:  # noqa: BLE001 - the outermost edge of a task
                _log.exception("the broker cannot continue")
                self.failure = error
                await self._abandon()
                self.ended.set()

    async def _abandon(self) -> None:
        """Close what a failed reopening has left open: each part, whatever the others do."""
        self._is_open = False
        self._close_slave_socket()
        parts = self.parts
        for stop in (
            parts.registration.stop,
            parts.replication.stop,
            self.loops.stop,
            parts.table_writes.stop,
            *(server.stop for server in self._servers),
        ):
            try:
                await stop()
            except Exception:  # noqa: BLE001 - the first failure counts
                _log.exception("while the broker is closed")
        self.store.abandon()

    async def _reopen(self, cut_at: int | None) -> None:
        begun_ms = self.clock.monotonic_ms()
        try:
            await self._close()
        finally:
            self._is_open = False
            await asyncio.to_thread(self.store.close)
        self.settings.enter_role()
        if cut_at is not None:
            if self._group is not None:  # first: epochs without bytes would be wrong
                await asyncio.to_thread(self._group.epochs.cut, cut_at)
            report = await asyncio.to_thread(
                cut_log, self.settings.store, cut_at, self.clock.now_ms(), self._machine.disk()
            )
            _log.warning(
                "%d bytes from physical offset %d on were cut from the log; they are in %s",
                report.byte_count,
                report.physical_offset,
                report.path or "no file",
            )
        if self._is_stop_wanted:
            return
        filters = assembly.load_filters(self._basis())
        # In a thread: a signal must be able to end the process meanwhile.
        self.store = await asyncio.to_thread(
            MessageStore.open,
            config=self.settings.store,
            clock=self.clock,
            disk=self._machine.disk(),
            filters=filters.by_group,
        )
        await self._serve_store(filters)
        await self._begin()
        took_ms = self.clock.monotonic_ms() - begun_ms
        _log.info("the store was reopened in %d ms", took_ms)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Ports --------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        config, identity = self.settings.broker, self.identity
        # A broker that reopens its store keeps its ports, which the system may have chosen.
        port = await self._listen_on(identity.port or config.listen_port, is_fast=False)
        identity.port, identity.fast_port = port, 0
        identity.address = f"{config.broker_ip1}:{port}"
        identity.store_host = host_of(config.broker_ip1, port)
        self.parts.transactions.store_host = identity.store_host
        self.parts.pops.revive.store_host = identity.store_host
        if self.frontend is not None:
            self.frontend.open()
        if config.fast_port_enable and port > FAST_PORT_DISTANCE:
            try:
                identity.fast_port = await self._listen_on(port - FAST_PORT_DISTANCE, is_fast=True)
            except OSError:
                if config.listen_port:
                    raise
                # The port was chosen by the system: the fast port may be in use.
        if not self.identity.is_master:
            self._close_slave_socket()
        await self.parts.replication.listen(self._slave_socket)
        self._slave_socket = None

    async def _listen_on(self, port: int, *, is_fast: bool) -> int:
        server = RemotingServer(
            self._wrap_port(Port(self.parts, self.frontend, is_fast=is_fast)),
            host=self.settings.broker.bind_address,
            port=port,
            idle_ms=self.settings.broker.server_channel_max_idle_time_seconds * 1000,
            buffer=self._buffer,
            state=self.serving,
        )
        await server.start()
        self._servers.append(server)
        return server.port

    def connect_here(
        self,
        owner: Owner,
        buffer: bytearray | memoryview,
        address: tuple[str, int],
        signer: Signer | None = None,
    ) -> InnerChannel:
        """Return a connection from this process to the main port (``RemotingServer``)."""
        return self._servers[0].connect_here(owner, buffer, address, signer)

    def open_pipe(
        self,
        address: tuple[str, int],
        on_late: Callable[[bytes], object],
        on_closed: Callable[[], object],
    ) -> Pipe:
        """Return a connection whose replies need no turn of the loop (``RemotingServer``)."""
        return self._servers[0].open_pipe(address, on_late, on_closed)

    def connection_counts(self) -> dict[str, int]:
        """Return the number of connections of each port."""
        counts = [len(server.channels) for server in self._servers]
        return dict(zip(("main", "fast"), [*counts, 0], strict=False))
