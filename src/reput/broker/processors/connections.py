"""Codes 203, 204, 328; 222, 223, 307, 309; 314: clients, and information that only they have.

For such information the broker sends a request to the client, and replies when the client has
replied. Source: rocketmq 4.9.7 ``AdminBrokerProcessor``, ``Broker2Client``.
"""

import asyncio
import logging
from collections.abc import Iterable
from itertools import islice

from reput import limits
from reput.broker.group.groups import ConsumerGroup, Member
from reput.broker.parts import Parts
from reput.errors import (
    V5_0_0,
    BrokerError,
    ConnectionLost,
    Overloaded,
    ReputError,
    RequestRefused,
    RequestTimedOut,
)
from reput.format import bodies, command as commands, headers, message_id as ids
from reput.format.bodies import (
    Connection,
    ConsumerConnection,
    ConsumerStatus,
    MessageQueue,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    QueueOffset,
    QueueOffsets,
    ResetOffsetList,
    ResetOffsets,
)
from reput.format.codes import LanguageCode, RequestCode, ResponseCode
from reput.format.command import IS_ONEWAY, Command
from reput.format.headers import (
    CloneGroupOffsetHeader,
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    ConsumerRunningInfoHeader,
    ConsumerStatusHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
)
from reput.remoting.channel import Channel
from reput.remoting.long_replies import CHUNK, LIGHT_CHUNK, LongBody, chunks, sort
from reput.remoting.server import LongReply
from reput.remoting.time_slices import Steps

CLIENT_TIMEOUT_MS = 10_000
"""Timeout of a request to one client, in ms."""
STATUS_TIMEOUT_MS = 5_000
"""Timeout of a request to all members of a group, in ms."""
LATEST = -1
"""Timestamp that means the end of each queue."""
ACTIVE = "CONSUME_ACTIVELY"
"""Type of consumers that pull for themselves, in heartbeats."""
_COPIED_AT_ONCE = 250
"""Offsets that a clone copies between two yields."""
_LOGGED_QUEUES = 100
"""Queues of one reset in a line of the log."""

_log = logging.getLogger(__name__)


# --- connected clients --------------------------------------------------------------


def consumer_connections(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the members of a consumer group and their subscriptions."""
    name = headers.decode(ConsumerGroupHeader, request.ext_fields).consumer_group
    group = parts.groups.consumer(name)
    if group is None:
        raise RequestRefused(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
        )
    template = ConsumerConnection(
        connection_set=[],
        consume_from_where=group.consume_from_where,
        consume_type=group.consume_type,
        message_model=group.message_model,
        subscription_table=dict(group.subscriptions),
    )
    members = yield from _connections(group.members.values(), f"consumer group {name}")
    return commands.reply(request, body=members.encode_in(template, "connection_set"))


def producer_connections(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the members of a producer group."""
    name = headers.decode(ProducerGroupHeader, request.ext_fields).producer_group
    known = parts.groups.producers(name)
    if not known:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    members = yield from _connections(known, f"producer group {name}")
    template = ProducerConnection(connection_set=[])
    return commands.reply(request, body=members.encode_in(template, "connection_set"))


def _connections(members: Iterable[Member[Channel]], place: str) -> Steps[LongBody]:
    """Return members in the form of the reply."""
    body = LongBody(f"members of {place}")
    for chunk in chunks(members):
        body.add(*map(_connection, chunk))
        yield
    return body


def all_producers(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the members of all producer groups."""
    body = yield from parts.listings.ask("producers", lambda: _all_producers(parts))
    return commands.reply(request, body=body)


def _all_producers(parts: Parts) -> Steps[bytes]:
    # Their times are monotonic; the reply has times of the clock.
    begun_ms = parts.clock.now_ms() - parts.clock.monotonic_ms()
    groups = LongBody("producers of all groups; ask for single groups with request 204")
    for name, known in parts.groups.producer_groups().items():
        members = LongBody(f"members of producer group {name}")
        for chunk in chunks(known):
            members.add(*(_producer(member, begun_ms) for member in chunk))
            yield
        groups.add_text(bodies.encode(name) + b":" + members.as_list())
    return groups.encode_in(ProducerTable(data={}), "data")


def _producer(member: Member[Channel], begun_ms: int) -> ProducerInfo:
    return ProducerInfo(
        client_id=member.client_id,
        language=_language(member),
        last_update_timestamp=begun_ms + member.seen_ms,
        remote_ip=f"/{member.channel.peer}",  # in Java's format of an address
        version=member.version,
    )


def _connection(member: Member[Channel]) -> Connection:
    return Connection(
        client_addr=member.channel.peer,
        client_id=member.client_id,
        language=_language(member),
        version=member.version,
    )


def _language(member: Member[Channel]) -> str:
    try:
        return LanguageCode(member.language).name
    except ValueError:
        return LanguageCode.OTHER.name


# --- requests to one member ---------------------------------------------------------


def consumer_running_info(parts: Parts, channel: Channel, request: Command) -> None:
    """Request a consumer's running info."""
    header = headers.decode(ConsumerRunningInfoHeader, request.ext_fields)
    member = _member(parts, header.consumer_group, header.client_id)
    question = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext_fields=request.ext_fields)
    forward(channel, request, header.consumer_group, member, question)


def consume_directly(parts: Parts, channel: Channel, request: Command) -> None:
    """Let a consumer consume one message now."""
    header = headers.decode(ConsumeDirectlyHeader, request.ext_fields)
    try:
        place = ids.decode_offset_id(header.msg_id or "")
    except ValueError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
    record = parts.store.record_at(place.physical_offset)
    if record is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no message {header.msg_id} here")
    member = _member(parts, header.consumer_group, header.client_id)
    fields = {**(request.ext_fields or {}), "brokerName": parts.settings.broker.broker_name}
    question = Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext_fields=fields, body=record)
    forward(channel, request, header.consumer_group, member, question)


def _member(parts: Parts, group_name: str, client_id: str | None) -> Member[Channel]:
    """Return a member of a group by its id. Raises ``RequestRefused``."""
    group = parts.groups.consumer(group_name)
    for member in group.members.values() if group is not None else ():
        if member.client_id == client_id:
            return member
    raise RequestRefused(
        ResponseCode.SYSTEM_ERROR, f"The Consumer <{group_name}> <{client_id}> not online"
    )


def forward(
    channel: Channel, request: Command, group: str, member: Member[Channel], question: Command
) -> None:
    """Forward a request to a member of a group; its reply, or the failure, becomes the reply.

    Args:
        channel: Connection of the admin client.
        request: The request to reply to.
        group: Group of the member.
        member: The member.
        question: The request to the member.
    """

    def answered(future: "asyncio.Future[Command]") -> None:
        recipient = f"consumer <{group}> <{member.client_id}>"
        error = future.exception()
        if error is None:
            response = future.result()
            reply = commands.reply(
                request, response.code, response.remark, response.ext_fields, response.body
            )
        elif isinstance(error, RequestTimedOut):
            remark = f"{recipient} Timeout: {error}"
            reply = commands.reply(request, ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        else:
            remark = f"invoke {recipient} Exception: {error}"
            reply = commands.reply(request, ResponseCode.SYSTEM_ERROR, remark)
        channel.send(reply)

    send_request(member, question, CLIENT_TIMEOUT_MS).add_done_callback(answered)


def send_request(
    member: Member[Channel], question: Command, timeout_ms: int
) -> "asyncio.Future[Command]":
    """Send a request to a client; every failure is raised by the returned future."""
    try:
        return member.channel.send_request(question, timeout_ms)
    except (ConnectionLost, Overloaded) as error:
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        # Without its traceback: that would keep this frame, with the request, until garbage is
        # collected.
        future.set_exception(error.with_traceback(None))
        return future


# --- requests to all members --------------------------------------------------------


def consumer_status(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Request the positions of a group's members in a topic, or of one member."""
    header = headers.decode(ConsumerStatusHeader, request.ext_fields)
    group = parts.groups.consumer(header.group)
    if group is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"No Any Consumer online in the consumer group: [{header.group}]",
        )
    fields = headers.encode(ConsumerStatusHeader(topic=header.topic, group=header.group))
    asked = [
        member
        for member in group.members.values()
        if header.client_addr in (None, "", member.client_id)
    ]
    limits.ASKED_MEMBERS.check(len(asked), header.group)
    answers = []
    for number, member in enumerate(asked, 1):
        question = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext_fields=fields)
        answers.append(send_request(member, question, STATUS_TIMEOUT_MS))
        if number % CHUNK == 0:
            yield
    task = asyncio.create_task(_reply_with_status(channel, request, asked, answers))
    parts.tasks.keep(task)
    return None


async def _reply_with_status(
    channel: Channel,
    request: Command,
    members: list[Member[Channel]],
    answers: "list[asyncio.Future[Command]]",
) -> None:
    """Reply with the positions of the members."""
    table = LongBody("members of the group; clientAddr names one")
    try:
        for member, answer in zip(members, answers, strict=True):
            (response,) = await asyncio.gather(answer, return_exceptions=True)
            offsets = await asyncio.to_thread(_status_of, member, response)
            if offsets is not None:
                table.add_pair(member.client_id, offsets)
        status: dict[str, object] = {"consumerTable": {}, "messageQueueTable": {}}
        reply = commands.reply(request, body=table.encode_in(status, "consumerTable"))
    except ReputError as error:
        reply = commands.reply(request, error.response_code, str(error))
    except Exception as error:  # noqa: BLE001 - the outermost edge of a request
        _log.exception("request %d of %s failed", request.code, channel.peer)
        text = f"{type(error).__name__}: {error}"
        reply = commands.reply(request, ResponseCode.SYSTEM_ERROR, text)
    finally:
        for answer in answers:
            answer.cancel()  # no longer awaited
    channel.answer(request, reply)


def _status_of(member: Member[Channel], answer: Command | BaseException) -> QueueOffsets | None:
    """Return a member's positions; None, with a line in the log, if its reply has none."""
    try:
        if isinstance(answer, BaseException):
            raise answer
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, member.channel.peer)
        # Java's reply is in its JSON dialect. One in standard JSON takes as long: its keys are
        # JSON.
        limit = limits.LENIENT_JSON_BYTES
        status = bodies.decode(ConsumerStatus, answer.body, size_limit=limit, lenient_limit=limit)
        return status.message_queue_table
    except ReputError as error:
        _log.warning("consumer %s does not return its positions: %s", member.client_id, error)
        return None


def reset_offset(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Set the consumer offsets of a group in a topic.

    Tools of 4.9 send a timestamp, and the members are notified. Tools of 5.x may also send a queue,
    or -1 for all: then each member gets its new offset with its next pull, and none need be
    connected. Pops continue from the new offset in both cases: their members have no position.
    """
    header = headers.decode(ResetOffsetHeader, request.ext_fields)
    is_new = header.queue_id is not None or request.version >= V5_0_0
    if is_new and parts.settings.broker.use_server_side_reset_offset:
        return (yield from _reset_here(parts, channel, request, header))
    wanted = yield from _offsets_by_time(parts, header)
    group = parts.groups.consumer(header.group)
    if group is None:
        raise RequestRefused(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group} "
            f"Topic: {header.topic} Timestamp: {header.timestamp}",
        )
    body = yield from _encoded_offsets(parts, header.topic, wanted)
    list_body = yield from _encoded_list(parts, header.topic, wanted)
    # Java's lite pull consumers take a new offset from a pull only: they ignore the notice.
    at_next_pull = (
        group.consume_type == ACTIVE and parts.settings.broker.use_server_side_reset_offset
    )
    yield from _set_offsets(parts, header.topic, header.group, wanted, at_next_pull=at_next_pull)
    is_list = request.language == LanguageCode.CPP
    yield from _notify_offsets(group, header, body, list_body, is_list=is_list)
    _log.info(
        "offsets of %r in %r set by %s: %s",
        header.group, header.topic, channel.peer, _shortened(wanted),
    )  # fmt: skip
    return commands.reply(request, body=body)


def _reset_here(
    parts: Parts, channel: Channel, request: Command, header: ResetOffsetHeader
) -> Steps[Command]:
    """Set the offsets on this side; rocketmq 5.5 ``AdminBrokerProcessor.resetOffsetInner``."""
    topic, group = header.topic, header.group
    if not parts.identity.is_master:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
    config = parts.topics.get(topic)
    if config is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
    if parts.subscription_groups.get(group) is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist"
        )
    wanted = yield from _wanted_offsets(parts, header, config.read_queue_count)
    parts.commits.check_room(
        len(wanted) - parts.deliveries.consumer_offsets.queue_count(topic, group)
    )
    body = yield from _encoded_offsets(parts, topic, wanted)
    yield from _set_offsets(parts, topic, group, wanted, at_next_pull=True)
    _log.info("offsets of %r in %r set by %s: %s", group, topic, channel.peer, _shortened(wanted))
    return commands.reply(request, body=body)


def _set_offsets(
    parts: Parts, topic: str, group: str, wanted: dict[int, int], *, at_next_pull: bool
) -> Steps[None]:
    """Set consumer offsets, for pops and for members that join.

    Args:
        parts: The parts of the broker.
        topic: The topic.
        group: Consumer group.
        wanted: Queue id -> new offset.
        at_next_pull: True: members that pull get the new offsets with their next pull, and what
            they commit until then is ignored.

    Raises:
        LimitExceeded: There would be too many pending resets.
        RequestRefused: The topic was deleted meanwhile.
    """
    if at_next_pull:
        parts.resets.check_room(len(wanted))
    for chunk in chunks(wanted.items()):
        if parts.topics.get(topic) is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} was deleted")
        if at_next_pull:
            parts.store.pull_subscriptions.clear()  # its pulls bypass the resets
        for queue_id, queue_offset in chunk:
            parts.pops.reset(topic, group, queue_id, queue_offset)
            if at_next_pull:
                parts.resets.assign(topic, group, queue_id, queue_offset)
                parts.held_pulls.wake(topic, queue_id)
        yield


def _shortened(offsets: dict[int, int]) -> str:
    """Format offsets for the log: all of a usual topic, the first of a large one."""
    text = ", ".join(f"{key}: {value}" for key, value in islice(offsets.items(), _LOGGED_QUEUES))
    return text if len(offsets) <= _LOGGED_QUEUES else f"{text} ... {len(offsets)} queues"


def _wanted_offsets(
    parts: Parts, header: ResetOffsetHeader, queue_count: int
) -> Steps[dict[int, int]]:
    """Return queue id -> new offset. Raises ``RequestRefused``."""
    queue_id, store = header.queue_id, parts.store
    if queue_id is None or queue_id < 0:
        queue_ids = range(queue_count)
        if not queue_ids:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
    elif queue_id >= queue_count:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"topic[{header.topic}] has no queue {queue_id}; allowed: 0 to {queue_count - 1}",
        )
    elif header.queue_offset not in (None, -1):
        low, high = (
            store.min_offset(header.topic, queue_id),
            store.max_offset(header.topic, queue_id),
        )
        if not low <= header.queue_offset <= high + 1:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {header.queue_offset} not in consume queue range [{low}-{high}]",
            )
        return {queue_id: header.queue_offset}
    else:
        queue_ids = range(queue_id, queue_id + 1)
    offsets: dict[int, int] = {}
    for chunk in chunks(queue_ids):
        for id_ in chunk:
            if header.timestamp < 0:
                offsets[id_] = store.max_offset(header.topic, id_)
            else:
                offsets[id_] = store.offset_by_time(header.topic, id_, header.timestamp)
        yield
    return offsets


def _offsets_by_time(parts: Parts, header: ResetOffsetHeader) -> Steps[dict[int, int]]:
    """Return queue id -> new offset at a timestamp. Raises ``RequestRefused``."""
    topic = parts.topics.get(header.topic)
    if topic is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
        )
    offsets: dict[int, int] = {}
    for queue_id in range(topic.write_queue_count):
        known = parts.deliveries.consumer_offsets.get(topic.name, header.group, queue_id)
        if known is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
            )
        if header.timestamp == LATEST:
            wanted = parts.store.max_offset(topic.name, queue_id)
        else:
            wanted = parts.store.offset_by_time(topic.name, queue_id, header.timestamp)
        offsets[queue_id] = wanted if header.is_force else min(wanted, known)
        if queue_id % CHUNK == CHUNK - 1:
            yield
    return offsets


def _encoded_offsets(parts: Parts, topic: str, offsets: dict[int, int]) -> Steps[bytes]:
    body = LongBody(f"topic {topic}; name single queues")
    for chunk in chunks(offsets.items(), 4 * CHUNK):
        for queue_id, queue_offset in chunk:
            body.add_pair(
                MessageQueue(topic, parts.settings.broker.broker_name, queue_id), queue_offset
            )
        yield
    return body.encode_in(ResetOffsets(offset_table=QueueOffsets()), "offset_table")


def _encoded_list(parts: Parts, topic: str, offsets: dict[int, int]) -> Steps[bytes]:
    body = LongBody(f"topic {topic}; name single queues")
    name = parts.settings.broker.broker_name
    for chunk in chunks(offsets.items(), 4 * CHUNK):
        body.add(
            *(
                QueueOffset(broker_name=name, offset=queue_offset, queue_id=queue_id, topic=topic)
                for queue_id, queue_offset in chunk
            )
        )
        yield
    return body.encode_in(ResetOffsetList(offset_table=[]), "offset_table")


def _notify_offsets(
    group: ConsumerGroup[Channel],
    header: ResetOffsetHeader,
    body: bytes,
    list_body: bytes,
    *,
    is_list: bool,
) -> Steps[None]:
    fields = headers.encode(
        ResetOffsetHeader(topic=header.topic, group=header.group, timestamp=header.timestamp)
    )
    for member in list(group.members.values()):
        # Java checks the language of the admin client; what matters is what the consumer can read.
        takes_list = is_list or member.language == LanguageCode.CPP
        member.channel.notify(
            Command(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                flag=IS_ONEWAY,
                ext_fields=fields,
                body=list_body if takes_list else body,
            )
        )
        yield


# --- copying offsets ------------------------------------------------------------------


def clone_offsets(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Copy the consumer offsets of a group to another group."""
    header = headers.decode(CloneGroupOffsetHeader, request.ext_fields)
    group, other = header.src_group, header.dest_group
    parts.commits.check_group(other)
    topics = [header.topic] if header.topic else (yield from topics_of_group(parts, group))
    source = parts.groups.consumer(group)
    work = 0
    for topic in topics:
        work += 1
        if header.offline or source is None or topic in source.subscriptions:
            for chunk in chunks(
                parts.deliveries.consumer_offsets.of(topic, group).items(), _COPIED_AT_ONCE
            ):
                if parts.topics.get(topic) is None:
                    break
                offsets = parts.deliveries.consumer_offsets
                new = (offsets.get(topic, other, queue_id) is None for queue_id, _ in chunk)
                parts.commits.check_room(sum(new))
                for queue_id, consumer_offset in chunk:
                    parts.deliveries.consumer_offsets.put(topic, other, queue_id, consumer_offset)
                work += len(chunk)
                if work >= _COPIED_AT_ONCE:
                    work = 0
                    yield
        elif work >= _COPIED_AT_ONCE:
            work = 0
            yield
    _log.info("offsets of group %r set to those of %r by %s: %d topics", other, group, channel.peer,
              len(topics))  # fmt: skip
    return commands.reply(request)


def topics_of_group(parts: Parts, group: str) -> Steps[list[str]]:
    """Return the topics in which a group has offsets."""
    topics: set[str] = set()
    for chunk in chunks(parts.deliveries.consumer_offsets.readers(), LIGHT_CHUNK):
        topics.update(topic for topic, reader in chunk if reader == group)
        yield
    return (yield from sort(topics))
