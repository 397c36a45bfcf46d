"""Searches by key are complete, whatever the times of messages, and cost few queries."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

import store_builder
from index_model import PAGE_COUNT, IndexModel
from reput.client.core import key_search
from reput.client.core.key_search import EVER, KeyPage, KeyQuery, KeyWindows, Window
from reput.client.message import received
from reput.errors import BrokerError, CorruptRecord
from reput.format import command, message as record
from reput.format.codes import RequestCode, ResponseCode
from reput.format.message import StoredMessage

START_MS = store_builder.START_MS
INDEX_FIELDS = {"indexLastUpdateTimestamp": "1", "indexLastUpdatePhyoffset": "99"}


def log_of(times: Sequence[int], key: str = "k", topic: str = "T") -> list[StoredMessage]:
    """Return messages with a key, stored at these times after the start."""
    drafts = [
        store_builder.message(topic, keys=key, store_timestamp=START_MS + time) for time in times
    ]
    return store_builder.place(drafts, 1 << 30)


def ask(index: IndexModel, query: KeyQuery) -> KeyPage:
    return query.page(index.reply(query.request()), "127.0.0.1:10911")


def offsets_of(page: KeyPage) -> list[int]:
    return [message.physical_offset for message in received(page.records, "b")]


# --- windows ------------------------------------------------------------------------------------

MOMENTS = st.one_of(
    st.integers(0, 10_000_000), st.integers(5_000_000, 5_010_000), st.integers(7_000_000, 7_000_900)
)


@given(
    times=st.lists(MOMENTS, max_size=300),
    is_sorted=st.booleans(),
    begin=st.integers(0, 9_000_000),
    length=st.integers(1, 10_000_000),
    is_newest_first=st.booleans(),
)
def test_windows_cover_the_interval_without_gap_or_overlap(
    times: list[int], is_sorted: bool, begin: int, length: int, is_newest_first: bool
) -> None:
    """Messages are missing only from a second with more of them than a page; clocks go back."""
    log = log_of(sorted(times) if is_sorted else [*sorted(times)[:1], *times])
    index = IndexModel(log)
    interval = Window(START_MS + begin, START_MS + begin + length)
    windows = KeyWindows(interval, is_newest_first=is_newest_first)
    covered: list[Window] = []
    incomplete: list[Window] = []
    results: set[int] = set()
    while (window := windows.next) is not None:
        rest = windows.remaining()
        assert rest is not None
        if is_newest_first:
            assert window.end_ms == rest.end_ms
        else:
            assert window.begin_ms == rest.begin_ms
        page = ask(index, KeyQuery("T", "k", window)) if log else KeyPage(b"", None, 0)
        if windows.answer(page.oldest_ms):
            covered.append(window)
            results.update(offsets_of(page))
            if page.is_full:
                incomplete.append(window)
    covered.sort(key=lambda window: window.begin_ms)
    assert covered[0].begin_ms == interval.begin_ms
    assert covered[-1].end_ms == interval.end_ms
    for left, right in itertools.pairwise(covered):
        assert left.end_ms == right.begin_ms
    for window in incomplete:
        assert window.end_ms - window.begin_ms <= 1000
        near = Window(window.begin_ms - 1000, window.end_ms + 1000)
        assert sum(near.has(message.store_timestamp) for message in log) >= PAGE_COUNT
    for message in log:
        time_ms = message.store_timestamp
        if interval.has(time_ms) and not any(window.has(time_ms) for window in incomplete):
            assert message.physical_offset in results


@pytest.mark.parametrize("step_ms", [40, 1_000, 3_600_000])
def test_newest_first_a_page_of_messages_costs_two_queries(step_ms: int) -> None:
    """25 messages a second, or one an hour: neither is searched for since 1970."""
    count = 1_000
    index = IndexModel(log_of([i * step_ms for i in range(count)]))
    windows = KeyWindows()
    results: set[int] = set()
    while (window := windows.next) is not None:
        page = ask(index, KeyQuery("T", "k", window))
        windows.answer(page.oldest_ms)
        results.update(offsets_of(page))
    assert len(results) == count
    new_of_page = PAGE_COUNT - 2_000 // step_ms - 2
    assert index.query_count <= 2 * (count // new_of_page + 1)


def test_a_window_that_was_put_back_is_next() -> None:
    windows = KeyWindows(Window(0, 5_000))
    assert windows.answer(None)
    windows.put_back(Window(0, 5_000))
    assert windows.next == windows.remaining() == Window(0, 5_000)


def test_seconds_of_an_index_begin_a_second_before_the_window() -> None:
    """The entry of a message has a time of up to 999 ms earlier; times are not negative."""
    (first, message) = log_of([0, 1_999])
    index = IndexModel([first, message])
    window = Window(message.store_timestamp, message.store_timestamp + 1)
    assert message.physical_offset in offsets_of(ask(index, KeyQuery("T", "k", window)))
    assert Window(500, 600).query == (0, 599)


# --- pages --------------------------------------------------------------------------------------


def test_the_request_is_that_of_java_clients() -> None:
    request = KeyQuery("T", "k").request()
    assert request.code == RequestCode.QUERY_MESSAGE == 12
    assert request.ext_fields == {
        "topic": "T",
        "key": "k",
        "maxNum": "64",
        "beginTimestamp": "0",
        "endTimestamp": str((1 << 63) - 1),
        "_UNIQUE_KEY_QUERY": "false",
    }


@pytest.mark.parametrize(
    ("count", "count_max", "is_unique", "is_full"),
    [
        (63, 64, False, False),
        (64, 64, False, True),
        (2, 2, False, True),
        (1, 2, False, False),
        (31, 64, True, False),  # brokers take defaultQueryMaxNum for unique keys
        (32, 64, True, True),
    ],
)
def test_a_page_is_full_if_it_has_as_many_records_as_brokers_return(
    count: int, count_max: int, is_unique: bool, is_full: bool
) -> None:
    log = log_of(range(0, 1000 * count, 1000))
    query = KeyQuery("T", "k", EVER, is_unique, count_max)
    body = b"".join(map(record.encode, log))
    page = query.page(command.reply(query.request(), 0, None, INDEX_FIELDS, body), "b")
    assert page.is_full == is_full
    assert page.oldest_ms == (log[0].store_timestamp if is_full else None)
    assert page.indexed_to == 99


def test_a_remark_declares_that_there_may_be_more() -> None:
    query = KeyQuery("T", "k")
    body = record.encode(log_of([7])[0])
    remark = "the newest 1; there may be more"
    page = query.page(command.reply(query.request(), 0, remark, INDEX_FIELDS, body), "b")
    assert page.oldest_ms == START_MS + 7


def test_no_message_is_an_empty_page_and_another_code_an_error() -> None:
    query = KeyQuery("T", "k")
    reply = command.reply(query.request(), ResponseCode.QUERY_NOT_FOUND, "no", INDEX_FIELDS)
    assert query.page(reply, "b") == KeyPage(b"", None, 99)
    refusal = command.reply(query.request(), ResponseCode.SYSTEM_ERROR, "why")
    with pytest.raises(BrokerError, match="why"):
        query.page(refusal, "b")
    damaged = command.reply(query.request(), 0, None, INDEX_FIELDS, b"\xff" * 50)
    with pytest.raises(CorruptRecord):
        query.page(damaged, "b")


def test_messages_of_other_topics_are_dropped_and_damaged_ones_stay() -> None:
    log = [*log_of([0]), *log_of([1], topic="U")]
    index = IndexModel(log, collisions=("T#k", "U#k"))
    page = ask(index, KeyQuery("T", "k"))
    assert [m.topic for m in received(page.records, "b")] == ["T", "U"]
    (message,) = key_search.without_collisions(received(page.records, "b"), "T")
    assert message.topic == "T"
    damaged = bytearray(page.records)
    damaged[log[0].store_size + record.POSITION_BODY_CRC] ^= 0xFF
    stay = key_search.without_collisions(received(bytes(damaged), "b"), "T")
    assert len(stay) == 2
    with pytest.raises(CorruptRecord):
        _ = stay[1].body
