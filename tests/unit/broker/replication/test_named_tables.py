"""Topics and groups of a master on its slave: changes, deletions, and what must not delete them."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import world
from log_copy import assert_same
from reput.broker.replication import metadata, named_tables
from reput.broker.server import Broker
from reput.clock import ManualClock
from reput.format import bodies, command, message as record
from reput.format.bodies import TopicConfigTable
from reput.format.codes import PERM_READ, RequestCode as Code, ResponseCode
from reput.format.headers import CreateTopicHeader, GroupNameHeader, TopicHeader
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.groups import SubscriptionGroup
from reput.store.tables.saved_table import DataVersion
from reput.store.writing.incoming import IncomingMessage
from scripted_cluster import ScriptedServer
from world import Pair, Subject, until

NOW_MS = 1_700_000_000_000
TOPIC = "orders"


@pytest.fixture(autouse=True)
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests run the rounds."""
    monkeypatch.setattr(metadata, "INTERVAL_MS", 1_000_000_000)


class Tables:
    """A master, a slave whose rounds the test runs, and changes of their tables."""

    def __init__(self, pair: Pair, clock: ManualClock) -> None:
        self.pair = pair
        self.clock = clock
        self.copy, self.copy_log, self.copy_tables = pair.copy, pair.copy_log, pair.copy_tables
        self.start_slave, self.stop_slave = pair.start_slave, pair.stop_slave

    @property
    def master(self) -> Subject:
        return self.pair.master

    @property
    def slave(self) -> Subject:
        return self.pair.slave

    async def create_topic(self, name: str = TOPIC, count: int = 2) -> None:
        self.clock.advance(1)
        header = CreateTopicHeader(
            topic=name,
            default_topic="TBW102",
            read_queue_nums=count,
            write_queue_nums=count,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            order=False,
        )
        reply = await self.master.ask(Code.UPDATE_AND_CREATE_TOPIC, header)
        assert reply.code == ResponseCode.SUCCESS, reply.remark

    async def delete_topic(self, name: str = TOPIC) -> None:
        self.clock.advance(1)
        reply = await self.master.ask(Code.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=name))
        assert reply.code == ResponseCode.SUCCESS, reply.remark

    async def send(self, *all_bodies: bytes, topic: str = TOPIC) -> None:
        for body in all_bodies:
            self.clock.advance(1)
            reply = await self.master.send(topic, body)
            assert reply.code == ResponseCode.SUCCESS, reply.remark

    def assert_same_tables(self) -> None:
        theirs, ours = self.master.parts, self.slave.parts
        assert ours.topics.all() == theirs.topics.all()
        assert ours.subscription_groups.all().keys() == theirs.subscription_groups.all().keys()
        assert ours.topics.table.version == theirs.topics.table.version
        assert ours.subscription_groups.table.version == theirs.subscription_groups.table.version
        assert ours.topics.queue_count == theirs.topics.queue_count

    def end(self, topic: str = TOPIC) -> int:
        return self.slave.broker.store.max_offset(topic, 0)

    def bodies(self, topic: str = TOPIC) -> list[bytes]:
        store = self.slave.broker.store
        records = store.get(topic, 0, 0, 32).records
        return [world.messages_in(bytes(data))[0].body for data in records]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Tables]:
    clock = ManualClock(NOW_MS)
    async with world.pair(tmp_path, clock=clock) as running:
        yield Tables(running, clock)


@contextlib.asynccontextmanager
async def answering(code: Code, pair: Tables, body: bytes, **fields: str) -> AsyncIterator[str]:
    """Run a server that answers one request with a body, others as the master; yield its address.

    Only requests of a round are passed on.
    """
    server = ScriptedServer()
    for other in (
        Code.GET_ALL_TOPIC_CONFIG,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_ALL_DELAY_OFFSET,
        Code.GET_BROKER_RUNTIME_INFO,
    ):
        reply = await pair.master.ask(other)

        def answer(request: command.Command, body: bytes = bytes(reply.body)) -> command.Command:
            return command.reply(request, body=body)

        server.answers[other] = answer
    server.answers[code] = lambda request: command.reply(request, body=body, ext_fields=fields)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


# --- deletions ------------------------------------------------------------------------------


async def test_a_deleted_topic_is_deleted_with_its_queues_files_and_offsets(
    pair: Tables, tmp_path: Path
) -> None:
    await pair.create_topic()
    await pair.create_topic("kept")
    await pair.send(b"a", b"b")
    await pair.send(b"k", topic="kept")
    pair.master.parts.deliveries.consumer_offsets.put(TOPIC, "readers", 0, 2)
    await pair.copy()
    pair.slave.broker.store.sync()
    assert pair.end() == 2
    folder = tmp_path / "slave/consumequeue" / TOPIC
    pair.slave.broker.store.queues.write_out()  # type: ignore[attr-defined]
    assert folder.exists()
    await pair.delete_topic()
    await pair.copy()
    await pair.copy()
    pair.assert_same_tables()
    assert pair.slave.parts.topics.get(TOPIC) is None
    assert pair.end() == 0
    assert not folder.exists()
    assert pair.slave.parts.deliveries.consumer_offsets.of(TOPIC, "readers") == {}
    assert pair.end("kept") == 1
    assert_same(pair.master.broker.store, pair.slave.broker.store)  # type: ignore[arg-type]


async def test_a_deleted_group_is_deleted(pair: Tables) -> None:
    theirs = pair.master.parts.subscription_groups
    for name in ("readers", "others"):
        theirs.put(SubscriptionGroup(name=name), NOW_MS)
        theirs.forbid(name, TOPIC, NOW_MS, is_forbidden=True)
        pair.master.parts.deliveries.consumer_offsets.put(TOPIC, name, 0, 2)
    await pair.copy()
    pair.assert_same_tables()
    ours = pair.slave.parts.subscription_groups
    assert ours.table.all_forbidden() == {"others": {TOPIC: 4}, "readers": {TOPIC: 4}}
    assert ours.is_forbidden("readers", TOPIC)
    for name, removes in (("readers", True), ("others", False)):
        header = GroupNameHeader(group_name=name, clean_offset=removes)
        reply = await pair.master.ask(Code.DELETE_SUBSCRIPTIONGROUP, header)
        assert reply.code == ResponseCode.SUCCESS
    await pair.copy()
    pair.assert_same_tables()
    assert ours.get("readers") is None
    assert ours.table.all_forbidden() == {}
    offsets = pair.slave.parts.deliveries.consumer_offsets
    assert offsets.of(TOPIC, "readers") == {}
    assert offsets.of(TOPIC, "others") == {0: 2}


async def test_rounds_without_changes_change_nothing(pair: Tables) -> None:
    """apache/rocketmq#9777, #9984, #9206: Java rebuilds its tables in each round, once a topic was
    deleted."""
    await pair.create_topic()
    pair.master.parts.subscription_groups.put(SubscriptionGroup(name="readers"), NOW_MS)
    await pair.copy()
    await pair.delete_topic()
    await pair.master.ask(
        Code.DELETE_SUBSCRIPTIONGROUP, GroupNameHeader(group_name="readers", clean_offset=True)
    )
    await pair.copy()
    await pair.copy()
    pair.assert_same_tables()
    ours = pair.slave.parts
    tables = ours.topics.table, ours.subscription_groups.table
    for table in tables:
        table.save(NOW_MS)
    before = [table.change_count for table in tables]
    changed: list[str] = []
    ours.topics.on_change.append(changed.append)
    for _ in range(3):
        await pair.copy()
    assert [table.change_count for table in tables] == before
    assert not any(table.is_dirty for table in tables)
    assert not changed


async def test_a_deletion_while_the_slave_was_down(pair: Tables) -> None:
    await pair.create_topic()
    pair.master.parts.subscription_groups.put(SubscriptionGroup(name="readers"), NOW_MS)
    await pair.send(b"a")
    await pair.copy()
    await pair.stop_slave()
    await pair.delete_topic()
    pair.master.parts.subscription_groups.delete("readers", NOW_MS)
    await pair.start_slave()
    await pair.copy()
    await pair.copy()
    pair.assert_same_tables()
    assert pair.end() == 0


async def test_a_restart_between_notice_and_deletion(pair: Tables) -> None:
    await pair.create_topic()
    await pair.send(b"a")
    await pair.copy()
    await pair.delete_topic()
    await pair.copy()  # the slave knows
    await pair.stop_slave()
    await pair.start_slave()
    await pair.copy()
    await pair.copy()
    pair.assert_same_tables()
    assert pair.end() == 0


# --- the place of a deletion in the log -------------------------------------------------------


async def test_a_topic_is_deleted_once_the_slave_has_the_messages_before_the_deletion(
    pair: Tables,
) -> None:
    await pair.create_topic()
    await pair.send(b"a")
    await pair.copy()
    await pair.send(b"b")
    await pair.delete_topic()
    for _ in range(3):
        await pair.copy_tables()
    assert pair.slave.parts.topics.get(TOPIC) is not None
    await pair.copy()
    pair.assert_same_tables()
    assert pair.end() == 0


async def test_a_topic_that_was_created_again_between_two_rounds_begins_at_0(pair: Tables) -> None:
    await pair.create_topic()
    await pair.send(b"a", b"b", b"c")
    pair.master.parts.deliveries.consumer_offsets.put(TOPIC, "readers", 0, 3)
    await pair.copy()
    await pair.delete_topic()
    await pair.create_topic()
    await pair.send(b"x")
    pair.copy_log()
    assert pair.bodies() == [b"x"]
    # A consumer at 3 would skip the next messages after a promotion.
    assert pair.slave.parts.deliveries.consumer_offsets.of(TOPIC, "readers") == {}
    for _ in range(3):
        await pair.copy()
    pair.assert_same_tables()
    assert pair.bodies() == [b"x"]
    assert pair.slave.parts.deliveries.consumer_offsets.of(TOPIC, "readers") == {}


@pytest.mark.parametrize("is_log_first", [False, True])
async def test_a_topic_that_was_created_again_after_its_deletion_was_noticed_stays(
    pair: Tables, is_log_first: bool
) -> None:
    await pair.create_topic()
    await pair.send(b"a", b"b", b"c")
    await pair.copy()
    await pair.delete_topic()
    await pair.copy()
    await pair.create_topic(count=4)
    await pair.send(b"x")
    if is_log_first:
        pair.copy_log()
    for _ in range(2):
        await pair.copy_tables()
    for _ in range(2):
        await pair.copy()
    pair.assert_same_tables()
    assert pair.bodies() == [b"x"]


async def test_a_topic_that_was_created_again_and_whose_new_messages_come_first_stays(
    pair: Tables,
) -> None:
    """The reply without the topic is older than the log that the slave has."""
    await pair.create_topic()
    await pair.send(b"a", b"b", b"c")
    await pair.copy()
    await pair.delete_topic()
    await pair.copy_tables()
    reply = await pair.master.ask(Code.GET_ALL_TOPIC_CONFIG)
    await pair.create_topic()
    await pair.send(b"x")
    pair.copy_log()
    async with answering(Code.GET_ALL_TOPIC_CONFIG, pair, bytes(reply.body)) as address:
        await pair.copy_tables(address)
    assert pair.bodies() == [b"x"]
    await pair.copy()
    pair.assert_same_tables()
    assert pair.bodies() == [b"x"]


# --- what must not delete -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "count", "expected"),
    [
        (DataVersion(11, 5), 1, True),
        (DataVersion(13, 7), 3, True),
        (DataVersion(13, 7), 4, False),  # each deletion raises the counter
        (DataVersion(10, 5), 1, False),  # the version of the last copy
        (DataVersion(9, 7), 1, False),  # an older copy of the table, or a lost one
        (DataVersion(0, 7), 1, False),
        (DataVersion(12, 4), 1, False),  # not this table's future
        (DataVersion(12, 7, 3), 1, True),  # the next epoch of a controller
        (DataVersion(12, 7, 1), 1, False),  # a master that was replaced
    ],
)
def test_versions_that_delete(new: DataVersion, count: int, expected: bool) -> None:
    assert named_tables.deletes(new, DataVersion(10, 5, 2 if new.state_version else 0), count) is (
        expected
    )


async def test_a_master_that_has_lost_its_tables_deletes_nothing(
    pair: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(20):
        await pair.create_topic(f"topic{number}")
    await pair.create_topic()
    await pair.send(b"a")
    await pair.copy()
    before = set(pair.slave.parts.topics.all())
    own = pair.master.parts.topics
    built_in = set(own.system_topics)
    # Then clients create topics: the counter passes that of the lost table.
    for counter in (0, 8, 30, 31, 100):
        body = topics_body(pair, built_in, DataVersion(counter, NOW_MS * 2))
        async with answering(Code.GET_ALL_TOPIC_CONFIG, pair, body) as address:
            for _ in range(2):
                await pair.copy(address)
    assert set(pair.slave.parts.topics.all()) == before
    assert pair.bodies() == [b"a"]
    kept = [text for text in caplog.messages if "they are kept" in text]
    assert len(kept) == 1
    assert "and 11 more" in kept[0]


def topics_body(pair: Tables, names: set[str], version: DataVersion) -> bytes:
    """Return a reply of the master with some of its topics, and a version."""
    table: dict[str, Any] = json.loads(bodies.encode(pair.master.parts.topics.describe()))
    entries = table["topicConfigTable"]
    table["topicConfigTable"] = {name: entries[name] for name in names & entries.keys()}
    table["dataVersion"] = {"counter": version.counter, "timestamp": version.timestamp_ms}
    return json.dumps(table).encode()


async def test_an_entry_that_was_kept_is_deleted_once_the_master_had_it_again(pair: Tables) -> None:
    await pair.create_topic()
    await pair.copy()
    names = set(pair.master.parts.topics.all()) - {TOPIC}
    version = pair.master.parts.topics.table.version
    body = topics_body(pair, names, version)  # the same version, without a topic
    async with answering(Code.GET_ALL_TOPIC_CONFIG, pair, body) as address:
        pair.slave.parts.topics.put(topic("local"), NOW_MS)
        await pair.copy(address)
    assert pair.slave.parts.topics.get(TOPIC) is not None
    await pair.create_topic("another")
    await pair.copy()
    await pair.delete_topic()
    await pair.copy()
    await pair.copy()
    assert pair.slave.parts.topics.get(TOPIC) is None


def topic(name: str, count: int = 3) -> TopicConfig:
    return TopicConfig(name=name, read_queue_count=count, write_queue_count=count, perm=6)


async def test_a_part_of_the_topics_deletes_nothing(pair: Tables) -> None:
    """5.5 can send them in parts."""
    await pair.create_topic()
    await pair.copy()
    old = pair.slave.parts.topics.table.version
    await pair.delete_topic()
    await pair.create_topic("new")
    await pair.create_topic("newer")
    names, version = {"new"}, pair.master.parts.topics.table.version
    body = topics_body(pair, names, version)
    async with answering(Code.GET_ALL_TOPIC_CONFIG, pair, body, totalTopicNum="2") as address:
        for _ in range(3):
            await pair.copy(address)
    ours = pair.slave.parts.topics
    assert ours.get(TOPIC) is not None
    assert ours.get("new") is not None
    assert ours.table.version == old
    for _ in range(2):
        await pair.copy()
    pair.assert_same_tables()


async def test_the_number_of_all_topics_with_all_of_them_is_no_part(pair: Tables) -> None:
    await pair.create_topic()
    await pair.copy()
    await pair.delete_topic()
    entries = pair.master.parts.topics.all()
    body = bodies.encode(pair.master.parts.topics.describe())
    count = str(len(entries))
    async with answering(Code.GET_ALL_TOPIC_CONFIG, pair, body, totalTopicNum=count) as address:
        for _ in range(2):
            await pair.copy(address)
    pair.assert_same_tables()


# --- changes of the slave ---------------------------------------------------------------------


async def test_changes_of_the_slave_are_reverted_and_its_own_entries_stay(pair: Tables) -> None:
    await pair.create_topic()
    await pair.copy()
    ours = pair.slave.parts
    ours.topics.put(topic(TOPIC, 9), NOW_MS)
    ours.topics.put(topic("local"), NOW_MS)
    ours.subscription_groups.put(SubscriptionGroup(name="local"), NOW_MS)
    await pair.copy()
    assert ours.topics.get(TOPIC) == pair.master.parts.topics.get(TOPIC)
    assert ours.topics.table.version == pair.master.parts.topics.table.version
    groups = ours.subscription_groups
    assert groups.table.version == pair.master.parts.subscription_groups.table.version
    # They neither prevent deletions nor are deleted.
    pair.master.parts.subscription_groups.put(SubscriptionGroup(name="readers"), NOW_MS)
    await pair.copy()
    assert groups.get("readers") is not None
    for action in (pair.create_topic, pair.delete_topic):
        for number in range(3):
            await action(f"more{number}")
        pair.master.parts.subscription_groups.delete("readers", NOW_MS)
        for _ in range(2):
            await pair.copy()
    assert groups.get("readers") is None
    assert groups.get("local") is not None
    assert ours.topics.all().keys() - pair.master.parts.topics.all().keys() == {"local"}


async def test_a_topic_that_comes_and_goes_while_another_deletion_waits(pair: Tables) -> None:
    await pair.create_topic()
    await pair.copy()
    await pair.send(b"a")
    await pair.delete_topic()
    await pair.copy_tables()  # without the log
    await pair.create_topic("short")
    await pair.copy_tables()
    assert pair.slave.parts.topics.get("short") is not None
    await pair.delete_topic("short")
    for _ in range(2):
        await pair.copy()
    pair.assert_same_tables()


async def test_built_in_entries_of_the_slave_stay_and_do_not_count(tmp_path: Path) -> None:
    """The master has no default topic, and its version counts no entries of the slave."""
    clock, of_master = ManualClock(NOW_MS), {"auto_create_topic_enable": False}
    async with world.pair(tmp_path, clock=clock, of_master=of_master) as running:
        pair = Tables(running, clock)
        assert pair.slave.parts.topics.table.version.counter == 0
        await pair.create_topic()
        await pair.create_topic("other")
        await pair.copy()
        await pair.delete_topic()
        for _ in range(2):
            await pair.copy()
        ours, theirs = pair.slave.parts.topics, pair.master.parts.topics
        assert ours.all().keys() - theirs.all().keys() == {"TBW102"}
        assert ours.table.version == theirs.table.version


async def test_a_slave_refuses_to_change_topics_and_groups(pair: Tables) -> None:
    await pair.create_topic()
    await pair.copy()
    reply = await pair.slave.ask(Code.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "from slave" in (reply.remark or "")
    table = await pair.slave.ask(Code.GET_ALL_TOPIC_CONFIG)
    assert TOPIC in bodies.decode(TopicConfigTable, table.body).topic_config_table


# --- other members ----------------------------------------------------------------------------


async def test_forbidden_topics_are_copied_and_members_of_other_versions_kept(pair: Tables) -> None:
    version = {"counter": 1000, "timestamp": NOW_MS * 2}
    entry = {"groupName": "g", "consumeEnable": True, "ofLaterVersions": 5}
    table = {"dataVersion": version, "subscriptionGroupTable": {"g": entry}}
    table["forbiddenTable"] = {"g": {"T": PERM_READ}}
    code, ours = Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, pair.slave.parts.subscription_groups
    async with answering(code, pair, json.dumps(table).encode()) as address:
        await pair.copy(address)
    assert ours.is_forbidden("g", "T")
    ours.table.save(NOW_MS)
    saved = saved_groups(pair.slave)
    assert saved["subscriptionGroupTable"]["g"]["ofLaterVersions"] == 5
    assert saved["forbiddenTable"] == {"g": {"T": PERM_READ}}
    # 4.x has no such table: nothing changes.
    del table["forbiddenTable"]
    version["counter"] += 1
    async with answering(code, pair, json.dumps(table).encode()) as address:
        await pair.copy(address)
    assert ours.is_forbidden("g", "T")
    table["forbiddenTable"] = {}
    version["counter"] += 1
    async with answering(code, pair, json.dumps(table).encode()) as address:
        await pair.copy(address)
    assert not ours.is_forbidden("g", "T")


def saved_groups(subject: Subject) -> dict[str, Any]:
    path = Path(subject.parts.store.root, "config/subscriptionGroup.json")
    table: dict[str, Any] = json.loads(path.read_text())
    return table


# --- a pair that runs -------------------------------------------------------------------------


async def test_a_slave_that_follows_and_becomes_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "INTERVAL_MS", 20)
    async with world.pair(tmp_path, follows=True) as pair:
        master, slave = pair.master.broker, pair.slave.broker
        topics, copied = master.parts.topics, slave.parts.topics

        def put(broker: Broker, *all_bodies: bytes) -> list[int]:
            messages = [IncomingMessage(TOPIC, body) for body in all_bodies]
            offsets = [broker.store.put(message).queue_offset for message in messages]
            broker.parts.replication.slave_port.pump()
            return offsets

        async def until_there_are(count: int) -> None:
            await until(lambda: slave.store.max_offset(TOPIC, 0) == count)

        for new in ([b"a", b"b", b"c"], [b"x", b"y"]):
            topics.put(topic(TOPIC), master.clock.now_ms())
            assert put(master, *new) == list(range(len(new)))
            await until(lambda: copied.get(TOPIC))
            await until_there_are(len(new))
            topics.delete(TOPIC, master.clock.now_ms())
            await master.parts.deletions.delete_topics([TOPIC])
            await until(lambda: copied.get(TOPIC) is None)
            await until_there_are(0)
        await until(lambda: copied.table.version == topics.table.version)
        topics.put(topic(TOPIC), master.clock.now_ms())
        put(master, b"z")
        await until(lambda: copied.get(TOPIC))
        await until_there_are(1)
        await pair.promote()
        assert put(slave, b"next") == [1]
        records = slave.store.get(TOPIC, 0, 0, 32).records
        assert [record.decode(data).body for data in records] == [b"z", b"next"]
