"""Living brokers, by heartbeats, connections and time."""

from reput.controller.liveness import MOST_TIMEOUT_MS, Liveness, Report, report_of
from reput.format.controller_headers import HeartbeatHeader

FIRST, SECOND = object(), object()


def report(timeout_ms: int = 10_000, end: int = 0) -> Report:
    return Report("10.0.0.1:10911", 1, end, timeout_ms=timeout_ms)


def heartbeat(**fields: int) -> HeartbeatHeader:
    return HeartbeatHeader(
        cluster_name="C", broker_addr="10.0.0.1:10911", broker_name="a", broker_id=1, **fields
    )


def test_a_broker_is_alive_until_its_timeout_is_over() -> None:
    liveness = Liveness()
    assert liveness.hear("a", 1, report(), FIRST, 1_000)
    assert not liveness.hear("a", 1, report(), FIRST, 2_000)
    assert liveness.next_end_ms(2_000) == 12_001
    assert set(liveness.sight("a", 12_000).alive) == {1}
    assert not liveness.sight("a", 12_001).may_act(1)
    assert liveness.next_end_ms(12_001) is None
    assert liveness.hear("a", 1, report(), FIRST, 13_000)


def test_the_end_of_its_connection_is_the_end_of_a_broker() -> None:
    liveness = Liveness()
    liveness.hear("a", 1, report(), FIRST, 0)
    liveness.hear("a", 2, report(), SECOND, 0)
    liveness.hear("b", 1, report(), FIRST, 0)
    assert liveness.close(FIRST) == ["a", "b"]
    assert set(liveness.sight("a", 0).alive) == {2}


def test_the_end_of_an_earlier_connection_changes_nothing() -> None:
    """Java takes the broker for dead, and elects another master."""
    liveness = Liveness()
    liveness.hear("a", 1, report(), FIRST, 0)
    liveness.hear("a", 1, report(), SECOND, 1)
    assert liveness.close(FIRST) == []
    assert set(liveness.sight("a", 1).alive) == {1}


def test_the_newest_report_counts_also_if_the_log_was_cut() -> None:
    """Java keeps the largest one for ever."""
    liveness = Liveness()
    liveness.hear("a", 1, report(end=900), FIRST, 0)
    liveness.hear("a", 1, report(end=100), FIRST, 1)
    assert liveness.sight("a", 1).alive[1].end_offset == 100


def test_a_presumed_master_may_act_but_is_no_candidate() -> None:
    liveness = Liveness()
    liveness.presume("a", 1, 0, 1_000)
    seen = liveness.sight("a", 11_000)
    assert seen.may_act(1)
    assert not seen.alive
    assert not liveness.sight("a", 11_001).may_act(1)
    assert liveness.hear("a", 1, report(), FIRST, 11_001)
    assert not liveness.sight("a", 12_000).presumed


def test_a_silent_master_may_have_been_heard_by_the_leader_before() -> None:
    """Only the end of its connection is its end also for another leader."""
    liveness = Liveness()
    liveness.hear("a", 1, report(), FIRST, 0)
    liveness.hear("b", 1, report(), SECOND, 0)
    liveness.close(SECOND)
    for name in ("a", "b"):
        liveness.presume(name, 1, 3_000, 9_000)
    assert set(liveness.sight("a", 9_000).alive) == {1}
    assert liveness.sight("a", 12_000).presumed == {1}
    assert liveness.next_end_ms(10_500) == 12_001
    assert not liveness.sight("a", 12_001).may_act(1)
    assert not liveness.sight("b", 9_000).may_act(1)


def test_time_in_which_the_controller_slept_is_no_silence() -> None:
    liveness = Liveness()
    liveness.hear("a", 1, report(), FIRST, 0)
    liveness.hear("a", 2, report(), FIRST, 29_500)  # before it noticed
    liveness.pause(29_000, 30_000)
    seen = liveness.sight("a", 39_000)
    assert set(seen.alive) == {1, 2}
    assert set(liveness.sight("a", 39_001).alive) == {2}
    assert not liveness.sight("a", 40_001).alive  # not later than now


def test_a_timeout_that_would_never_end_or_always_is_bounded() -> None:
    assert report_of(heartbeat()).timeout_ms == 10_000
    assert report_of(heartbeat(heartbeat_timeout_mills=-5)).timeout_ms == 10_000
    assert report_of(heartbeat(heartbeat_timeout_mills=1)).timeout_ms == 1_000
    assert report_of(heartbeat(heartbeat_timeout_mills=1 << 60)).timeout_ms == MOST_TIMEOUT_MS


def test_a_report_without_values() -> None:
    made = report_of(heartbeat(epoch=3, max_offset=1 << 40))
    assert (made.epoch, made.end_offset, made.priority) == (3, 1 << 40, (1 << 31) - 1)
    assert (report_of(heartbeat()).epoch, report_of(heartbeat()).end_offset) == (-1, -1)


def test_a_broker_that_starts_again_is_forgotten() -> None:
    liveness = Liveness()
    liveness.hear("a", 1, report(), FIRST, 0)
    liveness.hear("a", 2, report(), FIRST, 0)
    liveness.forget("a", 1)
    assert set(liveness.sight("a", 0).alive) == {2}
    liveness.forget("b", 1)
