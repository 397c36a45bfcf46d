"""Members of groups: connections, and requests to members."""

from collections.abc import Iterable

from reput.client.admin.cluster_calls import AdminConnection
from reput.client.core import requests
from reput.client.message import ReceivedMessage
from reput.format import bodies, headers
from reput.format.bodies import (
    Connection,
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerInfo,
)
from reput.format.codes import RequestCode, ResponseCode


async def consumer_connection(admin: AdminConnection, group: str) -> ConsumerConnection | None:
    """Return the members and subscriptions of a consumer group; None without members."""
    header = headers.ConsumerGroupHeader(consumer_group=group)
    connection: ConsumerConnection | None = None
    for reply in await admin.calls.ask_all(
        await admin.calls.masters_of_group(group),
        lambda: requests.make(RequestCode.GET_CONSUMER_CONNECTION_LIST, header),
        absent=ResponseCode.CONSUMER_NOT_ONLINE,
    ):
        part = bodies.decode(ConsumerConnection, reply.body)
        if connection is None:
            connection = part
        else:
            connection.subscription_table.update(part.subscription_table)
            connection.connection_set += part.connection_set
    if connection is not None:
        connection.connection_set = _each_client_once(connection.connection_set)
    return connection


async def producer_connection(admin: AdminConnection, group: str, topic: str) -> list[Connection]:
    """Return the members of a producer group at the brokers of a topic."""
    header = headers.ProducerGroupHeader(producer_group=group)
    replies = await admin.calls.ask_all(
        await admin.calls.masters_of_topic(topic),
        lambda: requests.make(RequestCode.GET_PRODUCER_CONNECTION_LIST, header),
        absent=ResponseCode.SYSTEM_ERROR,
    )
    return _each_client_once(
        connection
        for reply in replies
        for connection in bodies.decode(bodies.ProducerConnection, reply.body).connection_set
    )


async def producers(admin: AdminConnection, broker: str) -> dict[str, list[ProducerInfo]]:
    """Return a broker's producer groups with their members."""
    reply = await admin.calls.ask_broker(broker, requests.make(RequestCode.GET_ALL_PRODUCER_INFO))
    return dict(sorted(bodies.decode(bodies.ProducerTable, reply.body).data.items()))


async def consumer_running_info(
    admin: AdminConnection, group: str, client_id: str, *, has_stacks: bool = False
) -> ConsumerRunningInfo:
    """Return the running info of a member of a consumer group.

    Args:
        group: Consumer group.
        client_id: Member, from ``consumer_connection``.
        has_stacks: Include the stacks of its threads.
    """
    header = headers.ConsumerRunningInfoHeader(
        consumer_group=group, client_id=client_id, jstack_enable=has_stacks
    )
    reply = await admin.calls.ask_any_of(
        await admin.calls.masters_of_group(group),
        lambda: requests.make(RequestCode.GET_CONSUMER_RUNNING_INFO, header),
    )
    return bodies.decode(ConsumerRunningInfo, reply.body)


async def consume_directly(
    admin: AdminConnection, group: str, client_id: str, message: ReceivedMessage
) -> ConsumeDirectlyResult:
    """Make a member of a consumer group consume a message again, and return the result."""
    header = headers.ConsumeDirectlyHeader(
        consumer_group=group, client_id=client_id, msg_id=message.offset_message_id
    )
    reply = await admin.calls.ask(
        str(message.store_host), requests.make(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    )
    return bodies.decode(ConsumeDirectlyResult, reply.body)


def _each_client_once(connections: Iterable[Connection]) -> list[Connection]:
    """Return connections without duplicates: a client has one per broker."""
    by_client = {connection.client_id: connection for connection in connections}
    return [by_client[client_id] for client_id in sorted(by_client)]
