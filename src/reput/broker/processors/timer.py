"""370, 60, 61, 5001: messages that wait for the timer, taken back or counted; which timer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from reput.broker.config import PERM_WRITE
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
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import RecallMessageHeader
from reput.format.recall_handle import RecallHandle
from reput.remoting.channel import Channel
from reput.store.incoming import IncomingMessage, PutResult

if TYPE_CHECKING:
    from reput.broker.server import Broker

RECALL_TAG = "_RECALL_TAG_"
_BODY = b"0"
_ENGINE = "E_T"
_OF_FILES, _OF_ROCKSDB = "F", "R"
_NO_SERVICE = "recall failed, broker service not available"


def recall_handle(broker: "Broker", properties: Mapping[str, str]) -> str:
    """Return the handle of a message that is parked; empty if it cannot be recalled.

    It names a time 1 ms behind the one at which the message leaves, less a precision: sent as a
    deliver time, that leads to the same place in the timer.
    """
    topic = properties[props.REAL_TOPIC]
    key = properties.get(props.UNIQ_KEY)
    if key is None or names.is_retry_topic(topic):
        return ""
    deliver_ms = int(properties[props.TIMER_OUT_MS]) + 1
    return handles.encode(RecallHandle(topic, broker.config.broker_name, str(deliver_ms), key))


def recall_message(broker: "Broker", channel: Channel, request: Command) -> Command | None:
    """Park a message that takes another one away when both leave."""
    header = headers.decode(RecallMessageHeader, request.ext_fields)
    now_ms = broker.clock.now_ms()
    handle = _checked(broker, header, now_ms)
    properties = {
        props.TAGS: RECALL_TAG,
        props.TIMER_RECALLED_KEY: handle.unique_key,
        props.UNIQ_KEY: handle.unique_key,
        props.TIMER_DELIVER_MS: handle.deliver_ms,
        props.BORN_TIMESTAMP: str(now_ms),
        props.CLUSTER: broker.config.broker_cluster_name,
    }
    if header.producer_group:
        properties[props.PRODUCER_GROUP] = header.producer_group
    broker.timers.park(handle.topic, 0, properties, now_ms)
    message = IncomingMessage(
        topic=names.TIMER_TOPIC,
        body=_BODY,
        property_bytes=_encoded(properties),
        born_timestamp=now_ms,
        born_host=channel.host,
        store_host=broker.store_host,
    )
    key = handle.unique_key
    return broker.intake.put(
        channel, request, message, lambda result: _reply(broker, request, key, result)
    )


def _encoded(properties: dict[str, str]) -> bytes:
    try:
        return props.encode(properties)
    except ValueError as error:
        raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, str(error)) from error


def _checked(broker: "Broker", header: RecallMessageHeader, now_ms: int) -> RecallHandle:
    """Return what a handle says, if all of it is right; checks are in Java's order."""
    config = broker.config
    if not config.recall_message_enable:
        raise RequestRefused(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    if not broker.is_master:
        raise RequestRefused(ResponseCode.SLAVE_NOT_AVAILABLE, _NO_SERVICE)
    is_writable = config.broker_permission & PERM_WRITE
    if not is_writable and not config.allow_recall_when_broker_not_writeable:
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, _NO_SERVICE)
    if broker.topics.get(header.topic) is None:
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
    elif not _is_ahead(broker, handle.deliver_ms, now_ms):
        problem = "recall failed, timestamp invalid"
    else:
        return handle
    raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, problem)


def _is_ahead(broker: "Broker", deliver_ms: str, now_ms: int) -> bool:
    if not (deliver_ms.isascii() and deliver_ms.isdigit()):
        return False
    return 0 < int(deliver_ms) - now_ms < broker.store_config.timer_max_delay_sec * 1000


def _reply(broker: "Broker", request: Command, key: str, result: PutResult) -> Command:
    region = {"MSG_REGION": broker.config.region_id}
    if result.status.is_stored:
        return commands.reply(request, ext_fields={"msgId": key, **region})
    remark = f"recall failed, execute error: {result.reason or result.status.name}"
    return commands.reply(request, ResponseCode.SYSTEM_ERROR, remark=remark, ext_fields=region)


def timer_progress(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return how far the timer is, as timercheck has it."""
    if not broker.store_config.timer_wheel_enable:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
    check = broker.timers.check(broker.clock.now_ms())
    return commands.reply(request, body=timer_check.encode(check))


def timer_metrics(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return how many messages of each topic wait."""
    if not broker.store_config.timer_wheel_enable:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
    return commands.reply(request, body=bodies.encode(broker.timers.metrics.body()))


def switch_engine(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Let the timer of the files take up what is to wait, if it was told to stop (5.4).

    Java has another one, in RocksDB, and refuses it like this where it was not started with it.
    """
    engine = (request.ext_fields or {}).get(_ENGINE)
    if not broker.store_config.timer_wheel_enable:
        problem = "broker timerWheelEnable is false"
    elif engine == _OF_ROCKSDB:
        problem = (
            "timerRocksDBEnable must be configured true when broker start; there is no RocksDB here"
        )
    elif engine != _OF_FILES:
        problem = f"param error: {_ENGINE} is {engine!r}; allowed: {_OF_FILES}"
    else:
        broker.reconfigure({"timerStopEnqueue": "false"})
        return commands.reply(request, remark="switch timer engine success")
    raise RequestRefused(ResponseCode.INVALID_PARAMETER, problem)
