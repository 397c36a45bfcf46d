"""Codes 324, 325: the reply to a request message goes to the requesting client.

A request is a message with the id of its producer's client in REPLY_TO_CLIENT. Its consumer sends a
reply message, which the broker pushes to that client (326). The client's response becomes the
response to the consumer. Texts and codes are those of Java's ``ReplyMessageProcessor``, which also
stores the reply (``storeReplyMessageEnable``), whether the push succeeded or not.
"""

import asyncio
import logging
from collections.abc import Callable

from reput.broker.group.groups import Member
from reput.broker.parts import Parts
from reput.broker.processors import clients, send
from reput.errors import LimitExceeded
from reput.format import command as commands, headers, java, properties as props, send_reply
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import PushReplyHeader, SendMessageHeader
from reput.remoting.channel import Channel
from reput.store.writing.incoming import PutResult

NOT_STORED_ID = "0"
"""Message id of a reply that is not stored: clients require one."""

_log = logging.getLogger(__name__)


def send_reply_message(parts: Parts, channel: Channel, request: Command) -> None:
    """Push a reply to the requesting client, and store it; the response follows afterwards."""
    header = send.decode_header(request)
    topic, queue_id = send.destination(parts, header, channel)
    property_bytes = props.without_those_of_brokers(java.encode_utf8(header.properties or ""))
    properties = props.decode(property_bytes)

    def on_pushed(problem: str | None) -> None:
        if problem is not None:
            _log.warning("reply of %s to %s: %s", channel.peer, header.topic, problem)
        code = ResponseCode.SUCCESS if problem is None else ResponseCode.SYSTEM_ERROR
        fields = send.trace_fields(parts)
        if problem is None:
            fields = send_reply.fields(NOT_STORED_ID, queue_id, 0) | fields
        response = commands.reply(request, code, problem, fields)
        if parts.settings.broker.store_reply_message_enable:
            message = send.incoming(parts, channel, request, header, topic, queue_id)
            message.waits = properties.get(props.WAIT, "true").lower() == "true"
            message.property_bytes = property_bytes
            try:
                put_reply = parts.pending_replies.put(
                    channel,
                    request,
                    message,
                    lambda result: _with_position(parts, response, queue_id, result),
                )
            except LimitExceeded as error:  # as if the store refused it: no error of the sender
                parts.serving.refusals.add(error.limit)
                parts.serving.faults.warn(error.limit, "a reply is not stored: %s", error)
            else:
                if put_reply is None:
                    return  # the response follows when the message is durable
        if not request.is_oneway:
            channel.answer(request, response)

    requester_id = properties.get(props.REPLY_TO_CLIENT)
    if requester_id is None:
        on_pushed(f"reply message properties[{props.REPLY_TO_CLIENT}] is null")
        return
    requester = parts.groups.producer_of_client(requester_id)
    if requester is None:
        on_pushed(f"push reply message fail, channel of <{requester_id}> not found.")
        return
    _push(requester, _push_request(parts, channel, request, header, property_bytes), on_pushed)


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
    requester: Member[Channel], push_request: Command, on_pushed: Callable[[str | None], None]
) -> None:
    """Push a reply to a client; report None on success, else the reason."""

    def answered(future: "asyncio.Future[Command]") -> None:
        error = future.exception()
        if error is None and future.result().code == ResponseCode.SUCCESS:
            on_pushed(None)
            return
        _log.warning(
            "client %s refuses a reply: %s",
            requester.client_id,
            error or future.result().remark,
        )
        on_pushed(f"push reply message to {requester.client_id}fail.")  # sic

    clients.send_request(requester, push_request, clients.CLIENT_TIMEOUT_MS).add_done_callback(
        answered
    )


def _with_position(parts: Parts, response: Command, queue_id: int, result: PutResult) -> Command:
    """Add the position of a stored reply. A failure to store it is not reported to the sender."""
    if result.status.is_stored:
        position = send_reply.fields(result.offset_id, queue_id, result.queue_offset)
        response.ext_fields = position | send.trace_fields(parts)
    else:
        _log.warning("a reply is not stored: %s", result.reason or result.status.name)
    return response
