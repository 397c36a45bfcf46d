"""A message: head, properties, body, place, groups that have consumed it, and its trace."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reput.client.admin.traces import FoundTrace
from reput.client.core import requests
from reput.client.core.key_search import EVER
from reput.client.core.route_cache import NoRoute
from reput.client.core.trace_codec import (
    Begun,
    Consumed,
    Recalled,
    Sent,
    Trace,
    TransactionEnded,
)
from reput.client.message import ReceivedMessage
from reput.console import bodies, search
from reput.console.access import User
from reput.console.page import Fragment, Page, PageStream, RequestFailed, Unknown, View
from reput.console.pages.messages import place_of, source_of
from reput.console.scan import MessageSource
from reput.console.search import Missing, Question, Span, Way
from reput.console.sources.live_messages import ANSWER_MS
from reput.errors import BrokerError, CorruptRecord, InvalidOption, ReputError
from reput.format import body as codec, headers, message_id as ids, properties, sys_flag as flags
from reput.format.bodies import GroupList, decode
from reput.format.codes import RequestCode, ResponseCode
from reput.format.message import StoredMessage

GROUPS_MAX = 200
"""Maximum number of groups of a topic whose offsets are requested."""
_GROUPS_AT_ONCE = 16
_TOPIC_PROPERTIES = (properties.RETRY_TOPIC, properties.REAL_TOPIC)
"""Properties with the topic that a message had before: of dead letters, retries, delays."""
_TRANSACTIONS = {
    flags.TRANSACTION_NONE: "none",
    flags.TRANSACTION_PREPARED: "prepared",
    flags.TRANSACTION_COMMIT: "commit",
    flags.TRANSACTION_ROLLBACK: "rollback",
}


@dataclass(frozen=True, slots=True)
class Consumption:
    """Progress of a group with regard to a message."""

    group: str
    consumer_offset: int | Unknown | None
    """Next queue offset that the group reads; None if the group has no offset."""
    state: str
    """``consumed``, ``waits``, ``never read the queue``, or ``unknown``."""


async def page(view: View) -> Page:
    """Return the page of a message, with the reasons if it is missing."""
    messages, missing = await _find(view)
    message = messages[0] if messages else None
    data: dict[str, Any] = {
        "id": view.names["id"],
        "place": place_of(view),
        "message": None,
        "missing": missing,
        "copies": [search.row(copy) for copy in messages[1:]],
    }
    if message is not None:
        stored = message.stored
        data["message"] = head(message)
        data["properties"] = seen_properties(stored, view.user)
        data["body"] = bodies.view(stored)
        data["groups"] = await _groups(view, message)
        data["trace"] = await _trace(view, message)
    return Page("message.html.j2", "Message", data, 200 if message else 404)


async def stream(view: View) -> PageStream | None:
    """Return the body as a file, if the URL has ``download=1``."""
    if not view.query.text("download"):
        return None
    messages, _ = await _find(view)
    if not messages:
        raise RequestFailed(404, f"there is no message {view.names['id'][:80]}")
    try:
        body = search.plain_body(messages[0])
    except CorruptRecord:
        body = bytes(messages[0].stored.body)
    name = f"{messages[0].offset_message_id}.bin"
    return PageStream("application/octet-stream", _chunks(body), name)


async def _chunks(body: bytes) -> AsyncGenerator[bytes | Fragment, None]:
    yield body


def head(message: ReceivedMessage) -> Mapping[str, object]:
    """Return the fields of a message, without properties and body."""
    stored = message.stored
    return {
        "topic": stored.topic,
        "broker": message.broker_name,
        "queue_id": stored.queue_id,
        "queue_offset": stored.queue_offset,
        "physical_offset": stored.physical_offset,
        "record_bytes": stored.store_size,
        "id": ids.message_id(stored),
        "offset_id": ids.offset_id(stored),
        "tags": stored.tags,
        "keys": stored.keys,
        "born_ms": stored.born_timestamp,
        "born_host": str(stored.born_host),
        "store_ms": stored.store_timestamp,
        "store_host": str(stored.store_host),
        "reconsume_times": stored.reconsume_times,
        "transaction": _TRANSACTIONS[flags.transaction_type(stored.sys_flag)],
        "compression": codec.compression_name(stored.sys_flag),
        "flag": stored.flag,
        "sys_flag": stored.sys_flag,
        "body_crc": stored.body_crc,
        "version": stored.version,
    }


def seen_properties(stored: StoredMessage, user: User) -> dict[str, str]:
    """Return the properties of a message, without names of topics that a user does not see."""
    return {
        name: value
        for name, value in stored.properties.items()
        if name not in _TOPIC_PROPERTIES or user.sees_topic(value)
    }


async def _find(view: View) -> tuple[list[ReceivedMessage], list[Missing]]:
    """Return the messages with the id, or the message at the place that the URL names."""
    source = source_of(view)
    query = view.query
    topic = query.text("topic")
    question = Question(topic=topic, id=view.names["id"].strip())
    try:
        plan = search.plan(question)
    except InvalidOption as error:
        raise RequestFailed(400, str(error)) from error
    messages: list[ReceivedMessage] = []
    missing: list[Missing] = []
    with view.parts.search_slots.take(view.user.name):
        if topic and query.text("offset"):
            queue_offset = query.number("offset", 0)
            span = Span(
                query.text("broker"), query.number("queue", 0), queue_offset, queue_offset + 1
            )
            part = await source.read(span, Question(topic=topic))
            messages, missing = list(part.messages), list(part.missing)
            wanted = question.id in {id_ for copy in messages for id_ in _ids(copy)}
            messages = messages if wanted else []
        if not messages:
            messages, missing = await _by_id(source, question, plan.ways)
            missing += plan.not_tried if not messages else ()
    return [message for message in messages if _is_seen(view, message)], missing


async def _by_id(
    source: MessageSource, question: Question, ways: Sequence[Way]
) -> tuple[list[ReceivedMessage], list[Missing]]:
    messages: dict[tuple[str, int, int], ReceivedMessage] = {}
    missing: list[Missing] = []
    for way in ways:
        if way is Way.OFFSET_ID:
            lookup = await source.at_offset_id(question.id)
        else:
            lookup = await source.query(question.topic, question.id, EVER, is_unique=True)
        missing += lookup.missing
        for message in lookup.messages:
            if question.id in _ids(message):
                # Messages of a batch share their physical offset.
                place = message.broker_name, message.physical_offset, message.queue_offset
                messages[place] = message
    return list(messages.values()), missing


def _ids(message: ReceivedMessage) -> set[str | None]:
    try:
        stored = message.stored
        return {message.offset_message_id, message.message_id, stored.batch_unique_key}
    except CorruptRecord:
        return set()


def _is_seen(view: View, message: ReceivedMessage) -> bool:
    return view.user.sees_topic(message.stored.topic)


# --- its trace ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Trace of a message that a client has recorded."""

    time_ms: int
    what: str
    """``sent``, ``consuming``, ``consumed``, ``transaction`` or ``recalled``."""
    group: str | None
    client: str
    """Address of the client."""
    duration_ms: int | None
    result: str | None
    """``success``, ``failed`` or the state of a transaction; None before the end."""


async def _trace(view: View, message: ReceivedMessage) -> list[TraceEvent] | Unknown | None:
    """Return the trace of a message; None if clients write none, or it is in a store."""
    unique_key = message.stored.unique_key
    if "store" in view.names or unique_key is None:
        return None
    try:
        async with asyncio.timeout(ANSWER_MS / 1000):
            events = await view.parts.cluster.live.admin.message_trace(unique_key)
    except NoRoute:
        return None
    except TimeoutError:
        return Unknown(f"the trace topic did not answer in {ANSWER_MS / 1000:g} s")
    except ReputError as error:
        return Unknown(str(error))
    return [_event(event) for event in events if _is_group_seen(view, event)]


def _is_group_seen(view: View, event: FoundTrace) -> bool:
    is_consumption = isinstance(event.trace, (Begun, Consumed))
    return not is_consumption or view.user.sees_group(event.trace.group or "")


def _event(event: FoundTrace) -> TraceEvent:
    trace = event.trace
    duration_ms = result = None
    if isinstance(trace, (Sent, Consumed)):
        duration_ms = trace.cost_ms
    if isinstance(trace, TransactionEnded):
        result = trace.state.lower()
    elif not isinstance(trace, Begun):
        result = "success" if trace.is_success else "failed"
    what = _TRACES[type(trace)]
    return TraceEvent(event.time_ms, what, trace.group, event.client_address, duration_ms, result)


_TRACES: Mapping[type[Trace], str] = {
    Sent: "sent",
    Begun: "consuming",
    Consumed: "consumed",
    TransactionEnded: "transaction",
    Recalled: "recalled",
}


# --- who has consumed it ------------------------------------------------------------------------


async def _groups(view: View, message: ReceivedMessage) -> list[Consumption] | Unknown:
    if "store" in view.names:
        try:
            return _seen(view, await _groups_of_store(view, message))
        except ReputError as error:
            return Unknown(str(error))
    try:
        async with asyncio.timeout(ANSWER_MS / 1000):
            return _seen(view, await _groups_of_broker(view, message))
    except TimeoutError:
        return Unknown(f"{message.broker_name} did not answer in {ANSWER_MS / 1000:g} s")
    except ReputError as error:
        return Unknown(str(error))


def _seen(view: View, states: list[Consumption]) -> list[Consumption]:
    return [state for state in states if view.user.sees_group(state.group)]


async def _groups_of_store(view: View, message: ReceivedMessage) -> list[Consumption]:
    stored = message.stored
    offsets = await view.parts.folders.read(
        view.names["store"], lambda store: store.consumer_offsets(stored.topic, stored.queue_id)
    )
    return [
        _state(group, consumer_offset, stored.queue_offset) for group, consumer_offset in offsets
    ]


async def _groups_of_broker(view: View, message: ReceivedMessage) -> list[Consumption]:
    calls = view.parts.cluster.live.admin.calls
    stored = message.stored
    address = (await calls.route(stored.topic)).any_address(message.broker_name)
    request = requests.make(
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, headers.TopicHeader(topic=stored.topic)
    )
    groups = sorted(decode(GroupList, (await calls.ask(address, request)).body).group_list)
    gate = asyncio.Semaphore(_GROUPS_AT_ONCE)

    async def state(group: str) -> Consumption:
        header = headers.QueryConsumerOffsetHeader(
            consumer_group=group, topic=stored.topic, queue_id=stored.queue_id
        )
        request = requests.make(RequestCode.QUERY_CONSUMER_OFFSET, header)
        async with gate:
            try:
                reply = await calls.ask(address, request)
            except BrokerError as error:
                if error.response_code == ResponseCode.QUERY_NOT_FOUND:
                    return _state(group, None, stored.queue_offset)
                return Consumption(group, Unknown(str(error)), "unknown")
            except ReputError as error:
                return Consumption(group, Unknown(str(error)), "unknown")
        offset = headers.decode(headers.OffsetReplyHeader, reply.ext_fields).offset
        return _state(group, offset, stored.queue_offset)

    states = list(await asyncio.gather(*map(state, groups[:GROUPS_MAX])))
    if len(groups) > GROUPS_MAX:
        why = f"only the first {GROUPS_MAX} groups are asked"
        rest = f"{len(groups) - GROUPS_MAX} more groups"
        states.append(Consumption(rest, Unknown(why), "unknown"))
    return states


def _state(group: str, consumer_offset: int | None, queue_offset: int) -> Consumption:
    if consumer_offset is None:
        return Consumption(group, None, "never read the queue")
    state = "consumed" if consumer_offset > queue_offset else "waits"
    return Consumption(group, consumer_offset, state)
