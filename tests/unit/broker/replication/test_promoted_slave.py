"""Messages that wait while the slave of a killed master becomes master: none is lost.

Messages that were delivered are not delivered again, if the slave has copied the progress since.
"""

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import world
from pop_client import INVISIBLE_MS, ack, pop
from reput.broker.pop.revive import LATE_MS
from reput.broker.replication.master_requests import MasterRequests
from reput.broker.replication.named_tables import NamedTables
from reput.broker.replication.state import SlaveState
from reput.clock import ManualClock
from reput.format import headers, message as record
from reput.format.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    CheckTransactionStateHeader,
    EndTransactionHeader,
    SendBackHeader,
)
from reput.store.config import BrokerRole
from reput.store.tables.config_tables import TopicConfig
from world import Pair, Subject, messages_in, until

START_MS = 1_700_000_000_000
SECOND_MS = 1_000
LEVEL_1 = {"DELAY": "1"}  # a second
GROUP = "producers"
HALF = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": "0A0B"}
CHECK, COMMIT, ROLLBACK = RequestCode.CHECK_TRANSACTION_STATE, 8, 12
STORE = {
    "ha_send_heartbeat_interval": 200,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
    "enable_calc_filter_bit_map": True,
    "enable_consume_queue_ext": True,
}


class Promotable:
    """A master and its slave with the same clock; the test decides when tables are copied."""

    def __init__(self, pair: Pair, clock: ManualClock) -> None:
        self.pair = pair
        self.master, self.slave, self.promote = pair.master, pair.slave, pair.promote
        self.clock = clock

    async def until_received(self) -> None:
        """Wait until the slave has the log of the master."""
        theirs, ours = self.pair.stores
        end = theirs.max_physical_offset
        await until(lambda: ours.dispatcher.dispatched_offset >= end)

    async def copy(self) -> None:
        """Wait until the slave has the log of the master, and copy the tables once."""
        theirs, ours = self.pair.stores
        theirs.sync()
        self.master.parts.delayed.step(self.clock.now_ms())
        self.master.parts.pops.publish_progress()  # as far as it is durable
        end = theirs.max_physical_offset
        await self.until_received()
        ours.sync()
        await self.pair.copy_tables()
        assert ours.max_physical_offset == theirs.max_physical_offset == end


@pytest_asyncio.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Promotable]:
    async with running_pair(tmp_path, BrokerRole.ASYNC_MASTER) as running:
        yield running


@pytest_asyncio.fixture
async def sync_pair(tmp_path: Path) -> AsyncIterator[Promotable]:
    """Return a pair whose master acknowledges what the slave has."""
    async with running_pair(tmp_path, BrokerRole.SYNC_MASTER) as running:
        yield running


@contextlib.asynccontextmanager
async def running_pair(tmp_path: Path, role: BrokerRole) -> AsyncIterator[Promotable]:
    clock = ManualClock(START_MS)
    async with world.pair(
        tmp_path,
        role=role,
        follows=True,
        store=STORE,
        clock=clock,
        transaction_check_interval=SECOND_MS,
        enable_property_filter=True,
    ) as running:
        await running.slave.parts.replication.metadata.stop()  # the tests decide when it copies
        yield Promotable(running, clock)


async def until_following(pair: Promotable) -> None:
    await until(lambda: pair.master.broker.store.replicas.replicas)
    status = pair.slave.parts.replication.follower.status
    await until(lambda: status.state is SlaveState.FOLLOWING)


async def sent(subject: Subject, topic: str, body: bytes, **properties: str) -> None:
    reply = await subject.send(topic, body, properties=properties)
    assert reply.code == ResponseCode.SUCCESS, reply.remark


async def bodies_of(subject: Subject, topic: str, queue_id: int = 0) -> list[bytes]:
    reply = await subject.pull(topic, queue_id)
    return [message.body for message in messages_in(reply.body)]


async def until_delivered(
    pair: Promotable, subject: Subject, topic: str, count: int
) -> list[bytes]:
    """Wait until a topic has some messages, and the broker has nothing more to deliver."""
    parts = subject.parts

    def is_done() -> bool:
        now_ms = pair.clock.now_ms()
        waits = (parts.delayed.next_due_ms(now_ms), parts.timers.next_due_ms(now_ms))
        has_all = subject.broker.store.max_offset(topic, 0) >= count
        return has_all and all(due_ms is None or due_ms > now_ms for due_ms in waits)

    await until(is_done)
    return await bodies_of(subject, topic)


def at(pair: Promotable, delay_ms: int) -> dict[str, str]:
    return {"TIMER_DELIVER_MS": str(pair.clock.now_ms() + delay_ms)}


async def send_waiting(pair: Promotable) -> None:
    """Send messages for 1 s and 60 s."""
    await sent(pair.master, "T", b"first")
    await sent(pair.master, "D", b"short delay", **LEVEL_1)
    await sent(pair.master, "D", b"long delay", DELAY="5")  # a minute
    await sent(pair.master, "W", b"short timer", **at(pair, SECOND_MS))
    await sent(pair.master, "W", b"long timer", **at(pair, 60 * SECOND_MS))


async def test_each_delayed_message_is_delivered_once(pair: Promotable) -> None:
    await send_waiting(pair)
    pair.clock.advance(2 * SECOND_MS)
    assert await until_delivered(pair, pair.master, "D", 1) == [b"short delay"]
    assert await until_delivered(pair, pair.master, "W", 1) == [b"short timer"]
    await pair.copy()  # the slave has delivered none by itself
    promoted = await pair.promote()
    pair.clock.advance(2 * SECOND_MS)
    assert await until_delivered(pair, promoted, "D", 1) == [b"short delay"]
    assert await until_delivered(pair, promoted, "W", 1) == [b"short timer"]
    await sent(promoted, "D", b"new delay", **LEVEL_1)
    await sent(promoted, "W", b"new timer", **at(pair, SECOND_MS))
    pair.clock.advance(2 * SECOND_MS)
    assert (await until_delivered(pair, promoted, "D", 2))[1:] == [b"new delay"]
    assert (await until_delivered(pair, promoted, "W", 2))[1:] == [b"new timer"]
    pair.clock.advance(60 * SECOND_MS)
    assert (await until_delivered(pair, promoted, "D", 3))[2:] == [b"long delay"]
    assert (await until_delivered(pair, promoted, "W", 3))[2:] == [b"long timer"]


async def test_deliveries_since_the_last_copy_are_repeated(pair: Promotable) -> None:
    await send_waiting(pair)
    await pair.copy()
    pair.clock.advance(2 * SECOND_MS)
    await until_delivered(pair, pair.master, "D", 1)
    await until_delivered(pair, pair.master, "W", 1)
    await pair.until_received()
    promoted = await pair.promote()
    assert await until_delivered(pair, promoted, "D", 2) == [b"short delay"] * 2
    assert await until_delivered(pair, promoted, "W", 2) == [b"short timer"] * 2
    pair.clock.advance(60 * SECOND_MS)
    assert (await until_delivered(pair, promoted, "D", 3))[2:] == [b"long delay"]
    assert (await until_delivered(pair, promoted, "W", 3))[2:] == [b"long timer"]


async def test_a_promoted_slave_that_restarts_repeats_nothing(pair: Promotable) -> None:
    """Its saved tables have the progress, too."""
    await send_waiting(pair)
    pair.clock.advance(2 * SECOND_MS)
    await until_delivered(pair, pair.master, "W", 1)
    await until_delivered(pair, pair.master, "D", 1)
    await pair.copy()
    await pair.slave.broker.reopen()  # still as a slave
    promoted = await pair.promote()
    await promoted.broker.reopen()
    pair.clock.advance(2 * SECOND_MS)
    assert await until_delivered(pair, promoted, "D", 1) == [b"short delay"]
    assert await until_delivered(pair, promoted, "W", 1) == [b"short timer"]


async def test_half_messages_are_checked_by_the_new_master(pair: Promotable) -> None:
    await sent(pair.master, "T", b"first")
    halves = []
    for body in (b"open", b"decided"):
        fields = {"sys_flag": 4, "born_timestamp": pair.clock.now_ms()}
        reply = await pair.master.send("T", body, queue_id=1, properties=HALF, **fields)
        halves.append(decision_of(reply))
    await pair.master.ask(RequestCode.END_TRANSACTION, halves[1])
    await pair.copy()
    promoted = await pair.promote()
    producer = HeartbeatData(client_id="one", producer_data_set=[ProducerData(group_name=GROUP)])
    await promoted.send_body(RequestCode.HEART_BEAT, producer)
    asked: list[Command] = []

    def is_asked() -> bool:
        pair.clock.advance(SECOND_MS)
        asked[:] = [request for request in promoted.received if request.code == CHECK]
        return bool(asked)

    await until(is_asked)
    assert {record.decode(request.body).body for request in asked} == {b"open"}
    check = headers.decode(CheckTransactionStateHeader, asked[-1].ext_fields)
    decision = halves[0]
    decision.tran_state_table_offset = check.tran_state_table_offset
    decision.commit_log_offset = check.commit_log_offset
    assert (await promoted.ask(RequestCode.END_TRANSACTION, decision)).code == ResponseCode.SUCCESS
    await until(lambda: promoted.broker.store.max_offset("T", 1) == 2)
    assert await bodies_of(promoted, "T", 1) == [b"decided", b"open"]


async def test_a_decision_holds_after_a_promotion(pair: Promotable) -> None:
    """Whether the slave has copied the progress of the transactions or not."""
    await sent(pair.master, "T", b"first")
    halves = []
    for body in (b"rolled back", b"committed", b"decided after the copy"):
        fields = {"sys_flag": 4, "born_timestamp": pair.clock.now_ms()}
        reply = await pair.master.send("T", body, queue_id=1, properties=HALF, **fields)
        halves.append(decision_of(reply))
    halves[0].commit_or_rollback = halves[2].commit_or_rollback = ROLLBACK
    for half in halves[:2]:
        await pair.master.ask(RequestCode.END_TRANSACTION, half)
    pair.master.parts.transactions.close()  # publishes the progress
    await pair.copy()
    await pair.master.ask(RequestCode.END_TRANSACTION, halves[2])
    await pair.until_received()
    promoted = await pair.promote()
    for half, other in zip(halves, (COMMIT, ROLLBACK, COMMIT), strict=True):
        half.commit_or_rollback = other
        reply = await promoted.ask(RequestCode.END_TRANSACTION, half)
        assert reply.code == ResponseCode.SUCCESS
    assert promoted.parts.transactions.repeated_count == 3
    assert await bodies_of(promoted, "T", 1) == [b"committed"]


def decision_of(reply: Command) -> EndTransactionHeader:
    """Return the commit of the half message that a reply is about."""
    assert reply.ext_fields is not None
    return EndTransactionHeader(
        producer_group=GROUP,
        tran_state_table_offset=int(reply.ext_fields["queueOffset"]),
        commit_log_offset=int(reply.ext_fields["msgId"][16:], 16),
        commit_or_rollback=COMMIT,
        msg_id="0A0B",
        transaction_id="0A0B",
    )


async def test_popped_messages_come_again_unless_they_were_acknowledged(pair: Promotable) -> None:
    for body in (b"acked", b"held"):
        await sent(pair.master, "T", body)
    taken = await pop(pair.master)
    assert [message.body for message in taken] == [b"acked", b"held"]
    assert (await ack(pair.master, taken[0])).code == ResponseCode.SUCCESS
    pair.master.parts.pops.revive.save_acks(pair.clock.now_ms())  # within a second
    await pair.copy()
    promoted = await pair.promote()
    assert await pop(promoted) == []  # the client may still acknowledge it
    pair.clock.advance(INVISIBLE_MS + LATE_MS)
    await until(lambda: promoted.broker.store.max_offset("%RETRY%G_T", 0) > 0)
    again = await pop(promoted)
    assert [message.body for message in again] == [b"held"]
    assert (await ack(promoted, again[0])).code == ResponseCode.SUCCESS
    pair.clock.advance(2 * INVISIBLE_MS)
    await until(lambda: not len(promoted.parts.pops.revive.checkpoints))
    assert await pop(promoted) == []


async def test_acknowledgements_without_a_record_are_lost(pair: Promotable) -> None:
    """They are put within a second, and their messages come again if the master dies before."""
    await sent(pair.master, "T", b"acked")
    (taken,) = await pop(pair.master)
    await pair.copy()
    assert (await ack(pair.master, taken)).code == ResponseCode.SUCCESS
    promoted = await pair.promote()
    pair.clock.advance(INVISIBLE_MS + LATE_MS)
    await until(lambda: promoted.broker.store.max_offset("%RETRY%G_T", 0) > 0)
    assert [message.body for message in await pop(promoted)] == [b"acked"]


async def test_ordered_pops_continue_in_order(pair: Promotable) -> None:
    """The block that a client holds is not known here: its messages come again, and at once."""
    for number in range(6):
        await sent(pair.master, "T", b"%d" % number)
    taken = await pop(pair.master, order=True, max_msg_nums=4)
    assert [message.body for message in taken] == [b"0", b"1", b"2", b"3"]
    for message in taken[:2]:
        assert (await ack(pair.master, message)).code == ResponseCode.SUCCESS
    await pair.copy()
    promoted = await pair.promote()
    again = await pop(promoted, order=True, max_msg_nums=3)
    assert [message.body for message in again] == [b"2", b"3", b"4"]
    assert await pop(promoted, order=True) == []  # until these are acknowledged
    # The former holder does not move the position of the new one.
    await ack(promoted, taken[3])
    for message in again:
        assert (await ack(promoted, message)).code == ResponseCode.SUCCESS
    assert [message.body for message in await pop(promoted, order=True)] == [b"5"]


async def test_offsets_of_light_queues_are_copied(pair: Promotable) -> None:
    """A master of RocketMQ does not send them."""
    device = "%LMQ%device"
    for number in range(3):
        await sent(pair.master, "T", b"%d" % number, INNER_MULTI_DISPATCH=device)
    table = pair.master.parts.deliveries.consumer_offsets
    table.put(device, device, 0, 2)
    await pair.copy()
    promoted = await pair.promote()
    assert promoted.parts.deliveries.consumer_offsets.get(device, device, 0) == 2
    assert promoted.broker.store.max_offset(device, 0) == 3
    await promoted.broker.reopen()
    assert promoted.parts.deliveries.consumer_offsets.get(device, device, 0) == 2


async def test_a_filtered_subscription_reads_the_rest_from_the_slave(pair: Promotable) -> None:
    """Filters are not copied: clients register them on slaves, too, after some of the messages.

    Of those, the slave has no filter bits of the group.
    """
    subscription = SubscriptionData(
        topic="T", sub_string="n > 2", expression_type="SQL92", sub_version=1
    )
    group = ConsumerData(
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        consume_type="CONSUME_PASSIVELY",
        group_name="consumers",
        message_model="CLUSTERING",
        subscription_data_set=[subscription],
        unit_mode=False,
    )
    beat = HeartbeatData(client_id="one", consumer_data_set=[group], producer_data_set=[])
    await pair.master.send_body(RequestCode.HEART_BEAT, beat)
    for number in (1, 3, 5):
        await sent(pair.master, "T", b"%d" % number, n=str(number))
    await pair.copy()
    await pair.slave.send_body(RequestCode.HEART_BEAT, beat)
    pair.clock.advance(1)
    for number in (2, 4, 6):
        await sent(pair.master, "T", b"%d" % number, n=str(number))
    await pair.copy()

    async def read(subject: Subject) -> list[bytes]:
        reply = await subject.pull("T", sys_flag=0, sub_version=1)
        return [message.body for message in messages_in(reply.body)]

    assert await read(pair.master) == [b"3", b"5", b"4", b"6"]
    assert await read(pair.slave) == [b"3", b"5", b"4", b"6"]
    promoted = await pair.promote()
    await promoted.send_body(RequestCode.HEART_BEAT, beat)
    assert await read(promoted) == [b"3", b"5", b"4", b"6"]


async def test_offsets_since_the_last_copy_are_repeated(pair: Promotable) -> None:
    for number in range(3):
        await sent(pair.master, "T", b"%d" % number)
    table = pair.master.parts.deliveries.consumer_offsets
    table.put("T", "readers", 0, 1)
    await pair.copy()
    table.put("T", "readers", 0, 3)  # its reply was sent, and the master dies before the next copy
    promoted = await pair.promote()
    assert promoted.parts.deliveries.consumer_offsets.get("T", "readers", 0) == 1


async def test_a_group_that_was_not_copied_consumes(sync_pair: Promotable) -> None:
    """A group that its members created, with a message that a member has sent back."""
    pair = sync_pair
    await until_following(pair)
    await sent(pair.master, "T", b"failed")
    assert (await pair.master.pull("T", 0, consumer_group="new")).code == ResponseCode.SUCCESS
    back = SendBackHeader(offset=0, group="new", delay_level=-1)
    reply = await pair.master.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    assert pair.slave.parts.subscription_groups.get("new") is None
    promoted = await pair.promote()
    assert await bodies_of(promoted, "T") == [b"failed"]
    assert (await promoted.pull("T", 0, consumer_group="new")).code == ResponseCode.SUCCESS
    assert promoted.parts.subscription_groups.get("new") is not None
    assert promoted.parts.topics.get("%DLQ%new") is not None
    assert promoted.broker.store.max_offset("%DLQ%new", 0) == 1


# --- topics that the master got shortly before it died ----------------------------------------


async def test_messages_of_a_topic_that_a_send_created_can_be_read(sync_pair: Promotable) -> None:
    """Its master acknowledges them once the slave has the topic."""
    pair = sync_pair
    await until_following(pair)
    for number in range(3):
        await sent(pair.master, f"New{number}", b"only")
    topics = pair.master.parts.topics
    promoted = await pair.promote()
    for number in range(3):
        assert await bodies_of(promoted, f"New{number}") == [b"only"]
        assert promoted.parts.topics.get(f"New{number}") == topics.get(f"New{number}")
    assert not promoted.broker.parts.start_warnings


async def test_a_queue_that_a_topic_got_can_be_read(sync_pair: Promotable) -> None:
    pair = sync_pair
    await until_following(pair)
    await sent(pair.master, "T", b"first")
    topic = pair.master.parts.topics.get("T")
    assert topic is not None
    wider = dataclasses.replace(topic, read_queue_count=9, write_queue_count=9)
    pair.master.parts.topics.put(wider, pair.clock.now_ms())
    await sent_to(pair.master, "T", 8, b"wider")
    promoted = await pair.promote()
    assert await bodies_of(promoted, "T", 8) == [b"wider"]
    assert promoted.parts.topics.get("T") == wider


async def sent_to(subject: Subject, topic: str, queue_id: int, body: bytes) -> None:
    reply = await subject.send(topic, body, queue_id=queue_id)
    assert reply.code == ResponseCode.SUCCESS, reply.remark


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_topics_that_were_not_copied_are_made_from_the_log(
    pair: Promotable, is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the master is one of RocketMQ that dies before the next copy, or answers nothing."""

    async def copy_nothing(tables: NamedTables, master: MasterRequests) -> bool:
        return False

    await until_following(pair)
    await sent(pair.master, "Narrow", b"first")
    await sent(pair.master, "Deleted", b"first")
    await pair.copy()
    pair.slave.parts.topics.delete("Deleted", pair.clock.now_ms())  # as its master did
    monkeypatch.setattr(NamedTables, "copy_topics", copy_nothing)
    topics, now_ms = pair.master.parts.topics, pair.clock.now_ms()
    for name in ("Narrow", "New"):
        topics.put(TopicConfig(name, 8, 8, 6), now_ms)
        await sent_to(pair.master, name, 5, b"last")
    await pair.until_received()
    await world.kill(pair.master.broker)
    promoted = pair.slave
    if is_restarted:
        await promoted.broker.reopen()
    await promoted.broker.change_role(BrokerRole.ASYNC_MASTER, 0)
    for name in ("Narrow", "New"):
        assert await bodies_of(promoted, name, 5) == [b"last"]
        topic = promoted.parts.topics.get(name)
        assert topic is not None
        assert (topic.read_queue_count, topic.write_queue_count) == (6, 6)
    assert promoted.parts.topics.get("Deleted") is None
    (warning,) = promoted.parts.start_warnings
    assert "2 topics have the queues of their messages (Narrow, New)" in warning
    await promoted.broker.reopen()
    assert promoted.parts.topics.get("New") is not None
    assert not promoted.parts.start_warnings
