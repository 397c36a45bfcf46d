"""Codes 203, 204, 328; 223, 307, 309: clients, and information that only they have.

For such information the broker sends a request to the client, and replies when the client has
replied. Source: rocketmq 4.9.7 ``AdminBrokerProcessor``, ``Broker2Client``.
"""

import asyncio
import logging
from collections.abc import Iterable

from reput.broker import limits
from reput.broker.group.groups import Member
from reput.broker.parts import Parts
from reput.errors import (
    BrokerError,
    ConnectionLost,
    Overloaded,
    ReputError,
    RequestRefused,
    RequestTimedOut,
)
from reput.format import (
    bodies,
    command as commands,
    headers,
    limits as format_limits,
    message_id as ids,
)
from reput.format.bodies import (
    Connection,
    ConsumerConnection,
    ConsumerStatus,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    QueueOffsets,
)
from reput.format.codes import LanguageCode, RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    ConsumerRunningInfoHeader,
    ConsumerStatusHeader,
    ProducerGroupHeader,
)
from reput.remoting.channel import Channel
from reput.remoting.long_replies import CHUNK, LongBody, chunks
from reput.remoting.server import LongReply
from reput.remoting.time_slices import Steps

CLIENT_TIMEOUT_MS = 10_000
"""Timeout of a request to one client, in ms."""
STATUS_TIMEOUT_MS = 5_000
"""Timeout of a request to all members of a group, in ms."""

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
    """Return a member's positions; log a warning and return None if its reply has none."""
    try:
        if isinstance(answer, BaseException):
            raise answer
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, member.channel.peer)
        # Java's reply is in its JSON dialect. One in standard JSON takes as long: its keys are
        # JSON.
        limit = format_limits.LENIENT_JSON_BYTES
        status = bodies.decode(ConsumerStatus, answer.body, size_limit=limit, lenient_limit=limit)
        return status.message_queue_table
    except ReputError as error:
        _log.warning("consumer %s does not return its positions: %s", member.client_id, error)
        return None
