"""Dead letters: groups that have some, the letters of a group, and resends of selected ones.

A dead letter is named by broker, queue and queue offset; it is never searched for again.
"""

import asyncio
import csv
import io
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any

from reput.client.admin import Admin
from reput.client.dead_letters import copy, problem_of
from reput.client.message import ReceivedMessage
from reput.console import bodies, search
from reput.console.access import User
from reput.console.changes import Preview, Receipt
from reput.console.page import Fragment, Page, PageStream, RequestFailed, Unknown, View
from reput.console.pages.message import seen_properties
from reput.console.paging import cut
from reput.console.resending import RATE, RATE_MAX
from reput.console.resends import RESENT, TO, ResendReceipt, place_text, target
from reput.console.scan import run
from reput.console.search import Answer, Budget, Missing, Question, Row, Span, Way
from reput.console.sources.live_messages import ANSWER_MS, LiveMessages
from reput.errors import CorruptRecord, InvalidOption, NotInStore, ReputError
from reput.format import names, properties as props
from reput.html.texts import time_text

SELECTED_MAX = 500
"""Letters of one resend."""
_FIELD = "letter "
_TOPICS_AT_ONCE = 16
_EXPORT_PART = 128
FILTER = ("begin", "end", "key", "tags", "text")
"""Parameters that select letters: of the list, of its export, and of a resend of all."""


# --- groups -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """A group with a dead-letter topic."""

    group: str
    topic: str
    count: int | Unknown
    """Messages in its queues."""
    last_ms: int | Unknown | None
    """Store time of the last dead letter; None without one."""


async def groups_page(view: View) -> Page:
    """Return the page of the groups with dead letters, by name."""
    admin = view.parts.cluster.live.admin
    try:
        async with asyncio.timeout(ANSWER_MS / 1000):
            topics = await admin.topics()
    except TimeoutError as error:
        raise RequestFailed(503, "no name server answered in 2 s") from error
    groups = [topic.removeprefix(names.DLQ_PREFIX) for topic in topics if names.is_dlq_topic(topic)]
    text = view.query.text("q")
    wanted = [group for group in groups if view.user.sees_group(group) and text in group]
    shown, paging = cut(wanted, view.query)
    gate = asyncio.Semaphore(_TOPICS_AT_ONCE)
    rows = await asyncio.gather(*(_dead_group(admin, group, gate) for group in shown))
    data = {"groups": rows, "paging": paging, "filter": {"q": text}}
    return Page("dead_groups.html.j2", "Dead letters", data)


async def _dead_group(admin: Admin, group: str, gate: asyncio.Semaphore) -> DeadGroup:
    topic = names.dlq_topic(group)
    unknown: Unknown
    try:
        async with asyncio.timeout(ANSWER_MS / 1000), gate:
            queues = (await admin.topic_status(topic)).values()
    except TimeoutError:
        unknown = Unknown(f"a broker did not answer in {ANSWER_MS / 1000:g} s")
    except ReputError as error:
        unknown = Unknown(str(error))
    else:
        last_ms = max((queue.last_update_timestamp for queue in queues), default=0)
        count = sum(queue.max_offset - queue.min_offset for queue in queues)
        return DeadGroup(group, topic, count, last_ms if last_ms > 0 else None)
    return DeadGroup(group, topic, unknown, unknown)


# --- the letters of a group ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter of the list."""

    row: Row
    field: str
    """Name of its checkbox."""
    resent_ms: int | Unknown | None
    """Time of its last resend from here; None if there was none."""


async def page(view: View) -> Page:
    """Return the newest dead letters of a group, or those after a cursor."""
    group = view.names["group"]
    question = _question(view)
    after = view.query.text("cursor")
    answer: Answer | None = None
    try:
        # Its queues are read, as an export and a resend read them: all have the same letters.
        plan = replace(search.plan(question), ways=(Way.QUEUES,))
        cursor = search.parse_cursor(after) if after else None
    except InvalidOption as error:
        raise RequestFailed(400, str(error)) from error
    source = LiveMessages(view.parts.cluster.live.admin)
    with view.parts.search_slots.take(view.user.name):
        budget = Budget(duration_ms=ANSWER_MS)
        async for event in run(plan, source, budget, view.parts.clock, cursor):
            if isinstance(event, Answer):
                answer = event
    assert answer is not None
    data = {
        "group": group,
        "topic": question.topic,
        "filter": {name: view.query.text(name) for name in FILTER},
        "order": "newest" if question.is_newest_first else "oldest",
        "letters": [_letter(view, group, row) for row in answer.rows],
        "complete": answer.complete,
        "missing": answer.missing,
        "sentence": answer.sentence(),
        "cursor": answer.cursor.text() if answer.cursor else None,
        "to": TO,
        "rate": RATE,
        "rate_max": RATE_MAX,
        "jobs": [job.document() for job in view.parts.resend_jobs.of_group(group)],
    }
    return Page("dead_letters.html.j2", f"Dead letters of {group}", data)


def _question(view: View) -> Question:
    topic = names.dlq_topic(view.names["group"])
    values = {name: view.query.text(name) for name in (*FILTER, "order", "rows")}
    try:
        return search.question_of({**values, "topic": topic}, view.now_ms)
    except InvalidOption as error:
        raise RequestFailed(400, str(error)) from error


def _letter(view: View, group: str, row: Row) -> Letter:
    place = (group, row.broker, row.queue_id, row.queue_offset)
    receipt = view.parts.resends.last(place, row.id)
    resent_ms: int | Unknown | None = None
    if receipt is not None:
        resent_ms = receipt.time_ms
    elif view.parts.resends.has(place, row.id):
        resent_ms = Unknown("its receipt is only in the file")
    return Letter(row, f"{_FIELD}{row.queue_id} {row.queue_offset} {row.broker}", resent_ms)


# --- export -------------------------------------------------------------------------------------


async def export(view: View) -> PageStream | None:
    """Return all dead letters of the filter as a file, if the URL has ``export``."""
    kind = view.query.choice("export", ("", "jsonl", "csv"), "")
    if not kind:
        return None
    question = _question(view)
    source = LiveMessages(view.parts.cluster.live.admin)
    name = f"dead-letters-{view.names['group']}.{kind}"
    if kind == "csv":
        return PageStream("text/csv; charset=utf-8", _csv(view, source, question), name)
    return PageStream("application/jsonl", _json_lines(view, source, question), name)


async def _json_lines(
    view: View, source: LiveMessages, question: Question
) -> AsyncGenerator[bytes | Fragment, None]:
    async for item in _all(view, source, question):
        if isinstance(item, Missing):
            values: dict[str, Any] = {"incomplete": str(item)}
        else:
            values = _document(item, view.user)
        yield json.dumps(values, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


_COLUMNS = (
    *("store_ms", "broker", "queue_id", "queue_offset", "id", "tags", "keys"),
    *("origin_topic", "reconsume_times", "body_encoding", "body"),
)


async def _csv(
    view: View, source: LiveMessages, question: Question
) -> AsyncGenerator[bytes | Fragment, None]:
    yield _csv_line(_COLUMNS)
    async for item in _all(view, source, question):
        if isinstance(item, Missing):
            yield _csv_line([f"incomplete: {item}"])
        else:
            document = _document(item, view.user)
            yield _csv_line([document[name] for name in _COLUMNS])


def _csv_line(values: Any) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(map(_csv_value, values))
    return line.getvalue().encode("utf-8", "backslashreplace")


def _csv_value(value: object) -> object:
    """Return a value that no spreadsheet takes for a formula."""
    if isinstance(value, list):
        value = " ".join(value)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


def _document(message: ReceivedMessage, user: User) -> dict[str, Any]:
    stored = message.stored
    properties = seen_properties(stored, user)
    view = bodies.view(stored)
    body = search.plain_body(message) if view.problem is None else bytes(stored.body)
    is_text = view.kind is not bodies.BodyKind.HEX
    try:
        text = body.decode() if is_text else body.hex()
    except UnicodeDecodeError:  # after the part that was looked at
        is_text, text = False, body.hex()
    return {
        "store_ms": stored.store_timestamp,
        "broker": message.broker_name,
        "queue_id": stored.queue_id,
        "queue_offset": stored.queue_offset,
        "id": message.message_id,
        "offset_id": message.offset_message_id,
        "origin_topic": properties.get(props.RETRY_TOPIC),
        "tags": stored.tags,
        "keys": stored.keys,
        "reconsume_times": stored.reconsume_times,
        "properties": properties,
        "body_encoding": "text" if is_text else "hex",
        "body": text,
    }


async def _all(
    view: View, source: LiveMessages, question: Question
) -> AsyncGenerator[ReceivedMessage | Missing, None]:
    """Yield the letters by queue and queue offset, and what cannot be read."""
    conditions = search.Conditions(question)
    with view.parts.search_slots.take(view.user.name):
        try:
            known = await source.spans(question)
        except ReputError as error:
            yield Missing(question.topic, str(error))
            return
        for missing in known.missing:
            yield missing
        for span in known.spans:
            for low in range(span.low, span.high, _EXPORT_PART):
                part = await source.read(
                    Span(*span.queue, low, min(low + _EXPORT_PART, span.high)), question
                )
                for message in part.messages:
                    try:
                        if conditions.match(message):
                            yield message
                    except CorruptRecord as error:
                        yield Missing(f"{span.broker} queue {span.queue_id}", str(error))
                for missing in part.missing:
                    yield missing
                if part.is_failed:
                    break


# --- resend -------------------------------------------------------------------------------------


async def preview_resend(view: View) -> Preview:
    """Return the letters that would be sent, and where."""
    group = view.names["group"]
    to = view.form.get("to", "group")
    if to not in TO:
        raise RequestFailed(400, f"to={to[:40]!r}: allowed are {', '.join(TO)}")
    letters = await _selected(view)
    rows: list[tuple[str | int | None, ...]] = []
    sent_before = 0
    for span, message in letters:
        place = (group, *span.queue, span.low)
        is_sent = view.parts.resends.has(place, message.message_id)
        receipt = view.parts.resends.last(place, message.message_id)
        sent_before += is_sent
        rows.append(
            (
                *(span.broker, span.queue_id, span.low, message.message_id),
                " ".join(message.keys) or None,
                target(message, group, to, view.user),
                _sent_before(receipt, is_sent=is_sent),
            )
        )
    warnings = []
    if sent_before:
        verb = "was" if sent_before == 1 else "were"
        warnings.append(
            f"{sent_before} of these {verb} sent again before: consumers get them another time."
        )
    if to == "origin":
        warnings.append("All groups of the original topic get the messages again.")
    return Preview(
        title=f"Resend {len(letters)} dead letters of {group}",
        button="Send them again" if sent_before else "Send",
        columns=("Broker", "Queue", "Queue offset", "Message id", "Keys", "To", "Sent before"),
        rows=rows,
        state={f"{span.broker} {span.queue_id} {span.low}": m.message_id for span, m in letters},
        warnings=warnings,
        typed_name=group if sent_before else "",
    )


def _sent_before(receipt: ResendReceipt | None, *, is_sent: bool) -> str | None:
    if receipt is not None:
        return f"{time_text(receipt.time_ms)} by {receipt.user}"
    return "long ago" if is_sent else None


async def resend(view: View, preview: Preview) -> Receipt:
    """Send copies of the selected letters, one after another, and keep a receipt of each."""
    group, to = view.names["group"], view.form.get("to", "group")
    letters = await _selected(view)
    rows: list[tuple[str | int | None, ...]] = []
    failed_count = 0
    async with view.parts.cluster.live.producer() as producer:
        for span, message in letters:
            place = place_text(*span.queue, span.low)
            topic = target(message, group, to, view.user)
            try:
                result = await producer.send(copy(message, topic, {RESENT: place}))
                view.parts.resends.add(
                    ResendReceipt(
                        *(group, *span.queue, span.low, view.now_ms, view.user.name),
                        *(topic, result.offset_message_id, message.message_id),
                    )
                )
            except ReputError as error:
                failed_count += 1
                rows.append((place, topic, None, None, str(error)))
            else:
                queue = f"{result.queue.broker_name} {result.queue.queue_id}"
                rows.append((place, topic, queue, result.queue_offset, problem_of(result)))
    sent_count = len(letters) - failed_count
    outcome: Any = "done" if not failed_count else "partly" if sent_count else "failed"
    return Receipt(
        outcome,
        f"{sent_count} of {len(letters)} dead letters of {group} were sent again.",
        ("Dead letter", "Sent to", "Queue", "Queue offset", "Problem"),
        rows,
        link=("dlq", group),
    )


async def _selected(view: View) -> list[tuple[Span, ReceivedMessage]]:
    """Read the letters whose boxes are checked. Raises ``RequestFailed``."""
    spans = sorted(
        (_parse_field(name) for name in view.form if name.startswith(_FIELD)),
        key=lambda span: (span.queue, span.low),
    )
    if not 1 <= len(spans) <= SELECTED_MAX:
        raise RequestFailed(400, f"{len(spans)} letters: select 1 to {SELECTED_MAX}")
    source = LiveMessages(view.parts.cluster.live.admin)
    question = Question(topic=names.dlq_topic(view.names["group"]))
    letters = []
    for span in spans:
        part = await source.read(span, question)
        if not part.messages:
            reasons = "; ".join(map(str, part.missing)) or "it has expired"
            text = f"dead letter {span.broker} {span.queue_id} {span.low} is not there: {reasons}"
            raise NotInStore(text)
        letters.append((span, part.messages[0]))
    return letters


def _parse_field(name: str) -> Span:
    queue_id, _, rest = name.removeprefix(_FIELD).partition(" ")
    offset, _, broker = rest.partition(" ")
    numbers = (queue_id, offset)
    if not broker or not all(
        text.isascii() and text.isdigit() and len(text) < 19 for text in numbers
    ):
        raise RequestFailed(400, f"{name[:80]!r} is no dead letter")
    return Span(broker, int(queue_id), int(offset), int(offset) + 1)
