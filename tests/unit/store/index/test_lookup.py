"""Lookups by key and by time: the kernels, and what they fall back to, beside a model."""

import bisect
import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from reput.format import message as record
from reput.store.getting import Getter, QueryResult
from reput.store.index import lookup
from reput.store.kernels import hot
from reput.store.message_store import MessageStore
from reput.store.reader import Boundary
from store_fixture import START_MS, Stores
from store_subject import Subject

pytestmark = pytest.mark.skipif(not hot.is_compiled, reason="no compiled kernels")

TOPICS = ("TopicA", "TopicB")
KEYS = ("a", "b", "ab", "BB", "Aa")  # the last two have one hash
_folders = itertools.count()
ONCE = [HealthCheck.function_scoped_fixture]
"""The fixture ``way`` is the same for all examples."""


@dataclass(frozen=True)
class Sent:
    """A message to store: how long after the one before, and where."""

    pause_ms: int
    topic: str
    keys: tuple[str, ...]
    unique_key: str
    tags: str


sent_messages = st.lists(
    st.builds(
        Sent,
        pause_ms=st.sampled_from([0, 0, 1, 999, 1000, 3000]),
        topic=st.sampled_from(TOPICS),
        keys=st.lists(st.sampled_from(KEYS), max_size=2).map(tuple),
        unique_key=st.sampled_from(["", "u1", "a"]),
        tags=st.sampled_from(["", "a", "t"]),
    ),
    max_size=60,
)
ranges_ms = st.tuples(st.integers(-2000, 40_000), st.integers(0, 20_000))


@dataclass(frozen=True)
class Stored:
    """A message in the store."""

    sent: Sent
    stored_ms: int
    queue_offset: int
    physical_offset: int


class Filled:
    """A store with messages, whose files are small: there are several of each kind."""

    def __init__(self, stores: Stores, messages: list[Sent]) -> None:
        self.subject = Subject(
            "async",
            stores,
            max_hash_slot_num=3,
            max_index_num=16,
            index_tags=True,
            mapped_file_size_consume_queue=20 * 8,
            mapped_file_size_commit_log=4096,
            max_message_size=512,
        )
        self.messages: list[Stored] = []
        for sent in messages:
            self.subject.clock.advance(sent.pause_ms)
            result = self.subject.put(
                sent.topic, keys=" ".join(sent.keys), unique_key=sent.unique_key, tags=sent.tags
            )
            self.messages.append(
                Stored(
                    sent, self.subject.clock.now_ms(), result.queue_offset, result.physical_offset
                )
            )

    @property
    def store(self) -> MessageStore:
        store = self.subject.store
        assert isinstance(store, MessageStore)
        return store

    def expire_half(self) -> None:
        """Let the first half of the log expire, as far as whole files go."""
        begin = self.subject.expire(self.store.max_physical_offset // 2)
        self.messages = [each for each in self.messages if each.physical_offset >= begin]

    def in_topic(self, topic: str) -> list[Stored]:
        return [stored for stored in self.messages if stored.sent.topic == topic]


def offsets(result: QueryResult) -> list[int]:
    return [record.decode(data).physical_offset for data in result.records]


@pytest.fixture(params=["kernels", "slices"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take the fast path, and notice if it falls back; or do not take it."""
    if request.param == "slices":
        monkeypatch.setattr(lookup.Lookup, "by_key", lambda *_, **__: None)
        monkeypatch.setattr(lookup.Lookup, "by_time", lambda *_, **__: None)
    else:

        def fall_back(*_: object, **__: object) -> None:
            raise AssertionError("the fast path was not taken")

        monkeypatch.setattr("reput.store.index.index_file.IndexFiles.newest_first", fall_back)
        monkeypatch.setattr(Getter, "offset_by_unit", fall_back)
    return str(request.param)


@given(sent_messages, ranges_ms, st.integers(1, 5), st.booleans())
@settings(deadline=None, max_examples=40, suppress_health_check=ONCE)
@pytest.mark.sampled(2)
def test_queries_find_the_newest_messages_with_the_key(
    way: str,
    tmp_path_factory: pytest.TempPathFactory,
    messages: list[Sent],
    span: tuple[int, int],
    max_count: int,
    has_expired: bool,
) -> None:
    stores = Stores(tmp_path_factory.mktemp(f"lookup{next(_folders)}"))
    filled = Filled(stores, messages)
    if has_expired and messages:
        filled.expire_half()
    begin_ms, end_ms = START_MS + span[0], START_MS + span[0] + span[1]
    for topic, key, is_tags in itertools.product(TOPICS, (*KEYS, "u1", "t"), (False, True)):
        wanted = [
            stored.physical_offset
            for stored in filled.in_topic(topic)
            if begin_ms <= stored.stored_ms <= end_ms
            and (
                stored.sent.tags == key
                if is_tags
                else key in (*stored.sent.keys, stored.sent.unique_key)
            )
        ]
        result = filled.store.query(topic, key, max_count, begin_ms, end_ms, is_tags=is_tags)
        assert offsets(result) == wanted[-max_count:]
        assert result.is_truncated == (len(wanted) > max_count)
    stores.check()


@given(sent_messages, st.booleans())
@settings(deadline=None, max_examples=40, suppress_health_check=ONCE)
@pytest.mark.sampled(2)
def test_offsets_by_time_are_at_the_bounds_of_that_time(
    way: str,
    tmp_path_factory: pytest.TempPathFactory,
    messages: list[Sent],
    has_expired: bool,
) -> None:
    stores = Stores(tmp_path_factory.mktemp(f"lookup{next(_folders)}"))
    filled = Filled(stores, messages)
    if has_expired and messages:
        filled.expire_half()
    for topic in TOPICS:
        stored = filled.in_topic(topic)
        times = [each.stored_ms for each in stored]
        begin = filled.store.min_offset(topic, 0)
        for time_ms in {START_MS - 1, *(ms + more for ms in times for more in (-1, 0, 1))}:
            lower = filled.store.offset_by_time(topic, 0, time_ms)
            upper = filled.store.offset_by_time(topic, 0, time_ms, Boundary.UPPER)
            assert lower == begin + bisect.bisect_left(times, time_ms)
            assert upper == begin + max(bisect.bisect_right(times, time_ms) - 1, 0)
    stores.check()


def test_a_search_by_time_reads_files_of_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units that were written out, in three files, and others that are in memory only."""
    stores = Stores(tmp_path)
    filled = Filled(stores, [Sent(10, "TopicA", (), "", "")] * 20)
    store = filled.store
    store.sync()
    monkeypatch.setattr(Getter, "offset_by_unit", None)  # it must not be needed
    for number in range(20):
        assert store.offset_by_time("TopicA", 0, START_MS + 10 * (number + 1)) == number
    stores.check()


def test_long_chains_are_left_to_the_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = Stores(tmp_path)
    filled = Filled(stores, [Sent(1, "TopicA", ("a",), "", "")] * 30)
    monkeypatch.setattr(lookup, "_STEPS_MAX", 20)
    second = Filled(Stores(tmp_path / "second"), [Sent(1, "TopicA", ("a",), "", "")] * 30)
    for store, count in ((filled.store, 0), (second.store, 1)):
        steps = store.query_in_steps(
            "TopicA", "a", 64, START_MS, START_MS + 1000, is_tags=False, bytes_max=1 << 30
        )
        assert sum(1 for _ in steps) >= count
    assert offsets(second.store.query("TopicA", "a", 64)) == [
        stored.physical_offset for stored in second.messages
    ]
    stores.check()
    second.store.close()
