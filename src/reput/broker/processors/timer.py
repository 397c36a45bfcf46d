"""Codes 370, 60, 61, 5001: recall of timer messages, state of the timer, choice of its engine."""

from collections.abc import Mapping

from reput.broker.parts import Parts
from reput.broker.topic.topics import refuse_closed
from reput.errors import InvalidHeader, RequestRefused
from reput.format import (
    bodies,
    command as commands,
    headers,
    names,
    properties as props,
    recall_handle as handles,
    timer_check,
)
from reput.format.codes import PERM_WRITE, ResponseCode
from reput.format.command import Command
from reput.format.headers import RecallMessageHeader
from reput.format.recall_handle import RecallHandle
from reput.remoting.channel import Channel
from reput.store.writing.incoming import IncomingMessage, PutResult

RECALL_TAG = "_RECALL_TAG_"
_BODY = b"0"
_ENGINE = "E_T"
_OF_FILES, _OF_ROCKSDB = "F", "R"
_NO_SERVICE = "recall failed, broker service not available"


def recall_handle(parts: Parts, properties: Mapping[str, str]) -> str:
    """Return the recall handle of a parked message; empty if it cannot be recalled.

    Its time is 1 ms after the one at which the message leaves, less the precision: as a deliver
    time, it leads to the same slot of the timer.
    """
    topic = properties[props.REAL_TOPIC]
    key = properties.get(props.UNIQ_KEY)
    if key is None or names.is_retry_topic(topic):
        return ""
    deliver_ms = int(properties[props.TIMER_OUT_MS]) + 1
    return handles.encode(
        RecallHandle(topic, parts.settings.broker.broker_name, str(deliver_ms), key)
    )


def recall_message(parts: Parts, channel: Channel, request: Command) -> Command | None:
    """Park a message that cancels another one when both are due."""
    header = headers.decode(RecallMessageHeader, request.ext_fields)
    refuse_closed(header.topic)
    now_ms = parts.clock.now_ms()
    handle = _checked(parts, header, now_ms)
    properties = {
        props.TAGS: RECALL_TAG,
        props.TIMER_RECALLED_KEY: handle.unique_key,
        props.UNIQ_KEY: handle.unique_key,
        props.TIMER_DELIVER_MS: handle.deliver_ms,
        props.BORN_TIMESTAMP: str(now_ms),
        props.CLUSTER: parts.settings.broker.broker_cluster_name,
    }
    if header.producer_group:
        properties[props.PRODUCER_GROUP] = header.producer_group
    parts.timers.park(handle.topic, 0, properties, now_ms)
    message = IncomingMessage(
        topic=names.TIMER_TOPIC,
        body=_BODY,
        property_bytes=_encoded(properties),
        born_timestamp=now_ms,
        born_host=channel.host,
        store_host=parts.identity.store_host,
    )
    key = handle.unique_key
    return parts.pending_replies.put(
        channel, request, message, lambda result: _reply(parts, request, key, result)
    )


def _encoded(properties: dict[str, str]) -> bytes:
    try:
        return props.encode(properties)
    except ValueError as error:
        raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, str(error)) from error


def _checked(parts: Parts, header: RecallMessageHeader, now_ms: int) -> RecallHandle:
    """Decode and check a handle; the order of the checks is Java's."""
    config = parts.settings.broker
    if not config.recall_message_enable:
        raise RequestRefused(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    if not parts.identity.is_master:
        raise RequestRefused(ResponseCode.SLAVE_NOT_AVAILABLE, _NO_SERVICE)
    is_writable = config.broker_permission & PERM_WRITE
    if not is_writable and not config.allow_recall_when_broker_not_writeable:
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, _NO_SERVICE)
    if parts.topics.get(header.topic) is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
        )
    try:
        handle = handles.decode(header.recall_handle)
    except InvalidHeader as error:
        raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
    if handle.topic != header.topic:
        problem = "recall failed, topic not match"
    elif handle.broker_name != config.broker_name:
        problem = _NO_SERVICE
    elif not _is_in_future(parts, handle.deliver_ms, now_ms):
        problem = "recall failed, timestamp invalid"
    else:
        return handle
    raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, problem)


def _is_in_future(parts: Parts, deliver_ms: str, now_ms: int) -> bool:
    number = props.number(deliver_ms)
    if number is None:
        return False
    return 0 < number - now_ms < parts.settings.store.timer_max_delay_sec * 1000


def _reply(parts: Parts, request: Command, key: str, result: PutResult) -> Command:
    region = {"MSG_REGION": parts.settings.broker.region_id}
    if result.status.is_stored:
        return commands.reply(request, ext_fields={"msgId": key, **region})
    remark = f"recall failed, execute error: {result.reason or result.status.name}"
    return commands.reply(request, ResponseCode.SYSTEM_ERROR, remark=remark, ext_fields=region)


def timer_progress(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the position of the timer in the form of timercheck.

    Fields, which are not in Java, have what a slave of reput needs in addition.
    """
    if not parts.settings.store.timer_wheel_enable:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
    timers, now_ms = parts.timers, parts.clock.now_ms()
    fields = {name: str(value) for name, value in timers.progress(now_ms).fields().items()}
    body = timer_check.encode(timers.check(now_ms))
    return commands.reply(request, ext_fields=fields, body=body)


def timer_metrics(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the number of waiting messages per topic."""
    if not parts.settings.store.timer_wheel_enable:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
    return commands.reply(request, body=bodies.encode(parts.timers.metrics.body()))


def switch_engine(parts: Parts, channel: Channel, request: Command) -> None:
    """Let the file-based timer resume taking up messages if it was stopped (5.4).

    Java refuses its second engine, in RocksDB, in the same way unless it was enabled at the start.
    """

    async def resume() -> str:
        await parts.settings.change({"timerStopEnqueue": "false"}, parts.clock)
        return "switch timer engine success"

    engine = (request.ext_fields or {}).get(_ENGINE)
    if not parts.settings.store.timer_wheel_enable:
        problem = "broker timerWheelEnable is false"
    elif engine == _OF_ROCKSDB:
        problem = (
            "timerRocksDBEnable must be configured true when broker start; RocksDB is not supported"
        )
    elif engine != _OF_FILES:
        problem = f"param error: {_ENGINE} is {engine!r}; allowed: {_OF_FILES}"
    else:
        parts.setting_requests.answer(channel, request, resume)
        return
    raise RequestRefused(ResponseCode.INVALID_PARAMETER, problem)
