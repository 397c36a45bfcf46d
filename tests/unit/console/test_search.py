"""The plan of a search covers what it says, and its answer says what it did not look at."""

import contextlib
import random

import pytest
from hypothesis import given, strategies as st

from reput.console import search
from reput.console.search import (
    Answer,
    Block,
    Cursor,
    Merge,
    Missing,
    Question,
    Row,
    SearchEffort,
    Span,
    Way,
)
from reput.errors import InvalidOption

NOW_MS = 1_795_000_000_000


def row(broker: str, queue_id: int, queue_offset: int, store_ms: int) -> Row:
    return Row(
        topic="Orders",
        broker=broker,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=0,
        store_ms=store_ms,
        born_ms=store_ms,
        id="",
        offset_id="",
        tags=None,
        keys=(),
        size_bytes=100,
        reconsume_times=0,
        body="",
    )


# --- plans --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "ways"),
    [
        (
            Question(topic="Orders", id="7F0000010000ABCD00000000000001C8"),
            ["unique key", "offset id"],
        ),
        (Question(id="7F0000010000ABCD00000000000001C8"), ["offset id"]),
        (Question(topic="Orders", id="order-17"), ["unique key"]),
        (Question(topic="Orders", key="17"), ["key"]),
        (Question(topic="Orders", key="17", text="failed"), ["key"]),
        (Question(topic="Orders"), ["queues"]),
        (Question(topic="Orders", sql="amount > 5", tags=("A",)), ["queues"]),
    ],
)
def test_ways(question: Question, ways: list[str]) -> None:
    assert list(search.plan(question).ways) == [Way(way) for way in ways]


@pytest.mark.parametrize(
    ("question", "name"),
    [
        (Question(), "topic"),
        (Question(id="order-17"), "id"),
        (Question(topic="<script>"), "topic"),
        (Question(topic="Orders", begin_ms=5, end_ms=5), "end"),
        (Question(topic="Orders", sql="amount >"), "sql"),
        (Question(topic="Orders", row_count=0), "rows"),
        (Question(topic="Orders", text="x" * 501), "text"),
        (Question(topic="Orders", property_value="x"), "value"),
    ],
)
def test_what_cannot_be_searched_is_refused_by_name(question: Question, name: str) -> None:
    with pytest.raises(InvalidOption) as refusal:
        search.plan(question)
    assert refusal.value.name == name


def test_a_unique_key_without_a_topic_is_reported_as_missing() -> None:
    plan = search.plan(Question(id="7F0000010000ABCD00000000000001C8"))
    assert [str(missing) for missing in plan.not_tried] == [
        "the index: a unique key is looked up in a topic: give one"
    ]


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("", None),
        ("1795000000000", 1_795_000_000_000),
        ("15m", NOW_MS - 15 * 60_000),
        ("3d", NOW_MS - 3 * 86_400_000),
        ("2026-11-21T14:00", 1_795_269_600_000),
        ("2026-11-21T14:00:00+08:00", 1_795_240_800_000),
    ],
)
def test_times(text: str, time_ms: int | None) -> None:
    assert search.parse_time("begin", text, NOW_MS) == time_ms


@pytest.mark.parametrize("text", ["yesterday", "-1", "99999d", "9" * 30, "9" * 50, "\uff11\uff12"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(InvalidOption):
        search.parse_time("begin", text, NOW_MS)


# --- merging queues -----------------------------------------------------------------------------

QUEUES = st.lists(
    st.lists(st.integers(0, 300), max_size=80).map(sorted), min_size=1, max_size=4
).map(lambda queues: {("broker-a", n): times for n, times in enumerate(queues)})


def read(
    queues: dict[tuple[str, int], list[int]], part: Span, modulus: int, *, shows_times: bool = True
) -> Block:
    """Read a part: the messages whose queue offset is a multiple match."""
    times = queues[part.queue][part.low : part.high]
    return Block(
        read=part,
        rows=[
            row(*part.queue, queue_offset, queues[part.queue][queue_offset])
            for queue_offset in range(part.low, part.high)
            if queue_offset % modulus == 0
        ],
        oldest_ms=times[0] if shows_times else None,
        newest_ms=times[-1] if shows_times else None,
    )


@given(
    queues=QUEUES,
    is_newest_first=st.booleans(),
    modulus=st.integers(1, 7),
    page=st.integers(1, 30),
    shows_times=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_pages_have_each_match_once_and_in_order(
    queues: dict[tuple[str, int], list[int]],
    is_newest_first: bool,
    modulus: int,
    page: int,
    shows_times: bool,
    seed: int,
) -> None:
    """Reads of several queues end in any order; each page continues at the cursor of the last."""
    choice = random.Random(seed)
    spans = tuple(Span(*queue, 0, len(times)) for queue, times in queues.items())
    rows: list[Row] = []
    while True:
        merge = Merge(spans, is_newest_first=is_newest_first, part_count=2, part_count_max=8)
        taken: list[Row] = []
        under_way: list[Span] = []
        while len(taken) < page:
            while len(under_way) < 3 and (part := merge.next_part()) is not None:
                under_way.append(part)
            if not under_way:
                break
            part = under_way.pop(choice.randrange(len(under_way)))
            merge.add(read(queues, part, modulus, shows_times=shows_times))
            taken += merge.take(page - len(taken))
        taken += merge.take(page - len(taken), is_end=True)
        rows += taken
        spans = merge.remaining()
        if not spans:
            break
        spans = search.parse_cursor(Cursor(spans=spans).text()).spans
    sign = -1 if is_newest_first else 1
    places = [(sign * row.store_ms, row.broker, row.queue_id) for row in rows]
    if page == 30 or len(queues) == 1 or shows_times:
        assert places == sorted(places)
    assert sorted((row.queue_id, row.queue_offset) for row in rows) == [
        (queue_id, queue_offset)
        for (_, queue_id), all_times in queues.items()
        for queue_offset in range(0, len(all_times), modulus)
    ]


def test_a_failed_queue_stays_in_the_cursor_and_holds_no_other_up() -> None:
    merge = Merge([Span("broker-a", 0, 0, 4), Span("broker-b", 0, 0, 4)])
    parts = [merge.next_part(), merge.next_part()]
    assert [part.broker for part in parts if part] == ["broker-a", "broker-b"]
    merge.add(Block(read=Span("broker-b", 0, 4, 4), is_failed=True))
    merge.add(
        Block(
            read=Span("broker-a", 0, 0, 4),
            rows=[row("broker-a", 0, 3, 50)],
            oldest_ms=10,
            newest_ms=50,
        )
    )
    assert [row.queue_offset for row in merge.take(10)] == [3]
    assert merge.next_part() is None
    assert merge.remaining() == (Span("broker-b", 0, 0, 4),)


def test_the_queue_with_the_oldest_position_is_read_first() -> None:
    merge = Merge([Span("a", 0, 0, 100), Span("b", 0, 0, 100)], part_count=10)
    for _ in range(2):
        part = merge.next_part()
        assert part is not None
        newest = 500 if part.broker == "a" else 90
        merge.add(Block(read=part, oldest_ms=newest - 10, newest_ms=newest))
    part = merge.next_part()
    assert part == Span("a", 0, 70, 90)


# --- cursors ------------------------------------------------------------------------------------


def test_a_cursor_survives_its_text() -> None:
    cursor = Cursor(spans=(Span("broker-a", 3, 17, 1 << 40),), window=(5, 1000))
    assert search.parse_cursor(cursor.text()) == cursor


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "!!!",
        Cursor(spans=(Span("a", 0, 5, 5),)).text(),
        Cursor(spans=(Span("a", 0, -1, 5),)).text(),
        Cursor(spans=(Span("a", 0, 0, 5), Span("a", 0, 7, 9))).text(),
        Cursor(window=(9, 9)).text(),
        Cursor(spans=tuple(Span("a" * 100_000, n, 0, 5) for n in range(20))).text(),
        "A" * 60_000,
    ],
)
def test_a_cursor_that_no_answer_had_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="cursor of an earlier answer"):
        search.parse_cursor(text)


@given(st.text(max_size=200))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidOption):
        search.parse_cursor(text)


# --- answers ------------------------------------------------------------------------------------


LOOKED = SearchEffort(brokers=("broker-a", "broker-b"), queue_count=16, message_count=1_204_311)


def test_the_sentence_of_a_complete_answer() -> None:
    answer = Answer(rows=(), looked_at=LOOKED, took_ms=812, interval="from 14:00 to 15:00")
    assert answer.complete
    assert answer.sentence() == (
        "Complete: 2 brokers, 16 queues, from 14:00 to 15:00, 1,204,311 messages looked at, "
        "0 matches, 0.8 s."
    )


def test_the_sentence_of_an_incomplete_answer_has_the_reasons() -> None:
    answer = Answer(
        rows=(),
        looked_at=LOOKED,
        missing=(Missing("broker-b", "did not answer in 2 s"),),
        cursor=Cursor(spans=(Span("broker-b", 0, 0, 1),)),
        pause="20 s",
        took_ms=20_000,
    )
    assert not answer.complete
    assert answer.sentence() == (
        "Not complete: broker-b: did not answer in 2 s; paused after 20 s. So far: 2 brokers, "
        "16 queues, 1,204,311 messages looked at, 0 matches, 20.0 s. Continue to see the rest."
    )


def test_a_missing_part_alone_makes_an_answer_incomplete() -> None:
    answer = Answer(rows=(), looked_at=LOOKED, missing=(Missing("queue 0", "damaged"),), took_ms=1)
    assert not answer.complete
    assert answer.sentence().startswith("Not complete: queue 0: damaged. So far: ")
