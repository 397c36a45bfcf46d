"""Consumer groups: which there are, and how they are made."""

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
        cluster: Whose brokers; all clusters', if neither is given.
        broker: Name or address of one broker, instead of a cluster.
    """
    addresses = await admin.calls.masters(cluster, broker, is_one_cluster=False)
    found: dict[str, SubscriptionGroupConfig] = {}
    for reply in await admin.calls.ask_all(
        addresses, lambda: requests.make(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    ):
        table = bodies.decode(bodies.SubscriptionGroupTable, reply.body)
        found.update(table.subscription_group_table)
    return dict(sorted(found.items()))


async def create_group(
    admin: AdminConnection,
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
    return await admin.calls.tell_brokers(
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
    await admin.calls.tell_brokers(
        await admin.calls.masters(cluster, broker),
        lambda: requests.make(RequestCode.DELETE_SUBSCRIPTIONGROUP, header),
    )


async def request_modes(
    admin: AdminConnection, broker: str, group: str | None = None
) -> list[RequestModeBody]:
    """Return how groups read topics where somebody has said, by topic and group; of 5.x.

    Args:
        broker: Name or address.
        group: Only this one; all, if not given.
    """
    reply = await admin.calls.ask_broker(
        broker, requests.make(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    )
    table = bodies.decode(bodies.RequestModesBody, reply.body).message_request_mode_map
    return [
        one
        for _, by_group in sorted(table.items())
        for name, one in sorted(by_group.items())
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
    """Set how a group reads a topic; of 5.x. Members hear of it when they ask for their queues.

    Args:
        group: Of consumers.
        topic: What it reads.
        mode: ``PULL`` or ``POP``.
        share_count: With ``POP``: how many members share a queue besides its own; 0: all of them.
        cluster: Whose brokers; may be left out where there is but one.
        broker: Name or address of one broker, instead of a cluster.

    Returns:
        The addresses of the brokers.

    Raises:
        InvalidOption: It is not clear where.
        PartlyDone: Some brokers did not do it.
    """
    body = bodies.encode(
        RequestModeBody(
            consumer_group=group, mode=mode, pop_share_queue_num=share_count, topic=topic
        )
    )
    return await admin.calls.tell_brokers(
        await admin.calls.masters(cluster, broker),
        lambda: requests.make(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body),
    )
