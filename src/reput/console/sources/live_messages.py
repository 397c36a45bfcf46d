"""Messages of live brokers, for searches: reads without a group, commits or heartbeats.

An instance serves one search: a broker that does not answer in time is silent for the rest of it,
so that it costs its deadline once.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from reput.client.admin import Admin
from reput.client.core import requests, subscription
from reput.client.core.key_search import KeyQuery, Window, without_collisions
from reput.client.core.route_cache import TopicRoute
from reput.client.core.subscription import Subscription
from reput.client.message import ReceivedMessage, received
from reput.client.queue_ranges import Gap, PulledRange, RangeReader
from reput.console.record_filter import RecordFilter
from reput.console.scan import Lookup, ScanPart, Spans
from reput.console.search import Missing, Question, Span, in_queue
from reput.errors import BrokerError, CorruptRecord, InvalidOption, RemotingError, ReputError
from reput.format import bodies, headers, message_id as ids
from reput.format.bodies import MessageQueue
from reput.format.codes import PERM_READ, RequestCode, ResponseCode
from reput.format.command import Command

ANSWER_MS = 2_000
"""Time for an answer of a broker."""
_HELD_BYTES = 1 << 20
"""Approximate size of the replies that are processed together."""
_CALLS_AT_ONCE = 16

_T = TypeVar("_T")


class LiveMessages:
    """The brokers of a cluster, as the source of one search.

    Args:
        admin: A started client.
        answer_ms: Time for an answer of a broker, in ms.
        decodes_all: Decode every message that is read; for tests, which compare both.
    """

    def __init__(
        self, admin: Admin, *, answer_ms: int = ANSWER_MS, decodes_all: bool = False
    ) -> None:
        self._calls = admin.calls
        self._answer_ms = answer_ms
        self._decodes_all = decodes_all
        self._reader = RangeReader(admin.calls.instance, timeout_ms=answer_ms)
        self._silent: dict[str, str] = {}
        """Brokers that do not answer, by name, with the reason."""
        self._route: TopicRoute | None = None
        self._filter: tuple[Question, RecordFilter | None] | None = None

    async def _topic_route(self, topic: str) -> TopicRoute:
        if self._route is None or self._route.topic != topic:
            self._route = await self._calls.route(topic)
        return self._route

    async def _ask(self, address: str, request: Command) -> Command:
        return await self._calls.instance.ask(address, request, self._answer_ms)

    async def _each(
        self,
        topic: str,
        call: Callable[[TopicRoute, str], Coroutine[Any, Any, _T]],
    ) -> tuple[dict[str, _T], list[Missing]]:
        """Call each broker of a topic at once; return results by name, and the silent ones."""
        route = await self._topic_route(topic)

        async def one_broker(name: str) -> _T | Missing:
            if name in self._silent:
                return Missing(name, self._silent[name])
            try:
                async with asyncio.timeout(self._answer_ms / 1000):
                    return await call(route, name)
            except TimeoutError:
                reason = f"did not answer in {self._answer_ms / 1000:g} s"
            except (RemotingError, ReputError) as error:
                reason = str(error)
            self._silent[name] = reason
            return Missing(name, reason)

        broker_names = sorted(route.brokers)
        results = await asyncio.gather(*map(one_broker, broker_names))
        answers: dict[str, _T] = {}
        missing = []
        for name, result in zip(broker_names, results, strict=True):
            if isinstance(result, Missing):
                missing.append(result)
            else:
                answers[name] = result
        return answers, missing

    # --- queues -------------------------------------------------------------------------------

    async def spans(self, question: Question) -> Spans:
        """Return the queues of a topic within the question's interval, or little more.

        Raises:
            NoRoute: No name server knows the topic.
        """

        async def of_broker(route: TopicRoute, name: str) -> tuple[list[Span], list[Missing]]:
            return await self._spans_of_broker(route, name, question)

        answers, missing = await self._each(question.topic, of_broker)
        spans: list[Span] = []
        for broker_spans, expired in answers.values():
            spans += broker_spans
            missing += expired
        return Spans(
            tuple(sorted(spans, key=lambda span: span.queue)), tuple(answers), tuple(missing)
        )

    async def _spans_of_broker(
        self, route: TopicRoute, name: str, question: Question
    ) -> tuple[list[Span], list[Missing]]:
        address = route.any_address(name)
        is_readable = any(
            queue.perm & PERM_READ for queue in route.data.queue_datas if queue.broker_name == name
        )
        if not is_readable:
            return [], [Missing(name, "the topic cannot be read there")]
        header = headers.TopicHeader(topic=question.topic)
        request = requests.make(RequestCode.GET_TOPIC_STATS_INFO, header)
        reply = await self._ask(address, request)
        offsets = bodies.decode(bodies.TopicStats, reply.body).offset_table
        gate = asyncio.Semaphore(_CALLS_AT_ONCE)

        async def at_time(queue: MessageQueue, time_ms: int) -> int:
            header = headers.SearchOffsetHeader(
                topic=queue.topic, queue_id=queue.queue_id, timestamp=time_ms
            )
            request = requests.make(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
            async with gate:
                reply = await self._ask(address, request)
            return headers.decode(headers.OffsetReplyHeader, reply.ext_fields).offset

        async def span(queue: MessageQueue) -> tuple[Span, bool]:
            known = offsets[queue]
            low, high = known.min_offset, known.max_offset
            is_expired = False
            if low < high and question.begin_ms is not None:
                # A broker returns the message nearest to a time: of a millisecond before, that is
                # not after the first one of the interval.
                low = max(low, await at_time(queue, question.begin_ms - 1))
                is_expired = low == known.min_offset > 0
            if low < high and question.end_ms is not None:
                high = min(high, await at_time(queue, question.end_ms) + 1)
            return Span(name, queue.queue_id, low, max(low, high)), is_expired

        results = await asyncio.gather(*(span(queue) for queue in offsets))
        expired_count = sum(is_expired for _, is_expired in results)
        missing = []
        if expired_count:
            why = f"older messages of {expired_count} queues have expired, or may have"
            missing.append(Missing(name, why))
        return [span for span, _ in results if span.low < span.high], missing

    async def read(self, part: Span, question: Question) -> ScanPart:
        """Pull the messages of a part, with concurrent pulls, and select those which may match."""
        if part.broker in self._silent:
            return _failed(part, question, self._silent[part.broker])
        queue = MessageQueue(topic=question.topic, broker_name=part.broker, queue_id=part.queue_id)
        wanted = subscription.tags(question.topic, "||".join(question.tags), 0)
        messages: list[ReceivedMessage] = []
        missing: list[Missing] = []
        left_out_bytes = 0
        try:
            async with contextlib.aclosing(self._replies(part, queue, wanted, missing)) as batches:
                async for replies in batches:
                    selected, others_bytes = self._selected(replies, queue, wanted, question)
                    messages += selected
                    left_out_bytes += others_bytes
        except CorruptRecord as error:
            return _failed(part, question, f"the reply is damaged: {error}")
        except BrokerError as error:
            return _failed(part, question, str(error))
        except RemotingError as error:
            self._silent[part.broker] = str(error)
            return _failed(part, question, str(error))
        return ScanPart(part, messages, tuple(missing), left_out_bytes=left_out_bytes)

    async def _replies(
        self, part: Span, queue: MessageQueue, wanted: Subscription, missing: list[Missing]
    ) -> AsyncGenerator[list[PulledRange], None]:
        """Yield the replies of a part in order, some at a time; add to ``missing``."""
        replies: list[PulledRange] = []
        held_bytes = 0
        async with contextlib.aclosing(
            self._reader.read(queue, part.low, part.high, wanted)
        ) as results:
            async for result in results:
                if isinstance(result, Gap):
                    missing.append(Missing(f"{part.broker} queue {part.queue_id}", str(result)))
                    continue
                replies.append(result)
                held_bytes += len(result.records)
                if held_bytes >= _HELD_BYTES:
                    yield replies
                    replies, held_bytes = [], 0
        yield replies

    def _selected(
        self,
        replies: Sequence[PulledRange],
        queue: MessageQueue,
        wanted: Subscription,
        question: Question,
    ) -> tuple[list[ReceivedMessage], int]:
        """Return the messages that may match, and the size of the others."""
        left_out_bytes = 0
        record_filter = self._record_filter(question)
        if record_filter is not None:
            candidates = record_filter.candidates(replies)
            replies, left_out_bytes = candidates.ranges, candidates.left_out_bytes
        messages: list[ReceivedMessage] = []
        for low, high, records in replies:
            pulled = self._reader.messages(queue, records, wanted)
            placed = (in_queue(message, queue.topic) for message in pulled)
            messages += (message for message in placed if low <= message.queue_offset < high)
        return messages, left_out_bytes

    def _record_filter(self, question: Question) -> RecordFilter | None:
        """Return the filter for a question, made once."""
        if self._filter is None or self._filter[0] != question:
            record_filter = None if self._decodes_all else RecordFilter.of(question)
            self._filter = question, record_filter
        return self._filter[1]

    # --- index and places ---------------------------------------------------------------------

    async def query(self, topic: str, key: str, window: Window, *, is_unique: bool) -> Lookup:
        """Query the index of each broker of a topic."""
        query = KeyQuery(topic, key, window, is_unique)

        async def of_broker(
            route: TopicRoute, name: str
        ) -> tuple[Sequence[ReceivedMessage], int | None]:
            address = route.any_address(name)
            page = await self._calls.ask_index(address, query, self._answer_ms)
            return received(page.records, name), page.oldest_ms

        answers, missing = await self._each(topic, of_broker)
        messages = [
            message
            for of_page, _ in answers.values()
            for message in without_collisions(of_page, topic)
        ]
        oldest = (oldest_ms for _, oldest_ms in answers.values() if oldest_ms is not None)
        return Lookup(messages, tuple(answers), max(oldest, default=None), tuple(missing))

    async def at_offset_id(self, offset_id: str) -> Lookup:
        """Read the record at an offset id, from the broker at its address.

        Only brokers that the name servers know are asked: an id is no way to reach other addresses.
        """
        try:
            place = ids.decode_offset_id(offset_id)
        except ValueError as error:
            raise InvalidOption("id", offset_id, f"an offset id: {error}") from error
        address = str(place.store_host)
        table = (await self._calls.clusters()).broker_addr_table
        name = next(
            (name for name, data in table.items() if address in data.broker_addrs.values()), None
        )
        if name is None:
            why = f"{address}, in the offset id, is no broker of this cluster"
            return Lookup([], missing=(Missing("the offset id", why),))
        header = headers.ViewMessageHeader(offset=place.physical_offset)
        request = requests.make(RequestCode.VIEW_MESSAGE_BY_ID, header)
        try:
            reply = await self._ask(address, request)
            messages = received(reply.body, name)  # several: of a batch
            is_there = {each.physical_offset for each in messages} == {place.physical_offset}
        except BrokerError as error:
            if error.response_code != ResponseCode.SYSTEM_ERROR:
                return Lookup([], missing=(Missing(name, str(error)),))
            is_there = False
        except (CorruptRecord, ValueError):
            is_there = False  # a broker returns any bytes there
        except RemotingError as error:
            return Lookup([], missing=(Missing(name, str(error)),))
        else:
            return Lookup(messages if is_there else [], (name,))
        return Lookup([], (name,))


def _failed(part: Span, question: Question, why: str) -> ScanPart:
    nothing = part.high if question.is_newest_first else part.low
    empty = Span(*part.queue, nothing, nothing)
    return ScanPart(empty, (), (Missing(part.broker, why),), is_failed=True)
