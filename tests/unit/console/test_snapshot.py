"""The snapshot: answers may come in any order; a broker is silent until it answers again."""

from typing import Any

from hypothesis import given, strategies as st

from reput.console.history import FINE_COUNT, FINE_MS, History, Ring, rates, time_of
from reput.console.snapshot import BrokerFacts, BrokerPlace, Ends, Members, QueueEnds, Snapshot

PLACE = BrokerPlace("c", "broker-a", 0, "10.0.0.1:10911")
ADDRESS = PLACE.address
START = 1_700_000_000_000


def put(snapshot: Snapshot, kind: str, time_ms: int, value: int) -> None:
    """Put an answer, or a failure, of a kind with a value."""
    match kind:
        case "status":
            snapshot.put_status(ADDRESS, {"putTps": str(value)}, time_ms)
        case "offsets":
            snapshot.put_consumed(ADDRESS, {("T", "G"): {0: value}}, time_ms)
        case "ends":
            ends = Ends(time_ms, (QueueEnds(0, 0, value, 0),))
            snapshot.put_ends(ADDRESS, "T", ends)
        case "failure":
            snapshot.put_failure(ADDRESS, f"timeout {value}", time_ms)
        case "members":
            snapshot.put_members("G", Members(time_ms, value))


def state(snapshot: Snapshot) -> Any:
    facts: BrokerFacts = snapshot.brokers[ADDRESS]
    return (
        *(facts.status, facts.consumed, facts.ends, snapshot.members),
        *(facts.is_silent, facts.silent_since_ms, facts.problem),
    )


KINDS = ("status", "offsets", "ends", "failure", "members")


@given(
    reports=st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(1, 1000), st.integers(0, 9)),
        unique_by=lambda report: report[1],
        max_size=12,
    ),
    order=st.randoms(use_true_random=False),
)
def test_the_order_in_which_answers_arrive_does_not_matter(reports: Any, order: Any) -> None:
    states = []
    shuffled = list(reports)
    order.shuffle(shuffled)
    for arrived in (sorted(reports, key=lambda report: report[1]), shuffled, shuffled * 2):
        snapshot = Snapshot()
        snapshot.put_places([PLACE], START)
        for kind, time_ms, value in arrived:
            put(snapshot, kind, START + time_ms, value)
        states.append(state(snapshot))
    assert states[0] == states[1] == states[2]


def test_a_silent_broker_keeps_what_it_had_answered_and_since_when() -> None:
    snapshot = Snapshot()
    snapshot.put_places([PLACE], START)
    assert not snapshot.silent()
    put(snapshot, "offsets", START + 10, 7)
    put(snapshot, "failure", START + 20, 1)
    put(snapshot, "failure", START + 30, 2)
    assert snapshot.silent() == {"broker-a": START + 10}
    assert snapshot.brokers[ADDRESS].consumed == {("T", "G"): {0: 7}}
    put(snapshot, "status", START + 40, 1)
    assert not snapshot.silent()


def test_a_broker_that_name_servers_have_forgotten_leaves_after_an_hour() -> None:
    snapshot = Snapshot()
    snapshot.put_places([PLACE], START)
    snapshot.put_places([], START + 3_600_000)
    assert snapshot.brokers
    snapshot.put_places([], START + 3_600_001)
    assert not snapshot.brokers


@given(st.lists(st.tuples(st.integers(0, 300 * FINE_MS), st.integers(0, 99)), max_size=30))
def test_a_ring_has_the_newest_value_of_each_slot(samples: list[tuple[int, int]]) -> None:
    ring, model = Ring(FINE_MS, FINE_COUNT), dict[int, float]()
    for time_ms, value in sorted(samples):
        ring.put(START + time_ms, value)
        model[(START + time_ms) // FINE_MS] = value
    now = START + max((time_ms for time_ms, _ in samples), default=0)
    newest = now // FINE_MS
    expected = [model.get(slot) for slot in range(newest - FINE_COUNT + 1, newest + 1)]
    assert ring.values(now) == expected
    kept = [value for value in reversed(expected) if value is not None]
    assert [value for _, value in ring.newest_first()] == kept


def test_a_rate_is_that_of_the_newest_values_and_a_gap_stays_one() -> None:
    history = History()
    assert history.rate("x") is None
    history.put("x", START, 100)
    assert history.rate("x") is None
    history.put("x", START + 30_000, 400)
    assert history.rate("x") == 10
    assert rates([0, 30, None, 90, 120], 30_000) == [None, 1, None, None, 1]


def test_the_time_of_a_value_is_interpolated_and_unknown_before_the_first() -> None:
    samples = [(4_000, 40.0), (3_000, 20.0), (2_000, 20.0), (1_000, 10.0)]
    assert time_of(samples, 15) == 1_500
    assert time_of(samples, 30) == 3_500
    assert time_of(samples, 40) == 4_000
    assert time_of(samples, 9) is None
    assert time_of([], 1) is None
