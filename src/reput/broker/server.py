"""The broker, assembled.

    socket -> remoting -> intake (kernel) -> store
                       -> processors -> topics, groups, offsets, locks, store
    store -> listener -> held pulls -> socket

One thread: the loop's. Only what waits for the disk runs in another one (``loops``).
"""

import asyncio
import dataclasses
import logging
import socket
from collections.abc import Mapping
from typing import Self

from reput.broker import consumer_filters
from reput.broker.assignments import RequestModes
from reput.broker.config import PERM_READ, BrokerConfig
from reput.broker.consumer_filters import ConsumerFilters
from reput.broker.delay import DelaySchedule
from reput.broker.filters import Filters
from reput.broker.groups import Groups
from reput.broker.intake import Intake
from reput.broker.live_config import Change, LiveConfig
from reput.broker.loops import Loops
from reput.broker.pop import HeldPop, Pops
from reput.broker.pop_offsets import PopOffsets
from reput.broker.pop_orders import PopOrders
from reput.broker.pop_requests import PopRequests
from reput.broker.pop_retries import PopRetries
from reput.broker.processors import PROCESSORS, pop, pull, transactions as ending
from reput.broker.pull_hold import HeldPull, HeldPulls
from reput.broker.queue_locks import QueueLocks
from reput.broker.reset_offsets import ResetOffsets
from reput.broker.retries import Retries
from reput.broker.revive import Revive
from reput.broker.route import Registration
from reput.broker.stats import Stats
from reput.broker.subscription_groups import SubscriptionGroups
from reput.broker.timers import Timers
from reput.broker.topics import READ_WRITE, Topics
from reput.broker.transactions import TOPICS as TRANSACTION_TOPICS, Transactions
from reput.clock import Clock, SystemClock
from reput.errors import RequestRefused, WriteFailed
from reput.format import bodies, command as commands, headers, names, properties as props
from reput.format.bloom import BloomFilter
from reput.format.bodies import ConsumerData, KvTable, MessageQueue, OffsetMovedEvent
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import IS_ONEWAY, Command
from reput.format.headers import ConsumerGroupHeader, PullMessageHeader
from reput.format.message import Host
from reput.remoting.channel import Channel
from reput.remoting.connection import READ_BYTES
from reput.remoting.server import RemotingServer
from reput.store.config import BrokerRole, StoreConfig
from reput.store.config_tables import BATCH_QUEUES
from reput.store.disk import Disk
from reput.store.incoming import IncomingMessage
from reput.store.light_offsets import LightConsumerOffsetTable
from reput.store.message_store import MessageStore
from reput.store.pop_tables import ConsumerOrderTable, RequestModeTable
from reput.store.table_files import (
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    SavedTable,
    SubscriptionGroup,
    SubscriptionGroupTable,
    TopicTable,
)
from reput.store.timer_table import TimerTable

FAST_PORT_DISTANCE = 2
HA_PORT_DISTANCE = 1

_log = logging.getLogger(__name__)


class Broker:
    """A broker on a store folder.

    Args:
        config: Who it is and what it allows.
        store_config: Its store.
        clock: What the time is.
        config_path: The broker.conf that all this is from: settings that are changed while the
            broker runs are written there.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        clock: Clock | None = None,
        config_path: str | None = None,
    ) -> None:
        self.config = config
        self.store_config = store_config
        self.live_config = LiveConfig(config, store_config, config_path)
        self.clock = clock or SystemClock()
        self.started_ms = self.clock.now_ms()
        self.is_stopping = False
        self.address = ""
        """What clients are told: ``brokerIP1:port``."""
        self.ha_address = ""
        self.store_host = Host(b"\x7f\0\0\1", 0)
        self._root = store_config.store_path_root_dir

    # Starting and stopping --------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, listen, and tell the name servers.

        Raises:
            StoreUnavailable: The folder is in use, or cannot be opened.
            InvalidOption: An address is wrong.
            OSError: The port is in use.
        """
        self.is_stopping = False
        self._load_filters()
        self.store = MessageStore.open(
            config=self.store_config, clock=self.clock, filters=self.consumer_filters
        )
        self._servers: list[RemotingServer] = []
        try:
            self._assemble()
            await self._listen()
        except BaseException:
            for server in self._servers:
                await server.stop()
            self.store.close()
            raise
        self.registration.start()
        self.loops.start()
        _log.info("broker %s serves %s", self.config.broker_name, self.address)

    def _load_filters(self) -> None:
        """Load the filters of groups: the store asks for them when it opens."""
        config, disk = self.config, Disk()
        disk.make_folder(self._root)
        self.filters = Filters(config)
        self.consumer_filters = ConsumerFilters(
            ConsumerFilterTable.load(self._root, disk, interval_ms=consumer_filters.SAVED_MS),
            BloomFilter.of(
                config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
            ),
            config.filter_data_clean_time_span,
            self.filters.is_expression,
        )
        self.consumer_filters.load(self.clock.now_ms())

    def _assemble(self) -> None:
        config, now_ms = self.config, self.clock.now_ms()
        disk = Disk()
        self.pop_requests = PopRequests(self)
        has_light = self.store_config.enable_lmq
        self.topics = Topics(
            TopicTable.load(self._root, disk), config, self._topic_changed, has_light=has_light
        )
        self.subscription_groups = SubscriptionGroups(
            SubscriptionGroupTable.load(self._root, disk),
            config,
            self._reading_changed,
            has_light=has_light,
        )
        offset_table = LightConsumerOffsetTable if has_light else ConsumerOffsetTable
        self._consumer_offsets = offset_table.load(
            self._root, disk, interval_ms=config.flush_consumer_offset_interval
        )
        self.store.retention.consumer_offsets = lambda: self.consumer_offsets.all()
        self.delayed = DelaySchedule(
            self.store,
            DelayOffsetTable.load(self._root, disk, interval_ms=config.flush_delay_offset_interval),
        )
        self.delayed.load()
        self.timers = Timers(
            self.store,
            TimerTable.load(self._root, disk, interval_ms=config.flush_delay_offset_interval),
        )
        self.timers.load()
        self.transactions = Transactions(
            self.store,
            self.topics,
            self._consumer_offsets,
            config,
            lambda half: ending.ask_producer(self, half),
        )
        self.transactions.load(now_ms)
        self.pops = self._assemble_pops(disk)
        self.pops.revive.load()
        self.request_modes = RequestModes(RequestModeTable.load(self._root, disk), config)
        self.groups: Groups[Channel] = Groups(self.store.deliverer.clear)
        self.locks = QueueLocks(config.rebalance_lock_max_live_time)
        self.held_pulls: HeldPulls[HeldPull] = HeldPulls(config.pull_hold_max)
        self.resets = ResetOffsets()
        self.retries = Retries(self.topics, self.subscription_groups, self.clock)
        self._stats = Stats(
            config.broker_cluster_name,
            self.store.put_counts,
            lambda: self.timers.delivered_count,
        )
        self.registration = Registration(self)
        self._buffer = bytearray(READ_BYTES)
        self.intake = Intake(self, self._buffer)
        self.loops = Loops(self)
        self.topics.add_built_in(now_ms, len(self.store_config.delay_levels_ms))
        for name in self.topics.all():
            self._topic_changed(name)
        self.subscription_groups.add_built_in(now_ms)
        self.store.add_listener(self._messages_arrived)

    def _assemble_pops(self, disk: Disk) -> Pops:
        config = self.config
        retries = PopRetries(
            config.enable_retry_topic_v2, config.retrieve_message_from_pop_retry_topic_v1
        )
        return Pops(
            self.store,
            self.topics,
            Revive(
                self.store,
                self.topics,
                self.subscription_groups,
                lambda: self.consumer_offsets,
                cluster_name=config.broker_cluster_name,
                broker_name=config.broker_name,
                queue_count=config.revive_queue_num,
                retries=retries,
            ),
            PopOffsets(lambda: self.consumer_offsets),
            PopOrders(
                ConsumerOrderTable.load(
                    self._root, disk, interval_ms=config.flush_consumer_offset_interval
                )
            ),
            HeldPulls(config.max_pop_polling_size),
            retry_percent=config.pop_from_retry_probability,
            priority_retry_percent=config.pop_from_retry_probability_for_priority,
            highest_first=config.priority_order_asc,
            broker_name=config.broker_name,
            is_old=self.is_on_disk,
            retries=retries,
        )

    async def _listen(self) -> None:
        config = self.config
        port = await self._listen_on(config.listen_port, is_fast=False)
        self.address = f"{config.broker_ip1}:{port}"
        self.ha_address = f"{config.broker_ip1}:{port + HA_PORT_DISTANCE}"
        self.store_host = Host(_packed(config.broker_ip1), port)
        self.transactions.store_host = self.store_host
        self.pops.revive.store_host = self.store_host
        self.intake.open()
        if config.fast_port_enable and port > FAST_PORT_DISTANCE:
            try:
                await self._listen_on(port - FAST_PORT_DISTANCE, is_fast=True)
            except OSError:
                if config.listen_port:
                    raise
                # The port was any: the one below it need not be free.

    async def _listen_on(self, port: int, *, is_fast: bool) -> int:
        server = RemotingServer(
            _Port(self, is_fast=is_fast),
            host=self.config.bind_address,
            port=port,
            idle_ms=self.config.server_channel_max_idle_time_seconds * 1000,
            buffer=self._buffer,
        )
        await server.start()
        self._servers.append(server)
        return server.port

    @property
    def port(self) -> int:
        """What it listens on."""
        return self._servers[0].port

    @property
    def fast_port(self) -> int:
        """The port for all but pulls; 0 if there is none."""
        return self._servers[1].port if len(self._servers) > 1 else 0

    def connection_counts(self) -> dict[str, int]:
        """Return how many connections each port has."""
        counts = [len(server.channels) for server in self._servers]
        return dict(zip(("main", "fast"), [*counts, 0], strict=False))

    async def stop(self) -> None:
        """Stop: tell the name servers, answer who waits, save and close everything."""
        self.is_stopping = True
        self.store.deliverer.close()
        try:
            await self.registration.stop()
            for held in self.held_pulls.take_all():
                pull.look_again(self, held, is_last=True)
            for waiting in self.pops.held.take_all():
                pop.look_again(self, waiting, is_last=True)
            await self.loops.stop()
            self._answer_waiting()
            # Together: what came in between would wait for a disk that nobody syncs any more.
            await asyncio.gather(*(server.stop() for server in self._servers))
            self.pops.revive.save_acks(self.clock.now_ms())
            self.delayed.close()
            self.timers.close(self.clock.now_ms())
            self.pops.tell_progress()
            self.transactions.close()
            self.save_tables()
        finally:
            self.store.close()
        _log.info("broker %s stopped", self.config.broker_name)

    def _answer_waiting(self) -> None:
        """Make durable what was put, so that producers who wait for it hear of it."""
        for step in (self.store.sync, self.store.step_memory):  # the second one if the disk failed
            try:
                step()
            except WriteFailed as error:
                _log.error("%s", error)
        self.intake.settle()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # What kernels count, too --------------------------------------------------------------------

    @property
    def consumer_offsets(self) -> ConsumerOffsetTable:
        """How far groups have read."""
        self._settle()
        return self._consumer_offsets

    @property
    def stats(self) -> Stats:
        """What was sent and pulled."""
        self._settle()
        return self._stats

    def _settle(self) -> None:
        """Take over what pulls said and got that the kernel answered."""
        deliverer = self.store.deliverer
        if not deliverer.has_news:
            return
        for one in deliverer.take():
            self._stats.delivered(one)
            if one.consumer_offset is not None:
                self._consumer_offsets.put(one.topic, one.group, one.queue_id, one.consumer_offset)

    # What it allows ---------------------------------------------------------------------------

    @property
    def is_master(self) -> bool:
        """Whether it takes messages and offsets."""
        return self.store_config.broker_role is not BrokerRole.SLAVE

    @property
    def is_readable(self) -> bool:
        """Whether messages may be pulled."""
        return self.config.broker_permission & PERM_READ != 0

    def is_on_disk(self, topic: str, queue_id: int) -> bool:
        """Whether the beginning of a queue is so far back that it is thought to be on disk only."""
        limit = self.store.memory_bytes
        return self.store.lag_bytes(topic, queue_id, 0) > limit

    def reconfigure(self, changes: Mapping[str, str]) -> Change:
        """Change settings while running; see ``LiveConfig.change``."""
        now_ms = self.clock.now_ms()
        change = self.live_config.change(changes, now_ms)
        self.config, self.store_config = self.live_config.broker, self.live_config.store
        self.topics.config = self.subscription_groups.config = self.filters.config = self.config
        self.request_modes.config = self.config
        self.transactions.config = self.config
        self.store.take_halves(is_on=self.transactions.takes_halves)
        self.store.retention.reconfigure(self.store_config)
        self.timers.config = self.store_config
        self._reading_changed()
        if "brokerPermission" in change.at_once:
            self.topics.table.touch(now_ms)  # name servers take no topics of a known version
            for name in self.topics.all():
                self._topic_changed(name)
        if "namesrvAddr" in change.at_once:
            self.registration.tell_soon()
        return change

    # Requests ---------------------------------------------------------------------------------

    def serve(self, channel: Channel, request: Command) -> Command | None:
        """Handle a request."""
        processor = PROCESSORS.get(request.code)
        if processor is None:
            raise RequestRefused(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported",
            )
        return processor(self, channel, request)

    def forget(self, channel: Channel) -> None:
        """Take note that a client is gone."""
        self.held_pulls.forget(channel)
        self.pops.held.forget(channel)
        for group in self.groups.remove(channel):
            self.member_left(group)

    def member_left(self, group: str) -> None:
        """Take note that a group has lost a member."""
        if self.groups.consumer(group) is None:
            self.consumer_filters.unregister(group, self.clock.now_ms())
        self.tell_members(group)

    def take_filters(self, member: ConsumerData) -> None:
        """Take over the SQL filters that a member of a group subscribes with."""
        now_ms = self.clock.now_ms()
        wanted = member.subscription_data_set
        has_changed = self.consumer_filters.register(
            member.group_name, wanted, now_ms, self._newest_ms
        )
        if has_changed and self.store_config.enable_calc_filter_bit_map:
            # A crash must not bring an older filter back: it would be asked for by newer bits.
            self.consumer_filters.table.save(now_ms, is_durable=False)

    def _newest_ms(self, topic: str) -> int:
        """Return the store time of the newest message of a topic; 0 if there is none."""
        known = self.topics.get(topic)
        ends = {
            queue_id: self.store.max_offset(topic, queue_id)
            for queue_id in range(known.write_queue_count if known is not None else 0)
        }
        times = (self.store.store_time(topic, one, end - 1) for one, end in ends.items() if end)
        return max((one for one in times if one is not None), default=0)

    def tell_members(self, group: str) -> None:
        """Tell the members of a group that one of them came, went or changed."""
        settings = self.subscription_groups.get(group)
        members = self.groups.consumer(group)
        if (
            members is None
            or not self.config.notify_consumer_ids_changed_enable
            or (settings is not None and not settings.notify_members_enable)
        ):
            return
        fields = headers.encode(ConsumerGroupHeader(consumer_group=group))
        for channel in members.members:
            channel.send(
                Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, flag=IS_ONEWAY, ext_fields=fields)
            )

    def make_retry_topic(self, group: SubscriptionGroup, now_ms: int) -> None:
        """Make the retry topic of a group, if it has none."""
        if group.retry_queue_count > 0:
            self.topics.for_group(
                names.retry_topic(group.name), group.retry_queue_count, READ_WRITE, now_ms
            )

    def _reading_changed(self) -> None:
        """Forget what is remembered of who may read what."""
        self.store.deliverer.clear()
        self.pop_requests.clear()

    # Topics -----------------------------------------------------------------------------------

    def take_ordered_topics(self, table: KvTable) -> None:
        """Take over from a name server which topics are consumed in order.

        A topic that it does not name stays what it was made as: so 5.x; 4.9 takes that back. The
        other name servers hear of it the next time: if two disagree, each would start the other's
        turn.
        """
        for name in table.table:
            topic = self.topics.get(name)
            if topic is not None and not topic.order:
                changed = dataclasses.replace(topic, order=True)
                self.topics.table.put(changed, self.clock.now_ms())

    def _topic_changed(self, name: str) -> None:
        self._reading_changed()
        self.store.set_write_queues(name, self.topics.write_queue_count(name))
        topic = self.topics.get(name)
        self.store.keep_batches(name, is_on=topic is not None and BATCH_QUEUES in topic.attributes)
        if name in TRANSACTION_TOPICS:
            self.store.take_halves(is_on=self.transactions.takes_halves)
        if name == names.TIMER_TOPIC:
            has_topic = self.topics.get(name) is not None
            self.store.take_timers(is_on=has_topic and self.timers.takes_all)
        if self.topics.get(name) is None:
            self.pops.orders.table.delete(topic=name)
        self.registration.tell_soon(name)

    # Messages ---------------------------------------------------------------------------------

    def _messages_arrived(self, topic: str, queue_id: int, first: int, behind: int) -> None:
        if self.held_pulls.waits_at(topic, queue_id):
            self.held_pulls.wake(topic, queue_id, self._look_again)
        self.wake_pops(topic, queue_id)

    def look_again(self, topic: str, queue_id: int) -> None:
        """Let pulls that wait at a queue look again: their group may be elsewhere now."""
        self.held_pulls.wake(topic, queue_id, self._look_again)

    def wake_pops(self, topic: str, queue_id: int) -> None:
        """Let those look again who wait to pop messages of a queue."""
        self.pops.arrived(topic, queue_id, self._pop_again)

    def step_pops(self, now_ms: int) -> bool:
        """Do what is due of what was popped, a bounded part; return whether there may be more."""
        did = self.pops.revive.step(now_ms)
        if self.topics.table.is_saved:  # a retry topic that a crash takes would take its messages
            self.pops.tell_progress()
        return self.pops.freed(now_ms, self._pop_again) or did

    def _pop_again(self, held: HeldPop) -> bool:
        return pop.look_again(self, held)

    def _look_again(self, held: HeldPull) -> bool:
        return pull.look_again(self, held)

    def expire_held_pulls(self) -> None:
        """Answer the pulls that have waited long enough."""
        for held in self.held_pulls.expire(self.clock.monotonic_ms()):
            pull.look_again(self, held, is_last=True)
        for waiting in self.pops.held.expire(self.clock.monotonic_ms()):
            pop.look_again(self, waiting, is_last=True)

    def tell_offset_moved(self, header: PullMessageHeader, next_offset: int) -> None:
        """Write down that a consumer was sent elsewhere in a queue."""
        if not self.is_master:
            return
        event = OffsetMovedEvent(
            consumer_group=header.consumer_group,
            message_queue=MessageQueue(header.topic, self.config.broker_name, header.queue_id),
            offset_new=next_offset,
            offset_request=header.queue_offset,
        )
        marks = {props.TAGS: header.consumer_group, props.KEYS: header.consumer_group}
        self.store.put(
            IncomingMessage(
                topic=names.OFFSET_MOVED_TOPIC,
                body=bodies.encode(event),
                property_bytes=props.encode(marks),
                born_timestamp=self.clock.now_ms(),
                born_host=self.store_host,
                store_host=self.store_host,
                waits=False,
            )
        )

    # Background -------------------------------------------------------------------------------

    @property
    def tables(self) -> tuple[SavedTable, ...]:
        """The small tables that it keeps on disk."""
        return (
            self.topics.table,
            self.subscription_groups.table,
            self.consumer_offsets,
            self.consumer_filters.table,
            self.delayed.table,
            self.timers.table,
            self.pops.orders.table,
            self.request_modes.table,
        )

    def save_tables(self) -> None:
        """Save all tables, at the end.

        Raises:
            WriteFailed: The first that failed. The others are saved.
        """
        now_ms = self.clock.now_ms()
        failure: WriteFailed | None = None
        for table in self.tables:
            try:
                table.save(now_ms)
            except WriteFailed as error:
                failure = failure or error
                _log.error("a table stays unsaved: %s", error)
        if failure is not None:
            raise failure

    def expire_clients(self) -> None:
        """Close the connections of members that were not heard of for too long."""
        monotonic_ms = self.clock.monotonic_ms()
        for channel in self.groups.silent(monotonic_ms - self.config.channel_expired_timeout):
            _log.warning("%s sent no heartbeat; closing the connection", channel.peer)
            channel.close()
            self.forget(channel)
        self.locks.expire(monotonic_ms)
        self.consumer_filters.expire(self.clock.now_ms())


class _Port:
    """What a port of the broker serves: everything, or on the fast one all but pulls."""

    def __init__(self, broker: Broker, *, is_fast: bool) -> None:
        self._broker = broker
        self._is_fast = is_fast

    def on_open(self, channel: Channel) -> None:
        """Take note of a new connection."""

    def on_bytes(self, channel: Channel, view: memoryview, end: int) -> int:
        """Handle what arrived."""
        return self._broker.intake.on_bytes(channel, view, end, takes_pulls=not self._is_fast)

    def on_request(self, channel: Channel, request: Command) -> Command | None:
        """Handle a request."""
        if self._is_fast and request.code in _NOT_ON_FAST_PORT:
            text = f" request type {request.code} not supported"
            return commands.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
        return self._broker.serve(channel, request)

    def on_closed(self, channel: Channel) -> None:
        """Take note of the end of a connection."""
        self._broker.forget(channel)


_NOT_ON_FAST_PORT = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


def _packed(address: str) -> bytes:
    """Return an address as records have it; a name is looked up."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, address)
        except OSError:
            continue
    return socket.inet_aton(socket.gethostbyname(address))
