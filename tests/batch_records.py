"""Messages in batch queues of 5.x beside plain ones, for a store or a broker.

clock = ManualClock(START_MS)
sent = batch_records.fill(stores.open(clock=clock), clock)
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from reput.client.admin import Admin
from reput.clock import ManualClock
from reput.format import batch, headers, properties as props, sys_flag as flags
from reput.format.batch import InnerMessage
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage, PutStatus

BATCHES, PLAIN = "Batches", "Plain"
COUNTS = (3, 1, 4, 2, 5)
"""Numbers of messages of the batches, which go to two queues in turn."""
STEP_MS = 6 * 3600 * 1000
WRAPPED = flags.INNER_BATCH | flags.NEED_UNWRAP


@dataclass(frozen=True)
class Sent:
    """A message as it was sent."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    flag: int
    tags: str
    keys: tuple[str, ...]
    unique_key: str
    batch_key: str | None
    """Unique key of the batch around it."""
    record: int
    """Number of its record in the log."""

    def inner(self) -> InnerMessage:
        """Return what a client puts into a batch, or sends."""
        named = {
            props.UNIQ_KEY: self.unique_key,
            props.KEYS: " ".join(self.keys),
            props.TAGS: self.tags,
        }
        return InnerMessage(self.flag, self.body, props.encode(named))


def records() -> Iterator[list[Sent]]:
    """Yield the messages of each record: batches, plain ones, and one among batches."""
    ends: Counter[tuple[str, int]] = Counter()
    number = 0
    for turn, count in enumerate(COUNTS):
        places = [(BATCHES, turn % 2, count), (PLAIN, turn % 2, 0)]
        if turn == 2:
            places.append((BATCHES, 0, 0))
        for topic, queue_id, inside in places:
            yield [
                Sent(
                    topic,
                    queue_id,
                    ends[topic, queue_id] + i,
                    f"{topic} {number} {i}".encode() * (i + 1),
                    i,
                    "TagA" if (number + i) % 3 else "TagB",
                    (f"k{number}-{i}", "shared"),
                    f"{0xA0000 + number * 16 + i:032X}",
                    f"{0xB0000 + number:032X}" if inside else None,
                    number,
                )
                for i in range(inside or 1)
            ]
            ends[topic, queue_id] += inside or 1
            number += 1


def outer_properties(messages: list[Sent]) -> bytes:
    """Return the properties of a batch, with another tag than its messages."""
    return props.encode({props.UNIQ_KEY: str(messages[0].batch_key), props.TAGS: "TagOfBatch"})


def fill(store: MessageStore, clock: ManualClock) -> list[Sent]:
    """Put all messages into a store, its clock going on after each record, and return them."""
    store.keep_batches(BATCHES, is_on=True)
    for messages in records():
        inner = [message.inner() for message in messages]
        first = messages[0]
        if first.batch_key is None:
            incoming = IncomingMessage(
                first.topic, first.body, first.queue_id, inner[0].property_bytes
            )
            result = store.put(incoming)
        else:
            outer = outer_properties(messages)
            result = store.put_batch(
                IncomingMessage(
                    first.topic, batch.encode(inner), first.queue_id, outer, sys_flag=WRAPPED
                )
            )
        assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, first.queue_offset)
        clock.advance(STEP_MS)
    return [message for messages in records() for message in messages]


async def send(admin: Admin, broker: str) -> list[Sent]:
    """Create both topics on a broker, send all messages as clients do, and return them."""
    await admin.create_topic(
        BATCHES, queue_count=2, broker=broker, attributes={"queue.type": "BatchCQ"}
    )
    await admin.create_topic(PLAIN, queue_count=2, broker=broker)
    for messages in records():
        first = messages[0]
        inner = [message.inner() for message in messages]
        is_batch = first.batch_key is not None
        outer = outer_properties(messages) if is_batch else inner[0].property_bytes
        header = headers.SendMessageHeader(
            producer_group="g",
            topic=first.topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=first.queue_id,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties=outer.decode(),
            batch=is_batch,
        )
        request = Command(
            RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2,
            ext_fields=headers.encode_v2(header),
            body=batch.encode(inner) if is_batch else first.body,
        )
        address = (await admin.topic_route(first.topic)).any_address(broker)
        reply = await admin.calls.ask(address, request)
        assert reply.code == ResponseCode.SUCCESS
        sent = headers.decode(headers.SendMessageReplyHeader, reply.ext_fields)
        assert sent.queue_offset == first.queue_offset
    return [message for messages in records() for message in messages]
