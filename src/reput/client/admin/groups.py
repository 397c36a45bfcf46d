"""Consumer groups and their settings."""

from reput.client.admin.cluster_calls import AdminConnection
from reput.client.core import requests
from reput.client.message import check_group
from reput.format import bodies, headers
from reput.format.bodies import RequestModeBody, SubscriptionGroupConfig
from reput.format.codes import RequestCode


async def groups(
    admin: AdminConnection, *, cluster: str | None = None, broker: str | None = None
) -> dict[str, SubscriptionGroupConfig]:
    """Return the consumer groups with their settings, by name.

    Args:
        cluster: Cluster; None: all clusters.
        broker: Name or address of one broker, instead of a cluster.
    """
    addresses = await admin.calls.masters(cluster, broker, is_one_cluster=False)
    by_name: dict[str, SubscriptionGroupConfig] = {}
    for reply in await admin.calls.ask_all(
        addresses, lambda: requests.make(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    ):
        table = bodies.decode(bodies.SubscriptionGroupTable, reply.body)
        by_name.update(table.subscription_group_table)
    return dict(sorted(by_name.items()))


async def create_group(
    admin: AdminConnection,
    group: str | SubscriptionGroupConfig,
    *,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Create or change a consumer group.

    Args:
        group: Its name, or all of its settings.
        cluster: Cluster; optional if there is only one.
        broker: Name or address of one broker, instead of a cluster.

    Returns:
        The addresses of the brokers.

    Raises:
        InvalidOption: The name is not allowed, or the target is ambiguous.
        PartlyDone: Some brokers failed.
    """
    if isinstance(group, str):
        group = SubscriptionGroupConfig(group_name=group)
    check_group("group", group.group_name)
    body = bodies.encode(group)
    return await admin.calls.change_brokers(
        await admin.calls.masters(cluster, broker),
        lambda: requests.make(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body),
    )


async def delete_group(
    admin: AdminConnection,
    group: str,
    *,
    has_offsets_removed: bool = True,
    cluster: str | None = None,
    broker: str | None = None,
) -> None:
    """Delete a consumer group.

    Args:
        group: Its name.
        has_offsets_removed: Delete its consumer offsets too.
        cluster: Cluster; optional if there is only one.
        broker: Name or address of one broker, instead of a cluster.

    Raises:
        InvalidOption: The target is ambiguous.
        PartlyDone: Some brokers failed.
    """
    header = headers.GroupNameHeader(
        group_name=group, remove_offset=has_offsets_removed, clean_offset=has_offsets_removed
    )
    await admin.calls.change_brokers(
        await admin.calls.masters(cluster, broker),
        lambda: requests.make(RequestCode.DELETE_SUBSCRIPTIONGROUP, header),
    )


async def request_modes(
    admin: AdminConnection, broker: str, group: str | None = None
) -> list[RequestModeBody]:
    """Return the request modes that were set, by topic and group (5.x).

    Args:
        broker: Name or address.
        group: Only this group; None: all groups.
    """
    reply = await admin.calls.ask_broker(
        broker, requests.make(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    )
    table = bodies.decode(bodies.RequestModesBody, reply.body).message_request_mode_map
    return [
        mode
        for _, by_group in sorted(table.items())
        for name, mode in sorted(by_group.items())
        if group in (None, name)
    ]


async def set_request_mode(
    admin: AdminConnection,
    group: str,
    topic: str,
    mode: str,
    *,
    share_count: int = 0,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Set the mode in which a group reads a topic (5.x). Members learn it at their next rebalance.

    Args:
        group: Consumer group.
        topic: The topic.
        mode: ``PULL`` or ``POP``.
        share_count: With ``POP``: number of additional members that share a queue; 0: all members.
        cluster: Cluster; optional if there is only one.
        broker: Name or address of one broker, instead of a cluster.

    Returns:
        The addresses of the brokers.

    Raises:
        InvalidOption: The target is ambiguous.
        PartlyDone: Some brokers failed.
    """
    body = bodies.encode(
        RequestModeBody(
            consumer_group=group, mode=mode, pop_share_queue_num=share_count, topic=topic
        )
    )
    return await admin.calls.change_brokers(
        await admin.calls.masters(cluster, broker),
        lambda: requests.make(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body),
    )
