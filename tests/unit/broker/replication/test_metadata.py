"""Copies of a master's tables on a slave: both are brokers in this process."""

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import world
from cases import case
from reput.broker.replication import master_tables, metadata
from reput.broker.replication.master_requests import MasterRequests, Unanswered
from reput.broker.replication.state import SlaveState
from reput.clock import ManualClock
from reput.format import command, fastjson
from reput.format.codes import RequestCode, ResponseCode
from reput.store.config import BrokerRole
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.groups import SubscriptionGroup
from scripted_cluster import ScriptedServer
from world import Pair

NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "INTERVAL_MS", 10)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with world.pair(tmp_path, clock=ManualClock(NOW_MS)) as running:
        yield running


def topic(name: str, count: int = 3) -> TopicConfig:
    return TopicConfig(name=name, read_queue_count=count, write_queue_count=count, perm=6)


async def test_topics_and_groups_are_copied_with_their_versions(pair: Pair) -> None:
    theirs, ours = pair.master.parts, pair.slave.parts
    theirs.topics.put(topic("orders"), NOW_MS)
    theirs.subscription_groups.put(SubscriptionGroup(name="readers", retry_max=7), NOW_MS)
    await pair.copy_tables()
    assert ours.topics.all().items() >= theirs.topics.all().items()
    assert ours.subscription_groups.all().keys() == theirs.subscription_groups.all().keys()
    readers = ours.subscription_groups.get("readers")
    assert readers is not None
    assert readers.retry_max == 7
    assert ours.topics.table.version == theirs.topics.table.version
    assert ours.subscription_groups.table.version == theirs.subscription_groups.table.version
    queues = sum(topic_config.read_queue_count for topic_config in ours.topics.all().values())
    assert ours.topics.queue_count == queues

    theirs.topics.put(topic("orders", 8), NOW_MS)
    await pair.copy_tables()
    assert ours.topics.get("orders") == topic("orders", 8)


async def test_consumer_offsets_are_copied(pair: Pair) -> None:
    theirs = pair.master.parts.deliveries.consumer_offsets
    theirs.put("T", "readers", 2, 5)
    await pair.copy_tables()
    ours = pair.slave.parts.deliveries.consumer_offsets
    assert ours.get("T", "readers", 2) == 5
    theirs.put("T", "readers", 2, 9)
    await pair.copy_tables()
    assert ours.get("T", "readers", 2) == 9
    theirs.put("T", "readers", 2, 1)  # reset by an operator
    await pair.copy_tables()
    assert ours.get("T", "readers", 2) == 1


async def test_positions_wait_for_the_log(pair: Pair) -> None:
    """The slave has no message of the master's: it must not skip any after a promotion."""
    theirs = pair.master.parts
    await pair.master.send("T", b"body")
    pair.slave.parts.deliveries.consumer_offsets.put("T", "old", 0, 0)
    theirs.deliveries.consumer_offsets.put("T", "old", 0, 1)
    theirs.deliveries.consumer_offsets.put("T", "new", 0, 1)
    theirs.delayed.table.put(1, 4)
    await pair.copy_tables()
    ours = pair.slave.parts.deliveries.consumer_offsets
    assert ours.get("T", "new", 0) == 1
    assert ours.get("T", "old", 0) == 0
    assert pair.slave.parts.delayed.table.get(1) is None

    pair.copy_log()
    store = pair.slave.broker.store
    assert store.dispatcher.dispatched_offset == pair.master.broker.store.max_physical_offset > 0
    await pair.copy_tables()
    assert ours.get("T", "old", 0) == 0  # after a power failure the log might be shorter
    store.sync()
    await pair.copy_tables()
    assert ours.get("T", "old", 0) == 1
    assert pair.slave.parts.delayed.table.get(1) == 4


@pytest.mark.parametrize("is_topic", [False, True])
async def test_positions_that_waited_do_not_bring_a_deleted_group_or_topic_back(
    pair: Pair, is_topic: bool
) -> None:
    theirs, ours = pair.master.parts, pair.slave.parts.deliveries.consumer_offsets
    await pair.slave.parts.replication.metadata.stop()  # it would forget what waits
    await pair.master.send("T", b"body")
    theirs.topics.put(topic("gone"), NOW_MS)
    theirs.subscription_groups.put(SubscriptionGroup(name="left"), NOW_MS)
    theirs.deliveries.consumer_offsets.put("T", "left", 0, 1)
    theirs.deliveries.consumer_offsets.put("gone", "readers", 0, 1)
    theirs.deliveries.consumer_offsets.put("T", "readers", 0, 1)
    await pair.copy_tables()
    if is_topic:
        theirs.topics.delete("gone", NOW_MS)
        await theirs.deletions.delete_topics(["gone"])
    else:
        theirs.subscription_groups.delete("left", NOW_MS)
        await theirs.deletions.delete_group("left", keeps_offsets=False)
    await pair.copy_tables()
    pair.copy_log()
    pair.slave.broker.store.sync()
    await pair.copy_tables()
    await pair.copy_tables()
    assert ours.get("T", "readers", 0) == 1
    assert ours.get("T", "left", 0) == (1 if is_topic else None)
    assert ours.get("gone", "readers", 0) == (None if is_topic else 1)
    pair.slave.parts.saved_tables.save_all()
    await pair.slave.broker.change_role(BrokerRole.ASYNC_MASTER, 0)
    promoted = pair.slave.parts.deliveries.consumer_offsets
    assert promoted.get("T", "left", 0) == (1 if is_topic else None)


async def test_offsets_of_a_deleted_group_go_when_the_master_has_deleted_them(pair: Pair) -> None:
    """A master deletes the settings first: a copy in between has the offsets."""
    theirs, ours = pair.master.parts, pair.slave.parts.deliveries.consumer_offsets
    for name in ("left", "kept", "again"):
        theirs.subscription_groups.put(SubscriptionGroup(name=name), NOW_MS)
        theirs.deliveries.consumer_offsets.put("T", name, 0, 5)
    await pair.copy_tables()
    for name in ("left", "kept", "again"):
        theirs.subscription_groups.delete(name, NOW_MS)
    await pair.copy_tables()
    assert ours.get("T", "left", 0) == 5
    theirs.deliveries.consumer_offsets.delete(group="left")
    theirs.deliveries.consumer_offsets.delete(group="again")
    theirs.subscription_groups.put(SubscriptionGroup(name="again"), NOW_MS)
    await pair.copy_tables()
    assert ours.get("T", "left", 0) is None
    assert ours.get("T", "kept", 0) == 5  # as on a master that was not asked to delete them
    assert ours.get("T", "again", 0) == 5  # as for any other group that the master lacks


@pytest.mark.parametrize(
    ("own", "theirs", "seen", "expected"),
    [
        (None, 4, None, 4),
        (3, 4, 3, 4),
        (7, 4, None, 7),  # the first round: no client knows who committed it
        (7, 4, 4, 7),  # committed here
        (7, 5, 4, 5),  # the consumer is back at the master
        (7, 4, 7, 4),  # reset on the master
    ],
)
def test_the_larger_offset_of_a_client_is_kept_until_the_masters_moves(
    own: int | None, theirs: int, seen: int | None, expected: int
) -> None:
    assert metadata.merged(own, theirs, seen) == expected


def test_offsets_of_older_masters_have_numbers_without_quotes() -> None:
    table = fastjson.parse('{"offsetTable":{"T@g":{0:5,1:7},"%RETRY%g@g":{0:1}}}')
    offsets = master_tables.consumer_offsets(table, "offsetTable")
    assert offsets == {("T", "g"): {0: 5, 1: 7}, ("%RETRY%g", "g"): {0: 1}}


async def test_a_bad_reply_changes_nothing(pair: Pair) -> None:
    ours = pair.slave.parts.topics
    before, version = ours.all(), ours.table.version
    server = ScriptedServer()
    await server.start()
    for code, body in (
        (ResponseCode.SYSTEM_ERROR, b""),
        (ResponseCode.SUCCESS, b""),
        (ResponseCode.SUCCESS, b"{}"),
        (ResponseCode.SUCCESS, b'{"topicConfigTable":{"T":5}}'),
        (ResponseCode.SUCCESS, b'{"topicConfigTable":{"A":{"perm":6},"T":{"perm":"x"}}}'),
    ):
        server.answers[RequestCode.GET_ALL_TOPIC_CONFIG] = functools.partial(
            command.reply, code=code, body=body
        )
        with case(code, body):
            with pytest.raises(Unanswered):
                await pair.copy_tables(server.address)
            assert (ours.all(), ours.table.version) == (before, version)
    await server.stop()


async def test_numbers_without_quotes_in_a_reply(pair: Pair) -> None:
    server = ScriptedServer()
    body = b'{"offsetTable":{"T@g":{0:5,1:7}}}'
    server.answers[RequestCode.GET_ALL_CONSUMER_OFFSET] = lambda request: command.reply(
        request, body=body
    )
    await server.start()
    try:
        master = MasterRequests(pair.slave.client, server.address)
        offsets = await master_tables.MasterTables(master).consumer_offsets()
    finally:
        await server.stop()
    assert offsets == {("T", "g"): {0: 5, 1: 7}}


async def test_a_slave_that_follows_tries_again_until_it_has_the_tables(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure with the same cause is logged once."""
    pair.master.parts.topics.put(topic("orders"), NOW_MS)
    status = pair.slave.parts.replication.follower.status
    server = ScriptedServer()  # answers nothing
    await server.start()
    try:
        async with asyncio.timeout(20):
            while len(server.asked(RequestCode.GET_ALL_TOPIC_CONFIG)) < 3:
                status.state, status.master_address = SlaveState.FOLLOWING, server.address
                await asyncio.sleep(0.005)
            assert pair.slave.parts.topics.get("orders") is None
            assert sum("tables are not copied" in text for text in caplog.messages) == 1
            while pair.slave.parts.topics.get("orders") is None:
                status.state, status.master_address = SlaveState.FOLLOWING, pair.master.address
                await asyncio.sleep(0.005)
    finally:
        await server.stop()
