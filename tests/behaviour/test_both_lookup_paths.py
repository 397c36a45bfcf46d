"""Lookups have the same replies on the fast path and from the processors.

Two brokers with the same messages get the same bytes, one of them without the fast path.
"""

from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis import HealthCheck, strategies as st

import broker_pair
from broker_pair import NOW_MS, Both
from reput.format import command as commands, properties as props
from reput.format.codes import RequestCode
from reput.format.command import Command, Serialization
from reput.store.writing.incoming import IncomingMessage

LONG_MAX = (1 << 63) - 1
COUNT = 60
KEYS = ("k1", "k2", "Aa", "BB", "all", "none")
BODY = b"x" * 700

TIMES = st.sampled_from([-1, 0, NOW_MS, NOW_MS + 20, NOW_MS + 5000, 10**18, LONG_MAX, 1 << 63])
FLAGS = st.sampled_from(["true", "false", "True"])
TOPICS = st.sampled_from(["T", "Narrow", "Nowhere", "", "Tö"])
QUERIES = st.fixed_dictionaries(
    {
        "topic": TOPICS,
        "key": st.sampled_from([*KEYS, "", "k" * 300, 'quo"te']),
        "maxNum": st.sampled_from(["0", "1", "3", "32", "64", "200", "-1", "x"]),
        "beginTimestamp": TIMES.map(str),
        "endTimestamp": TIMES.map(str),
    },
    optional={
        "_UNIQUE_KEY_QUERY": FLAGS,
        "indexType": st.sampled_from(["", "K", "U", "T", "X"]),
        "lastKey": st.just("k"),
        "bname": st.just("broker-a"),
    },
)
OF_QUEUES = st.fixed_dictionaries(
    {"topic": TOPICS, "queueId": st.sampled_from(["0", "1", "3", "4", "-1"])},
    optional={
        "timestamp": TIMES.map(str),
        "boundaryType": st.sampled_from(["LOWER", "UPPER", "upper", ""]),
        "committed": FLAGS,
        "lo": FLAGS,
    },
)
RECORDS = st.fixed_dictionaries(
    {"offset": st.sampled_from(["0", "1", "977", "-1", "99999999999", "first", "last"])},
    optional={"topic": TOPICS},
)
LOOKUPS = st.one_of(
    st.tuples(st.just(RequestCode.QUERY_MESSAGE), QUERIES),
    st.tuples(
        st.sampled_from(
            [
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                RequestCode.GET_MAX_OFFSET,
                RequestCode.GET_MIN_OFFSET,
            ]
        ),
        OF_QUEUES,
    ),
    st.tuples(st.just(RequestCode.VIEW_MESSAGE_BY_ID), RECORDS),
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    pairs = broker_pair.open_both(
        tmp_path_factory.mktemp("both"), max_hash_slot_num=5, max_index_num=64
    )
    both = next(pairs)
    for number in range(COUNT):
        keys = f"{KEYS[number % 4]} all" if number % 3 else "all"
        pairs_of_message = {props.UNIQ_KEY: f"u{number // 2}", props.KEYS: keys, props.TAGS: "t"}
        message = IncomingMessage(
            "Narrow" if number % 5 == 0 else "T",
            BODY if number % 7 else b"short",
            0 if number % 5 == 0 else number % 2,
            props.encode(pairs_of_message),
        )
        for wire in (both.with_kernel, both.without):
            result = wire.broker.store.put(message, NOW_MS + number * 100)
            assert result.status.is_stored
    for wire in (both.with_kernel, both.without):
        wire.new_records()
    yield both
    pairs.close()


def lookup(
    code: int,
    fields: dict[str, str],
    serialization: Serialization = Serialization.JSON,
    flag: int = 0,
) -> bytes:
    return commands.encode(Command(code, 77, flag, ext_fields=fields, serialization=serialization))


def feed(both: Both, data: bytes) -> int:
    """Feed both brokers, and compare; return the number of lookups on the fast path."""
    before = both.with_kernel.broker.parts.fast_counts.lookups
    both.feed(data)
    assert both.without.broker.parts.fast_counts.lookups == 0
    return both.with_kernel.broker.parts.fast_counts.lookups - before


def place(both: Both, text: str) -> str:
    """Return the physical offset that is named ``first`` or ``last``, or the text itself."""
    store = both.without.broker.store
    last = store.queues.find("T", 1)
    assert last is not None
    unit = last.unit(last.max_offset - 1)
    assert unit is not None
    return {"first": "0", "last": str(unit.physical_offset)}.get(text, text)


@hypothesis.given(st.lists(LOOKUPS, max_size=12), st.sampled_from(Serialization), st.integers(0, 1))
@hypothesis.settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150
)
def test_replies_are_the_same(
    both: Both,
    lookups: list[tuple[RequestCode, dict[str, str]]],
    serialization: Serialization,
    flag: int,
) -> None:
    frames = []
    for code, fields in lookups:
        known = {name: place(both, value) for name, value in fields.items()}
        frames.append(lookup(code, known, serialization, flag << 1))
    feed(both, b"".join(frames))


def query(key: str, **fields: str) -> bytes:
    known = {"beginTimestamp": "0", "endTimestamp": str(LONG_MAX), "maxNum": "32"}
    return lookup(RequestCode.QUERY_MESSAGE, {"topic": "T", "key": key} | known | fields)


def test_plain_lookups_take_the_fast_path(both: Both) -> None:
    queue = {"topic": "T", "queueId": "1"}
    frames = [
        query("k1"),
        query("u3", _UNIQUE_KEY_QUERY="true"),
        query("none", indexType="K"),
        query("Aa", beginTimestamp=str(NOW_MS), endTimestamp=str(NOW_MS + 1000), bname="broker-a"),
        lookup(RequestCode.GET_MAX_OFFSET, queue | {"committed": "true"}),
        lookup(RequestCode.GET_MIN_OFFSET, queue),
        lookup(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue | {"timestamp": str(NOW_MS + 700)}),
        lookup(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            queue | {"timestamp": str(NOW_MS + 700), "boundaryType": "UPPER"},
        ),
        lookup(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place(both, "last")}),
    ] * 3
    assert feed(both, b"".join(frames)) == len(frames)


def test_other_lookups_fall_back_in_order(both: Both) -> None:
    frames = [
        query("all", maxNum="3"),  # there are more
        query("k1", indexType="T"),
        query("k1", lastKey="k"),
        query("k" * 40_000),
        lookup(RequestCode.GET_MAX_OFFSET, {"topic": "Nowhere", "queueId": "0"}),
        lookup(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "1"}),
    ]
    assert feed(both, b"".join(frames)) == 0
    mixed = b"".join(frame + query("k2") for frame in frames)
    assert feed(both, mixed) == len(frames)
