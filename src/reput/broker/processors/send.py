"""Codes 10, 310, 320: messages of producers.

The order of the checks and the codes are those of Java's ``SendMessageProcessor``. Most sends take
the fast path (``fastpath/``), which must have the same effects as this module.
"""

import contextlib
import random
from collections.abc import Iterator

from reput.broker.parts import Parts
from reput.broker.processors import lite, timer
from reput.broker.timer.timers import TIMES
from reput.broker.topic import priority
from reput.broker.topic.topics import READ_WRITE, refuse_closed
from reput.broker.transaction import transactions
from reput.errors import RequestRefused
from reput.format import (
    command as commands,
    headers,
    names,
    properties as props,
    send_reply,
    sys_flag as flags,
)
from reput.format.codes import PERM_INHERIT, PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import SendMessageHeader
from reput.remoting.channel import Channel
from reput.store.tables.config_tables import BATCH_QUEUES, TopicConfig
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus

CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: ResponseCode.SYSTEM_ERROR,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_ERROR,
    PutStatus.CREATE_MAPPED_FILE_FAILED: ResponseCode.SYSTEM_ERROR,
    PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: ResponseCode.SYSTEM_ERROR,
    PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
}
"""Response code for each status of a put."""
_TEXTS = {
    PutStatus.SERVICE_NOT_AVAILABLE: (
        "service not available now. It may be caused by one of the following reasons: the broker's "
        "disk is full, messages are put to the slave, message store has been shut down, etc. Here"
    ),
    PutStatus.OS_PAGE_CACHE_BUSY: "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    PutStatus.CREATE_MAPPED_FILE_FAILED: "create mapped file failed, server is busy or broken",
    PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: (
        "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, "
        "lmq consumeQueue num exceed maxLmqConsumeQueueNum config num"
    ),
}
"""RocketMQ's text for the status of a put, which programs look for."""


def decode_header(request: Command) -> SendMessageHeader:
    """Return the header in either of its encodings. Raises ``InvalidHeader``."""
    if request.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        return headers.decode(SendMessageHeader, request.ext_fields)
    return headers.decode_v2(request.ext_fields)


def send_message(parts: Parts, channel: Channel, request: Command) -> Command | None:
    """Store one message."""
    with _traced(parts):
        return _send_message(parts, channel, request)


@contextlib.contextmanager
def _traced(parts: Parts) -> Iterator[None]:
    """Add the fields of a reply for traces to a refusal."""
    try:
        yield
    except RequestRefused as refusal:
        refusal.reply_fields = trace_fields(parts) | (refusal.reply_fields or {})
        raise


def _send_message(parts: Parts, channel: Channel, request: Command) -> Command | None:
    header = decode_header(request)
    if header.batch:
        return _send_batch(parts, channel, request, header)
    topic, queue_id = destination(parts, header, channel)
    properties = props.decode((header.properties or "").encode("utf-8", "surrogatepass"))
    for name in props.OF_BROKERS & properties.keys():
        del properties[name]
    reply_queue_id = queue_id  # queue id in the reply: the one that was requested
    if names.is_retry_topic(header.topic):
        topic, queue_id = parts.retries.redirect(
            header, request.version, topic, queue_id, properties, channel.address
        )
    lite_topic = properties.get(props.LITE_TOPIC)
    if lite_topic:
        properties[props.INNER_MULTI_DISPATCH] = lite.queue_of(parts, header.topic, lite_topic)
    priority_queue_id = priority.queue_of(properties, topic.write_queue_count)
    if priority_queue_id is not None:
        queue_id = reply_queue_id = priority_queue_id
    is_half = transactions.is_half(properties, header.reconsume_times or 0)
    wait = properties.pop(props.WAIT, None)
    properties[props.CLUSTER] = parts.settings.broker.broker_cluster_name
    message = incoming(parts, channel, request, header, topic, queue_id)
    message.waits = wait is None or wait.lower() == "true"
    if is_half:
        if wait is not None:
            properties[props.WAIT] = wait  # as in Java, half messages keep it
        parts.transactions.hold_back(message, properties, parts.clock.now_ms())
    unique_key = properties.get(props.UNIQ_KEY, "")
    handle = ""
    if not is_half and _park(parts, message, properties):
        if wait is not None:
            properties[props.WAIT] = wait  # likewise
        handle = timer.recall_handle(parts, properties)
    message.property_bytes = _encode_properties(parts, properties)
    return parts.pending_replies.put(
        channel,
        request,
        message,
        lambda result: _reply(parts, request, reply_queue_id, result, unique_key, handle),
    )


def _park(parts: Parts, message: IncomingMessage, properties: dict[str, str]) -> bool:
    """Redirect a message to the timer if it must wait there, and mark its properties."""
    now_ms = parts.clock.now_ms()
    if not parts.timers.park(message.topic, message.queue_id, properties, now_ms):
        return False
    parts.topics.for_group(names.TIMER_TOPIC, 1, READ_WRITE, now_ms)
    message.topic, message.queue_id = names.TIMER_TOPIC, 0
    return True


def send_batch(parts: Parts, channel: Channel, request: Command) -> Command | None:
    """Store a batch: all of its messages, or none."""
    with _traced(parts):
        return _send_batch(parts, channel, request, decode_header(request))


def _send_batch(
    parts: Parts, channel: Channel, request: Command, header: SendMessageHeader
) -> Command | None:
    topic, queue_id = destination(parts, header, channel)
    if names.is_retry_topic(header.topic):
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"batch request does not support retry group {header.topic}",
        )
    properties = props.decode((header.properties or "").encode("utf-8", "surrogatepass"))
    if not TIMES.isdisjoint(properties):
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, "a batch cannot wait for the timer; send its messages"
        )
    if transactions.is_half(properties, header.reconsume_times or 0):
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be part of a transaction"
        )
    message = incoming(parts, channel, request, header, topic, queue_id)
    message.waits = properties.get(props.WAIT, "true").lower() == "true"
    if message.sys_flag & flags.INNER_BATCH and BATCH_QUEUES not in topic.attributes:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"sysFlag {message.sys_flag}: topic[{topic.name}] has no batch queues",
        )
    unique_key = properties.get(props.UNIQ_KEY, "")
    batch_key = unique_key if BATCH_QUEUES in topic.attributes else ""
    if batch_key:  # of a producer of 5.x: it is stored as one record
        if message.sys_flag & flags.COMPRESSED:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "a batch is not compressed")
        properties[props.CLUSTER] = parts.settings.broker.broker_cluster_name
        message.sys_flag |= flags.NEED_UNWRAP | flags.INNER_BATCH
    message.property_bytes = _encode_properties(parts, properties)
    return parts.pending_replies.put(
        channel,
        request,
        message,
        lambda result: _reply(parts, request, queue_id, result, unique_key, batch_key=batch_key),
        is_batch=True,
    )


def destination(
    parts: Parts, header: SendMessageHeader, channel: Channel
) -> tuple[TopicConfig, int]:
    """Return the destination of a message; create the topic if necessary.

    Raises:
        RequestRefused: This is a slave; or there is no such topic or queue, or it cannot be
            written.
    """
    if not parts.identity.is_master:
        status = PutStatus.SERVICE_NOT_AVAILABLE
        raise RequestRefused(CODES[status], f"{_TEXTS[status]}: {parts.store.refusal}")
    parts.put_stalls.refuse()
    refuse_closed(header.topic)
    topic = parts.topics.for_sending(
        header.topic,
        header.default_topic,
        header.default_topic_queue_nums,
        parts.clock.now_ms(),
        is_unit=bool(header.unit_mode),
        address=channel.address,
    )
    count = max(topic.write_queue_count, topic.read_queue_count)
    if header.queue_id >= count:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{header.queue_id}] is illegal, {_description(topic)} "
            f"Producer: {channel.peer}",
            old_code=ResponseCode.SYSTEM_ERROR,
        )
    if header.queue_id >= 0:
        return topic, header.queue_id
    return topic, random.randrange(max(topic.write_queue_count, 1))


def _description(topic: TopicConfig) -> str:
    """Return the settings of a topic in RocketMQ's form."""
    perm = "".join(
        letter if topic.perm & bit else "-"
        for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    )
    attributes = ", ".join(f"{name}={value}" for name, value in topic.attributes)
    return (
        f"TopicConfig [topicName={topic.name}, readQueueNums={topic.read_queue_count}, "
        f"writeQueueNums={topic.write_queue_count}, perm={perm}, "
        f"topicFilterType={topic.filter_type}, topicSysFlag={topic.sys_flag}, "
        f"order={str(topic.order).lower()}, attributes={{{attributes}}}]"
    )


def incoming(
    parts: Parts,
    channel: Channel,
    request: Command,
    header: SendMessageHeader,
    topic: TopicConfig,
    queue_id: int,
) -> IncomingMessage:
    """Return the message of a request, without its properties."""
    sys_flag = header.sys_flag
    if topic.filter_type == "MULTI_TAG":
        sys_flag |= flags.MULTI_TAGS
    return IncomingMessage(
        topic=topic.name,
        body=request.body,
        queue_id=queue_id,
        born_timestamp=header.born_timestamp,
        born_host=channel.host,
        store_host=parts.identity.store_host,
        flag=header.flag,
        sys_flag=sys_flag,
        reconsume_times=header.reconsume_times or 0,
    )


def _encode_properties(parts: Parts, properties: dict[str, str]) -> bytes:
    try:
        return props.encode(properties)
    except ValueError as error:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"{_illegal(parts)} {error}") from error


def _illegal(parts: Parts) -> str:
    """Return RocketMQ's text about an illegal message."""
    return (
        "the message is illegal, maybe msg body or properties length not matched. msg body length "
        f"limit {parts.settings.store.max_message_size}B, msg properties length limit 32KB."
    )


def _remark(parts: Parts, result: PutResult) -> str:
    """Return the reason for a put status other than PUT_OK: RocketMQ's text and an explanation."""
    status, reason = result.status, result.reason
    if CODES[status] is ResponseCode.MESSAGE_ILLEGAL:
        return f"{_illegal(parts)} {reason}"
    known = _TEXTS.get(status, "")
    return ": ".join(filter(None, (known, reason))) or status.name


def trace_fields(parts: Parts) -> dict[str, str]:
    """Return the fields of a reply for the producer's traces."""
    config = parts.settings.broker
    return {
        "TRACE_ON": "true" if config.trace_on else "false",
        "MSG_REGION": config.region_id,
    }


def _reply(
    parts: Parts,
    request: Command,
    queue_id: int,
    result: PutResult,
    unique_key: str,
    recall_handle: str = "",
    *,
    batch_key: str = "",
) -> Command:
    code = CODES[result.status]
    reply = commands.reply(request, code)
    traces = trace_fields(parts)
    if result.status.is_stored:
        position = send_reply.fields(result.offset_id, queue_id, result.queue_offset, unique_key)
        reply.ext_fields = position | traces
        if recall_handle:
            reply.ext_fields[send_reply.RECALL_HANDLE] = recall_handle
        if batch_key:
            reply.ext_fields["batchUniqId"] = batch_key
    else:
        reply.ext_fields = traces
    if code is not ResponseCode.SUCCESS:
        reply.remark = _remark(parts, result)
    return reply
