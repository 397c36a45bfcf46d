"""Rows that are computed in steps, compared with rows that are computed at once."""

import asyncio
from collections.abc import Sequence

import pytest

from reput.console.history import FINE_MS, History
from reput.console.rows import NOT_CONSUMED, STEP_ROWS, GroupRow, Rows
from reput.console.snapshot import BrokerPlace, Ends, Members, QueueEnds, Snapshot
from reput.console.unknown import Unknown
from topic_configs import topic_config

PLACE = BrokerPlace("c", "broker-a", 0, "10.0.0.1:10911")
START = 1_700_000_000_000
COUNT = 3 * STEP_ROWS
GROUPS = [f"G{number}" for number in range(COUNT)]


def put_topics(snapshot: Snapshot, names: list[str], time_ms: int) -> None:
    snapshot.put_topics(PLACE.address, {name: topic_config(name) for name in names}, time_ms)
    for name in names:
        snapshot.put_ends(PLACE.address, name, Ends(time_ms, (QueueEnds(0, 0, 100, time_ms),)))


def put_offsets(snapshot: Snapshot, consumer_offset: int, time_ms: int) -> None:
    offsets = {("Orders", group): {0: consumer_offset} for group in GROUPS}
    snapshot.put_consumed(PLACE.address, offsets, time_ms)


def filled() -> tuple[Snapshot, Rows]:
    """Return a snapshot in which each group lags by 60 messages, and its rows."""
    snapshot = Snapshot()
    snapshot.put_places([PLACE], START)
    put_topics(snapshot, ["Orders"], START + 1)
    put_offsets(snapshot, 40, START + 1)
    rows = Rows(snapshot, History())
    assert lags(rows) == {60}
    return snapshot, rows


def lags(rows: Rows) -> set[object]:
    return {row.lag for row in rows.groups().rows.values()}


async def test_steps_give_the_rows_of_one_update() -> None:
    snapshot, rows = filled()
    put_offsets(snapshot, 90, START + 2)
    assert rows.has_backlog
    await rows.catch_up()
    assert not rows.has_backlog
    assert lags(rows) == {10}
    at_once = Rows(snapshot, History())
    assert rows.groups().rows == at_once.groups().rows
    assert rows.topics().rows == at_once.topics().rows


async def test_requests_between_steps_see_old_rows_and_every_new_name() -> None:
    snapshot, rows = filled()
    put_offsets(snapshot, 90, START + 2)
    steps = asyncio.create_task(rows.catch_up())
    await asyncio.sleep(0)  # one step
    current = [row.lag for row in rows.groups().rows.values()]
    assert current.count(10) == STEP_ROWS
    assert current.count(60) == COUNT - STEP_ROWS
    put_topics(snapshot, ["Orders", "Bills"], START + 3)
    assert rows.topics().rows["Bills"].messages == 100
    await rows.catch_up()  # another caller does not repeat these steps
    assert not steps.done()
    await steps
    assert lags(rows) == {10}
    assert rows.topics().rows["Orders"].lag == 10
    assert not rows.has_backlog


async def test_groups_that_are_gone_between_steps_have_no_row() -> None:
    snapshot, rows = filled()
    put_offsets(snapshot, 90, START + 2)
    steps = asyncio.create_task(rows.catch_up())
    await asyncio.sleep(0)
    snapshot.put_consumed(PLACE.address, {("Orders", "G7"): {0: 95}}, START + 3)
    assert set(rows.groups().rows) == {"G7"}
    await steps
    assert lags(rows) == {5}


def test_a_few_rows_are_left_to_the_next_request() -> None:
    snapshot, rows = filled()
    snapshot.put_ends(PLACE.address, "Other", Ends(START + 2, ()))
    assert not rows.has_backlog


def test_a_queue_without_an_offset_lags_from_its_first_message() -> None:
    snapshot = Snapshot()
    snapshot.put_places([PLACE], START)
    snapshot.put_topics(PLACE.address, {"Orders": topic_config("Orders")}, START + 1)
    queues = (QueueEnds(0, 0, 100, START), QueueEnds(1, 20, 50, START))
    snapshot.put_ends(PLACE.address, "Orders", Ends(START + 1, queues))
    snapshot.put_consumed(PLACE.address, {("Orders", "Billing"): {0: 40}}, START + 1)
    rows = Rows(snapshot, History())
    (facts,) = snapshot.masters()
    assert rows.broker_lag(facts, "Orders", "Billing") == 60 + 30
    assert rows.lag("Orders", "Billing") == 60 + 30


# --- trends and delays --------------------------------------------------------------------------


def group_row(lags: Sequence[int], *, members: int = 1, sent_steps: int = 0) -> GroupRow:
    """Return the row of a group of which the console has watched some lags, one in 30 s.

    Args:
        lags: The lags, the oldest first.
        members: Members of the group.
        sent_steps: Steps since the last message was sent.
    """
    snapshot, history = Snapshot(), History()
    snapshot.put_places([PLACE], START)
    now_ms = START + FINE_MS * len(lags)
    end = 10_000
    for step, lag in enumerate(lags):
        time_ms = START + FINE_MS * (step + 1)
        history.put(("lag", "billing"), time_ms, lag)
        sent = end - 100 * max(0, len(lags) - 1 - step - sent_steps)
        history.put(("end", "Orders"), time_ms, sent)
    snapshot.put_topics(PLACE.address, {"Orders": topic_config("Orders")}, now_ms)
    snapshot.put_ends(PLACE.address, "Orders", Ends(now_ms, (QueueEnds(0, 0, end, now_ms),)))
    offsets = {("Orders", "billing"): {0: end - lags[-1]}}
    snapshot.put_consumed(PLACE.address, offsets, now_ms)
    snapshot.put_members("billing", Members(now_ms, members))
    return Rows(snapshot, history).groups().rows["billing"]


GROWN = [*range(100, 1100, 100)]


@pytest.mark.parametrize(
    ("lags", "members", "trend"),
    [
        (GROWN, 1, "growing"),
        (GROWN[::-1], 1, "shrinking"),
        ([500] * 10, 1, "steady"),
        ([*GROWN, *[1000] * 14], 1, "steady"),  # it was flat for seven minutes
        ([*GROWN, *[1000] * 4], 1, "steady"),
        ([*GROWN[::-1], *[100] * 4], 1, "steady"),
        (GROWN, 0, NOT_CONSUMED),
        ([500] * 10, 0, NOT_CONSUMED),
        ([*GROWN[::-1], 0], 1, None),
        ([0] * 10, 0, None),
    ],
)
def test_a_trend_needs_a_change_until_now(lags: list[int], members: int, trend: str | None) -> None:
    assert group_row(lags, members=members).trend == trend


def test_without_a_lag_there_is_neither_a_delay_nor_a_time_to_catch_up() -> None:
    row = group_row([*GROWN[::-1], 0])
    assert (row.lag, row.delay_ms, row.trend, row.catch_up_ms) == (0, None, None, None)


def test_the_delay_is_computed_or_at_least_the_time_that_was_watched() -> None:
    # 100 messages a step: 500 messages of lag are five steps.
    row = group_row([500] * 10)
    assert (row.delay_ms, row.is_delay_least) == (5 * FINE_MS, False)
    row = group_row([5000] * 10)
    assert (row.delay_ms, row.is_delay_least) == (9 * FINE_MS, True)
    assert isinstance(group_row([5000]).delay_ms, Unknown)  # with the reason


@pytest.mark.parametrize("late_ms", [20_000, 60_000, 150_000])
def test_the_lag_of_a_silent_broker_is_an_estimate_at_all_times(late_ms: int) -> None:
    snapshot, history = Snapshot(), History()
    other = BrokerPlace("c", "broker-b", 0, "10.0.0.2:10911")
    snapshot.put_places([PLACE, other], START)
    rows = Rows(snapshot, history)

    def answer(place: BrokerPlace, time_ms: int) -> None:
        snapshot.put_topics(place.address, {"Orders": topic_config("Orders")}, time_ms)
        ends = Ends(time_ms, (QueueEnds(0, 0, 100, time_ms),))
        snapshot.put_ends(place.address, "Orders", ends)
        snapshot.put_consumed(place.address, {("Orders", "billing"): {0: 40}}, time_ms)

    answer(PLACE, START)
    answer(other, START)
    assert not rows.groups().rows["billing"].is_about
    snapshot.put_failure(other.address, "no answer", START + 1000)
    assert rows.groups().rows["billing"].is_about
    answer(PLACE, START + late_ms)
    assert rows.groups().rows["billing"].is_about
    answer(other, START + late_ms)
    assert not rows.groups().rows["billing"].is_about
