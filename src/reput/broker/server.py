"""The broker: creates its parts, starts and stops them. No other module imports this one.

    connection -> _Port -> fastpath.Frontend -> store
                        -> processors        -> topics, groups, consumer offsets, store
    store -> held pulls and pops -> processors -> connection

Everything runs on the event loop, except work that waits for the disk (``loops``).
"""

import asyncio
import functools
import logging
import socket
import ssl
from collections.abc import Callable, Generator, Mapping
from typing import Self

from reput import descriptors, kernel_choice, limits
from reput.broker import master_guard
from reput.broker.access import plain_control, plain_migration, user_rules
from reput.broker.access.access import Access
from reput.broker.access.needs import Facts
from reput.broker.access.plain_control import PlainControl
from reput.broker.access.plain_file import PlainFiles
from reput.broker.access.plain_rules import PlainRules
from reput.broker.access.refusals import AccessRefusals
from reput.broker.access.user_rules import UserRules
from reput.broker.assignments import RequestModes
from reput.broker.counters.fast_counts import FastCounts
from reput.broker.counters.stats import Stats
from reput.broker.delay import DelaySchedule
from reput.broker.deletions import Deletions
from reput.broker.deliveries import Deliveries
from reput.broker.fastpath.frontend import Frontend
from reput.broker.filter import consumer_filters
from reput.broker.filter.consumer_filters import ConsumerFilters
from reput.broker.filter.filters import Filters
from reput.broker.group.groups import Groups, Maxima
from reput.broker.group.members import Members
from reput.broker.group.queue_locks import QueueLocks
from reput.broker.group.subscription_groups import SubscriptionGroups
from reput.broker.held_requests import HeldPull, HeldRequests
from reput.broker.identity import Identity
from reput.broker.lite.lite_pops import HeldLitePop, LitePops
from reput.broker.lite.subscriptions import LiteSubscriptions
from reput.broker.loops import Loops
from reput.broker.master_guard import AnotherMaster
from reput.broker.offset.commits import OffsetCommits
from reput.broker.offset.ends import lower_offsets
from reput.broker.offset.resets import ResetOffsets
from reput.broker.parts import Parts
from reput.broker.pending_replies import PendingReplies
from reput.broker.pop.offsets import PopOffsets
from reput.broker.pop.orders import Blocks, MemoryBlocks, PopOrders
from reput.broker.pop.pops import HeldPop, Pops
from reput.broker.pop.retry_topics import PopRetries
from reput.broker.pop.revive import Revive
from reput.broker.processors.lite import notify_evicted
from reput.broker.processors.table import PROCESSORS
from reput.broker.processors.transactions import ask_producer
from reput.broker.put_stalls import PutStalls
from reput.broker.quarantine import Quarantine
from reput.broker.registration import Registration
from reput.broker.replication.follower import Follower
from reput.broker.replication.metadata import MetadataSync
from reput.broker.replication.named_tables import NamedTables
from reput.broker.replication.replication import Replication
from reput.broker.replication.reverse_fetch import ReverseFetch
from reput.broker.replication.slave_mark import SlaveMark
from reput.broker.replication.slave_port import SlavePort, open_port
from reput.broker.replication.state import SlaveStatus
from reput.broker.replication.users_copy import UsersCopy
from reput.broker.retries import Retries
from reput.broker.settings.access import AccessSettings
from reput.broker.settings.config import FAST_PORT_DISTANCE, BrokerConfig
from reput.broker.settings.live import Change, CheckedChange, LiveConfig
from reput.broker.tables import lost as lost_tables
from reput.broker.tables.failures import WriteFailures
from reput.broker.tables.saved_tables import SavedTables
from reput.broker.tables.topic_writes import TopicWrites
from reput.broker.tables.writes import TableWrites
from reput.broker.tasks import Tasks
from reput.broker.threads import SyncThread, WorkerThread
from reput.broker.timer.timers import Timers
from reput.broker.topic.topics import Topics
from reput.broker.transaction.transactions import Transactions
from reput.clock import Clock, SystemClock
from reput.errors import InvalidOption, RequestRefused, WriteFailed
from reput.format import command as commands, names
from reput.format.bloom import BloomFilter
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.message import Host
from reput.format.signing import Signer
from reput.remoting.channel import Channel, Owner
from reput.remoting.connection import READ_BYTES
from reput.remoting.long_replies import SharedReplies
from reput.remoting.pipe import Pipe
from reput.remoting.request_queue import RequestQueue
from reput.remoting.server import BytesService, LongReply, RemotingServer, Service
from reput.remoting.server_state import ConnectionLimits, ServerState
from reput.remoting.time_slices import Steps
from reput.remoting.tls_settings import TlsSettings
from reput.store.config import BrokerRole, StoreConfig
from reput.store.config_tables import BATCH_QUEUES
from reput.store.disk import Disk
from reput.store.kernels import hot
from reput.store.light_offsets import LightConsumerOffsetTable
from reput.store.log_cut import cut_log
from reput.store.message_store import MessageStore
from reput.store.pop_tables import ConsumerOrderTable, RequestModeTable
from reput.store.table_files import (
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicTable,
)
from reput.store.timer_table import TimerTable

LAST_ACKS_MS = 1_000
"""Time for which a master that stops waits for the slaves' acknowledgements."""
_LOOK_S = 0.01
_FORCE = "haForceMaster"
_NOT_ON_FAST_PORT = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})

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
    ) -> None:
        self.settings = LiveConfig(config, store_config, config_path, tls=tls, access=access)
        self.clock = clock or SystemClock()
        self.identity = Identity(self.settings, self.clock.now_ms())
        self.serving = ServerState(
            ConnectionLimits.of(config, descriptors.connections_max()),
            tls=self.settings.tls,
            proxies=config.proxies,
        )
        self._access_refusals = AccessRefusals(self.clock.monotonic_ms)
        self.failure: Exception | None = None
        """Why the store could not be reopened; the broker is closed then."""
        self.ended = asyncio.Event()
        """Set when ``failure`` is set."""
        self.on_open: Callable[[], object] = lambda: None
        """Called when store and parts are new: at the start, and after a change of the role."""
        self._root = store_config.store_path_root_dir
        self._wrap_port = wrap_port
        self._plain: tuple[PlainFiles, PlainRules] | None = None
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
        await self._open()
        await self._begin()

    def load_accounts(self) -> None:
        """Read the accounts of access control 1.0, if that is on. Raises ``InvalidOption``."""
        config = self.settings.broker
        if config.acl_enable:
            self._plain = plain_control.load(
                config.rocketmq_home,
                config.reput_acl_file,
                skips_signature=config.reput_acl_white_list_skips_signature,
                monotonic_ms=self.clock.monotonic_ms(),
            )

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
        filters, by_group = self._load_filters()
        begun_ms = self.clock.monotonic_ms()
        self.store = MessageStore.open(
            config=self.settings.store, clock=self.clock, filters=by_group
        )
        self._log_recovery(self.clock.monotonic_ms() - begun_ms)
        await self._serve_store(filters, by_group)

    def _log_recovery(self, took_ms: int) -> None:
        """Log what the recovery did, if the broker was not stopped cleanly, or had losses."""
        report = self.store.recovery
        if report.was_clean and not report.has_losses:
            return
        level = logging.WARNING if report.has_losses else logging.INFO
        end = "stopped cleanly" if report.was_clean else "not stopped cleanly"
        _log.log(level, "the store was %s; recovered in %d ms: %s", end, took_ms, report)

    async def _serve_store(self, filters: Filters, by_group: ConsumerFilters) -> None:
        """Create the parts of an open store, and listen; if that fails, close the store."""
        self._servers: list[RemotingServer] = []
        try:
            self._assemble(filters, by_group)
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
        """Take newer consumer offsets from slaves, as a master: before clients can ask for them."""
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
        ).run()

    async def stop(self) -> None:
        """Stop: unregister, answer the held requests, save and close everything.

        A change of the role is finished before, or not begun.
        """
        self._is_stop_wanted = True
        async with self._changing:
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
        parts = self.parts
        self.identity.is_stopping = True
        self.store.pull_subscriptions.close()
        await parts.registration.stop()
        if not self.identity.is_master:
            await parts.replication.stop()
        await parts.table_writes.stop()
        parts.held_pulls.answer_all()
        parts.pops.held.answer_all()
        parts.lite.held.answer_all()
        await self._await_slaves(lambda: not len(parts.pending_replies))
        await self.loops.stop()
        self._settle()
        # Together: a message that came in between would wait for a sync that never happens.
        await asyncio.gather(*(server.stop() for server in self._servers))
        await self._await_slaves(self._slaves_have_all)
        await parts.replication.stop()
        if self.identity.is_master:  # a slave's tables have the progress of its master
            parts.pops.revive.save_acks(self.clock.now_ms())
            parts.delayed.close()
            parts.pops.publish_progress()
            parts.transactions.close()
        parts.timers.close(self.clock.now_ms())
        parts.saved_tables.save_all()

    def _certificates(self) -> ssl.SSLContext | None:
        """Return the certificate of new connections; None if there is none yet."""
        return None if self.serving.tls is None else self.serving.tls.context

    def _slaves_have_all(self) -> bool:
        """Return True if all connected slaves have acknowledged the whole log."""
        end = self.store.max_physical_offset
        acked = (replica.acked_offset for replica in self.store.replicas.replicas)
        return all(offset is None or offset >= end for offset in acked)

    async def _await_slaves(self, is_done: Callable[[], bool]) -> None:
        """Wait a second at most for the slaves of a master that stops."""
        port = self.parts.replication.slave_port
        deadline_ms = self.clock.monotonic_ms() + LAST_ACKS_MS
        while self.identity.is_master and self.store.replicas.replicas and not is_done():
            if self.clock.monotonic_ms() >= deadline_ms:
                return
            port.pump()
            await asyncio.sleep(_LOOK_S)

    def _settle(self) -> None:
        """Make all puts durable, and send the replies that wait for it.

        Puts that not enough slaves have acknowledged are late: whether they are replicated is
        unknown.
        """
        # The second step is needed if the disk fails.
        for step in (self.store.sync, self.store.step_memory):
            try:
                step()
            except WriteFailed as error:
                _log.error("%s", error)
        self.store.end_waiting()
        topics = self.parts.topics
        try:
            topics.table.save(self.clock.now_ms(), is_durable=self.store.flusher.is_sync)
        except WriteFailed as error:
            _log.error("topics are not saved: %s", error)
        topics.written(topics.made_count)
        self.parts.pending_replies.settle_all()

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
        """Check, write and apply a change of settings; one that changes the role begins after it.

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
            self._open_slave_port(plan)
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

    def _open_slave_port(self, plan: CheckedChange) -> None:
        """Open the port for slaves of a slave that becomes master, while it is still a slave.

        Raises:
            InvalidOption: It cannot be opened.
        """
        if self._slave_socket is not None:
            return
        try:
            self._slave_socket = open_port(plan.broker, plan.store, self.identity.port)
        except OSError as error:
            allowed = f"a port that can be opened: {error.strerror or error}"
            raise InvalidOption("haListenPort", plan.store.ha_listen_port, allowed) from error

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
            report = await asyncio.to_thread(
                cut_log, self.settings.store, cut_at, self.clock.now_ms(), Disk()
            )
            _log.warning(
                "%d bytes from physical offset %d on were cut from the log; they are in %s",
                report.byte_count,
                report.physical_offset,
                report.path or "no file",
            )
        if self._is_stop_wanted:
            return
        filters, by_group = self._load_filters()
        # In a thread: a signal must be able to end the process meanwhile.
        self.store = await asyncio.to_thread(
            MessageStore.open, config=self.settings.store, clock=self.clock, filters=by_group
        )
        await self._serve_store(filters, by_group)
        await self._begin()
        took_ms = self.clock.monotonic_ms() - begun_ms
        _log.info("the store was reopened in %d ms", took_ms)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Parts --------------------------------------------------------------------------------------

    def _load_filters(self) -> tuple[Filters, ConsumerFilters]:
        """Load the SQL filters of groups: the store needs them when it opens."""
        config, disk = self.settings.broker, Disk()
        disk.make_folder(self._root)
        filters = Filters(config)
        by_group = ConsumerFilters(
            ConsumerFilterTable.load(self._root, disk, interval_ms=consumer_filters.SAVED_MS),
            BloomFilter.of(
                config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
            ),
            config.filter_data_clean_time_span,
            filters.is_expression,
        )
        by_group.load(self.clock.now_ms())
        return filters, by_group

    def _assemble(self, filters: Filters, by_group: ConsumerFilters) -> None:
        config, store, clock, now_ms = (
            self.settings.broker, self.store, self.clock, self.clock.now_ms()
        )  # fmt: skip
        slices, refusals = self.serving.slices, self.serving.refusals
        disk, quarantine, failures = Disk(), Quarantine(), WriteFailures(clock.monotonic_ms)
        disk_thread = WorkerThread("reput-disk")
        tasks = Tasks()
        has_light = self.settings.store.enable_lmq

        topic_table = TopicTable.load(self._root, disk)
        warnings = lost_tables.recover_topics(topic_table, store, now_ms)
        mark = SlaveMark(self._root, disk)
        is_promoted = self.identity.is_master and mark.is_there
        if is_promoted:
            warnings += lost_tables.add_topics(topic_table, store, mark.topics_end(), now_ms)
        topics = Topics(topic_table, config, has_light=has_light)
        group_table = SubscriptionGroupTable.load(self._root, disk)
        subscription_groups = SubscriptionGroups(group_table, config, has_light=has_light)
        offset_class = LightConsumerOffsetTable if has_light else ConsumerOffsetTable
        offset_table = offset_class.load(
            self._root, disk, interval_ms=config.flush_consumer_offset_interval
        )
        step_ms = config.flush_delay_offset_interval
        delay_table = DelayOffsetTable.load(self._root, disk, interval_ms=step_ms)
        delayed = DelaySchedule(store, delay_table, quarantine)
        delayed.load()
        timers = Timers(store, TimerTable.load(self._root, disk, interval_ms=step_ms), quarantine)
        timers.load()
        warnings += lost_tables.warnings_of_lost_tables(
            store, group_table, offset_table, delay_table, timers.table
        )
        warnings += lost_tables.recover_groups(group_table, offset_table, now_ms)
        if self.settings.store.ha_force_master:
            warnings.append(
                f"{_FORCE} is set: this broker starts as master although another one is alive; "
                "remove it"
            )

        stats = Stats(
            config.broker_cluster_name,
            store.put_news,
            lambda: timers.delivered_count,
            config.reput_stats_series_max,
        )
        deliveries = Deliveries(
            store.pull_subscriptions, offset_table, stats, self.settings, refusals
        )
        store.retention.consumer_offsets = lambda: deliveries.consumer_offsets.all()
        groups: Groups[Channel] = Groups(store.pull_subscriptions.clear, Maxima.of(config))
        locks = QueueLocks(config.rebalance_lock_max_live_time, config.reput_locks_max)
        sync_thread = SyncThread(store.sync)
        put_stalls = PutStalls(self.settings, clock)
        pending_replies = PendingReplies(
            store, topics, deliveries, clock, slices, sync_thread, put_stalls
        )
        topic_writes = TopicWrites(topics, store, pending_replies, clock, failures)
        transactions = Transactions(
            store,
            topics,
            offset_table,
            config,
            functools.partial(ask_producer, groups),
            quarantine,
        )
        transactions.load(now_ms)
        access = self._make_access(disk, transactions)
        orders = ConsumerOrderTable.load(
            self._root, disk, interval_ms=config.flush_consumer_offset_interval
        )
        pops, lite_pops = self._make_pops(
            topics, subscription_groups, deliveries, quarantine, orders, timers
        )
        pops.revive.load(now_ms)
        request_modes = RequestModes(RequestModeTable.load(self._root, disk), config)
        topics.on_make = topic_writes.write_soon
        registration = Registration(self.settings, self.identity, topics, clock)
        saved_tables = SavedTables(
            (
                topic_table,
                group_table,
                offset_table,
                by_group.table,
                delay_table,
                timers.table,
                orders,
                request_modes.table,
                *([] if access is None else access.tables),
            ),
            clock,
            failures,
            disk_thread,
        )
        resets = ResetOffsets()
        deletions = Deletions(
            store,
            topics,
            subscription_groups,
            deliveries,
            resets,
            orders,
            request_modes.table,
            saved_tables,
            disk_thread,
            clock,
        )

        async def keep_topics(log_end: int) -> None:
            """Make the copied topics durable; then record up to where the slave has all."""
            if not await saved_tables.save(topic_table):
                text = "cannot be saved now; the topics are copied again soon"
                raise WriteFailed(topic_table.path, text)
            await disk_thread.run(lambda: mark.record_topics(log_end))

        status = SlaveStatus()
        metadata = MetadataSync(
            status,
            store,
            NamedTables(store, topics, subscription_groups, deletions, clock),
            deliveries,
            delayed,
            timers,
            request_modes.table,
            clock,
            keep_topics,
            self.settings.request_tls,
            self.settings.request_signer,
            self._make_users_copy(access),
        )
        replication = Replication(
            self.identity,
            SlavePort(
                self.settings, self.identity, store, pending_replies, clock, self._certificates
            ),
            Follower(
                self.settings,
                self.identity,
                store,
                topics,
                registration,
                clock,
                status,
                metadata.copy_topics,
                self._begin_reopening,
            ),
            metadata,
        )
        self.parts = Parts(
            settings=self.settings,
            change_settings=self.change_settings,
            identity=self.identity,
            clock=clock,
            store=store,
            serving=self.serving,
            access=access,
            plain_control=self._make_plain_control(disk_thread),
            topics=topics,
            listings=SharedReplies(),
            subscription_groups=subscription_groups,
            groups=groups,
            members=Members(
                groups,
                subscription_groups,
                topics,
                by_group,
                locks,
                store,
                self.settings,
                clock,
                slices,
            ),
            filters=filters,
            consumer_filters=by_group,
            locks=locks,
            request_modes=request_modes,
            deliveries=deliveries,
            commits=OffsetCommits(
                lambda: deliveries.consumer_offsets, subscription_groups, config, refusals
            ),
            deletions=deletions,
            resets=resets,
            fast_counts=FastCounts(),
            put_stalls=put_stalls,
            sync_thread=sync_thread,
            pending_replies=pending_replies,
            held_pulls=self._make_held_pulls(),
            pops=pops,
            lite=lite_pops,
            retries=Retries(topics, subscription_groups, clock),
            delayed=delayed,
            timers=timers,
            transactions=transactions,
            registration=registration,
            replication=replication,
            saved_tables=saved_tables,
            table_writes=TableWrites(clock, failures),
            topic_writes=topic_writes,
            quarantine=quarantine,
            write_failures=failures,
            disk_thread=disk_thread,
            tasks=tasks,
            setting_requests=RequestQueue(limits.WAITING_SETTINGS, tasks.keep),
            deletion_requests=RequestQueue(limits.WAITING_DELETIONS, tasks.keep),
            assignment_tasks=set(),
            start_warnings=tuple(warnings),
        )
        if is_promoted:
            lower_offsets(offset_table, store, now_ms)
            mark.delete()
        elif not self.identity.is_master:
            mark.create()
        versions = topics.table.version, subscription_groups.table.version
        topics.add_built_in(now_ms, len(self.settings.store.delay_levels_ms))
        subscription_groups.add_built_in(now_ms)
        if not self.identity.is_master:  # the versions are those of the master
            topics.table.adopt_version(versions[0])
            subscription_groups.table.adopt_version(versions[1])
        store.dispatcher.on_begun_again = deletions.forget_queues
        self._subscribe()

    def _make_access(self, disk: Disk, transactions: Transactions) -> Access | None:
        settings = self.settings.access
        cluster_name = self.settings.broker.broker_cluster_name
        facts = Facts(cluster_name, self.store.record_at, transactions.half_at)
        refusals = self._access_refusals
        if self._plain is not None:
            return Access(self._plain[1], facts, refusals, self._end_revoked)
        if not settings.authentication_enabled:
            return None
        rules = user_rules.load(self._root, disk, settings, cluster_name, self.clock.now_ms())
        config = self.settings.broker
        if settings.migrate_auth_from_v1_enabled:
            accounts = plain_control.accounts_of(config.rocketmq_home, config.reput_acl_file)
            plain_migration.migrate(accounts, rules.users, rules.acls, self.clock.now_ms())
        return Access(rules, facts, refusals, self._end_revoked, (rules.users, rules.acls))

    def _make_users_copy(self, access: Access | None) -> UsersCopy | None:
        if access is None or not isinstance(access.rules, UserRules):
            return None
        return UsersCopy(access.rules, self._end_revoked)

    def _make_plain_control(self, disk_thread: WorkerThread) -> PlainControl | None:
        if self._plain is None:
            return None
        return PlainControl(*self._plain, disk_thread, self._end_revoked)

    def _end_revoked(self) -> None:
        """End the held requests that the rules do not allow any more."""
        self.serving.slices.run(self.parts.held_pulls.retry_all())
        self.serving.slices.run(self.parts.pops.held.retry_all())
        self.serving.slices.run(self.parts.lite.held.retry_all())

    def _make_held_pulls(self) -> HeldRequests[HeldPull]:
        config = self.settings.broker
        return HeldRequests(
            config.pull_hold_max,
            self.serving.slices.run,
            per_connection_max=config.reput_held_per_connection_max,
            per_address_max=config.reput_held_per_address_max,
        )

    def _make_pops(
        self,
        topics: Topics,
        subscription_groups: SubscriptionGroups,
        deliveries: Deliveries,
        quarantine: Quarantine,
        orders: ConsumerOrderTable,
        timers: Timers,
    ) -> tuple[Pops, LitePops]:
        config, store = self.settings.broker, self.store
        retries = PopRetries(
            config.enable_retry_topic_v2, config.retrieve_message_from_pop_retry_topic_v1
        )
        revive = Revive(
            store,
            topics,
            subscription_groups,
            lambda: deliveries.consumer_offsets,
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            queue_count=config.revive_queue_num,
            retries=retries,
            quarantine=quarantine,
            timers=timers,
            is_fast=config.reput_fast_path,
        )
        held: HeldRequests[HeldPop] = HeldRequests(
            config.max_pop_polling_size,
            self.serving.slices.run,
            per_connection_max=config.reput_held_per_connection_max,
            per_address_max=config.reput_held_per_address_max,
        )
        offsets = PopOffsets(lambda: deliveries.consumer_offsets)

        def make(blocks: Blocks) -> Pops:
            return Pops(
                store,
                topics,
                revive,
                offsets,
                PopOrders(blocks),
                held,
                retry_percent=config.pop_from_retry_probability,
                priority_retry_percent=config.pop_from_retry_probability_for_priority,
                highest_first=config.priority_order_asc,
                broker_name=config.broker_name,
                is_old=store.is_on_disk,
                retries=retries,
            )

        held_lite: HeldRequests[HeldLitePop] = HeldRequests(
            config.max_pop_polling_size,
            self.serving.slices.run,
            per_connection_max=config.reput_held_per_connection_max,
            per_address_max=config.reput_held_per_address_max,
        )
        blocks = MemoryBlocks()
        lite_pops = LitePops(
            store,
            make(blocks),
            blocks,
            offsets,
            LiteSubscriptions(notify_evicted),
            held_lite,
            lambda: self.settings.broker.max_lite_subscription_count,
        )
        return make(orders), lite_pops

    def _subscribe(self) -> None:
        """Connect parts to changes of topics, settings and messages."""
        parts = self.parts
        self.loops = Loops(parts)
        # Must run before the frontend's callback, which reads the new values.
        self.settings.on_change = [self._settings_changed]
        parts.topics.on_change.append(self._topic_changed)
        for name in parts.topics.all():
            self._topic_changed(name)
        self._buffer = bytearray(READ_BYTES)
        self.frontend = None
        if self.settings.broker.reput_fast_path and hot.is_compiled:
            self.frontend = Frontend(parts, self._buffer)
        self.store.add_listener(self._messages_arrived)
        self.store.dispatcher.on_unusable = functools.partial(parts.quarantine.add, "store")

    def _topic_changed(self, name: str) -> None:
        parts = self.parts
        topic = parts.topics.get(name)
        self.store.keep_batches(name, is_on=topic is not None and BATCH_QUEUES in topic.attributes)
        if topic is None:
            parts.pops.orders.table.delete(topic=name)
        parts.registration.notify_soon(name)

    def _settings_changed(self, change: Change) -> None:
        parts, config = self.parts, self.settings.broker
        parts.topics.config = parts.subscription_groups.config = parts.filters.config = config
        parts.request_modes.config = parts.commits.config = parts.transactions.config = config
        parts.groups.maxima = Maxima.of(config)
        parts.locks.locks_max = config.reput_locks_max
        parts.timers.config = self.settings.store
        self.store.retention.reconfigure(self.settings.store)
        if "brokerPermission" in change.at_once:
            parts.topics.table.touch(self.clock.now_ms())  # name servers ignore a known version
            for name in parts.topics.all():
                parts.topics.notify(name)
        if "namesrvAddr" in change.at_once:
            parts.registration.notify_soon()

    def _messages_arrived(self, topic: str, queue_id: int, first: int, end: int) -> None:
        self.parts.held_pulls.wake(topic, queue_id)
        self.parts.pops.arrived(topic, queue_id)
        if topic.startswith(names.LITE_PREFIX):
            self.parts.lite.arrived(topic)

    # Ports --------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        config, identity = self.settings.broker, self.identity
        # A broker that reopens its store keeps its ports, which the system may have chosen.
        port = await self._listen_on(identity.port or config.listen_port, is_fast=False)
        identity.port, identity.fast_port = port, 0
        identity.address = f"{config.broker_ip1}:{port}"
        identity.store_host = Host(_packed(config.broker_ip1), port)
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
            self._wrap_port(_Port(self.parts, self.frontend, is_fast=is_fast)),
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
    ) -> Channel:
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


class _Port:
    """Serves a port: all requests, or on the fast port all but pulls."""

    def __init__(self, parts: Parts, frontend: Frontend | None, *, is_fast: bool) -> None:
        self._parts = parts
        self._slave_port = parts.replication.slave_port
        self._frontend = frontend
        self._is_fast = is_fast

    def on_open(self, channel: Channel) -> None:
        """Prepare a connection; it is identified by its requests."""
        channel.finds_repeats = self._parts.access is not None

    def on_bytes(self, channel: Channel, view: memoryview, end: int) -> int:
        """Serve the requests in a buffer; return the position of the first incomplete one."""
        try:
            if self._frontend is None:
                return channel.take_frames(view, 0, end)
            return self._frontend.on_bytes(channel, view, end, takes_pulls=not self._is_fast)
        finally:
            parts = self._parts
            self._slave_port.pump()
            if parts.pending_replies.has_put:
                parts.pending_replies.has_put = False
                if parts.holds_requests:
                    parts.store.notify()  # before the store's next step

    def on_request(self, channel: Channel, request: Command) -> Command | LongReply | None:
        """Serve a request, if its sender may send it."""
        access = self._parts.access
        if access is None:
            return self._serve(channel, request)
        checking = access.admit(request, channel.address)
        if checking is None:
            return self._serve(channel, request)
        return self._serve_after(checking, channel, request)

    def _serve_after(
        self, checking: Steps[None], channel: Channel, request: Command
    ) -> Steps[Command | None]:
        yield from checking
        reply = self._serve(channel, request)
        return (yield from reply) if isinstance(reply, Generator) else reply

    def _serve(self, channel: Channel, request: Command) -> Command | LongReply | None:
        processor = PROCESSORS.get(request.code)
        if self._is_fast and request.code in _NOT_ON_FAST_PORT:
            text = f" request type {request.code} not supported"
            return commands.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
        if processor is None:
            raise RequestRefused(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported",
            )
        return processor(self._parts, channel, request)

    def on_closed(self, channel: Channel) -> None:
        """Remove all state of a connection."""
        self._parts.held_pulls.forget(channel)
        self._parts.pops.held.forget(channel)
        self._parts.lite.held.forget(channel)
        self._parts.members.forget(channel)


def _packed(address: str) -> bytes:
    """Return an address in the form of records; host names are resolved.

    Raises:
        InvalidOption: A host name cannot be resolved.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, address)
        except OSError:
            continue
    try:
        return socket.inet_aton(socket.gethostbyname(address))
    except OSError as error:
        allowed = f"an address of this machine, or a name that resolves here: {error.strerror}"
        raise InvalidOption("brokerIP1", address, allowed) from None
