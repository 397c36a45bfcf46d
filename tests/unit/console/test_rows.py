"""Rows that are computed in steps, compared with rows that are computed at once."""

import asyncio

from reput.console.history import History
from reput.console.rows import STEP_ROWS, Rows
from reput.console.snapshot import BrokerPlace, Ends, QueueEnds, Snapshot
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
    assert rows.is_behind
    await rows.catch_up()
    assert not rows.is_behind
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
    assert not rows.is_behind


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
    assert not rows.is_behind


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
