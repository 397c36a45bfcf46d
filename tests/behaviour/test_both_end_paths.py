"""Ends of transactions have the same effect on the fast path and in the processor.

Two brokers get the same bytes, one of them without the fast path, which decides consecutive
requests in one put. Log, queues, replies and the state of transactions must be equal.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import broker_pair
from behaviour.test_both_send_paths import send
from broker_pair import NOW_MS, Both, Wire
from broker_subject import with_fields
from reput.format import command as commands, headers, names
from reput.format.codes import RequestCode
from reput.format.command import IS_ONEWAY, Command, Serialization
from reput.format.headers import EndTransactionHeader

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF = "UNIQ_KEY\x01AC\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02WAIT\x01true\x02"
INTERVAL_MS = 30_000


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    pairs = broker_pair.open_both(tmp_path)
    both = next(pairs)
    both.feed(send() + half())  # Creates topics and queues.
    yield both
    pairs.close()


def half(body: bytes = b"some body", **fields: Any) -> bytes:
    return send(body, properties=HALF, **{"sys_flag": 4} | fields)


def halves(both: Both) -> list[tuple[int, int]]:
    """Return queue offset and physical offset of each half message."""
    queue = both.with_kernel.broker.store.queues.find(names.HALF_TOPIC, 0)
    assert queue is not None
    units = queue.units(0, queue.max_offset)
    return list(enumerate(units["physical_offset"].tolist()))


def end(
    place: tuple[int, int],
    decision: int = COMMIT,
    *,
    serialization: Serialization = Serialization.JSON,
    extra: dict[str, str] | None = None,
    remark: str | None = None,
    flag: int = 0,
    opaque: int = 9,
    **fields: Any,
) -> bytes:
    header = EndTransactionHeader(
        producer_group="g",
        tran_state_table_offset=place[0],
        commit_log_offset=place[1],
        commit_or_rollback=decision,
        from_transaction_check=False,
        msg_id="0A0B",
        transaction_id="0A0B",
    )
    request = Command(
        RequestCode.END_TRANSACTION,
        opaque,
        flag,
        remark=remark,
        ext_fields=headers.encode(with_fields(header, fields)) | (extra or {}),
        serialization=serialization,
    )
    return commands.encode(request)


def known(wire: Wire) -> list[object]:
    """Return the state of a broker's transactions."""
    transactions = wire.broker.parts.transactions
    counts = (
        transactions.committed_count,
        transactions.rolled_back_count,
        transactions.refused_count,
        transactions.repeated_count,
    )
    ops = (
        transactions._ops.next_offset,
        [(run.begin, run.highest) for run in transactions._ops._runs],
    )
    marks = transactions._marks.start, bytes(transactions._marks._states)
    return [
        counts,
        ops,
        marks,
        transactions._copies,
        transactions._given_up,
        transactions.progress(),
        transactions.put_end,
    ]


def feed(both: Both, data: bytes) -> int:
    """Feed both brokers, and compare; return the number of ends on the fast path."""
    counts = both.with_kernel.broker.parts.fast_counts
    before = counts.transaction_ends
    both.feed(data)
    assert known(both.with_kernel) == known(both.without)
    assert both.without.broker.parts.fast_counts.transaction_ends == 0
    return counts.transaction_ends - before


@pytest.mark.parametrize("serialization", list(Serialization))
@pytest.mark.parametrize("flag", [0, IS_ONEWAY])
@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_plain_ends_take_the_fast_path(
    both: Both, decision: int, flag: int, serialization: Serialization
) -> None:
    feed(both, half() * 6)
    about = {"serialization": serialization, "flag": flag}
    data = [end(place, decision, opaque=i, **about) for i, place in enumerate(halves(both))]
    assert feed(both, b"".join(data[:4])) == 4
    assert feed(both, data[5]) == 1
    assert feed(both, data[4]) == 1
    if decision == COMMIT:
        assert both.with_kernel.broker.store.max_offset("T", 1) == 1 + 6


def test_fields_of_newer_clients(both: Both) -> None:
    (place,) = halves(both)
    more = {"topic": "T", "bname": "broker-a", "nsd": "false"}
    assert feed(both, end(place, extra=more, from_transaction_check=True)) == 1


def test_a_half_message_and_its_end_in_one_read(both: Both) -> None:
    ((_, first),) = halves(both)
    size = both.with_kernel.broker.store.max_physical_offset - first
    place = (1, first + size)
    assert feed(both, half() + end(place) + send(opaque=1)) == 1


def test_alternating_commits_and_rollbacks(both: Both) -> None:
    feed(both, half(queue_id=2) * 3 + half(topic="Narrow", queue_id=0) * 4)
    data = [end(place, (COMMIT, ROLLBACK)[place[0] % 2]) for place in reversed(halves(both))]
    assert feed(both, b"".join(data)) == 8


OTHERS: dict[str, dict[str, Any]] = {
    "not known yet": {"decision": UNKNOWN},
    "prepared": {"decision": 4},
    "another group": {"producer_group": "others"},
    "a group beyond ASCII": {"producer_group": "групп"},
    "another queue offset": {"tran_state_table_offset": 7},
    "a negative queue offset": {"tran_state_table_offset": -1},
    "another place": {"commit_log_offset": 5},
    "a place beyond the end": {"commit_log_offset": 1 << 40},
    "a negative place": {"commit_log_offset": -1},
    "no half message": {"commit_log_offset": 0},
    "a remark": {"remark": "it failed"},
    "an unknown field": {"extra": {"zz": "1"}},
    "no number": {"extra": {"commitLogOffset": "one"}},
    "a flag of 5.x": {"flag": 4},
    "a negative opaque": {"opaque": -3},
}


@pytest.mark.parametrize("serialization", list(Serialization))
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.sampled(3)
def test_other_ends_fall_back(both: Both, name: str, serialization: Serialization) -> None:
    feed(both, half() * 4)
    places = halves(both)
    other = end(places[2], serialization=serialization, **OTHERS[name])
    # Between plain requests, in one read: replies keep their order.
    assert feed(both, end(places[0]) + end(places[1]) + other + end(places[3])) == 3
    assert feed(both, other) == 0


def test_repeated_ends(both: Both) -> None:
    feed(both, half() * 3)
    first, second, third, fourth = halves(both)
    assert feed(both, end(first) * 2 + end(second) + end(first, ROLLBACK) + end(third)) == 3
    assert feed(both, end(first) + end(second, ROLLBACK)) == 0
    assert feed(both, end(fourth, ROLLBACK) * 2) == 1


def test_copies_of_half_messages(both: Both) -> None:
    """A decision about a half message or about its copy for a check counts for both."""
    feed(both, half() * 3)
    for wire in (both.with_kernel, both.without):
        wire.broker.parts.transactions.step(NOW_MS)
        wire.broker.clock.advance(2 * INTERVAL_MS)  # type: ignore[attr-defined]
        while wire.broker.parts.transactions.step(wire.broker.clock.now_ms()):
            pass
    places = halves(both)
    assert len(places) == 8
    assert feed(both, half() + end(places[0]) + end(places[5]) + end(places[4])) == 0
    assert feed(both, end(halves(both)[8]) + end(places[7])) == 1


def test_ends_for_a_topic_that_was_deleted(both: Both) -> None:
    feed(both, half(topic="Narrow", queue_id=0))
    for wire in (both.with_kernel, both.without):
        wire.broker.parts.topics.delete("Narrow", NOW_MS)
    first, second = halves(both)
    feed(both, end(first) + end(second))
    assert both.with_kernel.broker.store.max_offset("Narrow", 0) == 1


def test_messages_that_the_store_refuses(both: Both) -> None:
    feed(both, half() * 2)
    places = halves(both)
    for wire in (both.with_kernel, both.without):
        wire.broker.store.putter.refusal = "the disk failed"
    assert feed(both, b"".join(end(place) for place in places)) == 0
    for wire in (both.with_kernel, both.without):
        wire.broker.store.putter.refusal = ""
    assert feed(both, b"".join(end(place) for place in places)) == 3


def test_the_log_file_ends_in_between(both: Both) -> None:
    store = both.with_kernel.broker.store
    file_size = store.config.mapped_file_size_commit_log
    feed(both, half(b"x" * 4000) * 50)
    places = halves(both)
    while store.max_physical_offset < file_size - 200_000:
        feed(both, send(b"x" * 4000) * 20)
    assert feed(both, b"".join(end(place) for place in places)) == len(places)
    assert store.max_physical_offset > file_size


def test_a_buffer_may_be_cut_anywhere(both: Both) -> None:
    data = end(halves(both)[0])
    for cut in range(1, len(data)):
        feed(both, data[:cut])
        feed(both, data[cut:])


requests = st.one_of(
    st.just("half"),
    st.just("send"),
    st.tuples(
        st.integers(0, 30),
        st.sampled_from([COMMIT, COMMIT, COMMIT, ROLLBACK, UNKNOWN]),
        st.sampled_from([{}, {}, {}, {"flag": IS_ONEWAY}, *OTHERS.values()]),
        st.sampled_from(list(Serialization)),
    ),
)


def test_random_ends(tmp_path: Path) -> None:
    pairs = broker_pair.open_both(tmp_path)
    both = next(pairs)
    both.feed(send() + half())

    @hypothesis.given(st.lists(requests, min_size=1, max_size=6))
    def check_requests(several: list[Any]) -> None:
        places = halves(both)
        data = b""
        for request in several:
            if isinstance(request, str):
                data += half() if request == "half" else send()
            else:
                which, decision, fields, serialization = request
                place = places[-1 - which % len(places)]
                fields = {"decision": decision, **fields}
                data += end(place, serialization=serialization, **fields)
        feed(both, data)

    try:
        check_requests()
    finally:
        pairs.close()
