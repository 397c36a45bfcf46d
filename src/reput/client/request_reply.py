"""Requests and replies: a message that the consumer answers with a message to the requester.

    reply = await producer.request(Message("Quotes", b"EUR/GBP"))      # one program

    async def listener(messages, context):                              # another one
        for message in messages:
            await producer.reply(message, b"0.86")

A request is stored and consumed like any message. The broker pushes the reply to the requesting
client over the connection of its producer. Compatible with Java clients on either side. Source:
``DefaultMQProducerImpl.request``, ``MessageUtil.createReplyMessage``.
"""

import asyncio
import dataclasses
import socket
import uuid
from collections.abc import Mapping

from reput.client.message import Message, ReceivedMessage
from reput.clock import Clock
from reput.errors import InvalidHeader, InvalidOption, RemotingError
from reput.format import command as commands, headers, java, names, properties as props
from reput.format.command import Command
from reput.format.headers import PushReplyHeader
from reput.format.message import Host, StoredMessage

REPLY_TYPE = "reply"
"""Value of MSG_TYPE."""


class NoReply(RemotingError):
    """Error of a request that was stored without a reply in time; it may have been served.

    Args:
        topic: Topic of the request.
        timeout_ms: Timeout in ms.
    """

    retriable = True

    def __init__(self, topic: str, timeout_ms: int) -> None:
        self.topic = topic
        self.timeout_ms = timeout_ms
        super().__init__(f"request to {topic} was stored, but not replied to in {timeout_ms} ms")


class AwaitedReplies:
    """Requests of a producer that wait for replies.

    Args:
        clock: The clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def begin(
        self, message: Message, client_id: str, timeout_ms: int
    ) -> tuple[Message, "asyncio.Future[ReceivedMessage]"]:
        """Return a message as a request, and the future of its reply; cancel it to stop waiting."""
        correlation_id = str(uuid.uuid4())
        future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        future.add_done_callback(lambda _: self._waiting.pop(correlation_id, None))
        marks = {
            props.CORRELATION_ID: correlation_id,
            props.REPLY_TO_CLIENT: client_id,
            props.TTL: str(timeout_ms),
        }
        properties = {**message.properties, **marks}
        return dataclasses.replace(message, properties=properties), future

    def take(self, request: Command) -> Command | None:
        """Handle a pushed reply (326); return the response, None if it is for another producer.

        Raises:
            InvalidHeader: A field is missing or invalid.
        """
        header = headers.decode(PushReplyHeader, request.ext_fields)
        property_bytes = java.encode_utf8(header.properties or "")
        properties = props.decode(property_bytes)
        future = self._waiting.get(properties.get(props.CORRELATION_ID, ""))
        if future is None or future.done():
            return None
        properties[props.REPLY_ARRIVE_TIME] = str(self._clock.now_ms())
        stored = StoredMessage(
            topic=header.topic,
            body=request.body,
            queue_id=header.queue_id,
            queue_offset=-1,
            physical_offset=-1,
            born_timestamp=header.born_timestamp,
            born_host=_host(header.born_host),
            store_timestamp=header.store_timestamp,
            store_host=_host(header.store_host),
            flag=header.flag,
            sys_flag=header.sys_flag,
            reconsume_times=header.reconsume_times or 0,
            property_bytes=property_bytes,
            properties=properties,
        )
        future.set_result(ReceivedMessage.of(stored, ""))
        return commands.reply(request)


def reply_message(
    request: ReceivedMessage, body: bytes, properties: Mapping[str, str] | None = None
) -> Message:
    """Return the reply to a request, to be sent by any producer of the same cluster.

    Args:
        request: The consumed request.
        body: Body of the reply, at least a byte.
        properties: Other properties.

    Raises:
        InvalidOption: The message is not a request, or its broker has no cluster name.
    """
    asked = request.properties
    for name in (props.CLUSTER, props.CORRELATION_ID, props.REPLY_TO_CLIENT):
        if name not in asked:
            raise InvalidOption("request", request, f"a request: a message with property {name}")
    marks = {
        props.MESSAGE_TYPE: REPLY_TYPE,
        props.CORRELATION_ID: asked[props.CORRELATION_ID],
        props.REPLY_TO_CLIENT: asked[props.REPLY_TO_CLIENT],
    }
    if props.TTL in asked:
        marks[props.TTL] = asked[props.TTL]
    topic = asked[props.CLUSTER] + names.REPLY_TOPIC_SUFFIX
    return Message(topic, body, properties={**(properties or {}), **marks})


def is_reply(message: Message) -> bool:
    """Return whether brokers push a message to the client that it names."""
    return message.properties.get(props.MESSAGE_TYPE) == REPLY_TYPE


def _host(text: str) -> Host:
    """Return the host of ``address:port``. Raises ``InvalidHeader``."""
    address, _, port = text.rpartition(":")
    address = address.strip("[]")
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return Host(socket.inet_pton(family, address), int(port))
        except (OSError, ValueError):
            continue
    raise InvalidHeader(f"PushReply: host {text!r} is not address:port")
