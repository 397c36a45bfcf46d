"""Codes 37, 323: ends of transactions; and 39, the check that asks a producer.

A producer sends 37 without waiting for a reply, so failures are also logged and counted. The order
of the checks and the texts are those of Java's ``EndTransactionProcessor``.
"""

import dataclasses
import logging

from reput.broker.group.groups import Groups
from reput.broker.parts import Parts
from reput.broker.processors.send import CODES
from reput.broker.transaction.transactions import real_place
from reput.errors import CorruptRecord, RequestRefused
from reput.format import (
    command as commands,
    headers,
    message as record,
    message_id as ids,
    properties as props,
    sys_flag as flags,
)
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import IS_ONEWAY, Command
from reput.format.headers import (
    CheckTransactionStateHeader,
    EndTransactionHeader,
    ResumeCheckHeader,
)
from reput.format.message import StoredMessage
from reput.remoting.channel import Channel
from reput.remoting.server import LongReply
from reput.remoting.time_slices import Steps
from reput.store.writing.incoming import PutResult, Refused

DECISIONS = (flags.TRANSACTION_COMMIT, flags.TRANSACTION_ROLLBACK)

_log = logging.getLogger(__name__)


def end_transaction(parts: Parts, channel: Channel, request: Command) -> LongReply | None:
    """Deliver or drop a half message; do nothing, without a reply, if the producer is undecided."""
    header = headers.decode(EndTransactionHeader, request.ext_fields)
    if parts.identity.is_master and header.commit_or_rollback not in DECISIONS:
        _log.debug(
            "transaction %s of %s remains open, according to %s: %s",
            header.msg_id, header.producer_group, channel.peer, request.remark or "not known yet",
        )  # fmt: skip
        return None
    return _end_reported(parts, channel, request, header)


def _end_reported(
    parts: Parts, channel: Channel, request: Command, header: EndTransactionHeader
) -> LongReply:
    """End a transaction; log and count if that is refused."""
    try:
        return (yield from _end(parts, request, header))
    except RequestRefused as refused:
        parts.transactions.refused_count += 1
        _log.warning(
            "transaction %s of %s, at %d: %s",
            header.msg_id, channel.peer, header.commit_log_offset, refused,
        )  # fmt: skip
        raise


def _end(parts: Parts, request: Command, header: EndTransactionHeader) -> Steps[Command]:
    if not parts.identity.is_master:
        raise RequestRefused(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave cannot end transactions")
    half = parts.transactions.half_at(header.commit_log_offset)
    if half is None:
        raise _wrong("Find prepared transaction message failed")
    if half.properties.get(props.PRODUCER_GROUP) != header.producer_group:
        raise _wrong("The producer group wrong")
    if half.queue_offset != header.tran_state_table_offset:
        raise _wrong("The transaction state table offset wrong")
    yield from parts.transactions.look_up(half)
    is_commit = header.commit_or_rollback == flags.TRANSACTION_COMMIT
    try:
        result = parts.transactions.decide(half, is_commit=is_commit, now_ms=parts.clock.now_ms())
    except Refused as refused:
        result = PutResult(refused.status, reason=refused.reason)
    return _answer(parts, request, result)


def resume_check(parts: Parts, channel: Channel, request: Command) -> Command:
    """Check a half message that was given up again."""
    header = headers.decode(ResumeCheckHeader, request.ext_fields)
    if not parts.identity.is_master:
        raise RequestRefused(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave cannot check transactions")
    try:
        physical_offset = ids.decode_offset_id(header.msg_id).physical_offset
    except ValueError as error:
        raise _wrong(f"msgId {header.msg_id!r}; allowed: an offset id") from error
    data = parts.store.record_at(physical_offset)
    if data is None:
        raise _wrong(f"can not find message by the offset, {physical_offset}")
    try:
        stored = record.decode(data, check_crc=False)
        result = parts.transactions.resume(stored, parts.clock.now_ms())
    except (CorruptRecord, Refused) as error:
        raise _wrong(str(error)) from error
    return _answer(parts, request, result)


def _answer(parts: Parts, request: Command, result: PutResult) -> Command:
    if not result.status.is_stored:
        raise RequestRefused(CODES[result.status], result.reason or result.status.name)
    notify_readers(parts)
    return commands.reply(request)


def notify_readers(parts: Parts) -> None:
    """Wake the requests that wait for messages."""
    if parts.store.flusher.is_sync:
        parts.pending_replies.sync_soon()  # before that clients cannot read it
    elif parts.holds_requests:
        parts.store.notify()


def _wrong(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, text)


def ask_producer(groups: Groups[Channel], half: StoredMessage) -> bool:
    """Ask one of the producers of a half message's group, in turn, for its decision.

    Args:
        groups: The groups with their producers.
        half: The half message.

    Returns:
        True if one is connected.
    """
    group = half.properties.get(props.PRODUCER_GROUP, "")
    channel = groups.next_producer(
        group, lambda candidate: not candidate.is_closed and candidate.is_writable
    )
    if channel is None:
        _log.warning(
            "no producer of group %r is connected to check half message %d",
            group, half.queue_offset,
        )  # fmt: skip
        return False
    try:
        topic, queue_id = real_place(half)
        body = record.encode(dataclasses.replace(half, topic=topic, queue_id=queue_id))
    except (Refused, ValueError) as error:
        _log.error("half message %d cannot be checked: %s", half.queue_offset, error)
        return False
    unique_key = half.unique_key
    header = CheckTransactionStateHeader(
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.physical_offset,
        msg_id=unique_key,
        transaction_id=unique_key,
        offset_msg_id=ids.offset_id(half),
        topic=topic,
    )
    return channel.notify(
        Command(
            RequestCode.CHECK_TRANSACTION_STATE,
            flag=IS_ONEWAY,
            ext_fields=headers.encode(header),
            body=body,
        )
    )
