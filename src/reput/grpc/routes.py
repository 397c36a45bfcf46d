"""Routes and assignments: where the queues of a topic are, under the address that the client uses.

The endpoint in the answer is the one that the request names: it is the one that the client can
reach. Java's proxy answers another one, which is the most frequent complaint about it.

Source: rocketmq-proxy 5.5.0 ``RouteActivity``.
"""

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

from reput.format.codes import PERM_READ, PERM_WRITE
from reput.grpc.backend import BrokerQueues, TopicFacts
from reput.grpc.caller import Caller
from reput.grpc.statuses import Code, StatusError
from reput.grpc.wire.grpc_messages import AddressScheme, MessageType, Permission

_TYPES = {
    "MIXED": (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION),
    "UNSPECIFIED": (MessageType.NORMAL,),
}
_ANY_QUEUE = -1


def accepted_types(topic: TopicFacts) -> tuple[int, ...]:
    """Return the types of messages that a topic takes."""
    return _TYPES.get(topic.message_type) or (MessageType[topic.message_type],)


def endpoints_for(call: Caller, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the endpoints of a reply: those of the request, or the address of the connection."""
    if wanted.get("addresses"):
        return dict(wanted)
    host, port = call.local_address
    return {"scheme": scheme_of(host), "addresses": [{"host": host, "port": port}]}


def scheme_of(host: str) -> int:
    """Return the scheme of an address."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return AddressScheme.DOMAIN_NAME
    return AddressScheme.IPv6 if version == 6 else AddressScheme.IPv4


def queues(topic: TopicFacts, endpoints: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the queues of a topic as MessageQueue messages."""
    types = [int(kind) for kind in accepted_types(topic)]
    return [
        _queue(topic, broker, queue_id, permission, endpoints, types)
        for broker in topic.brokers
        for queue_id, permission in _permissions(broker)
    ]


def assignments(
    topic: TopicFacts, endpoints: Mapping[str, Any], *, is_ordered: bool
) -> list[dict[str, Any]]:
    """Return the queues that a consumer receives from: any of a broker, or each one in order."""
    types = [int(kind) for kind in accepted_types(topic)]
    assigned = []
    for broker in topic.brokers:
        if not broker.permission & PERM_READ or not broker.read_count:
            continue
        queue_ids = range(broker.read_count) if is_ordered else (_ANY_QUEUE,)
        for queue_id in queue_ids:
            queue = _queue(topic, broker, queue_id, Permission.READ, endpoints, types)
            assigned.append({"message_queue": queue})
    return assigned


def readable_broker(topic: TopicFacts, name: str, turn: int) -> str:
    """Return the broker that a consumer has named if it has readable queues, else another broker.

    Raises:
        StatusError: None has.
    """
    readable = [
        broker.broker_name
        for broker in topic.brokers
        if broker.permission & PERM_READ and broker.read_count
    ]
    if not readable:
        raise StatusError(Code.FORBIDDEN, "no readable queue")
    return name if name in readable else readable[turn % len(readable)]


def writable(topic: TopicFacts) -> list[tuple[str, int]]:
    """Return broker and id of each queue that can be written, in order."""
    return [
        (broker.broker_name, queue_id)
        for broker in topic.writable
        for queue_id in range(broker.write_count)
    ]


def _permissions(broker: BrokerQueues) -> Iterator[tuple[int, int]]:
    for queue_id in range(max(broker.read_count, broker.write_count)):
        can_read = broker.permission & PERM_READ and queue_id < broker.read_count
        can_write = broker.permission & PERM_WRITE and queue_id < broker.write_count
        if can_read and can_write:
            yield queue_id, Permission.READ_WRITE
        elif can_read or can_write:
            yield queue_id, Permission.READ if can_read else Permission.WRITE


def _queue(
    topic: TopicFacts,
    broker: BrokerQueues,
    queue_id: int,
    permission: int,
    endpoints: Mapping[str, Any],
    types: list[int],
) -> dict[str, Any]:
    return {
        "topic": {"name": topic.name},
        "id": queue_id,
        "permission": int(permission),
        "broker": {"name": broker.broker_name, "id": 0, "endpoints": dict(endpoints)},
        "accept_message_types": types,
    }
