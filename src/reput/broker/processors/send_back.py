"""Code 36: a consumer sends a message back, to receive it again later.

The order of the checks and the codes are those of Java's ``asyncConsumerSendMsgBack``. Most of
these requests take the fast path (``fastpath/``), which must have the same effects.
"""

import logging

from reput.broker.parts import Parts
from reput.errors import RequestRefused
from reput.format import (
    command as commands,
    headers,
    message as record,
    names,
    properties as props,
)
from reput.format.codes import PERM_WRITE, ResponseCode
from reput.format.command import Command
from reput.format.headers import SendBackHeader
from reput.remoting.channel import Channel
from reput.store.writing.incoming import PutResult, PutStatus, Refused

_log = logging.getLogger(__name__)


def send_back(parts: Parts, channel: Channel, request: Command) -> Command | None:
    """Put a copy of a message into its group's retry topic or dead-letter topic."""
    if not parts.identity.is_master:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"{PutStatus.SERVICE_NOT_AVAILABLE.name}: {parts.store.refusal}",
        )
    parts.put_stalls.refuse()
    header = headers.decode(SendBackHeader, request.ext_fields)
    retries = parts.retries
    group = retries.group(header.group, channel.address)
    if not parts.settings.broker.broker_permission & PERM_WRITE:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the broker[{parts.settings.broker.broker_ip1}] sending message is forbidden",
        )
    if group.retry_queue_count <= 0:
        _log.info(
            "group %s does not retry: the message at %d is dropped", group.name, header.offset
        )
        return commands.reply(request)
    topic = retries.topic_of(group, is_unit=bool(header.unit_mode), address=channel.address)
    data = parts.store.record_at(header.offset)
    if data is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}"
        )
    stored = record.decode(data, check_crc=False)
    try:
        message = retries.message(stored, header, request.version, group, topic, parts.timers)
    except Refused as refused:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"{refused.status.name}: {refused.reason}"
        ) from refused
    origin = retries.origin(stored.properties.get(props.RETRY_TOPIC, stored.topic), group.name)

    # known-bugs.md#send-back-before-disk. The copy keeps Java's property WAIT.
    message.waits = True

    # Only dead letters may wait in the timer.
    is_dead = names.is_dlq_topic(message.topic) or message.topic == names.TIMER_TOPIC

    def answer(result: PutResult) -> Command:
        if result.status.is_stored:
            parts.deliveries.stats.sent_back(origin, group.name, is_dead=is_dead)
        return _reply(request, result)

    return parts.pending_replies.put(channel, request, message, answer)


def _reply(request: Command, result: PutResult) -> Command:
    # Also if it was late for the disk or slaves: another copy would be no safer.
    if result.status.is_stored:
        return commands.reply(request)
    remark = f"{result.status.name}: {result.reason}" if result.reason else result.status.name
    return commands.reply(request, ResponseCode.SYSTEM_ERROR, remark)
