"""10, 310, 320: messages of producers.

The order of the checks and the codes are Java's ``SendMessageProcessor``. What is common does not
come here: ``broker.intake`` has a kernel for it, and this is what the kernel's work must equal.
"""

import random
from typing import TYPE_CHECKING

from reput.errors import RequestRefused
from reput.format import (
    command as commands,
    headers,
    names,
    properties as props,
    send_reply,
    sys_flag as flags,
)
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import SendMessageHeader
from reput.remoting.channel import Channel
from reput.store.config_tables import TopicConfig
from reput.store.incoming import IncomingMessage, PutResult, PutStatus

if TYPE_CHECKING:
    from reput.broker.server import Broker

CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_ERROR,
    PutStatus.CREATE_MAPPED_FILE_FAILED: ResponseCode.SYSTEM_ERROR,
    PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: ResponseCode.SYSTEM_ERROR,
    PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
}
"""What becomes of a put -> what the producer is told."""

_NOT_FOR_CLIENTS = frozenset(
    {
        names.SCHEDULE_TOPIC,
        names.HALF_TOPIC,
        names.OP_HALF_TOPIC,
        names.CHECK_MAX_TIME_TOPIC,
        names.SELF_TEST_TOPIC,
        names.OFFSET_MOVED_TOPIC,
    }
)
_TIMER_PROPERTIES = frozenset({"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})


def decode_header(request: Command) -> SendMessageHeader:
    """Return the header, whichever names it has. Raises ``InvalidHeader``."""
    if request.code == RequestCode.SEND_MESSAGE:
        return headers.decode(SendMessageHeader, request.ext_fields)
    return headers.decode_v2(request.ext_fields)


def send_message(broker: "Broker", channel: Channel, request: Command) -> Command | None:
    """Store one message."""
    header = decode_header(request)
    if header.batch:
        return _send_batch(broker, channel, request, header)
    topic, queue_id = _destination(broker, header)
    properties = props.decode((header.properties or "").encode("utf-8", "surrogatepass"))
    told_id = queue_id  # the producer is told what it asked for
    if names.is_retry_topic(header.topic):
        topic, queue_id = broker.retries.redirect(
            header, request.version, topic, queue_id, properties
        )
    _refuse_kinds(broker, properties)
    waits = properties.pop(props.WAIT, "true").lower() == "true"
    properties[props.CLUSTER] = broker.config.broker_cluster_name
    message = _message(broker, channel, request, header, topic, queue_id)
    message.waits = waits
    message.property_bytes = _encode_properties(properties)
    return broker.intake.put(
        channel, request, message, lambda result: _reply(broker, request, told_id, result)
    )


def send_batch(broker: "Broker", channel: Channel, request: Command) -> Command | None:
    """Store a batch: all of its messages, or none."""
    return _send_batch(broker, channel, request, decode_header(request))


def _send_batch(
    broker: "Broker", channel: Channel, request: Command, header: SendMessageHeader
) -> Command | None:
    topic, queue_id = _destination(broker, header)
    if names.is_retry_topic(header.topic):
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            "batch request does not support retry group %RETRY%",
        )
    properties = props.decode((header.properties or "").encode("utf-8", "surrogatepass"))
    _refuse_kinds(broker, properties)
    message = _message(broker, channel, request, header, topic, queue_id)
    message.waits = properties.get(props.WAIT, "true").lower() == "true"
    message.property_bytes = _encode_properties(properties)
    return broker.intake.put(
        channel,
        request,
        message,
        lambda result: _reply(broker, request, queue_id, result),
        is_batch=True,
    )


def _destination(broker: "Broker", header: SendMessageHeader) -> tuple[TopicConfig, int]:
    """Return where a message goes; the topic is made if need be. Raises ``RequestRefused``."""
    if broker.store.is_page_cache_busy():
        raise RequestRefused(
            ResponseCode.SYSTEM_BUSY,
            "[REJECTREQUEST]system busy, start flow control for a while",
        )
    if header.topic in _NOT_FOR_CLIENTS:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"Sending message to topic[{header.topic}] is forbidden."
        )
    topic = broker.topics.for_sending(
        header.topic,
        header.default_topic,
        header.default_topic_queue_nums,
        broker.clock.now_ms(),
        is_unit=bool(header.unit_mode),
    )
    count = max(topic.write_queue_count, topic.read_queue_count)
    if header.queue_id >= count:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{header.queue_id}] is illegal, topic[{topic.name}] has "
            f"{topic.read_queue_count} read queues and {topic.write_queue_count} write queues",
        )
    if header.queue_id >= 0:
        return topic, header.queue_id
    return topic, random.randrange(max(topic.write_queue_count, 1))


def _refuse_kinds(broker: "Broker", properties: dict[str, str]) -> None:
    """Refuse what cannot be done, instead of delivering it in another way."""
    if properties.get(props.TRANSACTION_PREPARED, "").lower() == "true":
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the broker[{broker.config.broker_ip1}] sending transaction message is forbidden",
        )
    if not _TIMER_PROPERTIES.isdisjoint(properties):
        name = min(_TIMER_PROPERTIES.intersection(properties))
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"property {name}: this broker has no timer; use a delay level",
        )


def _message(
    broker: "Broker",
    channel: Channel,
    request: Command,
    header: SendMessageHeader,
    topic: TopicConfig,
    queue_id: int,
) -> IncomingMessage:
    sys_flag = header.sys_flag
    if topic.filter_type == "MULTI_TAG":
        sys_flag |= flags.MULTI_TAGS
    return IncomingMessage(
        topic=topic.name,
        body=request.body,
        queue_id=queue_id,
        born_timestamp=header.born_timestamp,
        born_host=channel.host,
        store_host=broker.store_host,
        flag=header.flag,
        sys_flag=sys_flag,
        reconsume_times=header.reconsume_times or 0,
    )


def _encode_properties(properties: dict[str, str]) -> bytes:
    try:
        return props.encode(properties)
    except ValueError as error:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error


def _reply(broker: "Broker", request: Command, queue_id: int, result: PutResult) -> Command:
    code = CODES[result.status]
    answer = commands.reply(request, code)
    config = broker.config
    traces = {
        "TRACE_ON": "true" if config.trace_on else "false",
        "MSG_REGION": config.region_id,
    }
    if result.status.is_stored:
        where = send_reply.fields(result.offset_id, queue_id, result.queue_offset)
        answer.ext_fields = where | traces
    else:
        answer.ext_fields = traces
    if code is not ResponseCode.SUCCESS:
        answer.remark = result.reason or result.status.name
    return answer
