"""The members of groups: who is connected, and what only they know."""

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
    """Return the members of a consumer group and what they want; None if it has none."""
    header = headers.ConsumerGroupHeader(consumer_group=group)
    found: ConsumerConnection | None = None
    for reply in await admin.calls.ask_all(
        await admin.calls.masters_of_group(group),
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


async def producer_connection(admin: AdminConnection, group: str, topic: str) -> list[Connection]:
    """Return the members of a producer group, of the brokers of a topic."""
    header = headers.ProducerGroupHeader(producer_group=group)
    replies = await admin.calls.ask_all(
        await admin.calls.masters_of_topic(topic),
        lambda: requests.make(RequestCode.GET_PRODUCER_CONNECTION_LIST, header),
        absent=ResponseCode.SYSTEM_ERROR,
    )
    return _each_client_once(
        one
        for reply in replies
        for one in bodies.decode(bodies.ProducerConnection, reply.body).connection_set
    )


async def producers(admin: AdminConnection, broker: str) -> dict[str, list[ProducerInfo]]:
    """Return a broker's producer groups with their members."""
    reply = await admin.calls.ask_broker(broker, requests.make(RequestCode.GET_ALL_PRODUCER_INFO))
    return dict(sorted(bodies.decode(bodies.ProducerTable, reply.body).data.items()))


async def consumer_running_info(
    admin: AdminConnection, group: str, client_id: str, *, has_stacks: bool = False
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
    reply = await admin.calls.ask_any_of(
        await admin.calls.masters_of_group(group),
        lambda: requests.make(RequestCode.GET_CONSUMER_RUNNING_INFO, header),
    )
    return bodies.decode(ConsumerRunningInfo, reply.body)


async def consume_directly(
    admin: AdminConnection, group: str, client_id: str, message: ReceivedMessage
) -> ConsumeDirectlyResult:
    """Let a member of a consumer group consume a message again, and return how it went."""
    header = headers.ConsumeDirectlyHeader(
        consumer_group=group, client_id=client_id, msg_id=message.offset_message_id
    )
    reply = await admin.calls.ask(
        str(message.store_host), requests.make(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    )
    return bodies.decode(ConsumeDirectlyResult, reply.body)


def _each_client_once(connections: Iterable[Connection]) -> list[Connection]:
    """Return connections by client id: a client has one to each broker."""
    found = {one.client_id: one for one in connections}
    return [found[client_id] for client_id in sorted(found)]
