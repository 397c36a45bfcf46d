"""400, 401, 402: how groups read topics, and which queues a member gets.

Source: rocketmq 5.5.0 ``QueryAssignmentProcessor``.
"""

import asyncio
from typing import TYPE_CHECKING

from reput.broker import assignments
from reput.broker.assignments import queues_of
from reput.errors import ReputError, RequestRefused
from reput.format import bodies, command as commands, names
from reput.format.bodies import (
    Assignments,
    MessageQueue,
    QueryAssignmentBody,
    QueueAssignment,
    RequestModeBody,
    RequestModesBody,
    TopicRouteData,
)
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.store.pop_tables import POP, PULL, RequestMode

if TYPE_CHECKING:
    from reput.broker.server import Broker

BROADCASTING = "BROADCASTING"


def query_assignment(broker: "Broker", channel: Channel, request: Command) -> Command | None:
    """Return the queues of a member, on all brokers; name servers say which there are."""
    asked = bodies.decode(QueryAssignmentBody, request.body)
    if not broker.config.name_servers:
        known = broker.topics.get(asked.topic)
        count = known.read_queue_count if known is not None else 0
        own = [MessageQueue(asked.topic, broker.config.broker_name, one) for one in range(count)]
        return _reply(broker, request, asked, own if known is not None else None)
    task = asyncio.get_running_loop().create_task(_ask_route(broker, channel, request, asked))
    broker.loops.keep(task)
    return None


async def _ask_route(
    broker: "Broker", channel: Channel, request: Command, asked: QueryAssignmentBody
) -> None:
    try:
        route = await broker.registration.route(asked.topic)
        answer = _reply(broker, request, asked, _queues(asked.topic, route))
    except ReputError as error:
        answer = commands.reply(request, error.response_code, str(error))
    channel.answer(request, answer)


def _queues(topic: str, route: TopicRouteData | None) -> list[MessageQueue] | None:
    return None if route is None else queues_of(topic, route)


def _reply(
    broker: "Broker",
    request: Command,
    asked: QueryAssignmentBody,
    queues: list[MessageQueue] | None,
) -> Command:
    """Return a member's share; without one, members keep what they have."""
    mode = broker.request_modes.find(asked.topic, asked.consumer_group)
    mine = queues
    is_divided = broker.config.server_load_balancer_enable and asked.message_model != BROADCASTING
    if queues is not None and is_divided:
        group = broker.groups.consumer(asked.consumer_group)
        client_ids = group.client_ids if group is not None else []
        mine = assignments.divide(mode, asked.strategy_name, asked.client_id, queues, client_ids)
    found = None
    if mine is not None:
        found = [QueueAssignment(message_queue=one, mode=mode.mode) for one in mine]
    return commands.reply(request, body=bodies.encode(Assignments(message_queue_assignments=found)))


def set_request_mode(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Set how a group reads a topic; members hear of it when they ask again."""
    asked = bodies.decode(RequestModeBody, request.body)
    if asked.mode not in (PULL, POP):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, f"mode is {asked.mode!r}; allowed: PULL, POP"
        )
    if names.is_retry_topic(asked.topic):
        raise RequestRefused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if broker.topics.get(asked.topic) is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{asked.topic}] not exist")
    now_ms = broker.clock.now_ms()
    if broker.subscription_groups.find(asked.consumer_group, now_ms) is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"
        )
    table = broker.request_modes.table
    table.put(RequestMode(asked.topic, asked.consumer_group, asked.mode, asked.pop_share_queue_num))
    table.save(now_ms, is_durable=False)
    return commands.reply(request)


def all_request_modes(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return how groups read topics, where somebody has said."""
    found: dict[str, dict[str, RequestModeBody]] = {}
    for one in broker.request_modes.table.all():
        found.setdefault(one.topic, {})[one.group] = RequestModeBody(
            consumer_group=one.group,
            mode=one.mode,
            pop_share_queue_num=one.share_count,
            topic=one.topic,
        )
    body = RequestModesBody(message_request_mode_map=found)
    return commands.reply(request, body=bodies.encode(body))
