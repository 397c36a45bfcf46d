"""Searches of messages: what to ask, in which order, and whether the answer is complete.

    question -> plan -> steps -> scan.py runs them -> Answer = rows, cursor, complete, missing

Pure: facts and time are arguments. Live brokers and store folders share all of this.

* By id: the record at an offset id, or the index for a unique key.
* By key: the index, in windows of time (``reput.client.core.key_search``), so that the answer is
  exhaustive, although a broker returns 64.
* All others read queues: a span of queue offsets for each queue, read in parts and merged by store
  time (``Merge``). The conditions are checked on the messages themselves.

A cursor is what remains: the unread spans, or the end of the next window. An answer is complete if
nothing remains and nothing is missing. What could not be looked at is named, never left out.
"""

import base64
import enum
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from reput.client.message import ReceivedMessage
from reput.console.bodies import preview
from reput.errors import CorruptRecord, InvalidOption
from reput.extras import ExtraMissing
from reput.format import message_id as ids, names, properties as props
from reput.html.texts import count_text, time_text

if TYPE_CHECKING:
    from reput.format.sql92 import Filter

MAX_TIME_MS = 253_402_300_799_999
"""Last millisecond of the year 9999."""
ROWS_MAX = 500
EXPRESSION_LETTERS_MAX = 500
_CURSOR_LETTERS_MAX = 48 * 1024
_CURSOR_BYTES_MAX = 1024 * 1024
_HELD_ROWS_MAX = 1_000


# --- the question -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Conditions of a search; empty fields are no conditions."""

    topic: str = ""
    id: str = ""
    """Offset id, or unique key."""
    key: str = ""
    begin_ms: int | None = None
    """Earliest store time; None: the oldest message that is kept."""
    end_ms: int | None = None
    """Store time before which messages were stored; None: now."""
    tags: tuple[str, ...] = ()
    sql: str = ""
    """SQL92 condition on properties."""
    text: str = ""
    """Text in the body."""
    expression: str = ""
    """Regular expression that the body contains."""
    property_name: str = ""
    property_value: str = ""
    """Value of that property; empty: any."""
    is_newest_first: bool = True
    row_count: int = 50
    """Rows after which the search pauses."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one run; a search that reaches a limit continues when asked."""

    message_count: int = 2_000_000
    byte_count: int = 1 << 30
    duration_ms: int = 20_000


class Way(enum.StrEnum):
    """Way of finding messages."""

    OFFSET_ID = "offset id"
    UNIQUE_KEY = "unique key"
    KEY = "key"
    QUEUES = "queues"


@dataclass(frozen=True, slots=True)
class Plan:
    """A question with the ways to answer it, in order, and their description."""

    question: Question
    ways: tuple[Way, ...]
    text: str
    """The plan as a sentence."""
    not_tried: tuple["Missing", ...] = ()
    """Ways that the question excludes."""


def plan(question: Question) -> Plan:
    """Return the plan for a question.

    Raises:
        InvalidOption: A value is not allowed, or there is nothing to search for.
    """
    _check(question)
    if question.id:
        return _plan_of_id(question)
    if not question.topic:
        raise InvalidOption("topic", "", "the name of a topic; only an offset id needs none")
    condition = _conditions(question)
    if question.key:
        text = (
            f"Ask the index of each broker of topic {question.topic} for key {question.key}, "
            f"{_interval(question)}, in windows of time that are split until each has fewer "
            "messages than a broker returns at most"
        )
        return Plan(question, (Way.KEY,), f"{text}{condition}.")
    order = "newest" if question.is_newest_first else "oldest"
    text = f"Read all queues of topic {question.topic}, {_interval(question)}, {order} first"
    return Plan(question, (Way.QUEUES,), f"{text}{condition}.")


def _plan_of_id(question: Question) -> Plan:
    ways, texts, missing = [], [], []
    if question.topic:
        ways.append(Way.UNIQUE_KEY)
        texts.append(f"ask the index of each broker of topic {question.topic} for the unique key")
    else:
        missing.append(Missing("the index", "a unique key is looked up in a topic: give one"))
    try:
        ids.decode_offset_id(question.id)
    except ValueError as error:
        if not ways:
            allowed = f"an offset id, or a unique key together with a topic ({error})"
            raise InvalidOption("id", question.id, allowed) from error
    else:
        ways.append(Way.OFFSET_ID)
        texts.append("read the record at the place in the offset id")
    text = ", and ".join(texts)
    return Plan(question, tuple(ways), f"{text[0].upper()}{text[1:]}.", tuple(missing))


def _check(question: Question) -> None:
    if question.topic and not names.is_legal_topic(question.topic, names.LONG_TOPIC_LENGTH_MAX):
        raise InvalidOption("topic", question.topic, "letters, digits and _ - % |")
    begin_ms, end_ms = question.begin_ms, question.end_ms
    if begin_ms is not None and end_ms is not None and end_ms <= begin_ms:
        raise InvalidOption("end", end_ms, "a time after the begin")
    if not 1 <= question.row_count <= ROWS_MAX:
        raise InvalidOption("rows", question.row_count, f"1 to {ROWS_MAX}")
    for name, text in (
        ("id", question.id),
        ("key", question.key),
        ("text", question.text),
        ("expression", question.expression),
        ("property", question.property_name),
        ("value", question.property_value),
    ):
        if len(text) > EXPRESSION_LETTERS_MAX:
            raise InvalidOption(name, text, f"at most {EXPRESSION_LETTERS_MAX} characters")
    if question.property_value and not question.property_name:
        raise InvalidOption("value", question.property_value, "nothing without a property")
    if question.sql:
        compiled(question.sql)


def compiled(expression: str) -> "Filter":
    """Return the filter of an SQL92 condition. Raises ``InvalidOption``."""
    from reput.format import sql92  # its parser takes a tenth of a second to load

    try:
        return sql92.compile_filter(expression)
    except sql92.Sql92Error as error:
        raise InvalidOption("sql", expression, f"an SQL92 condition: {error}") from error


def _conditions(question: Question) -> str:
    parts = [
        f"tag {' or '.join(question.tags)}" if question.tags else "",
        f"SQL92 {question.sql}" if question.sql else "",
        f"{question.text!r} in the body" if question.text else "",
        f"/{question.expression}/ in the body" if question.expression else "",
        f"property {question.property_name}" if question.property_name else "",
    ]
    shown = [part for part in parts if part]
    return f"; keep those with {', and '.join(shown)}" if shown else ""


def _interval(question: Question) -> str:
    begin_ms, end_ms = question.begin_ms, question.end_ms
    begin = "the oldest message that is kept" if begin_ms is None else time_text(begin_ms)
    return f"from {begin} to {'now' if end_ms is None else time_text(end_ms)}"


# --- conditions on a message --------------------------------------------------------------------


class Conditions:
    """The conditions of a question that are checked on a message, without its expression.

    Args:
        question: The question.
    """

    def __init__(self, question: Question) -> None:
        self._question = question
        self._tags = frozenset(question.tags)
        self._sql = compiled(question.sql) if question.sql else None
        self._text = question.text.encode("utf-8", "surrogatepass")

    def has_time(self, store_timestamp: int) -> bool:
        """Return whether a store time is in the question's interval."""
        begin_ms, end_ms = self._question.begin_ms, self._question.end_ms
        return (begin_ms is None or store_timestamp >= begin_ms) and (
            end_ms is None or store_timestamp < end_ms
        )

    def match(self, message: ReceivedMessage) -> bool:
        """Return whether a message matches.

        Raises:
            CorruptRecord: The record is damaged, or a condition needs its body, which cannot be
                decompressed.
        """
        question = self._question
        if self._tags and message.tags not in self._tags:
            return False
        if question.key and question.key not in (message.message_id, *message.keys):
            return False
        if question.property_name:
            value = message.properties.get(question.property_name)
            if value is None or (question.property_value and question.property_value != value):
                return False
        if self._sql is not None and not self._sql.matches(message.properties):
            return False
        if self._text and self._text not in plain_body(message):
            return False
        if question.begin_ms is None and question.end_ms is None:
            return True
        return self.has_time(message.store_timestamp_ms)


def plain_body(message: ReceivedMessage) -> bytes:
    """Return the decompressed body. Raises ``CorruptRecord``, also if a codec is missing."""
    try:
        return message.body
    except ExtraMissing as error:
        raise CorruptRecord(str(error)) from error


def in_queue(message: ReceivedMessage, topic: str) -> ReceivedMessage:
    """Return a message as a message of the queue that it was read from.

    A light queue has messages of other topics, at its own queue offsets: their properties have
    them.
    """
    if not names.is_light(topic) or message.stored.topic == topic:
        return message
    stored = message.stored
    queues = stored.properties.get(props.INNER_MULTI_DISPATCH, "").split(props.LMQ_SEPARATOR)
    offsets = stored.properties.get(props.INNER_MULTI_QUEUE_OFFSET, "").split(props.LMQ_SEPARATOR)
    number = dict(zip(queues, offsets, strict=False)).get(topic, "")
    if not number.isascii() or not number.isdigit():
        return message
    queue_offset = int(number)
    placed = replace(stored, topic=topic, queue_id=0, queue_offset=queue_offset)
    return ReceivedMessage.of(placed, message.broker_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A message in the result of a search."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_ms: int
    born_ms: int
    id: str
    """Unique key, or the offset id if the producer set no key."""
    offset_id: str
    tags: str | None
    keys: tuple[str, ...]
    size_bytes: int
    """Size of the record."""
    reconsume_times: int
    body: str
    """Start of the body."""
    problem: str | None = None
    """Reason why the body is shown as stored."""


def row(message: ReceivedMessage) -> Row:
    """Return the row of a message. Raises ``CorruptRecord`` if its record is damaged."""
    stored = message.stored
    problem = None
    try:
        body = plain_body(message)
    except CorruptRecord as error:
        body, problem = bytes(stored.body), str(error)
    return Row(
        topic=stored.topic,
        broker=message.broker_name,
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        physical_offset=stored.physical_offset,
        store_ms=stored.store_timestamp,
        born_ms=stored.born_timestamp,
        id=ids.message_id(stored),
        offset_id=ids.offset_id(stored),
        tags=stored.tags,
        keys=tuple(stored.keys),
        size_bytes=stored.store_size,
        reconsume_times=stored.reconsume_times,
        body=preview(body),
        problem=problem,
    )


# --- spans of queues ----------------------------------------------------------------------------


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Queue offsets ``low <= queue_offset < high`` of a queue."""

    broker: str
    queue_id: int
    low: int
    high: int

    @property
    def queue(self) -> tuple[str, int]:
        """Broker and number of the queue."""
        return self.broker, self.queue_id


@dataclass(frozen=True, slots=True)
class Missing:
    """Messages that were not examined, and the reason."""

    where: str
    why: str

    def __str__(self) -> str:
        """Return both."""
        return f"{self.where}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The result of reading a part of a span."""

    read: Span
    """The examined offsets: the beginning of the part in a forward read, else all or nothing."""
    rows: Sequence[Row] = ()
    """Messages that match, by queue offset."""
    oldest_ms: int | None = None
    newest_ms: int | None = None
    """Store times of the messages that were read, including messages that do not match."""
    is_failed: bool = False
    """True if the rest of the queue cannot be read now."""


@dataclass
class _QueueRange:
    span: Span
    """Not read yet."""
    rows: deque[Row] = field(default_factory=deque)
    """Rows that wait for those of other queues, in the order of the answer."""
    frontier: int | None = None
    """Bound of the store times of unread messages; None if unknown."""
    part_count: int = 0
    is_being_read: bool = False
    is_failed: bool = False

    @property
    def is_open(self) -> bool:
        return not self.is_failed and self.span.low < self.span.high


class Merge:
    """Merges parts of queues into rows in the order of their store times.

    The queue whose unread messages may be next is read first; rows wait until no unread message can
    be before them. So few rows wait, whatever the queues hold.

    Args:
        spans: The offsets to read, one span per queue.
        is_newest_first: Order of the rows.
        part_count: Messages of the first part of a queue; parts double up to ``part_count_max``.
        part_count_max: Most messages of a part.
    """

    def __init__(
        self,
        spans: Iterable[Span],
        *,
        is_newest_first: bool = True,
        part_count: int = 32,
        part_count_max: int = 512,
    ) -> None:
        self._is_newest_first = is_newest_first
        self._part_count_max = part_count_max
        self._queues = {
            span.queue: _QueueRange(span, part_count=part_count)
            for span in spans
            if span.low < span.high
        }

    def next_part(self) -> Span | None:
        """Return the part to read next, which ``add`` expects; None: nothing can be read now."""
        candidates = [
            queue
            for queue in self._queues.values()
            if queue.is_open and not queue.is_being_read and len(queue.rows) < _HELD_ROWS_MAX
        ]
        if not candidates:
            return None
        queue = min(candidates, key=self._urgency)
        span, count = queue.span, queue.part_count
        queue.is_being_read = True
        queue.part_count = min(2 * count, self._part_count_max)
        if self._is_newest_first:
            return Span(*span.queue, max(span.low, span.high - count), span.high)
        return Span(*span.queue, span.low, min(span.high, span.low + count))

    def _urgency(self, queue: _QueueRange) -> tuple[bool, int]:
        if queue.frontier is None:
            return False, 0
        return True, self._rank(queue.frontier)

    def add(self, block: Block) -> None:
        """Add the result of reading a part."""
        queue = self._queues[block.read.queue]
        span, read = queue.span, block.read
        queue.is_being_read = False
        queue.is_failed = block.is_failed
        if self._is_newest_first:
            queue.rows.extend(reversed(block.rows))
            queue.span = Span(*span.queue, span.low, max(span.low, min(span.high, read.low)))
            frontier = block.oldest_ms
        else:
            queue.rows.extend(block.rows)
            queue.span = Span(*span.queue, min(span.high, max(span.low, read.high)), span.high)
            frontier = block.newest_ms
        if frontier is not None:
            queue.frontier = frontier

    def take(self, count: int, *, is_end: bool = False) -> Iterator[Row]:
        """Yield up to ``count`` rows whose turn it is, in order.

        Args:
            count: Maximum number.
            is_end: Nothing more is read now: rows do not wait for unread messages.
        """
        for _ in range(count):
            heads = [queue for queue in self._queues.values() if queue.rows]
            if not heads:
                return
            head = min(heads, key=lambda queue: self._order(queue.rows[0]))
            if not is_end and self._may_come_before(head.rows[0]):
                return
            yield head.rows.popleft()

    def _rank(self, store_ms: int) -> int:
        """Return a number that ascends in the order of the rows."""
        return -store_ms if self._is_newest_first else store_ms

    def _order(self, row: Row) -> tuple[int, str, int]:
        return self._rank(row.store_ms), row.broker, row.queue_id

    def _may_come_before(self, row: Row) -> bool:
        """Return whether an unread message may come before a row."""
        order = self._order(row)
        for queue in self._queues.values():
            if not queue.is_open or queue.rows:
                continue  # its unread messages come after its own rows
            if queue.frontier is None:
                return True
            if (self._rank(queue.frontier), *queue.span.queue) < order:
                return True
        return False

    @property
    def is_done(self) -> bool:
        """True if everything readable was read, and all rows were returned."""
        return not any(queue.is_open or queue.rows for queue in self._queues.values())

    def remaining(self) -> tuple[Span, ...]:
        """Return the spans that are unread, or whose rows were not taken."""
        spans = []
        for queue in self._queues.values():
            span = queue.span
            if queue.rows and self._is_newest_first:
                span = Span(*span.queue, span.low, queue.rows[0].queue_offset + 1)
            elif queue.rows:
                span = Span(*span.queue, queue.rows[0].queue_offset, span.high)
            if span.low < span.high:
                spans.append(span)
        return tuple(sorted(spans, key=lambda span: span.queue))


# --- cursors ------------------------------------------------------------------------------------


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The rest of a search: spans of queues, or a window of a key."""

    spans: tuple[Span, ...] = ()
    window: tuple[int, int] | None = None

    def text(self) -> str:
        """Return the cursor for a URL."""
        packed = zlib.compress(msgspec.msgpack.encode(self), 9)
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def parse_cursor(text: str) -> Cursor:
    """Return the cursor in a URL. Raises ``InvalidOption``."""
    allowed = "the cursor of an earlier answer"
    if len(text) > _CURSOR_LETTERS_MAX:
        raise InvalidOption("cursor", text, allowed)
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        inflater = zlib.decompressobj()
        data = inflater.decompress(packed, _CURSOR_BYTES_MAX)
        cursor = msgspec.msgpack.decode(data, type=Cursor)
    except (ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise InvalidOption("cursor", text, allowed) from error
    queues = [span.queue for span in cursor.spans]
    is_legal = all(0 <= span.low < span.high and span.queue_id >= 0 for span in cursor.spans)
    if not inflater.eof or not is_legal or len(queues) != len(set(queues)):
        raise InvalidOption("cursor", text, allowed)
    if cursor.window and not 0 <= cursor.window[0] < cursor.window[1] <= MAX_TIME_MS:
        raise InvalidOption("cursor", text, allowed)
    return cursor


# --- the answer ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEffort:
    """Brokers, queues, queries, messages and bytes that a search has read."""

    brokers: tuple[str, ...] = ()
    queue_count: int = 0
    query_count: int = 0
    """Queries of an index."""
    message_count: int = 0
    byte_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a search."""

    rows: tuple[Row, ...]
    looked_at: SearchEffort
    missing: tuple[Missing, ...] = ()
    cursor: Cursor | None = None
    """The rest of the search; None if it is complete."""
    pause: str | None = None
    """Limit that was reached; None if none was."""
    took_ms: int
    interval: str = ""

    @property
    def complete(self) -> bool:
        """True if the whole requested range was examined."""
        return self.cursor is None and not self.missing

    def sentence(self) -> str:
        """Return as text whether the answer is complete, and which parts were not examined."""
        looked = self.looked_at
        facts = [
            count_text(len(looked.brokers), "broker"),
            count_text(looked.queue_count, "queue") if looked.queue_count else "",
            count_text(looked.query_count, "query", "queries") if looked.query_count else "",
            self.interval,
            f"{count_text(looked.message_count, 'message')} looked at",
            count_text(len(self.rows), "match", "matches"),
            f"{self.took_ms / 1000:.1f} s",
        ]
        summary = ", ".join(fact for fact in facts if fact)
        if self.complete:
            return f"Complete: {summary}."
        reasons = [str(missing) for missing in self.missing[:5]]
        if len(self.missing) > 5:
            reasons.append(f"{len(self.missing) - 5} more")
        if self.pause:
            reasons.append(f"paused after {self.pause}")
        elif self.cursor is not None and not reasons:
            reasons.append("there is more")
        end = " Continue to see the rest." if self.cursor is not None else ""
        return f"Not complete: {'; '.join(reasons)}. So far: {summary}.{end}"


def answer_interval(question: Question) -> str:
    """Return the interval of a question for the sentence of its answer; empty for an id."""
    return "" if question.id else _interval(question)


def counted(missing: Iterable[tuple[Missing, int]]) -> tuple[Missing, ...]:
    """Return missing parts with their counts in their texts."""
    return tuple(
        part if count == 1 else replace(part, why=f"{part.why} ({count:,} times)")
        for part, count in missing
    )


def question_of(values: Mapping[str, str], now_ms: int) -> Question:
    """Return the question in the parameters of a URL; absent and empty ones are no conditions.

    Times are ms since 1970, ISO 8601 (UTC without an offset), or before now, as ``15m``, ``2h``,
    ``3d``.

    Raises:
        InvalidOption: A value is not allowed.
    """
    order = values.get("order") or "newest"
    if order not in ("newest", "oldest"):
        raise InvalidOption("order", order, "newest or oldest")
    rows = values.get("rows") or "50"
    if not rows.isascii() or not rows.isdigit() or len(rows) > 6:
        raise InvalidOption("rows", rows, f"1 to {ROWS_MAX}")
    return Question(
        topic=values.get("topic", "").strip(),
        id=values.get("id", "").strip(),
        key=values.get("key", "").strip(),
        begin_ms=parse_time("begin", values.get("begin", ""), now_ms),
        end_ms=parse_time("end", values.get("end", ""), now_ms),
        tags=tuple(tag.strip() for tag in values.get("tags", "").split("||") if tag.strip()),
        sql=values.get("sql", "").strip(),
        text=values.get("text", ""),
        expression=values.get("expression", ""),
        property_name=values.get("property", "").strip(),
        property_value=values.get("value", ""),
        is_newest_first=order == "newest",
        row_count=int(rows),
    )


_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time(name: str, text: str, now_ms: int) -> int | None:
    """Return a time of a form; None for an empty text. Raises ``InvalidOption``."""
    text = text.strip()
    if not text:
        return None
    allowed = "2026-11-21T14:00 (UTC), ms since 1970, or a time before now as 15m, 2h or 3d"
    if len(text) > 40:
        raise InvalidOption(name, text, allowed)
    if text.isascii() and text.isdigit():
        time_ms = int(text)
    elif text.isascii() and text[:-1].isdigit() and text[-1] in _UNITS_MS:
        time_ms = now_ms - int(text[:-1]) * _UNITS_MS[text[-1]]
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidOption(name, text, allowed) from error
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        time_ms = round(zoned.timestamp() * 1000)
    if not 0 <= time_ms <= MAX_TIME_MS:
        raise InvalidOption(name, text, allowed)
    return time_ms
