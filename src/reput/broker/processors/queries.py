"""Codes 12, 33, 303, 321: messages by key and physical offset; current queues.

A query without a result is an error, never an empty result (known-bugs.md#errors-as-empty-results),
and a query creates nothing.
"""

import base64
import datetime
from collections.abc import Callable
from typing import Any

import numpy as np

from reput.broker import limits
from reput.broker.filter import selection
from reput.broker.parts import Parts
from reput.broker.processors.topics import existing
from reput.errors import CorruptRecord, RequestRefused
from reput.format import (
    bodies,
    command as commands,
    cq_unit,
    fastjson,
    headers,
    lookup_reply,
)
from reput.format.bodies import (
    ConsumeQueueUnit,
    ConsumeQueueUnits,
    MessageQueue,
    QueueTimeSpan,
    SubscriptionData,
    TimeSpans,
)
from reput.format.codes import ResponseCode
from reput.format.command import FRAME_BYTES_MAX, Command
from reput.format.cq_unit import ExtUnit
from reput.format.headers import (
    QueryConsumeQueueHeader,
    QueryMessageHeader,
    QueryMessageReplyHeader,
    TimeSpanHeader,
    ViewMessageHeader,
)
from reput.remoting.channel import Channel
from reput.remoting.long_replies import CHUNK, LongBody, chunks
from reput.remoting.server import LongReply
from reput.store import limits as store_limits
from reput.store.queues.consume_queue import ConsumeQueue

BODY_BYTES_MAX = FRAME_BYTES_MAX - 64 * 1024
"""Longest body of a reply, in bytes: a frame without room for its header."""
UNIT_COUNT_MAX = 4096
"""Maximum number of units that one query of a queue returns: half a megabyte of text."""

Taking = Callable[[ExtUnit], bool]
"""Predicate of a group's filter on units."""


def query_message(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the newest messages of a topic with a key, in log order."""
    header = headers.decode(QueryMessageHeader, request.ext_fields)
    limits.QUERY_KEY_LETTERS.check(len(header.topic) + len(header.key), "with its topic")
    max_count = (
        parts.settings.broker.default_query_max_num if header.is_unique_key else header.max_num
    )
    query = yield from parts.store.query_in_steps(
        header.topic,
        header.key,
        max_count,
        header.begin_timestamp,
        header.end_timestamp,
        is_tags=_is_tags_query(parts, header),
        bytes_max=BODY_BYTES_MAX,
    )
    records = query.records
    index = parts.store.index
    fields = headers.encode(
        QueryMessageReplyHeader(
            index_last_update_timestamp=max(index.end_timestamp, 0),
            index_last_update_phyoffset=max(index.end_physical_offset, 0),
        )
    )
    if not records and query.is_given_up:
        raise store_limits.INDEX_STEPS.exceeded(
            place=f"topic {header.topic}, key {header.key[:200]!r}"
        )
    if not records:
        text = lookup_reply.NOT_FOUND
        return commands.reply(request, ResponseCode.QUERY_NOT_FOUND, text, fields)
    remark = f"the newest {len(records)}; there may be more" if query.is_truncated else None
    return commands.reply(request, 0, remark, fields, b"".join(records))


def _is_tags_query(parts: Parts, header: QueryMessageHeader) -> bool:
    """Return True if a key is tags. Raises ``RequestRefused``."""
    if header.is_unique_key or header.index_type in (None, "", "K", "U"):
        return False
    if header.index_type != "T":
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"indexType[{header.index_type}] is illegal, "
            "allowed: K (key), U (unique key), T (tags)",
        )
    if not parts.settings.store.index_tags:
        raise RequestRefused(
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message by its tags: they are not in this broker's index (indexTags)",
        )
    return True


def view_message(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the record at a physical offset, of any topic.

    The id of a delayed or half message refers to the record in an internal topic, while clients of
    5.x send the destination topic.
    """
    header = headers.decode(ViewMessageHeader, request.ext_fields)
    data = parts.store.record_at(header.offset)
    if data is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}"
        )
    return commands.reply(request, body=data)


def query_queue(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return units of a queue as stored in its files."""
    header = headers.decode(QueryConsumeQueueHeader, request.ext_fields)
    place = f"{header.queue_id}@{header.topic}"
    queue = parts.store.queues.find(header.topic, header.queue_id)
    if queue is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{place} is not exist!")
    # Java returns success without a body, which its own tool cannot read.
    if not queue.first_offset <= header.index < queue.max_offset:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"Index {header.index} of {place} is not exist!"
        )
    subscription = filter_text = taking = None
    if header.consumer_group is not None:
        group = parts.groups.consumer(header.consumer_group)
        subscription = group.subscriptions.get(header.topic) if group is not None else None
        if subscription is None:
            filter_text = f"{header.consumer_group}@{header.topic} is not online!"
        else:
            filter_text = _filter_text(parts, header.topic, header.consumer_group)
            taking = _taking(parts, header.consumer_group, subscription)
    template = ConsumeQueueUnits(
        filter_data=filter_text,
        max_queue_index=queue.max_offset,
        min_queue_index=queue.min_offset,
        queue_data=[],
        subscription_data=subscription,
    )
    units = LongBody(f"units of queue {place}; ask for fewer at once")
    for chunk in chunks(queue.units(header.index, max(0, min(header.count, UNIT_COUNT_MAX)))):
        units.add(*(_unit(queue, unit, taking) for unit in chunk))
        yield
    return commands.reply(request, body=units.encode_in(template, "queue_data"))


def _filter_text(parts: Parts, topic: str, group: str) -> str:
    """Return the SQL filter of a group in readable form; ``null`` if it has none."""
    return fastjson.pretty(parts.consumer_filters.table.entry(topic, group))


def _taking(parts: Parts, group: str, subscription: SubscriptionData) -> Taking:
    if selection.is_tag_type(subscription.expression_type):
        codes = selection.of_subscription(subscription).tags_codes
        return lambda unit: not codes or unit.tags_code in codes
    group_filter = parts.consumer_filters.find(subscription.topic, group)
    if group_filter is None or not parts.settings.broker.enable_property_filter:
        return lambda _: True
    message_filter = parts.filters.of_group(group_filter).message_filter
    assert message_filter is not None  # expressions always have a filter
    return lambda unit: message_filter.takes_unit(
        unit.tags_code, unit.bit_map, unit.store_timestamp
    )


def _unit(queue: ConsumeQueue, unit: np.void, taking: Taking | None) -> ConsumeQueueUnit:
    code = int(unit["tags_code"])
    extra: dict[str, Any] = {}
    if cq_unit.is_ext_address(code) and queue.extension is not None:
        extra = _extension(queue, code, taking)
    return ConsumeQueueUnit(
        physic_offset=int(unit["physical_offset"]),
        physic_size=int(unit["size"]),
        tags_code=code,
        **extra,
    )


def _extension(queue: ConsumeQueue, address: int, taking: Taking | None) -> dict[str, Any]:
    assert queue.extension is not None
    try:
        ext_unit = queue.extension.unit(address)
    except CorruptRecord:
        return {"msg": f"Cq extend not exist!addr: {address}"}
    bits = {"filterBitMap": base64.b64encode(ext_unit.bit_map).decode()} if ext_unit.bit_map else {}
    data = {
        **bits,
        "msgStoreTime": ext_unit.store_timestamp,
        "size": ext_unit.size,
        "tagsCode": ext_unit.tags_code,
    }
    return {
        "extend_data_json": bodies.encode(data).decode(),
        "bit_map": _bits_text(ext_unit.bit_map) or None,
        "eval": taking is not None and taking(ext_unit),
    }


def _bits_text(bit_map: bytes) -> str:
    """Format bits from the last to the first, 64 per line, like Java."""
    texts = [f"{byte:08b}" + ("" if number % 8 else "\n") for number, byte in enumerate(bit_map)]
    return "".join(reversed(texts))


def consume_time_span(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the store times of each queue's messages, and of a group's consumed ones."""
    header = headers.decode(TimeSpanHeader, request.ext_fields)
    topic = existing(parts, header.topic)
    spans = LongBody(f"topic {topic.name}; ask for single queues with requests 29 to 32")
    for queue_ids in chunks(range(topic.write_queue_count), CHUNK):
        spans.add(
            *(_time_span(parts, topic.name, header.group, queue_id) for queue_id in queue_ids)
        )
        yield
    body = spans.encode_in(TimeSpans(consume_time_span_set=[]), "consume_time_span_set")
    return commands.reply(request, body=body)


def _time_span(parts: Parts, topic: str, group: str, queue_id: int) -> QueueTimeSpan:
    store = parts.store

    def time_of(queue_offset: int) -> int:
        stored_ms = store.store_time(topic, queue_id, queue_offset)
        return -1 if stored_ms is None else stored_ms

    earliest_ms = store.earliest_message_time(topic, queue_id)
    begin_ms = -1 if earliest_ms is None else earliest_ms
    max_offset = store.max_offset(topic, queue_id)
    saved_offset = parts.deliveries.consumer_offsets.get(topic, group, queue_id)
    consumer_offset = -1 if saved_offset is None else saved_offset
    has_lag = consumer_offset < max_offset
    # A group without an offset starts at the oldest message.
    next_ms = time_of(max(consumer_offset, store.min_offset(topic, queue_id))) if has_lag else -1
    consumed_ms = time_of(consumer_offset - 1) if consumer_offset > 0 else begin_ms
    end_ms = time_of(max_offset - 1)
    return QueueTimeSpan(
        consume_time_stamp=consumed_ms,
        consume_time_stamp_str=_date_text(consumed_ms),
        delay_time=parts.clock.now_ms() - next_ms if next_ms >= 0 else 0,
        max_time_stamp=end_ms,
        max_time_stamp_str=_date_text(end_ms),
        message_queue=MessageQueue(topic, parts.settings.broker.broker_name, queue_id),
        min_time_stamp=begin_ms,
        min_time_stamp_str=_date_text(begin_ms),
    )


def _date_text(time_ms: int) -> str:
    """Return a time in the broker's time zone, in Java's form: ``2026-01-31#23:59:59:999``."""
    seconds, milliseconds = divmod(time_ms, 1000)
    local = datetime.datetime.fromtimestamp(seconds, datetime.UTC).astimezone()
    return f"{local:%Y-%m-%d#%H:%M:%S}:{milliseconds:03}"
