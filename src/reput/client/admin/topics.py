"""Topics: names, routes, settings."""

import itertools
from collections.abc import Mapping

from reput.client.admin.cluster_calls import AdminConnection
from reput.client.core import requests
from reput.client.core.route_cache import TopicRoute
from reput.client.message import check_topic
from reput.errors import InvalidOption
from reput.format import bodies, headers, names
from reput.format.bodies import MessageQueue, TopicConfigData, TopicOffset
from reput.format.codes import PERM_READ, PERM_WRITE, RequestCode

DEFAULT_QUEUE_COUNT = 8


async def topics(admin: AdminConnection, *, cluster: str | None = None) -> list[str]:
    """Return all topics, or those of a cluster, sorted; includes retry and system topics."""
    if cluster is None:
        request = requests.make(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    else:
        header = headers.ClusterHeader(cluster=cluster)
        request = requests.make(RequestCode.GET_TOPICS_BY_CLUSTER, header)
    reply = await admin.calls.ask_name_server(request)
    return sorted(set(bodies.decode(bodies.TopicList, reply.body).topic_list))


async def topic_route(admin: AdminConnection, topic: str) -> TopicRoute:
    """Return the current route of a topic. Raises ``NoRoute``."""
    return await admin.calls.route(topic)


async def topic_configs(admin: AdminConnection, broker: str) -> dict[str, TopicConfigData]:
    """Return a broker's topics with their settings, by name."""
    reply = await admin.calls.ask_broker(broker, requests.make(RequestCode.GET_ALL_TOPIC_CONFIG))
    table = bodies.decode(bodies.TopicConfigTable, reply.body).topic_config_table
    return dict(sorted(table.items()))


async def create_topic(
    admin: AdminConnection,
    topic: str,
    *,
    queue_count: int = DEFAULT_QUEUE_COUNT,
    write_queue_count: int | None = None,
    perm: int = PERM_READ | PERM_WRITE,
    is_ordered: bool = False,
    cluster: str | None = None,
    broker: str | None = None,
    attributes: Mapping[str, str] | None = None,
) -> list[str]:
    """Create or change a topic, on the masters of a cluster or on one broker.

    Args:
        topic: Its name.
        queue_count: Number of readable queues per broker.
        write_queue_count: Number of writable queues per broker; None: equal.
        perm: Sum of 4 (read) and 2 (write).
        is_ordered: Reject sends while the topic is not writable.
        cluster: Cluster; optional if there is only one.
        broker: Name or address of one broker, instead of a cluster.
        attributes: Attributes of 5.x, such as ``message.type``.

    Returns:
        The addresses of the brokers.

    Raises:
        InvalidOption: A name or number is not allowed.
        PartlyDone: Some brokers failed.
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
        attributes=",".join(f"+{key}={value}" for key, value in (attributes or {}).items()) or None,
    )
    return await admin.calls.change_brokers(
        await admin.calls.masters(cluster, broker),
        lambda: requests.make(RequestCode.UPDATE_AND_CREATE_TOPIC, header),
    )


async def delete_topic(admin: AdminConnection, topic: str, *, cluster: str | None = None) -> None:
    """Delete a topic with its messages, on the brokers of a cluster and at the name servers.

    Raises:
        InvalidOption: There are several clusters, and none was given.
        PartlyDone: Some servers failed.
    """
    check_topic(topic)
    header = headers.TopicHeader(topic=topic)
    await admin.calls.change_brokers(
        await admin.calls.masters(cluster, None),
        lambda: requests.make(RequestCode.DELETE_TOPIC_IN_BROKER, header),
    )
    await admin.calls.change_name_servers(
        lambda: requests.make(
            RequestCode.DELETE_TOPIC_IN_NAMESRV,
            headers.DeleteTopicInNameServerHeader(topic=topic, cluster_name=cluster),
        )
    )


async def topic_status(admin: AdminConnection, topic: str) -> dict[MessageQueue, TopicOffset]:
    """Return the offsets of each queue of a topic, and the time of its last message."""
    header = headers.TopicHeader(topic=topic)
    offsets: dict[MessageQueue, TopicOffset] = {}
    for reply in await admin.calls.ask_all(
        await admin.calls.masters_of_topic(topic),
        lambda: requests.make(RequestCode.GET_TOPIC_STATS_INFO, header),
    ):
        offsets.update(bodies.decode(bodies.TopicStats, reply.body).offset_table)
    return dict(sorted(offsets.items()))


async def groups_of_topic(admin: AdminConnection, topic: str) -> list[str]:
    """Return the groups with a consumer offset in a topic, or with members that read it."""
    header = headers.TopicHeader(topic=topic)
    replies = await admin.calls.ask_all(
        await admin.calls.masters_of_topic(topic),
        lambda: requests.make(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header),
    )
    groups = (bodies.decode(bodies.GroupList, reply.body).group_list for reply in replies)
    return sorted(set(itertools.chain.from_iterable(groups)))
