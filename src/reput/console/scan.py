"""Runs a search against live brokers or a store folder, within a budget, and streams what it finds.

    async for event in run(plan, source, Budget(), clock):
        ...  # Row, Progress, and at the end Answer

No consumer group is involved, and nothing is committed. Several queues are read at once; those of a
broker that does not answer are missing from the answer, and the others are read.
"""

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from reput.client.core.key_search import EVER, UNIQUE_PAGE_COUNT, KeyWindows, Window
from reput.client.message import ReceivedMessage
from reput.clock import Clock
from reput.console import search
from reput.console.matching import Expression, TooSlow
from reput.console.search import (
    Answer,
    Block,
    Budget,
    Conditions,
    Cursor,
    Merge,
    Missing,
    Plan,
    Question,
    Row,
    SearchEffort,
    Span,
    Way,
)
from reput.errors import CorruptRecord, ReputError
from reput.html.texts import count_text, time_text

READS_AT_ONCE = 8
PROGRESS_MS = 500
MISSING_MAX = 200
"""Maximum number of missing parts in an answer; more are counted."""
SEARCHES_MAX = 4
SEARCHES_PER_USER_MAX = 2


@dataclass(frozen=True, slots=True)
class ScanPart:
    """Messages of a part of a queue."""

    read: Span
    """The examined offsets, as in ``Block``."""
    messages: Sequence[ReceivedMessage] = ()
    """Messages that may match, and always the first and the last one."""
    missing: tuple[Missing, ...] = ()
    is_failed: bool = False
    left_out_bytes: int = 0
    """Size of the records that were seen not to match."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of the queues of a topic, for an interval."""

    spans: tuple[Span, ...]
    brokers: tuple[str, ...]
    """Brokers that have answered."""
    missing: tuple[Missing, ...] = ()


@dataclass(frozen=True, slots=True)
class Lookup:
    """Messages that an index, or a place in a log, has returned."""

    messages: Sequence[ReceivedMessage]
    brokers: tuple[str, ...] = ()
    """Brokers that have answered."""
    oldest_ms: int | None = None
    """Store time of the oldest message if a broker returned its maximum, so that there may be more;
    the latest one of several brokers."""
    missing: tuple[Missing, ...] = ()


class MessageSource(Protocol):
    """Brokers of a cluster, or a store folder."""

    async def spans(self, question: Question) -> Spans:
        """Return the queues of the question's topic, within its interval or little more."""

    async def read(self, part: Span, question: Question) -> ScanPart:
        """Read a part of a queue, or its beginning."""

    async def query(self, topic: str, key: str, window: Window, *, is_unique: bool) -> Lookup:
        """Return the messages that the index has for a key."""

    async def at_offset_id(self, offset_id: str) -> Lookup:
        """Return the message at the place in an offset id."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a search."""

    message_count: int
    byte_count: int
    row_count: int
    took_ms: int
    place_ms: int | None
    """Store time of the messages that are being examined."""


Event = Row | Progress | Answer


async def run(
    plan: Plan,
    source: MessageSource,
    budget: Budget,
    clock: Clock,
    cursor: Cursor | None = None,
) -> AsyncGenerator[Event, None]:
    """Yield rows as they are found, the progress, and at the end the answer.

    Args:
        plan: What to do.
        source: Where the messages are.
        budget: Limits of this run.
        clock: The time.
        cursor: Cursor of an earlier answer, to continue it.

    Raises:
        InvalidOption: The regular expression, or the topic, is not allowed.
        ReputError: Nothing can be looked at: no name server answers, no such topic or folder.
    """
    search_run = _ScanRun(plan, source, budget, clock)
    async with search_run.expression:
        if Way.QUEUES in plan.ways:
            events = search_run.scan(cursor)
        elif Way.KEY in plan.ways:
            events = search_run.by_key(cursor)
        else:
            events = search_run.by_id()
        async with contextlib.aclosing(events):
            async for event in events:
                yield event


class _ScanRun:
    """One run of a plan."""

    def __init__(self, plan: Plan, source: MessageSource, budget: Budget, clock: Clock) -> None:
        self._question = plan.question
        self._ways = plan.ways
        self._source = source
        self._budget = budget
        self._clock = clock
        self._begun_ms = clock.monotonic_ms()
        self._answered_ms: int | None = None
        """Time when the first messages were examined; None before that."""
        self._conditions = Conditions(plan.question)
        self.expression = Expression(plan.question.expression)
        self._rows: list[Row] = []
        self._missing: Counter[Missing] = Counter()
        self._left_out_count = 0
        self._brokers: set[str] = set()
        self._queue_count = self._query_count = 0
        self._message_count = self._byte_count = 0
        self._place_ms: int | None = None
        self._shown_ms = self._begun_ms
        self._note_missing(plan.not_tried)

    @property
    def _took_ms(self) -> int:
        return self._clock.monotonic_ms() - self._begun_ms

    @property
    def _left_ms(self) -> int:
        """Time that the budget leaves, all of it until there is a first answer.

        So each run proceeds, however slow the machine or its brokers are.
        """
        if self._answered_ms is None:
            return max(1, self._budget.duration_ms)
        return self._answered_ms + self._budget.duration_ms - self._clock.monotonic_ms()

    def _note_answer(self) -> None:
        if self._answered_ms is None:
            self._answered_ms = self._clock.monotonic_ms()

    @property
    def _room(self) -> int:
        return self._question.row_count - len(self._rows)

    def _note_missing(self, parts: Iterable[Missing]) -> None:
        for part in parts:
            if part in self._missing or len(self._missing) < MISSING_MAX:
                self._missing[part] += 1
            else:
                self._left_out_count += 1

    def _reached(self) -> str | None:
        """Return the limit that was reached; None if no limit was."""
        if self._room <= 0:
            return count_text(self._question.row_count, "row")
        if self._message_count >= self._budget.message_count:
            return count_text(self._budget.message_count, "message")
        if self._byte_count >= self._budget.byte_count:
            return f"{self._budget.byte_count >> 20:,} MiB"
        if self._left_ms <= 0:
            return f"{self._budget.duration_ms / 1000:g} s"
        return None

    def _progress(self) -> Iterator[Progress]:
        """Yield the progress if its interval has passed."""
        if self._clock.monotonic_ms() - self._shown_ms >= PROGRESS_MS:
            self._shown_ms = self._clock.monotonic_ms()
            yield Progress(
                self._message_count,
                self._byte_count,
                len(self._rows),
                self._took_ms,
                self._place_ms,
            )

    def _answer(self, cursor: Cursor | None, pause: str | None) -> Answer:
        missing = search.counted(self._missing.items())
        if self._left_out_count:
            missing += (Missing("more", f"{self._left_out_count} other parts"),)
        return Answer(
            rows=tuple(self._rows),
            looked_at=SearchEffort(
                brokers=tuple(sorted(self._brokers)),
                queue_count=self._queue_count,
                query_count=self._query_count,
                message_count=self._message_count,
                byte_count=self._byte_count,
            ),
            missing=missing,
            cursor=cursor,
            pause=pause if cursor is not None else None,
            took_ms=self._took_ms,
            interval=search.answer_interval(self._question),
        )

    async def _matching(self, messages: Sequence[ReceivedMessage], where: str) -> list[Row]:
        """Return rows of the messages that match; note the unreadable ones as missing."""
        matches = []
        for message in messages:
            self._byte_count += message.size_bytes
            try:
                if self._conditions.match(message):
                    matches.append(message)
            except CorruptRecord as error:
                self._note_missing([Missing(where, f"a message cannot be checked: {error}")])
        if self.expression:
            matches = await self._with_expression(matches, where)
        rows = []
        for message in matches:
            try:
                rows.append(search.row(message))
            except CorruptRecord as error:
                self._note_missing([Missing(where, f"a record is damaged: {error}")])
        return rows

    async def _with_expression(
        self, messages: Sequence[ReceivedMessage], where: str
    ) -> list[ReceivedMessage]:
        bodies, readable = [], []
        for message in messages:
            try:
                bodies.append(search.plain_body(message))
                readable.append(message)
            except CorruptRecord as error:
                self._note_missing([Missing(where, f"a message cannot be checked: {error}")])
        try:
            return [readable[index] for index in await self.expression.matches(bodies)]
        except TooSlow as error:
            why = f"{count_text(len(readable), 'message')} not checked: {error}"
            self._note_missing([Missing(where, why)])
            return []

    # --- by id --------------------------------------------------------------------------------

    async def by_id(self) -> AsyncGenerator[Event, None]:
        """Look up an id in each of the ways."""
        question, seen = self._question, set()
        for way in self._ways:
            if way is Way.UNIQUE_KEY:
                lookup = await self._source.query(question.topic, question.id, EVER, is_unique=True)
                messages = [
                    message
                    for message in lookup.messages
                    if _is_readable(message) and message.stored.has_unique_key(question.id)
                ]
                if lookup.oldest_ms is not None:
                    why = f"{UNIQUE_PAGE_COUNT} messages or more have this unique key"
                    self._note_missing([Missing("the index", why)])
            else:
                lookup = await self._source.at_offset_id(question.id)
                messages = list(lookup.messages)
            self._query_count += 1
            self._brokers.update(lookup.brokers)
            self._note_missing(lookup.missing)
            self._message_count += len(lookup.messages)
            for row in await self._matching(messages, "the index"):
                # Messages of a batch share their physical offset.
                place = row.broker, row.physical_offset, row.queue_offset
                if place not in seen and self._room > 0:
                    seen.add(place)
                    self._rows.append(row)
                    yield row
        yield self._answer(None, None)

    # --- by key -------------------------------------------------------------------------------

    async def by_key(self, cursor: Cursor | None) -> AsyncGenerator[Event, None]:
        """Query the index for windows of time until the interval is covered."""
        question = self._question
        interval = Window(*cursor.window) if cursor and cursor.window else self._interval()
        windows = KeyWindows(interval, is_newest_first=question.is_newest_first)
        pause = None
        while (window := windows.next) is not None:
            pause = self._reached()
            if pause is not None:
                break
            lookup = await self._source.query(question.topic, question.key, window, is_unique=False)
            self._query_count += 1
            self._brokers.update(lookup.brokers)
            self._message_count += len(lookup.messages)
            self._place_ms = window.begin_ms
            if not windows.answer(lookup.oldest_ms):
                continue
            self._note_missing(lookup.missing)
            rows: list[Row] | None
            if lookup.oldest_ms is not None:
                rows = await self._rows_of_queues(window)
                if rows is None:
                    windows.put_back(window)
                    pause = self._reached()
                    break
            else:
                rows = [
                    row
                    for row in await self._matching(lookup.messages, "the index")
                    if window.has(row.store_ms)
                ]
            rows.sort(key=lambda row: row.store_ms, reverse=question.is_newest_first)
            self._note_answer()  # a cursor has no parts of a window
            for row in rows:  # a window is taken whole: the cursor is a time
                self._rows.append(row)
                yield row
            for progress in self._progress():
                yield progress
        rest = windows.remaining()
        after = None if rest is None else Cursor(window=(rest.begin_ms, rest.end_ms))
        yield self._answer(after, pause)

    async def _rows_of_queues(self, window: Window) -> list[Row] | None:
        """Read the queues for a window of a second with more messages than an index returns.

        Returns None if a limit is reached amid the second, and other windows were looked at before:
        the next run, which begins with it, may have room for it.
        """
        question = replace(self._question, begin_ms=window.begin_ms, end_ms=window.end_ms)
        known = await self._source.spans(question)
        self._note_missing(known.missing)
        merge = Merge(known.spans, is_newest_first=question.is_newest_first)
        rows: list[Row] = []
        while (part := merge.next_part()) is not None:
            if self._reached() is not None:
                if self._answered_ms is not None:
                    return None
                where = f"from {time_text(window.begin_ms)}"
                why = "more messages in this second than the limits of this search allow"
                self._note_missing([Missing(where, why)])
                break
            read = asyncio.create_task(self._source.read(part, question))
            await asyncio.wait([read])
            merge.add(await self._block(part, read, question))
            rows += merge.take(part.high - part.low)
        in_window = [*rows, *merge.take(sys.maxsize, is_end=True)]
        return [row for row in in_window if window.has(row.store_ms)]

    def _interval(self) -> Window:
        begin_ms, end_ms = self._question.begin_ms, self._question.end_ms
        # Clocks of brokers may be ahead.
        latest_ms = self._clock.now_ms() + 86_400_000
        return Window(begin_ms or 0, latest_ms if end_ms is None else end_ms)

    # --- queues -------------------------------------------------------------------------------

    async def scan(self, cursor: Cursor | None) -> AsyncGenerator[Event, None]:
        """Read queues, merged by store time."""
        question = self._question
        if cursor is not None and cursor.spans:
            spans: Sequence[Span] = cursor.spans
        else:
            known = await self._source.spans(question)
            spans = known.spans
            self._brokers.update(known.brokers)
            self._queue_count = len(spans)
            self._note_missing(known.missing)
        merge = Merge(spans, is_newest_first=question.is_newest_first)
        self._queue_count = self._queue_count or len(spans)
        self._brokers.update(span.broker for span in spans)
        reads: dict[asyncio.Task[ScanPart], Span] = {}
        try:
            while (pause := self._reached()) is None:
                self._begin_reads(reads, merge, question)
                if not reads:
                    break
                done, _ = await asyncio.wait(
                    reads,
                    timeout=max(0, min(PROGRESS_MS, self._left_ms)) / 1000,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    self._note_answer()
                    merge.add(await self._block(reads.pop(task), task, question))
                for row in merge.take(self._room):
                    self._rows.append(row)
                    yield row
                for progress in self._progress():
                    yield progress
        finally:
            for task in reads:
                task.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
        for row in merge.take(self._room, is_end=True):
            self._rows.append(row)
            yield row
        rest = merge.remaining()
        yield self._answer(Cursor(spans=rest) if rest else None, pause)

    def _begin_reads(
        self, reads: dict[asyncio.Task[ScanPart], Span], merge: Merge, question: Question
    ) -> None:
        while len(reads) < READS_AT_ONCE and (part := merge.next_part()) is not None:
            reads[asyncio.create_task(self._source.read(part, question))] = part

    async def _block(self, span: Span, task: asyncio.Task[ScanPart], question: Question) -> Block:
        """Return what a read has found, as a block for the merge."""
        where = f"{span.broker} queue {span.queue_id}" if span.broker else f"queue {span.queue_id}"
        try:
            part = task.result()
        except ReputError as error:
            self._note_missing([Missing(where, str(error))])
            nothing = span.high if question.is_newest_first else span.low
            empty = Span(*span.queue, nothing, nothing)
            return Block(read=empty, is_failed=True)
        self._note_missing(part.missing)
        self._message_count += part.read.high - part.read.low
        self._byte_count += part.left_out_bytes
        times = [
            message.store_timestamp_ms
            for message in (*part.messages[:1], *part.messages[-1:])
            if _is_readable(message)
        ]
        if times:
            self._place_ms = times[0]
        return Block(
            read=part.read,
            rows=await self._matching(part.messages, where),
            oldest_ms=min(times, default=None),
            newest_ms=max(times, default=None),
            is_failed=part.is_failed,
        )


def _is_readable(message: ReceivedMessage) -> bool:
    try:
        return bool(message.stored)
    except CorruptRecord:
        return False


class SearchSlots:
    """Limits the number of concurrent searches, of a user and in total."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def take(self, user: str) -> Iterator[None]:
        """Hold one of the slots for searches. Raises ``TooManySearches``."""
        if self._counts[user] >= SEARCHES_PER_USER_MAX:
            raise TooManySearches(f"{SEARCHES_PER_USER_MAX} searches of this user are running")
        if self._counts.total() >= SEARCHES_MAX:
            raise TooManySearches(f"{SEARCHES_MAX} searches are running")
        self._counts[user] += 1
        try:
            yield
        finally:
            self._counts[user] -= 1
            if not self._counts[user]:
                del self._counts[user]


class TooManySearches(ReputError):
    """No slot for a search is free."""

    retriable = True
