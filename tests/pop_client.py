"""A client of pop consumption that handles replies like Java's ``MQClientAPIImpl``."""

import base64
from dataclasses import dataclass
from typing import Any, Protocol

from reput.format import bodies, pop_codec, properties as props
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeReplyHeader,
    Header,
    PopMessageHeader,
    PopMessageReplyHeader,
    decode,
)
from reput.format.message import StoredMessage
from world import NAME, messages_in, with_fields

INVISIBLE_MS = 60_000


class Asks(Protocol):
    """A connection to a broker."""

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        """Send a request, and return the reply."""


@dataclass(frozen=True)
class PoppedMessage:
    """A message that was popped."""

    message: StoredMessage
    handle: str
    group: str
    topic: str
    """The topic that stores the message, which may be a retry topic."""

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def queue_id(self) -> int:
        return self.message.queue_id

    @property
    def queue_offset(self) -> int:
        return self.message.queue_offset


def taken_of(reply: Command, group: str, topic: str) -> list[PoppedMessage]:
    """Return the messages of a reply with their handles."""
    header = decode(PopMessageReplyHeader, reply.ext_fields)
    starts = {}
    for info in (header.start_offset_info or "").split(";"):
        if info:
            kind, queue_id, start = info.split(" ")
            starts[kind, int(queue_id)] = start
    popped = []
    for message in messages_in(reply.body):
        handle = message.properties.get(props.POP_CHECKPOINT)
        if handle is None:
            kind = "1" if message.topic.startswith("%RETRY%") else "0"
            start = starts[kind, message.queue_id]
            handle = (
                f"{start} {header.pop_time} {header.invisible_time} {header.revive_qid} {kind} "
                f"{NAME} {message.queue_id} {message.queue_offset}"
            )
        real = f"%RETRY%{group}_{topic}" if handle.split(" ")[4] == "1" else topic
        popped.append(PoppedMessage(message, handle, group, real))
    return popped


async def pop_reply(subject: Asks, topic: str = "T", group: str = "G", **fields: Any) -> Command:
    header = PopMessageHeader(
        consumer_group=group,
        topic=topic,
        queue_id=-1,
        max_msg_nums=32,
        invisible_time=INVISIBLE_MS,
        poll_time=0,
        born_time=0,
        init_mode=0,
        exp_type="TAG",
        exp="*",
    )
    return await subject.ask(RequestCode.POP_MESSAGE, with_fields(header, fields))


async def pop(
    subject: Asks, topic: str = "T", group: str = "G", **fields: Any
) -> list[PoppedMessage]:
    reply = await pop_reply(subject, topic, group, **fields)
    assert reply.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT), reply.remark
    assert (reply.code == ResponseCode.SUCCESS) == bool(reply.body)
    return taken_of(reply, group, topic)


async def ack(subject: Asks, taken: PoppedMessage) -> Command:
    header = AckMessageHeader(
        consumer_group=taken.group,
        topic=taken.topic,
        queue_id=taken.queue_id,
        extra_info=taken.handle,
        offset=taken.queue_offset,
    )
    return await subject.ask(RequestCode.ACK_MESSAGE, header)


async def ack_batch(subject: Asks, taken: list[PoppedMessage]) -> Command:
    """Acknowledge messages of any checkpoints with 200151."""
    by_checkpoint: dict[tuple[Any, ...], list[PoppedMessage]] = {}
    for popped in taken:
        words = popped.handle.split(" ")
        key = (popped.group, *words[:5], int(words[6]))
        by_checkpoint.setdefault(key, []).append(popped)
    acks = []
    for (
        group,
        start,
        pop_ms,
        invisible_ms,
        revive,
        kind,
        queue_id,
    ), messages in by_checkpoint.items():
        bits = 0
        for popped in messages:
            bits |= 1 << popped.queue_offset - int(start)
        data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        topic = messages[0].topic
        asked = topic.removeprefix(f"%RETRY%{group}_") if kind == "1" else topic
        acks.append(
            {
                "c": group, "t": asked, "r": kind, "so": int(start), "q": queue_id,
                "rq": int(revive), "pt": int(pop_ms), "it": int(invisible_ms),
                "b": base64.b64encode(data).decode(),
            }
        )  # fmt: skip
    data = bodies.encode({"brokerName": NAME, "acks": acks})
    return await subject.ask(RequestCode.BATCH_ACK_MESSAGE, None, data)


async def change(
    subject: Asks, taken: PoppedMessage, invisible_ms: int, **fields: Any
) -> tuple[Command, PoppedMessage | None]:
    """Change the invisible time of a message; return the reply, and the message's new handle."""
    header = ChangeInvisibleTimeHeader(
        consumer_group=taken.group,
        topic=taken.topic,
        queue_id=taken.queue_id,
        extra_info=taken.handle,
        offset=taken.queue_offset,
        invisible_time=invisible_ms,
    )
    reply = await subject.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, with_fields(header, fields))
    if reply.code != ResponseCode.SUCCESS:
        return reply, None
    new = decode(ChangeInvisibleTimeReplyHeader, reply.ext_fields)
    words = taken.handle.split(" ")
    handle = (
        f"{taken.queue_offset if new.revive_qid != pop_codec.ORDERED_REVIVE_QUEUE else words[0]} "
        f"{new.pop_time} {new.invisible_time} {new.revive_qid} {words[4]} {words[5]} "
        f"{taken.queue_id} {taken.queue_offset}"
    )
    return reply, PoppedMessage(taken.message, handle, taken.group, taken.topic)
