"""Codes 400, 401, 402: request modes of groups, and the queues of a member.

Source: rocketmq 5.5.0 ``QueryAssignmentProcessor``.
"""

import asyncio
import logging
from itertools import islice

from reput.broker import assignments, limits
from reput.broker.assignments import TopicQueues, queues_of
from reput.broker.parts import Parts
from reput.broker.processors.groups import check_client_id, check_subscribed_topic
from reput.config import JAVA_INT_MAX
from reput.errors import ReputError, RequestRefused
from reput.format import bodies, command as commands, names
from reput.format.bodies import (
    Assignments,
    QueryAssignmentBody,
    QueueAssignment,
    RequestModeBody,
    RequestModesBody,
    TopicRouteData,
)
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.long_replies import CHUNK, LongBody
from reput.remoting.server import LongReply
from reput.remoting.time_slices import Steps, run_in_slices
from reput.store.tables.pop_tables import POP, PULL, RequestMode

BROADCASTING = "BROADCASTING"

_log = logging.getLogger(__name__)


def query_assignment(parts: Parts, channel: Channel, request: Command) -> LongReply | None:
    """Return the queues of a member on all brokers, according to the name server's route."""
    query = bodies.decode(QueryAssignmentBody, request.body)
    parts.subscription_groups.check_name(query.consumer_group)
    check_client_id(query.client_id)
    check_subscribed_topic(query.topic)
    own = _own_queues(parts, query)
    if own is not None or not parts.settings.broker.name_servers:
        return _reply(parts, request, query, own)
    request = commands.envelope(request)
    tasks = parts.assignment_tasks
    limits.ASSIGNMENTS_ASKED.check(len(tasks) + 1)
    task = asyncio.get_running_loop().create_task(_reply_with_route(parts, channel, request, query))
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    parts.tasks.keep(task)
    return None


def _own_queues(parts: Parts, query: QueryAssignmentBody) -> TopicQueues | None:
    """Return the queues of this broker if there are no others; None if that needs a route.

    A light queue has no route: it is queue 0 of the broker that is asked, as in Java.
    """
    broker_name = parts.settings.broker.broker_name
    if names.is_light(query.topic) and query.message_model != BROADCASTING:
        return TopicQueues(query.topic, {broker_name: 1})
    if parts.settings.broker.name_servers:
        return None
    topic = parts.topics.get(query.topic)
    return (
        None if topic is None else TopicQueues(query.topic, {broker_name: topic.read_queue_count})
    )


async def _reply_with_route(
    parts: Parts, channel: Channel, request: Command, query: QueryAssignmentBody
) -> None:
    reply = commands.reply(request)

    def divide(route: TopicRouteData | None) -> Steps[None]:
        nonlocal reply
        queues = None if route is None else queues_of(query.topic, route)
        reply = yield from _reply(parts, request, query, queues)

    try:
        await run_in_slices(
            divide(await parts.registration.route(query.topic)), seconds=parts.clock.work_s
        )
    except ReputError as error:
        reply = commands.reply(request, error.response_code, str(error))
    except Exception as error:  # noqa: BLE001 - the outermost edge of a request
        _log.exception("request %d of %s failed", request.code, channel.peer)
        text = f"{type(error).__name__}: {error}"
        reply = commands.reply(request, ResponseCode.SYSTEM_ERROR, text)
    channel.answer(request, reply)


def _reply(
    parts: Parts,
    request: Command,
    query: QueryAssignmentBody,
    queues: TopicQueues | None,
) -> Steps[Command]:
    """Return the share of a member; without one, the member keeps its current queues."""
    mode = parts.request_modes.find(query.topic, query.consumer_group)
    mine = None if queues is None else queues.select(range(len(queues)))
    is_divided = (
        parts.settings.broker.server_load_balancer_enable and query.message_model != BROADCASTING
    )
    if queues is not None and is_divided:
        group = parts.groups.consumer(query.consumer_group)
        client_ids = group.client_ids if group is not None else []
        mine = assignments.divide(mode, query.strategy_name, query.client_id, queues, client_ids)
    if mine is None:
        return commands.reply(request, body=bodies.encode(Assignments()))
    body = LongBody(f"queues of topic {query.topic}")
    while part := list(islice(mine, CHUNK)):
        body.add(*(QueueAssignment(message_queue=queue, mode=mode.mode) for queue in part))
        yield
    assigned = Assignments(message_queue_assignments=[])
    return commands.reply(request, body=body.encode_in(assigned, "message_queue_assignments"))


def set_request_mode(parts: Parts, channel: Channel, request: Command) -> None:
    """Set how a group reads a topic; members get it with their next query."""
    requested = bodies.decode(RequestModeBody, request.body)
    if requested.mode not in (PULL, POP):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, f"mode is {requested.mode!r}; allowed: PULL, POP"
        )
    if names.is_retry_topic(requested.topic):
        raise RequestRefused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if parts.topics.get(requested.topic) is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{requested.topic}] not exist")
    now_ms = parts.clock.now_ms()
    if parts.subscription_groups.obtain(requested.consumer_group, now_ms, channel.address) is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"
        )
    if not -JAVA_INT_MAX - 1 <= requested.pop_share_queue_num <= JAVA_INT_MAX:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"popShareQueueNum is {requested.pop_share_queue_num}; allowed: at most {JAVA_INT_MAX}",
        )
    table = parts.request_modes.table
    if table.get(requested.topic, requested.consumer_group) is None:
        limits.REQUEST_MODES.check(table.count + 1)
    table.put(
        RequestMode(
            requested.topic, requested.consumer_group, requested.mode, requested.pop_share_queue_num
        )
    )
    parts.table_writes.answer(channel, request, table)


def all_request_modes(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return all request modes that were set."""
    modes_by_topic: dict[str, dict[str, RequestModeBody]] = {}
    for mode in parts.request_modes.table.all():
        modes_by_topic.setdefault(mode.topic, {})[mode.group] = RequestModeBody(
            consumer_group=mode.group,
            mode=mode.mode,
            pop_share_queue_num=mode.share_count,
            topic=mode.topic,
        )
    body = RequestModesBody(message_request_mode_map=modes_by_topic)
    return commands.reply(request, body=bodies.encode(body))
