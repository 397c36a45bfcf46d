"""Asks and changes what administrators do: topics, groups, brokers, offsets, messages.

    async with Admin(namesrv="127.0.0.1:9876") as admin:
        await admin.create_topic("Orders", queue_count=8)
        for name in await admin.topics():
            ...

What a cluster's brokers know separately is put together here; what has to be told to each of them
is told to each. A broker is meant by its name, which is its master, or by its ``host:port``. Topics
and groups have their full names here: a namespace is not put before them.
Offsets are those of ARCHITECTURE.md: ``queue_offset`` and ``consumer_offset`` count messages.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from reput import config
from reput.client.config import ClientConfig, client_config
from reput.client.core import requests
from reput.client.core.route_cache import MASTER_ID, NoRoute, TopicRoute
from reput.client.instance import ClientInstance, Guest, NotStarted
from reput.client.message import ReceivedMessage, check_group, check_topic, received
from reput.clock import Clock
from reput.errors import Answered, CorruptRecord, InvalidOption, RemotingError, ReputError
from reput.format import bodies, headers, message_id as ids, names
from reput.format.bodies import (
    BrokerStats,
    ClusterInfo,
    Connection,
    ConsumeDirectlyResult,
    ConsumeQueueUnits,
    ConsumerConnection,
    ConsumerRunningInfo,
    MessageQueue,
    ProducerInfo,
    QueueTimeSpan,
    SubscriptionGroupConfig,
    TopicConfigData,
    TopicOffset,
)
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command

PERM_READ_WRITE = 6
DEFAULT_QUEUE_COUNT = 8
KEY_QUERY_COUNT_MAX = 64
"""A broker of 4.9 gives no more messages of one key, whatever is asked for."""
END_OF_TIME_MS = config.JAVA_LONG_MAX


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Where a group is in a queue."""

    queue: MessageQueue
    broker_offset: int
    """Where the next message goes."""
    consumer_offset: int
    last_timestamp_ms: int
    """Store time of the last message that was consumed; 0: none, or it is gone."""

    @property
    def lag(self) -> int:
        """Messages that the group has not consumed yet."""
        return self.broker_offset - self.consumer_offset


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """Where a group is in all of its queues."""

    queues: tuple[QueueProgress, ...]
    """By topic, broker and queue."""
    consume_tps: float

    @property
    def lag(self) -> int:
        """Messages that the group has not consumed yet."""
        return sum(one.lag for one in self.queues)

    @property
    def topics(self) -> list[str]:
        """What the group reads, its retry topic included."""
        return sorted({one.queue.topic for one in self.queues})


class PartlyDone(ReputError):
    """Something that every broker or name server had to be told was not done by all of them.

    Args:
        done: The addresses where it was done.
        failed: Address -> why not there.
    """

    def __init__(self, done: Collection[str], failed: Mapping[str, RemotingError]) -> None:
        self.done = list(done)
        self.failed = dict(failed)
        self.retriable = all(error.retriable for error in failed.values())
        reasons = "; ".join(f"{address}: {error}" for address, error in failed.items())
        super().__init__(f"not done everywhere: {reasons} (done at: {', '.join(done) or 'none'})")


class Admin:
    """Administers the clusters of some name servers. Use it as ``async with``.

    All methods raise ``RemotingError`` where nobody answers, and ``Answered``, which is one, with
    the code and text of whoever refuses.

    Args:
        namesrv: ``host:port;host:port``; or ``client`` instead.
        client: Name servers, and how long requests may take.
        clock: The system's, unless a test has its own.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        client: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._client_config = client_config(namesrv, client)
        self._clock = clock
        self._instance: ClientInstance | None = None
        self._guest = Guest()

    # --- coming and going -------------------------------------------------------

    async def start(self) -> None:
        """Begin; nobody is asked anything yet."""
        if self._instance is None:
            self._instance = await ClientInstance.join(
                self._client_config, self._guest, clock=self._clock
            )

    async def close(self) -> None:
        """End; what waits for a reply fails."""
        instance, self._instance = self._instance, None
        if instance is not None:
            await instance.leave(self._guest)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- clusters and brokers ---------------------------------------------------

    async def clusters(self) -> ClusterInfo:
        """Return clusters with their brokers, and brokers with their addresses."""
        reply = await self._ask_name_server(requests.make(RequestCode.GET_BROKER_CLUSTER_INFO))
        return bodies.decode(ClusterInfo, reply.body)

    async def broker_status(self, broker: str) -> dict[str, str]:
        """Return what a broker measures of itself: ``msgPutTotalTodayNow``, ``putTps``, ..."""
        reply = await self._ask_broker(broker, requests.make(RequestCode.GET_BROKER_RUNTIME_INFO))
        return dict(sorted(bodies.decode(bodies.KvTable, reply.body).table.items()))

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Return a broker's settings, by RocketMQ's names."""
        reply = await self._ask_broker(broker, requests.make(RequestCode.GET_BROKER_CONFIG))
        return config.parse_properties(reply.body.decode())

    async def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker, by RocketMQ's names."""
        await self._ask_broker(
            broker,
            requests.make(RequestCode.UPDATE_BROKER_CONFIG, body=_property_lines(settings)),
        )

    async def broker_stats(self, broker: str, name: str, key: str) -> BrokerStats | None:
        """Return how often something happened in the last minute, hour and day.

        Args:
            broker: Name or address.
            name: ``TOPIC_PUT_NUMS``, ``GROUP_GET_NUMS``, ...
            key: A topic, ``topic@group``, or cluster, as the name demands.

        Returns:
            None if nothing was counted.
        """
        header = headers.StatsHeader(stats_name=name, stats_key=key)
        try:
            reply = await self._ask_broker(
                broker, requests.make(RequestCode.VIEW_BROKER_STATS_DATA, header)
            )
        except Answered as error:
            if error.response_code == ResponseCode.SYSTEM_ERROR:
                return None
            raise
        return bodies.decode(BrokerStats, reply.body)

    async def wipe_write_perm(self, broker_name: str) -> int:
        """Take a broker out of the routes of producers; returns the number of its topics.

        Raises:
            PartlyDone: Some name servers did not do it.
        """
        replies = await self._tell_name_servers(
            lambda: requests.make(
                RequestCode.WIPE_WRITE_PERM_OF_BROKER,
                headers.BrokerNameHeader(broker_name=broker_name),
            )
        )
        fields = replies[0].ext_fields
        return headers.decode(headers.WipeWritePermReplyHeader, fields).wipe_topic_count

    async def add_write_perm(self, broker_name: str) -> int:
        """Undo ``wipe_write_perm``; returns the number of its topics. Raises the same."""
        replies = await self._tell_name_servers(
            lambda: requests.make(
                RequestCode.ADD_WRITE_PERM_OF_BROKER,
                headers.BrokerNameHeader(broker_name=broker_name),
            )
        )
        fields = replies[0].ext_fields
        return headers.decode(headers.AddWritePermReplyHeader, fields).add_topic_count

    # --- name servers -----------------------------------------------------------

    async def name_server_config(self) -> dict[str, str]:
        """Return the settings of one name server."""
        reply = await self._ask_name_server(requests.make(RequestCode.GET_NAMESRV_CONFIG))
        return config.parse_properties(reply.body.decode())

    async def update_name_server_config(self, settings: Mapping[str, str]) -> None:
        """Change settings of all name servers. Raises ``PartlyDone``."""
        body = _property_lines(settings)
        await self._tell_name_servers(
            lambda: requests.make(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
        )

    async def kv(self, namespace: str, key: str) -> str | None:
        """Return a value of the name servers' key-value table; None if there is none."""
        header = headers.KvHeader(namespace=namespace, key=key)
        try:
            reply = await self._ask_name_server(requests.make(RequestCode.GET_KV_CONFIG, header))
        except Answered as error:
            if error.response_code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return headers.decode(headers.KvReplyHeader, reply.ext_fields).value

    async def kv_of_namespace(self, namespace: str) -> dict[str, str]:
        """Return all keys and values of a namespace."""
        header = headers.NamespaceHeader(namespace=namespace)
        try:
            reply = await self._ask_name_server(
                requests.make(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
            )
        except Answered as error:
            if error.response_code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise
        return bodies.decode(bodies.KvTable, reply.body).table

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a value at all name servers. Raises ``PartlyDone``."""
        header = headers.KvHeader(namespace=namespace, key=key, value=value)
        await self._tell_name_servers(lambda: requests.make(RequestCode.PUT_KV_CONFIG, header))

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value at all name servers. Raises ``PartlyDone``."""
        header = headers.KvHeader(namespace=namespace, key=key)
        await self._tell_name_servers(lambda: requests.make(RequestCode.DELETE_KV_CONFIG, header))

    # --- topics -----------------------------------------------------------------

    async def topics(self, *, cluster: str | None = None) -> list[str]:
        """Return all topics, or those of a cluster; retry and system topics too, sorted."""
        if cluster is None:
            request = requests.make(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            header = headers.ClusterHeader(cluster=cluster)
            request = requests.make(RequestCode.GET_TOPICS_BY_CLUSTER, header)
        reply = await self._ask_name_server(request)
        return sorted(set(bodies.decode(bodies.TopicList, reply.body).topic_list))

    async def topic_route(self, topic: str) -> TopicRoute:
        """Return where a topic is, as of now. Raises ``NoRoute``."""
        return await self._joined().route(topic, refresh=True)

    async def topic_configs(self, broker: str) -> dict[str, TopicConfigData]:
        """Return a broker's topics with their settings, by name."""
        reply = await self._ask_broker(broker, requests.make(RequestCode.GET_ALL_TOPIC_CONFIG))
        table = bodies.decode(bodies.TopicConfigTable, reply.body).topic_config_table
        return dict(sorted(table.items()))

    async def create_topic(
        self,
        topic: str,
        *,
        queue_count: int = DEFAULT_QUEUE_COUNT,
        write_queue_count: int | None = None,
        perm: int = PERM_READ_WRITE,
        is_ordered: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Make a topic, or change one that is there, on the masters of a cluster or on one broker.

        Args:
            topic: Its name.
            queue_count: Queues to read from, on each broker.
            write_queue_count: Queues to write to; as many, if not given.
            perm: 4 read, 2 write, added up.
            is_ordered: Whether the broker refuses sends while it may not be written to.
            cluster: Whose brokers; may be left out where there is but one.
            broker: Name or address of one broker, instead of a cluster.
            attributes: Of 5.x: ``message.type`` and such.

        Returns:
            The addresses of the brokers.

        Raises:
            InvalidOption: A name or number is not allowed.
            PartlyDone: Some brokers did not do it.
        """
        check_topic(topic)
        for name, count in (("queue_count", queue_count), ("write_queue_count", write_queue_count)):
            if count is not None and count < 1:
                raise InvalidOption(name, count, "at least 1")
        if not 0 <= perm <= 7:
            raise InvalidOption("perm", perm, "2 write and 4 read, added up")
        header = headers.CreateTopicHeader(
            topic=topic,
            default_topic=names.AUTO_CREATE_TOPIC,
            read_queue_nums=queue_count,
            write_queue_nums=queue_count if write_queue_count is None else write_queue_count,
            perm=perm,
            topic_sys_flag=0,
            order=is_ordered,
            attributes=",".join(f"+{key}={value}" for key, value in (attributes or {}).items())
            or None,
        )
        return await self._tell_brokers(
            await self._masters(cluster, broker),
            lambda: requests.make(RequestCode.UPDATE_AND_CREATE_TOPIC, header),
        )

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages, on the brokers of a cluster and at the name servers.

        Raises:
            InvalidOption: There are several clusters, and none was named.
            PartlyDone: Some did not do it.
        """
        check_topic(topic)
        header = headers.TopicHeader(topic=topic)
        await self._tell_brokers(
            await self._masters(cluster, None),
            lambda: requests.make(RequestCode.DELETE_TOPIC_IN_BROKER, header),
        )
        await self._tell_name_servers(
            lambda: requests.make(
                RequestCode.DELETE_TOPIC_IN_NAMESRV,
                headers.DeleteTopicInNameServerHeader(topic=topic, cluster_name=cluster),
            )
        )

    async def topic_status(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return where each queue of a topic begins and ends, and when it last got a message."""
        header = headers.TopicHeader(topic=topic)
        found: dict[MessageQueue, TopicOffset] = {}
        for reply in await self._ask_all(
            await self._masters_of_topic(topic),
            lambda: requests.make(RequestCode.GET_TOPIC_STATS_INFO, header),
        ):
            found.update(bodies.decode(bodies.TopicStats, reply.body).offset_table)
        return dict(sorted(found.items()))

    async def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups that have a consumer offset in a topic, or members that read it."""
        header = headers.TopicHeader(topic=topic)
        replies = await self._ask_all(
            await self._masters_of_topic(topic),
            lambda: requests.make(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header),
        )
        found = (bodies.decode(bodies.GroupList, reply.body).group_list for reply in replies)
        return sorted(set(itertools.chain.from_iterable(found)))

    # --- groups -----------------------------------------------------------------

    async def groups(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, SubscriptionGroupConfig]:
        """Return the consumer groups with their settings, by name.

        Args:
            cluster: Whose brokers; all clusters', if neither is given.
            broker: Name or address of one broker, instead of a cluster.
        """
        addresses = await self._masters(cluster, broker, is_one_cluster=False)
        found: dict[str, SubscriptionGroupConfig] = {}
        for reply in await self._ask_all(
            addresses, lambda: requests.make(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        ):
            table = bodies.decode(bodies.SubscriptionGroupTable, reply.body)
            found.update(table.subscription_group_table)
        return dict(sorted(found.items()))

    async def create_group(
        self,
        group: str | SubscriptionGroupConfig,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Make a consumer group, or change one that is there.

        Args:
            group: Its name, or all of its settings.
            cluster: Whose brokers; may be left out where there is but one.
            broker: Name or address of one broker, instead of a cluster.

        Returns:
            The addresses of the brokers.

        Raises:
            InvalidOption: The name is not allowed, or it is not clear where.
            PartlyDone: Some brokers did not do it.
        """
        if isinstance(group, str):
            group = SubscriptionGroupConfig(group_name=group)
        check_group("group", group.group_name)
        body = bodies.encode(group)
        return await self._tell_brokers(
            await self._masters(cluster, broker),
            lambda: requests.make(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body),
        )

    async def delete_group(
        self,
        group: str,
        *,
        has_offsets_removed: bool = True,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Delete a consumer group.

        Args:
            group: Its name.
            has_offsets_removed: Its consumer offsets go too: a new group of the name begins anew.
            cluster: Whose brokers; may be left out where there is but one.
            broker: Name or address of one broker, instead of a cluster.

        Raises:
            InvalidOption: It is not clear where.
            PartlyDone: Some brokers did not do it.
        """
        header = headers.GroupNameHeader(
            group_name=group, remove_offset=has_offsets_removed, clean_offset=has_offsets_removed
        )
        await self._tell_brokers(
            await self._masters(cluster, broker),
            lambda: requests.make(RequestCode.DELETE_SUBSCRIPTIONGROUP, header),
        )

    async def consumer_connection(self, group: str) -> ConsumerConnection | None:
        """Return the members of a consumer group and what they want; None if it has none."""
        header = headers.ConsumerGroupHeader(consumer_group=group)
        found: ConsumerConnection | None = None
        for reply in await self._ask_all(
            await self._masters_of_group(group),
            lambda: requests.make(RequestCode.GET_CONSUMER_CONNECTION_LIST, header),
            absent=ResponseCode.CONSUMER_NOT_ONLINE,
        ):
            part = bodies.decode(ConsumerConnection, reply.body)
            if found is None:
                found = part
            else:
                found.subscription_table.update(part.subscription_table)
                found.connection_set += part.connection_set
        if found is not None:
            found.connection_set = _each_client_once(found.connection_set)
        return found

    async def producer_connection(self, group: str, topic: str) -> list[Connection]:
        """Return the members of a producer group, of the brokers of a topic."""
        header = headers.ProducerGroupHeader(producer_group=group)
        replies = await self._ask_all(
            await self._masters_of_topic(topic),
            lambda: requests.make(RequestCode.GET_PRODUCER_CONNECTION_LIST, header),
            absent=ResponseCode.SYSTEM_ERROR,
        )
        return _each_client_once(
            one
            for reply in replies
            for one in bodies.decode(bodies.ProducerConnection, reply.body).connection_set
        )

    async def producers(self, broker: str) -> dict[str, list[ProducerInfo]]:
        """Return a broker's producer groups with their members."""
        reply = await self._ask_broker(broker, requests.make(RequestCode.GET_ALL_PRODUCER_INFO))
        return dict(sorted(bodies.decode(bodies.ProducerTable, reply.body).data.items()))

    async def consumer_running_info(
        self, group: str, client_id: str, *, has_stacks: bool = False
    ) -> ConsumerRunningInfo:
        """Return what a member of a consumer group tells of itself.

        Args:
            group: Of consumers.
            client_id: One of ``consumer_connection``.
            has_stacks: With the stacks of its threads.
        """
        header = headers.ConsumerRunningInfoHeader(
            consumer_group=group, client_id=client_id, jstack_enable=has_stacks
        )
        reply = await self._ask_any_of(
            await self._masters_of_group(group),
            lambda: requests.make(RequestCode.GET_CONSUMER_RUNNING_INFO, header),
        )
        return bodies.decode(ConsumerRunningInfo, reply.body)

    async def consume_directly(
        self, group: str, client_id: str, message: ReceivedMessage
    ) -> ConsumeDirectlyResult:
        """Let a member of a consumer group consume a message again, and return how it went."""
        header = headers.ConsumeDirectlyHeader(
            consumer_group=group, client_id=client_id, msg_id=message.offset_message_id
        )
        reply = await self._joined().ask(
            str(message.store_host), requests.make(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        )
        return bodies.decode(ConsumeDirectlyResult, reply.body)

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return where a group is in its queues, and how much is left to consume.

        Args:
            group: Of consumers.
            topic: Only this one; all that it reads, if not given.
        """
        header = headers.ConsumeStatsHeader(consumer_group=group, topic=topic)
        tps = 0.0
        queues: list[QueueProgress] = []
        for reply in await self._ask_all(
            await self._masters_of_group(group),
            lambda: requests.make(RequestCode.GET_CONSUME_STATS, header),
        ):
            part = bodies.decode(bodies.ConsumeStats, reply.body)
            tps += part.consume_tps
            queues += (
                QueueProgress(queue, one.broker_offset, one.consumer_offset, one.last_timestamp)
                for queue, one in part.offset_table.items()
            )
        return ConsumeStats(tuple(sorted(queues, key=lambda one: one.queue)), tps)

    async def consume_time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """Return, by queue, from when to when there are messages, and how late a group is, ms."""
        header = headers.TimeSpanHeader(topic=topic, group=group)
        replies = await self._ask_all(
            await self._masters_of_topic(topic),
            lambda: requests.make(RequestCode.QUERY_CONSUME_TIME_SPAN, header),
        )
        spans = [
            span
            for reply in replies
            for span in bodies.decode(bodies.TimeSpans, reply.body).consume_time_span_set
        ]
        return sorted(spans, key=lambda span: span.message_queue)

    # --- offsets ----------------------------------------------------------------

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return where a group is in a queue; None if it has never been there.

        A broker says 0, and not None, of a young queue that still has its first message.
        """
        header = headers.QueryConsumerOffsetHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id
        )
        try:
            reply = await self._ask_queue(
                queue, requests.make(RequestCode.QUERY_CONSUMER_OFFSET, header)
            )
        except Answered as error:
            if error.response_code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return _offset(reply)

    async def update_consumer_offset(
        self, group: str, queue: MessageQueue, consumer_offset: int
    ) -> None:
        """Set where a group is in a queue. Members that are running overwrite it: stop them."""
        if consumer_offset < 0:
            raise InvalidOption("consumer_offset", consumer_offset, "0 or more")
        header = headers.UpdateConsumerOffsetHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=consumer_offset,
        )
        await self._ask_queue(queue, requests.make(RequestCode.UPDATE_CONSUMER_OFFSET, header))

    async def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int, *, is_forced: bool = True
    ) -> dict[MessageQueue, int]:
        """Let a group go on with the messages of a time, whether it is running or not.

        Args:
            group: Of consumers.
            topic: Whose queues.
            timestamp_ms: Store time of the first message; -1: only those that are yet to come.
            is_forced: Also forwards; else only to where it has been before.

        Returns:
            The new consumer offsets.
        """
        if timestamp_ms < -1:
            raise InvalidOption("timestamp_ms", timestamp_ms, "ms since the epoch, or -1")
        header = headers.ResetOffsetHeader(
            topic=topic, group=group, timestamp=timestamp_ms, is_force=is_forced
        )
        route = await self.topic_route(topic)
        found: dict[MessageQueue, int] = {}
        for broker_name in sorted(route.brokers):
            request = requests.make(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            try:
                reply = await self._joined().ask(route.master(broker_name), request)
            except Answered:
                # One of two codes if nobody runs who could be told. The table then decides alone.
                if await self.consumer_connection(group) is not None:
                    raise
                found.update(
                    await self._reset_offline(group, route, broker_name, timestamp_ms, is_forced)
                )
            else:
                found.update(bodies.decode(bodies.ResetOffsets, reply.body).offset_table)
        return dict(sorted(found.items()))

    async def _reset_offline(
        self, group: str, route: TopicRoute, broker_name: str, timestamp_ms: int, is_forced: bool
    ) -> dict[MessageQueue, int]:
        found: dict[MessageQueue, int] = {}
        for queue in route.subscribe_queues:
            if queue.broker_name != broker_name:
                continue
            if timestamp_ms == -1:
                wanted = await self.max_offset(queue)
            else:
                wanted = await self.search_offset(queue, timestamp_ms)
            if not is_forced:
                known = await self.consumer_offset(group, queue)
                wanted = wanted if known is None else min(known, wanted)
            await self.update_consumer_offset(group, queue, wanted)
            found[queue] = wanted
        return found

    async def clone_offsets(self, from_group: str, to_group: str, topic: str) -> None:
        """Let a group be where another one is, in the queues of a topic."""
        header = headers.CloneGroupOffsetHeader(
            src_group=from_group, dest_group=to_group, topic=topic, offline=False
        )
        await self._tell_brokers(
            await self._masters_of_group(from_group),
            lambda: requests.make(RequestCode.CLONE_GROUP_OFFSET, header),
        )

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the queue offset of the oldest message."""
        return _offset(await self._ask_queue(queue, _queue(RequestCode.GET_MIN_OFFSET, queue)))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the queue offset that the next message will get."""
        return _offset(await self._ask_queue(queue, _queue(RequestCode.GET_MAX_OFFSET, queue)))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the queue offset of the first message stored at a time or later.

        Brokers before 5.1.1 return the nearest, which may be the one before.
        """
        header = headers.SearchOffsetHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
        )
        request = requests.make(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return _offset(await self._ask_queue(queue, request))

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return when the oldest message was stored, ms since the epoch.

        Of a queue that is empty brokers say -1, or what they like.
        """
        request = _queue(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
        reply = await self._ask_queue(queue, request)
        return headers.decode(headers.TimestampReplyHeader, reply.ext_fields).timestamp

    async def consume_queue(
        self, queue: MessageQueue, queue_offset: int, count: int, group: str | None = None
    ) -> ConsumeQueueUnits:
        """Return units of a queue's index, and with a group whether its filter takes each."""
        header = headers.QueryConsumeQueueHeader(
            topic=queue.topic,
            queue_id=queue.queue_id,
            index=queue_offset,
            count=count,
            consumer_group=group,
        )
        request = requests.make(RequestCode.QUERY_CONSUME_QUEUE, header)
        return bodies.decode(ConsumeQueueUnits, (await self._ask_queue(queue, request)).body)

    # --- messages ---------------------------------------------------------------

    async def message_by_offset_id(self, offset_message_id: str) -> ReceivedMessage | None:
        """Return the message that an offset id leads to; None if there is none.

        The broker that the id names is asked, whether name servers know it or not.

        Raises:
            InvalidOption: It is no offset id.
        """
        try:
            place = ids.decode_offset_id(offset_message_id)
        except ValueError as error:
            raise InvalidOption("offset_message_id", offset_message_id, str(error)) from error
        address = str(place.store_host)
        header = headers.ViewMessageHeader(offset=place.physical_offset)
        try:
            reply = await self._joined().ask(
                address, requests.make(RequestCode.VIEW_MESSAGE_BY_ID, header)
            )
        except Answered as error:
            if error.response_code == ResponseCode.SYSTEM_ERROR:
                return None
            raise
        try:
            (message,) = received(reply.body, await self._name_of(address))
            is_there = message.physical_offset == place.physical_offset
        except (CorruptRecord, ValueError):
            # A broker sends what it finds there, and looks only at the first four bytes.
            return None
        return message if is_there else None

    async def message_by_unique_key(self, topic: str, unique_key: str) -> ReceivedMessage | None:
        """Return the message with this id, the one in ``SendResult``; None if there is none.

        A message that was sent twice, after a lost reply, is given as it was stored first.
        """
        header = headers.QueryMessageHeader(
            topic=topic,
            key=unique_key,
            max_num=KEY_QUERY_COUNT_MAX,
            begin_timestamp=0,
            end_timestamp=END_OF_TIME_MS,
            is_unique_key=True,
        )
        found = await self._query(topic, header)
        same = [one for one in found if one.stored.unique_key == unique_key]
        return min(same, key=lambda one: one.store_timestamp_ms, default=None)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = KEY_QUERY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
    ) -> list[ReceivedMessage]:
        """Return messages of a topic that have a key, oldest first.

        Args:
            topic: Where.
            key: One of a message's ``keys``.
            count_max: Of each broker, which gives the newest; 4.9 gives no more than 64.
            begin_ms: The earliest store time.
            end_ms: The latest store time.
        """
        header = headers.QueryMessageHeader(
            topic=topic,
            key=key,
            max_num=count_max,
            # The index has whole seconds: a broker passes over what is in the first of them.
            begin_timestamp=max(0, begin_ms - 1000),
            end_timestamp=end_ms,
            is_unique_key=False,
        )
        found = await self._query(topic, header)
        same = [
            one for one in found if key in one.keys and begin_ms <= one.store_timestamp_ms <= end_ms
        ]
        return sorted(same, key=lambda one: one.store_timestamp_ms)

    async def _query(self, topic: str, header: headers.QueryMessageHeader) -> list[ReceivedMessage]:
        """Ask one broker of each name; those of equal hashes are left out."""
        route = await self.topic_route(topic)
        found: list[ReceivedMessage] = []
        for broker_name in sorted(route.brokers):
            request = requests.make(RequestCode.QUERY_MESSAGE, header)
            try:
                reply = await self._joined().ask(route.any_address(broker_name), request)
            except Answered as error:
                if error.response_code != ResponseCode.QUERY_NOT_FOUND:
                    raise
            else:
                found += received(reply.body, broker_name)
        return [one for one in found if topic in (one.stored.topic, one.topic)]

    # --- whom to ask ------------------------------------------------------------

    def _joined(self) -> ClientInstance:
        if self._instance is None:
            raise NotStarted("admin client")
        return self._instance

    async def _ask_name_server(self, request: Command) -> Command:
        reply = await self._joined().ask_name_server(request)
        if reply.code != ResponseCode.SUCCESS:
            raise Answered(reply.code, reply.remark)
        return reply

    async def _ask_broker(self, broker: str, request: Command) -> Command:
        return await self._joined().ask(await self._address(broker), request)

    async def _ask_queue(self, queue: MessageQueue, request: Command) -> Command:
        route = await self._joined().route(queue.topic)
        if queue.broker_name not in route.brokers:
            route = await self.topic_route(queue.topic)
        return await self._joined().ask(route.any_address(queue.broker_name), request)

    async def _ask_all(
        self,
        addresses: Iterable[str],
        request: Callable[[], Command],
        *,
        absent: int | None = None,
    ) -> list[Command]:
        """Ask several brokers; a reply of the code ``absent`` is left out, others are raised."""
        replies = []
        for address in addresses:
            try:
                replies.append(await self._joined().ask(address, request()))
            except Answered as error:
                if error.response_code != absent:
                    raise
        return replies

    async def _ask_any_of(
        self, addresses: Iterable[str], request: Callable[[], Command]
    ) -> Command:
        """Ask brokers one by one, until one knows. Raises what the last of them said."""
        refusal: Answered | None = None
        for address in addresses:
            try:
                return await self._joined().ask(address, request())
            except Answered as error:
                refusal = error
        if refusal is None:
            raise InvalidOption("group", None, "one with a broker: none is registered")
        raise refusal

    async def _tell_brokers(
        self, addresses: Iterable[str], request: Callable[[], Command]
    ) -> list[str]:
        """Tell each of some brokers, whatever the others say; returns their addresses."""
        done: list[str] = []
        failed: dict[str, RemotingError] = {}
        for address in addresses:
            try:
                await self._joined().ask(address, request())
            except RemotingError as error:
                failed[address] = error
            else:
                done.append(address)
        if failed:
            raise PartlyDone(done, failed)
        return done

    async def _tell_name_servers(self, request: Callable[[], Command]) -> list[Command]:
        """Tell each name server: they do not tell each other. Returns what each answers."""
        replies: dict[str, Command] = {}
        failed: dict[str, RemotingError] = {}
        for address in self._joined().name_servers:
            try:
                replies[address] = await self._joined().ask(address, request())
            except RemotingError as error:
                failed[address] = error
        if failed:
            raise PartlyDone(list(replies), failed)
        return list(replies.values())

    async def _masters_of_topic(self, topic: str) -> list[str]:
        """Return the masters of a topic; where only slaves are left, nobody knows more."""
        route = await self.topic_route(topic)
        addresses = (route.address(broker_name) for broker_name in sorted(route.brokers))
        return [address for address in addresses if address is not None]

    async def _masters_of_group(self, group: str) -> list[str]:
        """Return the masters that know a group: all, if it has had no member yet."""
        try:
            return await self._masters_of_topic(names.retry_topic(group))
        except NoRoute:
            return await self._masters(None, None, is_one_cluster=False)

    async def _masters(
        self, cluster: str | None, broker: str | None, *, is_one_cluster: bool = True
    ) -> list[str]:
        """Return the masters' addresses of a cluster, of the only one or of all, or one broker's.

        Raises:
            InvalidOption: There is no such cluster, or several to choose from, or both were given.
        """
        if broker is not None:
            if cluster is not None:
                raise InvalidOption("broker", broker, "nothing, where a cluster is given as well")
            return [await self._address(broker)]
        known = await self.clusters()
        clusters = known.cluster_addr_table
        allowed = ", ".join(sorted(clusters)) or "none: no broker is registered"
        if cluster is not None:
            if cluster not in clusters:
                raise InvalidOption("cluster", cluster, allowed)
            chosen = [cluster]
        elif is_one_cluster and len(clusters) != 1:
            raise InvalidOption("cluster", cluster, f"one of {allowed}")
        else:
            chosen = sorted(clusters)
        broker_names = sorted({name for one in chosen for name in clusters[one]})
        addresses = (known.broker_addr_table[name].broker_addrs for name in broker_names)
        return [one[MASTER_ID] for one in addresses if MASTER_ID in one]

    async def _address(self, broker: str) -> str:
        """Return the address of a broker: of its master, by name, or as it is given."""
        if ":" in broker:
            return broker
        table = (await self.clusters()).broker_addr_table
        address = table[broker].broker_addrs.get(MASTER_ID) if broker in table else None
        if address is None:
            allowed = ", ".join(sorted(table)) or "host:port: no broker is registered"
            raise InvalidOption("broker", broker, allowed)
        return address

    async def _name_of(self, address: str) -> str:
        """Return the name of the broker at an address; empty if name servers do not know it."""
        table = (await self.clusters()).broker_addr_table
        found = (name for name, one in table.items() if address in one.broker_addrs.values())
        return next(found, "")


def _offset(reply: Command) -> int:
    return headers.decode(headers.OffsetReplyHeader, reply.ext_fields).offset


def _queue(code: RequestCode, queue: MessageQueue) -> Command:
    header = headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
    return requests.make(code, header)


def _each_client_once(connections: Iterable[Connection]) -> list[Connection]:
    """Return connections by client id: a client has one to each broker."""
    found = {one.client_id: one for one in connections}
    return [found[client_id] for client_id in sorted(found)]


def _property_lines(settings: Mapping[str, str]) -> bytes:
    """Return settings as Java's ``Properties`` reads them."""
    lines = []
    for name, value in settings.items():
        if not name or any(one in name for one in "=: \t\r\n\\"):
            raise InvalidOption("settings", name, "names of settings")
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        lines.append(f"{name}={escaped}\n")
    return "".join(lines).encode()
