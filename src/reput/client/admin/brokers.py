"""Clusters and brokers: addresses, status, settings."""

from collections.abc import Mapping

from reput import config
from reput.client.admin.cluster_calls import AdminConnection
from reput.client.core import requests
from reput.errors import BrokerError
from reput.format import bodies, headers
from reput.format.bodies import BrokerStats, ClusterInfo, HaRuntimeInfo
from reput.format.codes import RequestCode, ResponseCode


async def clusters(admin: AdminConnection) -> ClusterInfo:
    """Return clusters with their brokers, and brokers with their addresses."""
    return await admin.calls.clusters()


async def broker_status(admin: AdminConnection, broker: str) -> dict[str, str]:
    """Return the status values of a broker: ``msgPutTotalTodayNow``, ``putTps``, ..."""
    reply = await admin.calls.ask_broker(broker, requests.make(RequestCode.GET_BROKER_RUNTIME_INFO))
    return dict(sorted(bodies.decode(bodies.KvTable, reply.body).table.items()))


async def broker_config(admin: AdminConnection, broker: str) -> dict[str, str]:
    """Return a broker's settings, under RocketMQ's names."""
    reply = await admin.calls.ask_broker(broker, requests.make(RequestCode.GET_BROKER_CONFIG))
    return config.parse_properties(reply.body.decode())


async def update_broker_config(
    admin: AdminConnection, broker: str, settings: Mapping[str, str]
) -> str:
    """Change settings of a running broker, under RocketMQ's names.

    Returns:
        What a broker of reput restricts: settings in force only after a restart, or not written to
        its file. Empty if there is nothing to add; brokers of RocketMQ never add anything.
    """
    reply = await admin.calls.ask_broker(
        broker,
        requests.make(RequestCode.UPDATE_BROKER_CONFIG, body=requests.property_lines(settings)),
    )
    return reply.remark or ""


async def ha_status(admin: AdminConnection, broker: str) -> HaRuntimeInfo:
    """Return the state of a broker's replication; brokers of 4.x do not have it."""
    reply = await admin.calls.ask_broker(broker, requests.make(RequestCode.GET_BROKER_HA_STATUS))
    return bodies.decode(HaRuntimeInfo, reply.body)


async def broker_stats(
    admin: AdminConnection, broker: str, name: str, key: str
) -> BrokerStats | None:
    """Return a statistic of a broker for the last minute, hour and day.

    Args:
        broker: Name or address.
        name: ``TOPIC_PUT_NUMS``, ``GROUP_GET_NUMS``, ...
        key: A topic, ``topic@group``, or cluster, depending on the name.

    Returns:
        None if nothing was counted.
    """
    header = headers.StatsHeader(stats_name=name, stats_key=key)
    try:
        reply = await admin.calls.ask_broker(
            broker, requests.make(RequestCode.VIEW_BROKER_STATS_DATA, header)
        )
    except BrokerError as error:
        if error.response_code == ResponseCode.SYSTEM_ERROR:
            return None
        raise
    return bodies.decode(BrokerStats, reply.body)


async def wipe_write_perm(admin: AdminConnection, broker_name: str) -> int:
    """Make a broker unwritable for producers; return the number of its topics.

    Raises:
        PartlyDone: Some name servers failed.
    """
    replies = await admin.calls.change_name_servers(
        lambda: requests.make(
            RequestCode.WIPE_WRITE_PERM_OF_BROKER,
            headers.BrokerNameHeader(broker_name=broker_name),
        )
    )
    fields = replies[0].ext_fields
    return headers.decode(headers.WipeWritePermReplyHeader, fields).wipe_topic_count


async def add_write_perm(admin: AdminConnection, broker_name: str) -> int:
    """Undo ``wipe_write_perm``; return the number of its topics. Raises the same."""
    replies = await admin.calls.change_name_servers(
        lambda: requests.make(
            RequestCode.ADD_WRITE_PERM_OF_BROKER,
            headers.BrokerNameHeader(broker_name=broker_name),
        )
    )
    fields = replies[0].ext_fields
    return headers.decode(headers.AddWritePermReplyHeader, fields).add_topic_count


async def clean_expired_queues(
    admin: AdminConnection, *, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """Delete queues whose messages have all expired; return the brokers' addresses.

    Raises:
        InvalidOption: The target is ambiguous.
        PartlyDone: Some brokers failed.
    """
    return await _change_masters(admin, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, cluster, broker)


async def clean_unused_topics(
    admin: AdminConnection, *, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """Delete queues of deleted topics. Returns and raises as ``clean_expired_queues``."""
    return await _change_masters(admin, RequestCode.CLEAN_UNUSED_TOPIC, cluster, broker)


async def delete_expired_log(
    admin: AdminConnection, *, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """Delete expired log files now. Returns and raises as ``clean_expired_queues``."""
    return await _change_masters(admin, RequestCode.DELETE_EXPIRED_COMMITLOG, cluster, broker)


async def _change_masters(
    admin: AdminConnection, code: RequestCode, cluster: str | None, broker: str | None
) -> list[str]:
    addresses = await admin.calls.masters(cluster, broker)
    return await admin.calls.change_brokers(addresses, lambda: requests.make(code))
