"""12, 33, 43, 45, 303, 321: messages by key and place, queues and offsets as they stand.

What is not found is told as such, never as an empty result (anchors D37), and asking makes nothing.
"""

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reput.broker import selection
from reput.broker.processors.topics import existing
from reput.errors import CorruptRecord, RequestRefused
from reput.format import bodies, command as commands, cq_unit, fastjson, headers
from reput.format.bodies import (
    ConsumeQueueUnit,
    ConsumeQueueUnits,
    ConsumerOffsetTable,
    MessageQueue,
    OffsetTable,
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
from reput.store.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from reput.broker.server import Broker

BODY_BYTES_MAX = FRAME_BYTES_MAX - 64 * 1024
"""Of a reply: what a frame has room for beside its header."""
UNIT_COUNT_MAX = 4096
"""Units that one query of a queue returns: half a megabyte of text."""

Taking = Callable[[ExtUnit], bool]
"""Whether a group may want a message, as far as its unit says."""


def query_message(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return the newest messages of a topic that carry a key, in the order of the log."""
    header = headers.decode(QueryMessageHeader, request.ext_fields)
    max_count = broker.config.default_query_max_num if header.is_unique_key else header.max_num
    found = broker.store.query(
        header.topic,
        header.key,
        max_count,
        header.begin_timestamp,
        header.end_timestamp,
        is_tags=_asks_for_tags(broker, header),
    )
    records, is_truncated = _fitting(found.records)
    index = broker.store.index
    fields = headers.encode(
        QueryMessageReplyHeader(
            index_last_update_timestamp=max(index.end_timestamp, 0),
            index_last_update_phyoffset=max(index.end_physical_offset, 0),
        )
    )
    if not records:
        text = "can not find message, maybe time range not correct"
        return commands.reply(request, ResponseCode.QUERY_NOT_FOUND, text, fields)
    is_truncated = is_truncated or found.is_truncated
    remark = f"the newest {len(records)}; there may be more" if is_truncated else None
    return commands.reply(request, 0, remark, fields, b"".join(records))


def _asks_for_tags(broker: "Broker", header: QueryMessageHeader) -> bool:
    """Return whether a key is tags. Raises ``RequestRefused``."""
    if header.is_unique_key or header.index_type in (None, "", "K", "U"):
        return False
    if header.index_type != "T":
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"indexType[{header.index_type}] is illegal, "
            "allowed: K (key), U (unique key), T (tags)",
        )
    if not broker.store_config.index_tags:
        raise RequestRefused(
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message by its tags: they are not in this broker's index (indexTags)",
        )
    return True


def _fitting(records: list[bytes]) -> tuple[list[bytes], bool]:
    """Return the last records that one reply has room for, and whether some had to go."""
    size = 0
    for back, record in enumerate(reversed(records)):
        size += len(record)
        if size > BODY_BYTES_MAX:
            return records[len(records) - back :], True
    return records, False


def view_message(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return the record at a physical offset."""
    physical_offset = headers.decode(ViewMessageHeader, request.ext_fields).offset
    record = broker.store.record_at(physical_offset)
    if record is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical_offset}"
        )
    return commands.reply(request, body=record)


def query_queue(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return units of a queue as they stand in its files."""
    header = headers.decode(QueryConsumeQueueHeader, request.ext_fields)
    place = f"{header.queue_id}@{header.topic}"
    queue = broker.store.queues.find(header.topic, header.queue_id)
    if queue is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{place} is not exist!")
    # Java says success here, with no body, which its own tool cannot read.
    if not queue.first_offset <= header.index < queue.max_offset:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"Index {header.index} of {place} is not exist!"
        )
    subscription = filter_text = taking = None
    if header.consumer_group is not None:
        group = broker.groups.consumer(header.consumer_group)
        subscription = group.subscriptions.get(header.topic) if group is not None else None
        if subscription is None:
            filter_text = f"{header.consumer_group}@{header.topic} is not online!"
        else:
            filter_text = _filter_text(broker, header.topic, header.consumer_group)
            taking = _taking(broker, header.consumer_group, subscription)
    answer = ConsumeQueueUnits(
        filter_data=filter_text,
        max_queue_index=queue.max_offset,
        min_queue_index=queue.min_offset,
        queue_data=_units(queue, header.index, header.count, taking),
        subscription_data=subscription,
    )
    return commands.reply(request, body=bodies.encode(answer))


def _filter_text(broker: "Broker", topic: str, group: str) -> str:
    """Return the SQL filter of a group for people to read; ``null`` if it has none."""
    return fastjson.pretty(broker.consumer_filters.table.entry(topic, group))


def _taking(broker: "Broker", group: str, subscription: SubscriptionData) -> Taking:
    if selection.is_tag_type(subscription.expression_type):
        codes = selection.of_subscription(subscription).tags_codes
        return lambda unit: not codes or unit.tags_code in codes
    one = broker.consumer_filters.find(subscription.topic, group)
    if one is None or not broker.config.enable_property_filter:
        return lambda _: True
    wanted = broker.filters.of_group(one).message_filter
    assert wanted is not None  # of an expression
    return lambda unit: wanted.takes_unit(unit.tags_code, unit.bit_map, unit.store_timestamp)


def _units(
    queue: ConsumeQueue, queue_offset: int, count: int, taking: Taking | None
) -> list[ConsumeQueueUnit]:
    found = []
    for unit in queue.units(queue_offset, max(0, min(count, UNIT_COUNT_MAX))):
        code = int(unit["tags_code"])
        extra: dict[str, Any] = {}
        if cq_unit.is_ext_address(code) and queue.extension is not None:
            extra = _extension(queue, code, taking)
        found.append(
            ConsumeQueueUnit(
                physic_offset=int(unit["physical_offset"]),
                physic_size=int(unit["size"]),
                tags_code=code,
                **extra,
            )
        )
    return found


def _extension(queue: ConsumeQueue, address: int, taking: Taking | None) -> dict[str, Any]:
    assert queue.extension is not None
    try:
        one = queue.extension.unit(address)
    except CorruptRecord:
        return {"msg": f"Cq extend not exist!addr: {address}"}
    bits = {"filterBitMap": base64.b64encode(one.bit_map).decode()} if one.bit_map else {}
    data = {
        **bits,
        "msgStoreTime": one.store_timestamp,
        "size": one.size,
        "tagsCode": one.tags_code,
    }
    return {
        "extend_data_json": bodies.encode(data).decode(),
        "bit_map": _bits_text(one.bit_map) or None,
        "eval": taking is not None and taking(one),
    }


def _bits_text(bit_map: bytes) -> str:
    """Return bits from the last one to the first, 64 of them a line, as Java prints them."""
    texts = [f"{byte:08b}" + ("" if at % 8 else "\n") for at, byte in enumerate(bit_map)]
    return "".join(reversed(texts))


def consume_time_span(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return of when the messages of each queue are, and those that a group has read."""
    header = headers.decode(TimeSpanHeader, request.ext_fields)
    topic = existing(broker, header.topic)
    spans = [
        _time_span(broker, topic.name, header.group, queue_id)
        for queue_id in range(topic.write_queue_count)
    ]
    return commands.reply(request, body=bodies.encode(TimeSpans(consume_time_span_set=spans)))


def _time_span(broker: "Broker", topic: str, group: str, queue_id: int) -> QueueTimeSpan:
    store = broker.store

    def time_of(queue_offset: int) -> int:
        found = store.store_time(topic, queue_id, queue_offset)
        return -1 if found is None else found

    earliest_ms = store.earliest_message_time(topic, queue_id)
    begin_ms = -1 if earliest_ms is None else earliest_ms
    max_offset = store.max_offset(topic, queue_id)
    known = broker.consumer_offsets.get(topic, group, queue_id)
    consumer_offset = -1 if known is None else known
    is_behind = consumer_offset < max_offset
    # A group that has read nothing yet waits for the oldest message.
    next_ms = time_of(max(consumer_offset, store.min_offset(topic, queue_id))) if is_behind else -1
    return QueueTimeSpan(
        consume_time_stamp=time_of(consumer_offset - 1) if consumer_offset > 0 else begin_ms,
        delay_time=broker.clock.now_ms() - next_ms if next_ms >= 0 else 0,
        max_time_stamp=time_of(max_offset - 1),
        message_queue=MessageQueue(topic, broker.config.broker_name, queue_id),
        min_time_stamp=begin_ms,
    )


def all_consumer_offsets(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return how far each group has read each queue."""
    table: dict[str, dict[int, int]] = {}
    for one in broker.consumer_offsets.all():
        table.setdefault(f"{one.topic}@{one.group}", {})[one.queue_id] = one.consumer_offset
    return commands.reply(request, body=bodies.encode(ConsumerOffsetTable(offset_table=table)))


def all_delay_offsets(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return how far each delay level has delivered."""
    table = OffsetTable(offset_table=broker.delayed.table.all())
    return commands.reply(request, body=bodies.encode(table))
