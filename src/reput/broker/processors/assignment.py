"""400, 401, 402: how groups read topics, and which queues a member gets.

Source: rocketmq 5.5.0 ``QueryAssignmentProcessor``.
"""

import asyncio
import logging
from itertools import islice

from reput import limits
from reput.broker import assignments
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
from reput.store.pop_tables import POP, PULL, RequestMode

BROADCASTING = "BROADCASTING"

_log = logging.getLogger(__name__)


def query_assignment(parts: Parts, channel: Channel, request: Command) -> LongReply | None:
    """Return the queues of a member, on all brokers; name servers say which there are."""
    asked = bodies.decode(QueryAssignmentBody, request.body)
    parts.subscription_groups.check_name(asked.consumer_group)
    check_client_id(asked.client_id)
    check_subscribed_topic(asked.topic)
    if not parts.settings.broker.name_servers:
        known = parts.topics.get(asked.topic)
        count = known.read_queue_count if known is not None else 0
        own = TopicQueues(asked.topic, {parts.settings.broker.broker_name: count})
        return _reply(parts, request, asked, own if known is not None else None)
    request = commands.envelope(request)
    tasks = parts.assignment_tasks
    limits.ASSIGNMENTS_ASKED.check(len(tasks) + 1)
    task = asyncio.get_running_loop().create_task(_ask_route(parts, channel, request, asked))
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    parts.tasks.keep(task)
    return None


async def _ask_route(
    parts: Parts, channel: Channel, request: Command, asked: QueryAssignmentBody
) -> None:
    answer = commands.reply(request)

    def divide(route: TopicRouteData | None) -> Steps[None]:
        nonlocal answer
        queues = None if route is None else queues_of(asked.topic, route)
        answer = yield from _reply(parts, request, asked, queues)

    try:
        await run_in_slices(divide(await parts.registration.route(asked.topic)))
    except ReputError as error:
        answer = commands.reply(request, error.response_code, str(error))
    except Exception as error:  # noqa: BLE001 - the outermost edge of a request
        _log.exception("request %d of %s failed", request.code, channel.peer)
        text = f"{type(error).__name__}: {error}"
        answer = commands.reply(request, ResponseCode.SYSTEM_ERROR, text)
    channel.answer(request, answer)


def _reply(
    parts: Parts,
    request: Command,
    asked: QueryAssignmentBody,
    queues: TopicQueues | None,
) -> Steps[Command]:
    """Return a member's share; without one, members keep what they have."""
    mode = parts.request_modes.find(asked.topic, asked.consumer_group)
    mine = None if queues is None else queues.select(range(len(queues)))
    is_divided = (
        parts.settings.broker.server_load_balancer_enable and asked.message_model != BROADCASTING
    )
    if queues is not None and is_divided:
        group = parts.groups.consumer(asked.consumer_group)
        client_ids = group.client_ids if group is not None else []
        mine = assignments.divide(mode, asked.strategy_name, asked.client_id, queues, client_ids)
    if mine is None:
        return commands.reply(request, body=bodies.encode(Assignments()))
    body = LongBody(f"queues of topic {asked.topic}")
    while part := list(islice(mine, CHUNK)):
        body.add(*(QueueAssignment(message_queue=one, mode=mode.mode) for one in part))
        yield
    answer = Assignments(message_queue_assignments=[])
    return commands.reply(request, body=body.encode_in(answer, "message_queue_assignments"))


def set_request_mode(parts: Parts, channel: Channel, request: Command) -> None:
    """Set how a group reads a topic; members hear of it when they ask again."""
    asked = bodies.decode(RequestModeBody, request.body)
    if asked.mode not in (PULL, POP):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, f"mode is {asked.mode!r}; allowed: PULL, POP"
        )
    if names.is_retry_topic(asked.topic):
        raise RequestRefused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if parts.topics.get(asked.topic) is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{asked.topic}] not exist")
    now_ms = parts.clock.now_ms()
    if parts.subscription_groups.obtain(asked.consumer_group, now_ms, channel.address) is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"
        )
    if not -JAVA_INT_MAX - 1 <= asked.pop_share_queue_num <= JAVA_INT_MAX:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"popShareQueueNum is {asked.pop_share_queue_num}; allowed: at most {JAVA_INT_MAX}",
        )
    table = parts.request_modes.table
    if table.get(asked.topic, asked.consumer_group) is None:
        limits.REQUEST_MODES.check(table.count + 1)
    table.put(RequestMode(asked.topic, asked.consumer_group, asked.mode, asked.pop_share_queue_num))
    parts.table_writes.answer(channel, request, table)


def all_request_modes(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return how groups read topics, where somebody has said."""
    found: dict[str, dict[str, RequestModeBody]] = {}
    for one in parts.request_modes.table.all():
        found.setdefault(one.topic, {})[one.group] = RequestModeBody(
            consumer_group=one.group,
            mode=one.mode,
            pop_share_queue_num=one.share_count,
            topic=one.topic,
        )
    body = RequestModesBody(message_request_mode_map=found)
    return commands.reply(request, body=bodies.encode(body))
