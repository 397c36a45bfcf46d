"""Requests whose work grows with the broker's state: small steps and bounded replies.

A step is the work between two yields of a processor. Its size is the number of calls of the store
and the tables, so that no clock is needed.
"""

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from types import GeneratorType
from typing import Any

import pytest
from hypothesis import given, strategies as st

from cases import case
from reput.broker import limits
from reput.broker.processors.table import PROCESSORS
from reput.broker.server import Broker
from reput.errors import LimitExceeded, RequestRefused, WriteFailed
from reput.format import bodies, headers
from reput.format.bodies import (
    ConsumerData,
    GroupList,
    MessageQueue,
    SubscriptionData,
    TopicOffset,
    TopicOffsets,
    TopicStats,
)
from reput.format.codes import RequestCode as Code, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    CloneGroupOffsetHeader,
    ConsumerGroupHeader,
    ConsumerStatusHeader,
    ConsumeStatsHeader,
    ConsumeStatsInBrokerHeader,
    GroupHeader,
    Header,
    ProducerGroupHeader,
    QueryCorrectionOffsetHeader,
    ResetOffsetHeader,
    TimeSpanHeader,
    TopicHeader,
)
from reput.format.message import Host
from reput.remoting import limits as remoting_limits, long_replies, time_slices
from reput.remoting.long_replies import LongBody
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.groups import SubscriptionGroup
from world import Subject, until

QUEUE_COUNT = 3_000
TOPIC_COUNT = 3_000
MEMBER_COUNT = 3_000
CALLS_PER_STEP = 1_000
"""Calls of the store and the tables per step; each takes a microsecond or more."""


class SomeChannel:
    """A member's connection."""

    is_closed = False
    is_writable = True

    def __init__(self, number: int = 0) -> None:
        self.peer = f"10.0.0.1:{number}"
        self.host = Host(b"\x0a\0\0\1", number)
        self.sent = 0

    def send(self, command: Command) -> bool:
        self.sent += 1
        return True

    notify = send


class Calls:
    """Counts the calls of some objects' methods."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._monkeypatch = monkeypatch

    def watch(self, watched: object, *names: str) -> None:
        for name in names:
            self._monkeypatch.setattr(watched, name, self._counting(getattr(watched, name)))

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            return function(*args, **options)

        return counted


@pytest.fixture
def calls(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Count the calls of a broker with many topics, groups and queues."""
    broker = subject.broker
    now_ms = broker.clock.now_ms()
    topic = TopicConfig(
        name="Big", read_queue_count=QUEUE_COUNT, write_queue_count=QUEUE_COUNT, perm=6
    )
    broker.parts.topics.table.put(topic, now_ms)
    for number in range(TOPIC_COUNT):
        name = f"Small{number * 7919 % 10_007}"
        small = TopicConfig(name=name, read_queue_count=1, write_queue_count=1, perm=6)
        broker.parts.topics.table.put(small, now_ms)
        broker.parts.deliveries.consumer_offsets.put(name, "readers", 0, number)
        broker.parts.subscription_groups.table.put(SubscriptionGroup(name=f"group{number}"), now_ms)
        broker.parts.deliveries.consumer_offsets.put("Big", f"group{number}", number % 7, number)
    for name in ("readers", "others"):
        broker.parts.subscription_groups.table.put(SubscriptionGroup(name=name), now_ms)
    for queue_id in range(QUEUE_COUNT):
        broker.parts.deliveries.consumer_offsets.put("Big", "readers", queue_id, queue_id)
    data = ConsumerData(
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        consume_type="CONSUME_PASSIVELY",
        group_name="readers",
        message_model="CLUSTERING",
    )
    for number in range(MEMBER_COUNT):
        channel: Any = SomeChannel(number)
        broker.parts.groups.register_consumer(channel, f"client{number}", data, 0, 407, 0)
        if number < 500:
            broker.parts.groups.register_producer(channel, f"client{number}", "senders", 0, 407, 0)
    counted = Calls(monkeypatch)
    counted.watch(
        broker.store, "max_offset", "min_offset", "store_time", "offset_by_time",
        "earliest_message_time",
    )  # fmt: skip
    counted.watch(broker.parts.deliveries._consumer_offsets, "get", "of", "put")
    return counted


@dataclasses.dataclass
class Ran:
    """The result of a processor and the size of its steps."""

    reply: Command | None
    steps: int
    calls_max: int


def begin(broker: Broker, code: int, header: Header | None) -> Any:
    fields = headers.encode(header) if header is not None else {}
    channel: Any = SomeChannel()
    return PROCESSORS[code](broker.parts, channel, Command(code, ext_fields=fields))


def run(work: Any, calls: Calls, between: Callable[[int], None] = lambda step: None) -> Ran:
    """Run a processor to its end.

    Args:
        work: The generator that the processor returned.
        calls: The counter of its calls.
        between: Called between two steps, like concurrent requests.
    """
    assert isinstance(work, GeneratorType)
    ran = Ran(None, 0, 0)
    while True:
        before = calls.count
        try:
            next(work)
        except StopIteration as end:
            ran.reply = end.value
            return ran
        finally:
            ran.calls_max = max(ran.calls_max, calls.count - before)
        ran.steps += 1
        between(ran.steps)


def reset_header(**fields: Any) -> ResetOffsetHeader:
    return ResetOffsetHeader(topic="Big", group="readers", timestamp=-1, is_force=True, **fields)


REQUESTS: list[tuple[int, Header | None, int]] = [
    (Code.GET_ALL_TOPIC_CONFIG, None, 10),
    (Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, None, 10),
    (Code.GET_ALL_CONSUMER_OFFSET, None, 10),
    (Code.GET_TOPIC_STATS_INFO, TopicHeader(topic="Big"), 50),
    (Code.GET_CONSUME_STATS, ConsumeStatsHeader(consumer_group="readers", topic="Big"), 50),
    (Code.GET_CONSUME_STATS, ConsumeStatsHeader(consumer_group="readers", topic=""), 50),
    (Code.QUERY_CONSUME_TIME_SPAN, TimeSpanHeader(topic="Big", group="readers"), 50),
    (
        Code.QUERY_CORRECTION_OFFSET,
        QueryCorrectionOffsetHeader(topic="Big", compare_group="readers", filter_groups=""),
        10,
    ),
    (Code.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic="Big"), 3),
    (Code.QUERY_TOPICS_BY_CONSUMER, GroupHeader(group="readers"), 3),
    (Code.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(consumer_group="readers"), 50),
    (Code.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader(producer_group="senders"), 8),
    (Code.GET_ALL_PRODUCER_INFO, None, 8),
    (Code.INVOKE_BROKER_TO_RESET_OFFSET, reset_header(), 50),
    (Code.INVOKE_BROKER_TO_RESET_OFFSET, reset_header(queue_id=-1), 50),
    (
        Code.CLONE_GROUP_OFFSET,
        CloneGroupOffsetHeader(src_group="readers", dest_group="others", topic="", offline=True),
        5,
    ),
]


async def test_much_work_is_done_in_small_steps(subject: Subject, calls: Calls) -> None:
    for code, header, steps_min in REQUESTS:
        with case(Code(code).name, header):
            ran = run(begin(subject.broker, code, header), calls)
            assert ran.reply is not None
            assert ran.reply.code == ResponseCode.SUCCESS, ran.reply.remark
            assert ran.steps >= steps_min
            assert ran.calls_max <= CALLS_PER_STEP


@pytest.mark.parametrize(("code", "header", "steps_min"), REQUESTS)
@pytest.mark.sampled(3)
async def test_deletions_between_two_steps_do_no_harm(
    code: int, header: Header | None, steps_min: int, subject: Subject, calls: Calls
) -> None:
    broker = subject.broker

    def delete(step: int) -> None:
        now_ms = broker.clock.now_ms()
        if step == 2:
            broker.parts.topics.delete("Big", now_ms)
            broker.store.delete_topic("Big")
            broker.parts.deliveries.consumer_offsets.delete(topic="Big")
        elif step == 3:
            broker.parts.deliveries.consumer_offsets.delete(group="readers")
            broker.parts.subscription_groups.delete("readers", now_ms)
            group = broker.parts.groups.consumer("readers")
            if group is not None:
                for channel in list(group.members):
                    broker.parts.groups.unregister_consumer(channel, "readers")
        elif step == 4:
            for name in list(broker.parts.topics.all())[:100]:
                broker.parts.topics.table.delete(name, now_ms)

    code_found: int | None = None
    try:
        ran = run(begin(broker, code, header), calls, delete)
        code_found = ran.reply.code if ran.reply is not None else None
    except RequestRefused as error:
        code_found = error.response_code
    assert code_found in {
        ResponseCode.SUCCESS,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.CONSUMER_NOT_ONLINE,
        ResponseCode.SYSTEM_ERROR,  # the group has no offsets
    }
    assert ("Big", "others") not in set(broker.parts.deliveries.consumer_offsets.readers())


def test_statistics_of_all_groups_take_a_step_for_each_group(
    subject: Subject, calls: Calls
) -> None:
    broker = subject.broker
    broker.parts.deliveries.consumer_offsets.delete(
        topic="Big"
    )  # 3,000 queues for each of 3,000 groups
    header = ConsumeStatsInBrokerHeader(is_order=False)
    ran = run(begin(broker, Code.GET_BROKER_CONSUME_STATS, header), calls)
    assert ran.reply is not None
    assert ran.reply.code == ResponseCode.SUCCESS
    assert ran.steps >= TOPIC_COUNT
    assert ran.calls_max <= CALLS_PER_STEP


def test_a_reply_larger_than_a_frame_is_refused_with_a_remedy(
    subject: Subject, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remoting_limits, "REPLY_BYTES", remoting_limits.REPLY_BYTES.at(10_000))
    text = r"body of a reply \(.*\): .*limit reply_bytes"
    for code, header, _ in REQUESTS[:7] + REQUESTS[10:15]:
        with case(Code(code).name, header):
            with pytest.raises(LimitExceeded, match=text) as caught:
                run(begin(subject.broker, code, header), calls)
            assert caught.value.limit == "reply_bytes"


def test_statistics_larger_than_a_frame_are_refused_before_they_are_computed(
    subject: Subject, calls: Calls
) -> None:
    """3,000 groups of 3,000 queues each would be a gigabyte."""
    work = begin(
        subject.broker, Code.GET_BROKER_CONSUME_STATS, ConsumeStatsInBrokerHeader(is_order=False)
    )
    with pytest.raises(LimitExceeded, match="ask for each group with request 208"):
        run(work, calls)
    assert calls.count < 1_000_000


async def test_unchanged_topics_are_not_encoded_again(subject: Subject, calls: Calls) -> None:
    broker = subject.broker
    first = run(begin(broker, Code.GET_ALL_TOPIC_CONFIG, None), calls)
    again = run(begin(broker, Code.GET_ALL_TOPIC_CONFIG, None), calls)
    assert first.reply is not None
    assert again.reply is not None
    assert again.reply.body is first.reply.body
    assert again.steps == 0
    broker.parts.topics.delete("Big", broker.clock.now_ms())
    changed = run(begin(broker, Code.GET_ALL_TOPIC_CONFIG, None), calls)
    assert changed.reply is not None
    assert b'"Big"' in first.reply.body
    assert b'"Big"' not in changed.reply.body


async def test_a_group_of_too_many_members_gets_no_requests(subject: Subject, calls: Calls) -> None:
    header = ConsumerStatusHeader(topic="Big", group="readers", client_addr=None)
    with pytest.raises(LimitExceeded, match="clientAddr"):
        run(begin(subject.broker, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header), calls)
    group = subject.parts.groups.consumer("readers")
    assert group is not None
    assert not any(channel.sent for channel in group.members)


# --- deletions ----------------------------------------------------------------


async def test_a_deleted_topic_disappears_at_once_and_the_reply_follows_the_disk(
    subject: Subject,
) -> None:
    broker = subject.broker
    for queue_id in range(4):
        await subject.send("T", b"old", queue_id=queue_id)
    deletion = asyncio.create_task(subject.ask(Code.DELETE_TOPIC_IN_BROKER, TopicHeader(topic="T")))
    await until(lambda: broker.parts.topics.get("T") is None)
    reply = await subject.ask(Code.GET_TOPIC_STATS_INFO, TopicHeader(topic="T"))
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert (await deletion).code == ResponseCode.SUCCESS
    folder = Path(broker.store.root)
    assert not (folder / "consumequeue/T").exists()
    assert "T" in json.loads((folder / "topics.deleted").read_text())
    assert "T" not in json.loads((folder / "config/topics.json").read_text())["topicConfigTable"]


async def test_deletions_are_sequential_and_bounded(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WAITING_DELETIONS", limits.WAITING_DELETIONS.at(3))
    for number in range(8):
        await subject.send(f"Topic{number}")
    replies = await asyncio.gather(
        *(
            subject.ask(Code.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=f"Topic{number}"))
            for number in range(8)
        )
    )
    codes = Counter(reply.code for reply in replies)
    assert codes[ResponseCode.SUCCESS] >= 3
    assert codes[ResponseCode.SUCCESS] + codes[ResponseCode.SYSTEM_ERROR] == 8
    for number, reply in enumerate(replies):
        is_there = subject.parts.topics.get(f"Topic{number}") is not None
        assert is_there == (reply.code != ResponseCode.SUCCESS)
        if is_there:
            assert "limit waiting_deletions" in (reply.remark or "")


async def test_a_failed_deletion_is_reported_and_can_be_repeated(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise WriteFailed("topics.deleted", "cannot write: Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(subject.broker.store._tombstones, "save", fail)
        reply = await subject.ask(Code.DELETE_TOPIC_IN_BROKER, TopicHeader(topic="T"))
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "Input/output error" in (reply.remark or "")
    reply = await subject.ask(Code.DELETE_TOPIC_IN_BROKER, TopicHeader(topic="T"))
    assert reply.code == ResponseCode.SUCCESS
    assert not (Path(subject.broker.store.root) / "consumequeue/T").exists()


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (Code.GET_CONSUME_STATS, ConsumeStatsHeader(consumer_group="readers", topic="")),
        (Code.GET_BROKER_CONSUME_STATS, ConsumeStatsInBrokerHeader(is_order=True)),
    ],
)
async def test_omitted_topics_are_counted_too(
    code: int, header: Header, subject: Subject, calls: Calls
) -> None:
    """Members have left all topics but one, and no topic is ordered."""
    group = subject.parts.groups.consumer("readers")
    assert group is not None
    group.subscribe([SubscriptionData(topic="Other", sub_string="*", sub_version=1)])
    calls.watch(subject.parts.groups, "consumer")
    ran = run(begin(subject.broker, code, header), calls)
    assert ran.reply is not None
    assert b'"Small' not in ran.reply.body
    assert ran.calls_max <= CALLS_PER_STEP


# --- encoding -----------------------------------------------------------------


def whole(work: Generator[None, None, Any]) -> Any:
    return time_slices.run_whole(work)


@given(st.lists(st.text(max_size=3), max_size=4_000, unique=True))
def test_names_are_sorted_as_by_sorted(names: list[str]) -> None:
    assert whole(long_replies.sort(names)) == sorted(names)


def test_a_body_encoded_in_parts_is_equal_to_one_encoded_at_once() -> None:
    queues = [MessageQueue("T", "broker", number) for number in range(100)]
    offsets = TopicOffsets()
    body = LongBody("all of it")
    for queue in queues:
        offset = TopicOffset(last_update_timestamp=1, max_offset=queue.queue_id, min_offset=0)
        offsets[queue] = offset
        body.add_pair(queue, offset)
    template = TopicStats(offset_table=TopicOffsets())
    expected = bodies.encode(TopicStats(offset_table=offsets))
    assert body.encode_in(template, "offset_table") == expected
    names = LongBody("all of it")
    names.add("a", 'b"groupList":[]')
    names.add()
    names.add("c")
    encoded = names.encode_in(GroupList(group_list=[]), "group_list")
    assert encoded == bodies.encode(GroupList(group_list=["a", 'b"groupList":[]', "c"]))
