"""Assembly of the parts of a broker: each is made after the parts that it needs.

    tables -> topics, groups, delays -> offsets, statistics -> clients, replies, transactions, pops
           -> access -> deletions, replication -> ``Parts`` -> changes that the parts learn of

What needs all parts, as the processors do, gets them with each request.
"""

import functools
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reput import limits as shared_limits
from reput.broker import limits
from reput.broker.access import plain_control, plain_migration, user_rules
from reput.broker.access.access import Access
from reput.broker.access.needs import Facts
from reput.broker.access.plain_control import PlainControl
from reput.broker.access.plain_file import PlainFiles
from reput.broker.access.plain_rules import PlainRules
from reput.broker.access.refusals import AccessRefusals
from reput.broker.assignments import RequestModes
from reput.broker.counters.stats import Stats
from reput.broker.delay import DelaySchedule
from reput.broker.deletions import Deletions
from reput.broker.deliveries import Deliveries
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
from reput.broker.machine import Machine
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
from reput.broker.processors.transactions import ask_producer
from reput.broker.pull_subscriptions import PullSubscriptions
from reput.broker.put_stalls import PutStalls
from reput.broker.quarantine import Quarantine
from reput.broker.registration import Registration
from reput.broker.replicas.roles import GroupRoles
from reput.broker.replication.follower import Follower
from reput.broker.replication.metadata import MetadataSync
from reput.broker.replication.named_tables import NamedTables
from reput.broker.replication.replication import Replication
from reput.broker.replication.slave_mark import SlaveMark
from reput.broker.replication.slave_port import SlavePort
from reput.broker.replication.state import SlaveStatus
from reput.broker.replication.users_copy import UsersCopy
from reput.broker.retries import Retries
from reput.broker.settings.config import BrokerConfig
from reput.broker.settings.live import Change, LiveConfig
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
from reput.clock import Clock
from reput.errors import WriteFailed
from reput.format import names
from reput.format.bloom import BloomFilter
from reput.remoting.channel import Channel
from reput.remoting.request_queue import RequestQueue
from reput.remoting.server_state import ServerState
from reput.remoting.time_slices import Steps
from reput.store.files.disk import Disk
from reput.store.message_store import MessageStore
from reput.store.tables.config_tables import BATCH_QUEUES
from reput.store.tables.filters import ConsumerFilterTable
from reput.store.tables.groups import SubscriptionGroupTable
from reput.store.tables.light_offsets import LightConsumerOffsetTable
from reput.store.tables.offsets import ConsumerOffsetTable, DelayOffsetTable
from reput.store.tables.pop_tables import ConsumerOrderTable, RequestModeTable
from reput.store.tables.saved_table import SavedTable
from reput.store.tables.timer_table import TimerTable
from reput.store.tables.topics import TopicTable

PlainAccess = tuple[PlainFiles, PlainRules]
"""The files of access control 1.0, and the rules in them."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What a broker has without its store, and keeps when the store is reopened."""

    settings: LiveConfig
    identity: Identity
    clock: Clock
    serving: ServerState
    access_refusals: AccessRefusals
    change_settings: Callable[[Mapping[str, str]], Awaitable[Change]]
    """Changes settings, and the role."""
    on_cut: Callable[[int], object]
    """Begins to reopen the store, with its log cut at a physical offset."""
    plain: PlainAccess | None
    """Access control 1.0; None if it is off."""
    machine: Machine
    """Its disks, threads and sockets."""
    group: GroupRoles | None = None
    """The membership in a replica group; None without a controller."""

    @property
    def root(self) -> str:
        """The folder of the store."""
        return self.settings.store.store_path_root_dir

    def certificates(self) -> ssl.SSLContext | None:
        """Return the certificate of new connections; None if there is none yet."""
        return None if self.serving.tls is None else self.serving.tls.context


def load_accounts(config: BrokerConfig, monotonic_ms: int) -> PlainAccess | None:
    """Load access control 1.0 if it is on. Raises ``InvalidOption``."""
    if not config.acl_enable:
        return None
    return plain_control.load(
        config.rocketmq_home,
        config.reput_acl_file,
        skips_signature=config.reput_acl_white_list_skips_signature,
        monotonic_ms=monotonic_ms,
    )


class SqlFilters(NamedTuple):
    """The SQL filters of groups."""

    compiled: Filters
    by_group: ConsumerFilters


def load_filters(basis: Basis) -> SqlFilters:
    """Load the filters of a store, which needs them when it opens."""
    config, disk = basis.settings.broker, basis.machine.disk()
    disk.make_folder(basis.root)
    compiled = Filters(config)
    by_group = ConsumerFilters(
        ConsumerFilterTable.load(basis.root, disk, interval_ms=consumer_filters.SAVED_MS),
        BloomFilter.of(
            config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
        ),
        config.filter_data_clean_time_span,
        compiled.is_expression,
        compiled.compile_in_steps,
    )
    by_group.load(basis.clock.now_ms())
    return SqlFilters(compiled, by_group)


def assemble(basis: Basis, store: MessageStore, filters: SqlFilters) -> Parts:
    """Make the parts of a broker whose store is open.

    Args:
        basis: What the broker has without a store.
        store: The store.
        filters: The filters that it was opened with.

    Raises:
        InvalidOption: A file of access control is wrong.
        WriteFailed: The disk failed.
    """
    pull_subscriptions = PullSubscriptions(store)
    ground = _Ground(
        basis,
        store,
        pull_subscriptions,
        WriteFailures(basis.clock.monotonic_ms),
        basis.machine.disk(),
    )
    loaded = _load(ground)
    clients = _make_clients(ground, loaded, filters.by_group)
    writing = _make_writing(ground, loaded, clients.groups)
    held = _make_held(ground)
    access = _make_access(ground, writing.transactions, held)
    keeping = _make_keeping(ground, loaded, clients, filters.by_group, writing, access)
    parts = _gather(ground, filters, loaded, clients, writing, held, access, keeping)
    _enter_role(ground, loaded)
    _subscribe(parts, store)
    return parts


@dataclass(frozen=True, slots=True)
class _Ground:
    """What any part may need."""

    basis: Basis
    store: MessageStore
    pull_subscriptions: PullSubscriptions
    failures: WriteFailures
    disk: Disk
    disk_thread: WorkerThread = field(default_factory=lambda: WorkerThread("reput-disk"))
    quarantine: Quarantine = field(default_factory=Quarantine)
    tasks: Tasks = field(default_factory=Tasks)

    @property
    def settings(self) -> LiveConfig:
        return self.basis.settings

    @property
    def config(self) -> BrokerConfig:
        return self.basis.settings.broker

    @property
    def clock(self) -> Clock:
        return self.basis.clock


# Tables -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What the files of the store hold beside messages."""

    topics: Topics
    subscription_groups: SubscriptionGroups
    consumer_offsets: ConsumerOffsetTable
    deliveries: Deliveries
    """The consumer offsets including what the fast path has committed, and the statistics."""
    delayed: DelaySchedule
    timers: Timers
    orders: ConsumerOrderTable
    request_modes: RequestModes
    mark: SlaveMark
    is_promoted: bool
    """True for a master that was a slave when its store was last open."""
    warnings: Sequence[str]


def _load(ground: _Ground) -> _Loaded:
    """Load the tables, and derive from the messages what has been lost."""
    store, config, disk, root = ground.store, ground.config, ground.disk, ground.basis.root
    now_ms, has_light = ground.clock.now_ms(), ground.settings.store.enable_lmq
    topic_table = TopicTable.load(root, disk)
    warnings = lost_tables.recover_topics(topic_table, store, now_ms)
    mark = SlaveMark(root, disk)
    is_promoted = ground.basis.identity.is_master and mark.is_there
    if is_promoted:
        warnings += lost_tables.add_topics(topic_table, store, mark.topics_end(), now_ms)
    group_table = SubscriptionGroupTable.load(root, disk)
    offset_class = LightConsumerOffsetTable if has_light else ConsumerOffsetTable
    offsets_ms, step_ms = config.flush_consumer_offset_interval, config.flush_delay_offset_interval
    consumer_offsets = offset_class.load(root, disk, interval_ms=offsets_ms)
    delay_table = DelayOffsetTable.load(root, disk, interval_ms=step_ms)
    delayed = DelaySchedule(store, delay_table, ground.quarantine)
    delayed.load()
    timer_table = TimerTable.load(root, disk, interval_ms=step_ms)
    timers = Timers(store, timer_table, ground.quarantine)
    timers.load()
    warnings += lost_tables.warnings_of_lost_tables(
        store, group_table, consumer_offsets, delay_table, timer_table
    )
    warnings += lost_tables.recover_groups(group_table, consumer_offsets, now_ms)
    if ground.settings.store.ha_force_master:
        warnings.append(
            "haForceMaster is set: this broker starts as master although another one is alive; "
            "remove it"
        )
    return _Loaded(
        topics=Topics(topic_table, config, has_light=has_light),
        subscription_groups=SubscriptionGroups(group_table, config, has_light=has_light),
        consumer_offsets=consumer_offsets,
        deliveries=_make_deliveries(ground, consumer_offsets, timers),
        delayed=delayed,
        timers=timers,
        orders=ConsumerOrderTable.load(root, disk, interval_ms=offsets_ms),
        request_modes=RequestModes(RequestModeTable.load(root, disk), config),
        mark=mark,
        is_promoted=is_promoted,
        warnings=warnings,
    )


def _make_deliveries(
    ground: _Ground, consumer_offsets: ConsumerOffsetTable, timers: Timers
) -> Deliveries:
    store, config = ground.store, ground.config
    stats = Stats(
        config.broker_cluster_name,
        store.put_news,
        lambda: timers.delivered_count,
        config.reput_stats_series_max,
    )
    refusals = ground.basis.serving.refusals
    deliveries = Deliveries(
        ground.pull_subscriptions, consumer_offsets, stats, ground.settings, refusals
    )
    store.retention.consumer_offsets = lambda: deliveries.consumer_offsets.all()
    return deliveries


def _enter_role(ground: _Ground, loaded: _Loaded) -> None:
    """Make the tables those of the broker's role, with the built-in topics and groups."""
    topics, groups = loaded.topics, loaded.subscription_groups
    is_master, now_ms = ground.basis.identity.is_master, ground.clock.now_ms()
    if loaded.is_promoted:
        lower_offsets(loaded.consumer_offsets, ground.store, now_ms)
        loaded.mark.delete()
    elif not is_master:
        loaded.mark.create()
    versions = topics.table.version, groups.table.version
    topics.add_built_in(now_ms, len(ground.settings.store.delay_levels_ms))
    groups.add_built_in(now_ms)
    if not is_master:  # the versions are those of the master
        topics.table.adopt_version(versions[0])
        groups.table.adopt_version(versions[1])


# Clients and their messages ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Clients:
    """What the broker has about its clients."""

    groups: Groups[Channel]
    members: Members
    locks: QueueLocks
    commits: OffsetCommits
    resets: ResetOffsets


def _make_clients(ground: _Ground, loaded: _Loaded, filters: ConsumerFilters) -> _Clients:
    store, config = ground.store, ground.config
    groups: Groups[Channel] = Groups(ground.pull_subscriptions.clear, Maxima.of(config))
    locks = QueueLocks(config.rebalance_lock_max_live_time, config.reput_locks_max)
    members = Members(
        groups,
        loaded.subscription_groups,
        loaded.topics,
        filters,
        locks,
        store,
        ground.settings,
        ground.clock,
        ground.basis.serving.slices,
    )
    commits = OffsetCommits(
        lambda: loaded.deliveries.consumer_offsets,
        loaded.subscription_groups,
        config,
        ground.basis.serving.refusals,
    )
    return _Clients(groups, members, locks, commits, ResetOffsets())


@dataclass(frozen=True, slots=True)
class _Writing:
    """What sends need until their replies, and transactions."""

    put_stalls: PutStalls
    sync_thread: SyncThread
    pending_replies: PendingReplies
    topic_writes: TopicWrites
    transactions: Transactions


def _make_writing(ground: _Ground, loaded: _Loaded, groups: Groups[Channel]) -> _Writing:
    store, clock, topics = ground.store, ground.clock, loaded.topics
    put_stalls = PutStalls(ground.settings, clock)
    sync_thread = ground.basis.machine.sync_thread("reput-sync", store.sync)
    pending_replies = PendingReplies(
        store,
        topics,
        loaded.deliveries,
        clock,
        ground.basis.serving.slices,
        sync_thread,
        put_stalls,
    )
    transactions = Transactions(
        store,
        topics,
        loaded.consumer_offsets,
        ground.config,
        functools.partial(ask_producer, groups),
        ground.quarantine,
    )
    transactions.load(clock.now_ms())
    topic_writes = TopicWrites(topics, store, pending_replies, clock, ground.failures)
    return _Writing(put_stalls, sync_thread, pending_replies, topic_writes, transactions)


@dataclass(frozen=True, slots=True)
class _Held:
    """Requests that wait for messages."""

    run: Callable[[Steps[None]], None]
    pulls: HeldRequests[HeldPull]
    pops: HeldRequests[HeldPop]
    lite: HeldRequests[HeldLitePop]

    def end_revoked(self) -> None:
        """End the requests that the rules do not allow any more."""
        self.run(self.pulls.retry_all())
        self.run(self.pops.retry_all())
        self.run(self.lite.retry_all())


def _make_held(ground: _Ground) -> _Held:
    config, run = ground.config, ground.basis.serving.slices.run
    maxima = {
        "per_connection_max": config.reput_held_per_connection_max,
        "per_address_max": config.reput_held_per_address_max,
    }
    return _Held(
        run,
        HeldRequests(config.pull_hold_max, run, **maxima),
        HeldRequests(config.max_pop_polling_size, run, **maxima),
        HeldRequests(config.max_pop_polling_size, run, **maxima),
    )


def _make_pops(ground: _Ground, loaded: _Loaded, held: _Held) -> tuple[Pops, LitePops]:
    store, config, settings = ground.store, ground.config, ground.settings
    offsets = PopOffsets(lambda: loaded.deliveries.consumer_offsets)
    retries = PopRetries(
        config.enable_retry_topic_v2, config.retrieve_message_from_pop_retry_topic_v1
    )
    revive = _make_revive(ground, loaded, retries)

    def make(blocks: Blocks) -> Pops:
        return Pops(
            store,
            loaded.topics,
            revive,
            offsets,
            PopOrders(blocks),
            held.pops,
            retry_percent=config.pop_from_retry_probability,
            priority_retry_percent=config.pop_from_retry_probability_for_priority,
            highest_first=config.priority_order_asc,
            broker_name=config.broker_name,
            is_old=store.is_on_disk,
            retries=retries,
        )

    blocks = MemoryBlocks()
    lite_pops = LitePops(
        store,
        make(blocks),
        blocks,
        offsets,
        LiteSubscriptions(notify_evicted),
        held.lite,
        lambda: settings.broker.max_lite_subscription_count,
    )
    return make(loaded.orders), lite_pops


def _make_revive(ground: _Ground, loaded: _Loaded, retries: PopRetries) -> Revive:
    config = ground.config
    revive = Revive(
        ground.store,
        loaded.topics,
        loaded.subscription_groups,
        lambda: loaded.deliveries.consumer_offsets,
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        queue_count=config.revive_queue_num,
        retries=retries,
        quarantine=ground.quarantine,
        timers=loaded.timers,
        is_fast=config.reput_fast_path,
    )
    revive.load(ground.clock.now_ms())
    return revive


# Access control ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Access:
    """Access control; all are None if it is off."""

    check: Access | None = None
    plain_control: PlainControl | None = None
    """Control of the files of access control 1.0."""
    users_copy: UsersCopy | None = None
    """Copy of the users of access control 2.0, for a slave."""


def _make_access(ground: _Ground, transactions: Transactions, held: _Held) -> _Access:
    """Make access control 1.0, 2.0 or none. Raises ``InvalidOption``."""
    basis, settings, config = ground.basis, ground.settings.access, ground.config
    facts = Facts(config.broker_cluster_name, ground.store.record_at, transactions.half_at)
    refusals, end_revoked = basis.access_refusals, held.end_revoked
    if basis.plain is not None:
        return _Access(
            Access(basis.plain[1], facts, refusals, end_revoked),
            plain_control=PlainControl(*basis.plain, ground.disk_thread, end_revoked),
        )
    if not settings.authentication_enabled:
        return _Access()
    now_ms = ground.clock.now_ms()
    rules = user_rules.load(basis.root, ground.disk, settings, config.broker_cluster_name, now_ms)
    if settings.migrate_auth_from_v1_enabled:
        accounts = plain_control.accounts_of(config.rocketmq_home, config.reput_acl_file)
        plain_migration.migrate(accounts, rules.users, rules.acls, now_ms)
    return _Access(
        Access(rules, facts, refusals, end_revoked, (rules.users, rules.acls)),
        users_copy=UsersCopy(rules, end_revoked),
    )


# Saving, deleting and copying tables ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Keeping:
    """What keeps the tables: on the disk, with the store, and on slaves."""

    saved_tables: SavedTables
    deletions: Deletions
    registration: Registration
    replication: Replication


def _make_keeping(
    ground: _Ground,
    loaded: _Loaded,
    clients: _Clients,
    filters: ConsumerFilters,
    writing: _Writing,
    access: _Access,
) -> _Keeping:
    tables: list[SavedTable] = [
        loaded.topics.table,
        loaded.subscription_groups.table,
        loaded.consumer_offsets,
        filters.table,
        loaded.delayed.table,
        loaded.timers.table,
        loaded.orders,
        loaded.request_modes.table,
    ]
    if access.check is not None:
        tables += access.check.tables
    saved_tables = SavedTables(tuple(tables), ground.clock, ground.failures, ground.disk_thread)
    deletions = Deletions(
        ground.store,
        loaded.topics,
        loaded.subscription_groups,
        loaded.deliveries,
        clients.resets,
        loaded.orders,
        loaded.request_modes.table,
        saved_tables,
        ground.disk_thread,
        ground.clock,
    )
    registration = Registration(ground.settings, ground.basis.identity, loaded.topics, ground.clock)
    status = SlaveStatus()
    metadata = _make_metadata(ground, loaded, status, saved_tables, deletions, access.users_copy)
    replication = _make_replication(
        ground, loaded.topics, writing.pending_replies, registration, status, metadata
    )
    return _Keeping(saved_tables, deletions, registration, replication)


def _make_metadata(
    ground: _Ground,
    loaded: _Loaded,
    status: SlaveStatus,
    saved_tables: SavedTables,
    deletions: Deletions,
    users_copy: UsersCopy | None,
) -> MetadataSync:
    """Make the copy of a slave's tables."""
    store, clock, settings = ground.store, ground.clock, ground.settings
    topic_table = loaded.topics.table

    async def keep_topics(log_end: int) -> None:
        """Make the copied topics durable; then record up to where the slave has all."""
        if not await saved_tables.save(topic_table):
            text = "cannot be saved now; the topics are copied again soon"
            raise WriteFailed(topic_table.path, text)
        await ground.disk_thread.run(lambda: loaded.mark.record_topics(log_end))

    return MetadataSync(
        status,
        store,
        NamedTables(store, loaded.topics, loaded.subscription_groups, deletions, clock),
        loaded.deliveries,
        loaded.delayed,
        loaded.timers,
        loaded.request_modes.table,
        clock,
        keep_topics,
        settings.request_tls,
        settings.request_signer,
        users_copy,
    )


def _make_replication(
    ground: _Ground,
    topics: Topics,
    pending_replies: PendingReplies,
    registration: Registration,
    status: SlaveStatus,
    metadata: MetadataSync,
) -> Replication:
    basis, store, clock = ground.basis, ground.store, ground.clock
    slave_port = SlavePort(
        basis.settings,
        basis.identity,
        store,
        pending_replies,
        clock,
        basis.certificates,
        basis.machine,
        None if basis.group is None else basis.group.master_framing(store),
    )
    follower = Follower(
        basis.settings,
        basis.identity,
        store,
        topics,
        registration,
        clock,
        status,
        metadata.copy_topics,
        basis.on_cut,
        basis.machine,
        None if basis.group is None else basis.group.agreement(store),
    )
    return Replication(basis.identity, slave_port, follower, metadata)


# All parts --------------------------------------------------------------------------------------


def _gather(
    ground: _Ground,
    filters: SqlFilters,
    loaded: _Loaded,
    clients: _Clients,
    writing: _Writing,
    held: _Held,
    access: _Access,
    keeping: _Keeping,
) -> Parts:
    basis, tasks = ground.basis, ground.tasks
    pops, lite_pops = _make_pops(ground, loaded, held)
    return Parts(
        settings=basis.settings,
        change_settings=basis.change_settings,
        identity=basis.identity,
        clock=basis.clock,
        store=ground.store,
        pull_subscriptions=ground.pull_subscriptions,
        serving=basis.serving,
        access=access.check,
        plain_control=access.plain_control,
        topics=loaded.topics,
        subscription_groups=loaded.subscription_groups,
        groups=clients.groups,
        members=clients.members,
        filters=filters.compiled,
        consumer_filters=filters.by_group,
        locks=clients.locks,
        request_modes=loaded.request_modes,
        deliveries=loaded.deliveries,
        deletions=keeping.deletions,
        commits=clients.commits,
        resets=clients.resets,
        put_stalls=writing.put_stalls,
        sync_thread=writing.sync_thread,
        pending_replies=writing.pending_replies,
        held_pulls=held.pulls,
        pops=pops,
        lite=lite_pops,
        retries=Retries(loaded.topics, loaded.subscription_groups, basis.clock),
        delayed=loaded.delayed,
        timers=loaded.timers,
        transactions=writing.transactions,
        registration=keeping.registration,
        replication=keeping.replication,
        member=None if basis.group is None else basis.group.member,
        saved_tables=keeping.saved_tables,
        table_writes=TableWrites(basis.clock, ground.failures),
        topic_writes=writing.topic_writes,
        quarantine=ground.quarantine,
        write_failures=ground.failures,
        disk_thread=ground.disk_thread,
        tasks=tasks,
        setting_requests=RequestQueue(shared_limits.WAITING_SETTINGS, tasks.keep),
        deletion_requests=RequestQueue(limits.WAITING_DELETIONS, tasks.keep),
        start_warnings=tuple(loaded.warnings),
    )


# Changes that parts learn of --------------------------------------------------------------------


def _subscribe(parts: Parts, store: MessageStore) -> None:
    """Connect parts to changes of topics, settings and messages."""
    parts.topics.on_make = parts.topic_writes.write_soon
    # The first: the fast path reads the new values.
    parts.settings.on_change = [functools.partial(_settings_changed, parts)]
    topic_changed = functools.partial(_topic_changed, parts)
    parts.topics.on_change.append(topic_changed)
    for name in parts.topics.all():
        topic_changed(name)
    store.add_listener(functools.partial(_messages_arrived, parts))
    store.dispatcher.on_begun_again = parts.deletions.forget_queues
    store.dispatcher.on_unusable = functools.partial(parts.quarantine.add, "store")


def _topic_changed(parts: Parts, name: str) -> None:
    topic = parts.topics.get(name)
    parts.store.keep_batches(name, is_on=topic is not None and BATCH_QUEUES in topic.attributes)
    if topic is None:
        parts.pops.orders.table.delete(topic=name)
    parts.registration.notify_soon(name)


def _settings_changed(parts: Parts, change: Change) -> None:
    config, store_config = parts.settings.broker, parts.settings.store
    parts.topics.config = parts.subscription_groups.config = parts.filters.config = config
    parts.request_modes.config = parts.commits.config = parts.transactions.config = config
    parts.groups.maxima = Maxima.of(config)
    parts.locks.locks_max = config.reput_locks_max
    parts.timers.config = store_config
    parts.store.retention.reconfigure(store_config)
    if "brokerPermission" in change.at_once:
        parts.topics.table.touch(parts.clock.now_ms())  # name servers ignore a known version
        for name in parts.topics.all():
            parts.topics.notify(name)
    if "namesrvAddr" in change.at_once:
        parts.registration.notify_soon()


def _messages_arrived(parts: Parts, topic: str, queue_id: int, first: int, end: int) -> None:
    parts.held_pulls.wake(topic, queue_id)
    parts.pops.arrived(topic, queue_id)
    if topic.startswith(names.LITE_PREFIX):
        parts.lite.arrived(topic)
