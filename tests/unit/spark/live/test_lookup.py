"""Lookups by key in the index of brokers, against a model of an index and its limits."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

import seeds
import store_builder
from index_model import PAGE_COUNT, IndexModel
from reput.client.core.key_search import EVER, KeyPage, KeyQuery, Window
from reput.format.bodies import MessageQueue
from reput.format.message import StoredMessage
from reput.spark import explain
from reput.spark.live import lookup
from reput.spark.live.lookup import KeyLookup, LookupRefused
from reput.testing import LocalBroker
from spark import live_traffic

START_MS = store_builder.START_MS


class ModelBroker:
    """Replaces the client: a log, and an index of a part of it.

    Args:
        log: The log.
        index: Range of physical offsets of the messages in the index.
        collisions: Keys that have the same hash, in all topics.
    """

    def __init__(
        self,
        log: list[StoredMessage],
        index: tuple[int, int] = (0, 1 << 60),
        collisions: Sequence[str] = (),
    ) -> None:
        self.log = log
        self.collisions = collisions
        topics = {message.topic for message in log}
        texts = [f"{topic}#{key}" for topic in topics for key in collisions]
        self.index = IndexModel(log, *index, texts)
        self.pull_count = 0

    async def query(
        self, queue: MessageQueue, key: str, window: Window = EVER, *, is_unique: bool
    ) -> KeyPage:
        query = KeyQuery(queue.topic, key, window, is_unique)
        return query.page(self.index.reply(query.request()), queue.broker_name)

    async def first_message(self, queue: MessageQueue, queue_offset: int) -> StoredMessage | None:
        self.pull_count += 1
        later = (
            message
            for message in self.log
            if (message.topic, message.queue_id) == (queue.topic, queue.queue_id)
            and message.queue_offset >= queue_offset
        )
        return next(later, None)

    def queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue_id)

    def spans(self) -> dict[MessageQueue, tuple[int, int]]:
        """Return the whole queues."""
        counts: dict[MessageQueue, int] = {}
        for message in self.log:
            queue = self.queue(message.topic, message.queue_id)
            counts[queue] = counts.get(queue, 0) + 1
        return {queue: (0, count) for queue, count in counts.items()}

    def physical_offsets(self, *keys: str, spans: Any = None, is_unique: bool = False) -> set[int]:
        """Return the physical offsets of the messages in the ranges of a lookup."""
        client: Any = self
        ranges = asyncio.run(
            KeyLookup(client, keys, is_unique=is_unique).ranges(spans or self.spans())
        )
        places = {(queue, i) for queue, start, stop in ranges for i in range(start, stop)}
        assert len(places) == sum(stop - start for _, start, stop in ranges)
        return {
            message.physical_offset
            for message in self.log
            if (self.queue(message.topic, message.queue_id), message.queue_offset) in places
        }

    def with_key(self, *keys: str) -> set[int]:
        return places_of(
            message for message in self.log if {message.unique_key, *message.keys} & {*keys}
        )


def places_of(messages: Iterable[StoredMessage]) -> set[int]:
    return {message.physical_offset for message in messages}


def log_of(keys: Sequence[str], *, step_ms: int = 100, topics: int = 1) -> list[StoredMessage]:
    """Return messages with these keys, in two queues of each topic."""
    drafts = [
        store_builder.message(
            f"Topic{i % topics}",
            b"x" * (i % 7),
            queue_id=i // topics % 2,
            keys=key,
            unique_key=f"U{i}",
            store_timestamp=START_MS + i * step_ms,
        )
        for i, key in enumerate(keys)
    ]
    return store_builder.place(drafts, 1 << 30)


def test_random_logs_are_answered_completely() -> None:
    randomly = seeds.random("live lookup")
    refused_count = 0
    for _ in range(60):
        count = randomly.randrange(1, 400)
        keys = [randomly.choice(["a", "a", "a", "b c", "c", "d"]) for _ in range(count)]
        log = log_of(keys, step_ms=randomly.choice([3, 30, 300]), topics=randomly.choice([1, 2]))
        edge = randomly.choice([0, log[randomly.randrange(count)].physical_offset, 1 << 60])
        broker = ModelBroker(log, (0, edge), randomly.choice([(), ("a", "c")]))
        wanted = randomly.choice([("a",), ("b",), ("c",), ("a", "d"), ("none",)])
        try:
            places = broker.physical_offsets(*wanted)
        except LookupRefused:
            # Too many within the resolution of the index.
            refused_count += 1
            assert log[PAGE_COUNT - 1].store_timestamp - log[0].store_timestamp < 4_000
            continue
        unindexed = {place for place in places_of(log) if place >= edge}
        collisions = broker.collisions if {*wanted} & {*broker.collisions} else ()
        assert broker.with_key(*wanted) | unindexed <= places
        assert places <= broker.with_key(*wanted, *collisions) | unindexed
    assert 0 < refused_count < 30


def test_rare_and_unique_keys_and_parts_of_queues() -> None:
    broker = ModelBroker(log_of(["a"] * 500 + ["b"] + ["a"] * 500))
    assert broker.physical_offsets("b") == broker.with_key("b")
    # A query for the key and one for the first message; the ends of two queues.
    assert (broker.index.query_count, broker.pull_count) == (2, 4)
    broker = ModelBroker(log_of(["a"] * 40))
    assert broker.physical_offsets("U7", "U9", is_unique=True) == broker.with_key("U7", "U9")
    spans = {broker.queue("Topic0", 1): (3, 9)}
    assert broker.physical_offsets("a", spans=spans) == places_of(
        message for message in broker.log if message.queue_id == 1 and 3 <= message.queue_offset < 9
    )
    without = ModelBroker(broker.log, (0, 0))  # pulls replace an empty index
    assert without.physical_offsets("a") == places_of(broker.log)


@pytest.mark.parametrize("count", [PAGE_COUNT, PAGE_COUNT + 1, 3 * PAGE_COUNT])
def test_more_messages_than_a_reply_are_found_by_time(count: int) -> None:
    broker = ModelBroker(log_of(["a"] * count, step_ms=100))
    assert broker.physical_offsets("a") == places_of(broker.log)


def test_an_index_that_began_late_is_refused() -> None:
    log = log_of(["a"] * 100)
    broker = ModelBroker(log, (log[50].physical_offset, 1 << 60))
    text = "lacks the message at queue offset 0 of queue Topic0/0 of broker broker-a: it began"
    with pytest.raises(LookupRefused, match=text):
        broker.physical_offsets("a")
    # The other half of the queues can be answered.
    spans = {broker.queue("Topic0", i): (25, 50) for i in range(2)}
    assert broker.physical_offsets("a", spans=spans) == places_of(log[50:])


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MESSAGES_MAX", 200)
    monkeypatch.setattr(lookup, "LOOKUPS_MAX", 5)
    at_once = "key 'a' has more messages stored at .* ms in topic 'Topic0' of broker broker-a than"
    for log, keys, text in (
        (log_of(["a"] * (PAGE_COUNT + 1), step_ms=1), ("a",), at_once),
        (log_of(["a"] * 300), ("a",), r"more than 200 messages in topic.*scan=consume"),
        (
            log_of(["a"] * 20, topics=3),
            ("a", "b"),
            "2 keys in 3 topics of brokers are 6 lookups, at most",
        ),
    ):
        with pytest.raises(LookupRefused, match=text):
            ModelBroker(log).physical_offsets(*keys)


def test_a_running_broker_is_asked_for_its_index() -> None:
    with LocalBroker() as mq:
        traffic = live_traffic.publish(mq.namesrv_addr)
        where = {"nameServer": mq.namesrv_addr, "topic": "Orders"}
        for given in ({"key": "k17"}, {"uniqKey": traffic.unique_key}):
            plan = explain(**where, **given)
            pulled, total = (
                int(word) for word in plan.split(" messages are pulled")[0].split()[-3::2]
            )
            assert 1 <= pulled < 5, plan
            assert total == live_traffic.COUNT + 1
            assert "index" not in explain(**where, **given, scan="consumequeue")
