"""Copies of dead letters, which are sent to their group again."""

from collections.abc import Mapping

from reput.client.message import Message, ReceivedMessage, SendResult
from reput.format import names, properties as props


def copy(message: ReceivedMessage, topic: str, more: Mapping[str, str] | None = None) -> Message:
    """Return a copy of a dead letter to send, without the properties of its first delivery.

    The id remains: a query by id finds both.

    Args:
        message: The dead letter.
        topic: Where the copy goes: its group's retry topic, or the original topic.
        more: More properties of the copy.

    Raises:
        CorruptRecord: The body cannot be decompressed.
    """
    stored = message.stored
    removed = _DELIVERY_PROPERTIES
    if not names.is_retry_topic(topic):
        removed = removed | _RETRY_PROPERTIES
    properties = {name: value for name, value in stored.properties.items() if name not in removed}
    properties |= more or {}
    tags, keys = properties.pop(props.TAGS, None), properties.pop(props.KEYS, "")
    return Message(
        topic, stored.plain_body(), tags=tags, keys=keys, properties=properties, flag=stored.flag
    )


def problem_of(result: SendResult) -> str | None:
    """Return why a stored copy is less safe than its broker promises; None if it is not."""
    return None if result.status == "SEND_OK" else f"stored, but {result.status}"


_DELIVERY_PROPERTIES = {
    props.DELAY,
    props.WAIT,
    props.REAL_TOPIC,
    props.REAL_QUEUE_ID,
    props.CLUSTER,
    "MSG_REGION",
    "TRACE_ON",
    props.CRC32,
    props.RECONSUME_TIME,
    props.MAX_RECONSUME_TIMES,
    "CONSUME_START_TIME",
    "MIN_OFFSET",
    "MAX_OFFSET",
    props.TRANSACTION_PREPARED,
    props.PRODUCER_GROUP,
    props.POP_CHECKPOINT,
    props.FIRST_POP_TIME,
    props.TIMER_DELAY_MS,
    props.TIMER_DELAY_SEC,
    props.TIMER_DELIVER_MS,
    props.TIMER_OUT_MS,
    props.TIMER_ENQUEUE_MS,
    props.TIMER_DEQUEUE_MS,
    props.TIMER_ROLL_TIMES,
    "DLQ_ORIGIN_TOPIC",
    "DLQ_ORIGIN_MESSAGE_ID",
    props.INNER_MULTI_DISPATCH,
    props.INNER_MULTI_QUEUE_OFFSET,
}
"""Properties that brokers and consumers set, and properties that would delay the message again.

Java's ordered consumers leave the number of their tries on it, which would make it a dead letter at
once.
"""
_RETRY_PROPERTIES = {props.RETRY_TOPIC, props.ORIGIN_MESSAGE_ID, props.ORIGIN_GROUP}
"""Properties of a retried message that the members of its group read."""
