"""324, 325: a reply to a request goes to the client that asked, wherever it is connected.

A request is a message like others, with the id of its producer's client in REPLY_TO_CLIENT. Who
consumes it sends a reply message, which the broker hands to that client (326). The client's answer
is the sender's. Texts and codes are those of Java's ``ReplyMessageProcessor``, which also stores
the reply (``storeReplyMessageEnable``), whether it was taken or not.
"""

import asyncio
import logging
from collections.abc import Callable

from reput.broker.group.groups import Member
from reput.broker.parts import Parts
from reput.broker.processors import connections, send
from reput.errors import LimitExceeded
from reput.format import command as commands, headers, java, properties as props, send_reply
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import PushReplyHeader, SendMessageHeader
from reput.remoting.channel import Channel
from reput.store.incoming import PutResult

NOT_STORED_ID = "0"
"""As the id of a reply that is not kept: clients cannot do without one."""

_log = logging.getLogger(__name__)


def send_reply_message(parts: Parts, channel: Channel, request: Command) -> None:
    """Hand a reply to the client that asked, and store it; the answer comes when that is done."""
    header = send.decode_header(request)
    topic, queue_id = send.destination(parts, header, channel.address)
    property_bytes = props.without_those_of_brokers(java.encode_utf8(header.properties or ""))
    properties = props.decode(property_bytes)

    def handed_over(problem: str | None) -> None:
        if problem is not None:
            _log.warning("reply of %s to %s: %s", channel.peer, header.topic, problem)
        code = ResponseCode.SUCCESS if problem is None else ResponseCode.SYSTEM_ERROR
        fields = send.trace_fields(parts)
        if problem is None:
            fields = send_reply.fields(NOT_STORED_ID, queue_id, 0) | fields
        answer = commands.reply(request, code, problem, fields)
        if parts.settings.broker.store_reply_message_enable:
            message = send.incoming(parts, channel, request, header, topic, queue_id)
            message.waits = properties.get(props.WAIT, "true").lower() == "true"
            message.property_bytes = property_bytes
            try:
                stored = parts.pending_replies.put(
                    channel,
                    request,
                    message,
                    lambda result: _with_place(parts, answer, queue_id, result),
                )
            except LimitExceeded as error:  # as one that the store refuses: no error of the sender
                parts.serving.refusals.add(error.limit)
                parts.serving.faults.warn(error.limit, "a reply is not stored: %s", error)
            else:
                if stored is None:
                    return  # the answer comes when the disk has it
        if not request.is_oneway:
            channel.answer(request, answer)

    requester_id = properties.get(props.REPLY_TO_CLIENT)
    if requester_id is None:
        handed_over(f"reply message properties[{props.REPLY_TO_CLIENT}] is null")
        return
    requester = parts.groups.producer_of_client(requester_id)
    if requester is None:
        handed_over(f"push reply message fail, channel of <{requester_id}> not found.")
        return
    _push(requester, _push_request(parts, channel, request, header, property_bytes), handed_over)


def _push_request(
    parts: Parts,
    channel: Channel,
    request: Command,
    header: SendMessageHeader,
    property_bytes: bytes,
) -> Command:
    now_ms = parts.clock.now_ms()
    pushed_at = props.encode({props.PUSH_REPLY_TIME: str(now_ms)})
    pushed = PushReplyHeader(
        producer_group=header.producer_group,
        topic=header.topic,
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        flag=header.flag,
        properties=java.decode_utf8(props.append(property_bytes, pushed_at)),
        reconsume_times=header.reconsume_times or 0,
        unit_mode=bool(header.unit_mode),
        born_host=str(channel.host),
        store_host=str(parts.identity.store_host),
        store_timestamp=now_ms,
    )
    fields = headers.encode(pushed)
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    return Command(code, ext_fields=fields, body=request.body)


def _push(
    requester: Member[Channel], push_request: Command, handed_over: Callable[[str | None], None]
) -> None:
    """Hand a reply to a client, and say whether it took it: None, or why not."""

    def answered(future: "asyncio.Future[Command]") -> None:
        error = future.exception()
        if error is None and future.result().code == ResponseCode.SUCCESS:
            handed_over(None)
            return
        _log.warning(
            "client %s does not take a reply: %s",
            requester.client_id,
            error or future.result().remark,
        )
        handed_over(f"push reply message to {requester.client_id}fail.")  # sic

    connections.ask(requester, push_request, connections.CLIENT_TIMEOUT_MS).add_done_callback(
        answered
    )


def _with_place(parts: Parts, answer: Command, queue_id: int, result: PutResult) -> Command:
    """Add where a reply is stored. That it is not is no error: it was handed over, or not."""
    if result.status.is_stored:
        place = send_reply.fields(result.offset_id, queue_id, result.queue_offset)
        answer.ext_fields = place | send.trace_fields(parts)
    else:
        _log.warning("a reply is not stored: %s", result.reason or result.status.name)
    return answer
