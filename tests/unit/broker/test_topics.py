"""17, 18, 21, 202, 215, 300, 305, 306, 316, 343, 345, 351 at a broker. Texts are Java's."""

import json
from pathlib import Path
from typing import Any

import pytest

import broker_subject
from broker_subject import CLUSTER, NAME, Subject
from reput.broker.settings.config import BrokerConfig
from reput.broker.topic.topics import Topics
from reput.format import bodies
from reput.format.bodies import (
    ConsumerData,
    GroupList,
    GroupSubscription,
    HeartbeatData,
    MessageQueue,
    SubscriptionData,
    TopicConfigData,
    TopicConfigList,
    TopicConfigTable,
    TopicList,
    TopicStats,
)
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    CreateTopicHeader,
    GroupAndTopicHeader,
    GroupHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
)
from reput.store.config_tables import TopicConfig
from reput.store.disk import Disk
from reput.store.table_files import TopicTable


def wanted(name: str, queue_count: int = 2, **fields: object) -> CreateTopicHeader:
    header = CreateTopicHeader(
        topic=name,
        default_topic="TBW102",
        read_queue_nums=queue_count,
        write_queue_nums=queue_count,
        perm=6,
    )
    return broker_subject.with_fields(header, fields)


def as_data(name: str, queue_count: int = 2) -> TopicConfigData:
    return TopicConfigData(
        order=False,
        perm=6,
        read_queue_nums=queue_count,
        topic_filter_type="SINGLE_TAG",
        topic_name=name,
        topic_sys_flag=0,
        write_queue_nums=queue_count,
    )


async def create(subject: Subject, name: str, queue_count: int = 2, **fields: object) -> Command:
    return await subject.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC, wanted(name, queue_count, **fields)
    )


async def delete(subject: Subject, name: str) -> Command:
    return await subject.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=name))


async def stats(subject: Subject, name: str) -> Command:
    return await subject.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic=name))


async def commit(subject: Subject, topic: str, group: str, consumer_offset: int) -> None:
    header = UpdateConsumerOffsetHeader(
        consumer_group=group, topic=topic, queue_id=0, commit_offset=consumer_offset
    )
    await subject.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def test_a_topic_is_made_changed_and_on_disk_before_the_reply(subject: Subject) -> None:
    assert (await create(subject, "New", 3)).code == ResponseCode.SUCCESS
    assert (await create(subject, "New", 5, perm=4)).code == ResponseCode.SUCCESS
    reply = await subject.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    found = bodies.decode(TopicConfigTable, reply.body).topic_config_table["New"]
    assert (found.read_queue_nums, found.write_queue_nums, found.perm) == (5, 5, 4)
    path = Path(subject.broker.store.root) / "config/topics.json"
    saved = json.loads(path.read_text())["topicConfigTable"]["New"]
    assert (saved["readQueueNums"], saved["perm"]) == (5, 4)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "The specified topic is blank."),
        ("a b", "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("x" * 128, "is longer than topic max length"),
        ("TBW102", "The topic[TBW102] is conflict with system topic."),
        (CLUSTER, f"The topic[{CLUSTER}] is conflict with system topic."),
        (NAME, f"The topic[{NAME}] is conflict with system topic."),
        ("rmq_sys_x", "The topic[rmq_sys_x] is conflict with system topic."),
    ],
)
async def test_a_name_that_is_not_allowed_is_refused(
    subject: Subject, name: str, text: str
) -> None:
    for reply in (await create(subject, name), await delete(subject, name)):
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert text in (reply.remark or "")
    assert subject.parts.topics.get("TBW102") is not None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"read_queue_nums": -1}, "readQueueNums of topic[New] is -1; allowed: 0 to 65535"),
        ({"write_queue_nums": 1 << 30}, "writeQueueNums of topic[New] is 1073741824"),
        ({"perm": 8}, "perm of topic[New] is 8; allowed: 0 to 7"),
        ({"topic_filter_type": "ANY"}, "topicFilterType of topic[New] is ANY"),
    ],
)
async def test_settings_that_make_no_sense_are_refused(
    subject: Subject, fields: dict[str, object], text: str
) -> None:
    reply = await create(subject, "New", **fields)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert text in (reply.remark or "")
    assert subject.parts.topics.get("New") is None


async def test_of_a_list_all_are_made_or_none(subject: Subject) -> None:
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    bad = TopicConfigList(topic_config_list=[as_data("One"), as_data("no good")])
    assert (await subject.tell(code, bad)).code == ResponseCode.SYSTEM_ERROR
    assert subject.parts.topics.get("One") is None
    good = TopicConfigList(topic_config_list=[as_data("One"), as_data("Two", 7)])
    assert (await subject.tell(code, good)).code == ResponseCode.SUCCESS
    two = subject.parts.topics.get("Two")
    assert subject.parts.topics.get("One") is not None
    assert two is not None
    assert two.read_queue_count == 7


async def test_one_topic_is_told(subject: Subject) -> None:
    reply = await subject.ask(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic="T"))
    assert bodies.decode(TopicConfigData, reply.body) == as_data("T", 4)
    reply = await subject.ask(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic="None"))
    assert (reply.code, reply.remark) == (
        ResponseCode.TOPIC_NOT_EXIST,
        "No topic in this broker. topic: None",
    )


async def test_stats_say_where_each_queue_ends(subject: Subject) -> None:
    await subject.send("T", queue_id=1)
    await subject.send("T", queue_id=1)
    table = bodies.decode(TopicStats, (await stats(subject, "T")).body).offset_table
    ends = {queue.queue_id: (one.min_offset, one.max_offset) for queue, one in table.items()}
    assert ends == {0: (0, 0), 1: (0, 2), 2: (0, 0), 3: (0, 1)}
    last = table[MessageQueue("T", NAME, 1)].last_update_timestamp
    assert last == subject.broker.store.store_time("T", 1, 1)
    assert table[MessageQueue("T", NAME, 0)].last_update_timestamp == 0


async def test_stats_have_queues_that_are_only_read(subject: Subject) -> None:
    """As Java 5.5: what is in them is not gone."""
    await create(subject, "T", 4, write_queue_nums=2)  # there is a message in queue 3
    table = bodies.decode(TopicStats, (await stats(subject, "T")).body).offset_table
    assert {queue.queue_id: one.max_offset for queue, one in table.items()} == {
        0: 0, 1: 0, 2: 0, 3: 1
    }  # fmt: skip


async def test_asking_for_what_is_not_there_makes_nothing(subject: Subject) -> None:
    before = subject.parts.topics.all()
    reply = await stats(subject, "None")
    assert (reply.code, reply.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[None] not exist")
    reply = await subject.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic="None"))
    assert bodies.decode(GroupList, reply.body).group_list == []
    assert subject.parts.topics.all() == before
    assert not (Path(subject.broker.store.root) / "consumequeue/None").exists()


async def test_who_consumes_a_topic_is_known_from_offsets(subject: Subject) -> None:
    await commit(subject, "T", "group-b", 1)
    await commit(subject, "T", "group-a", 1)
    await commit(subject, "U", "group-c", 1)
    reply = await subject.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic="T"))
    assert bodies.decode(GroupList, reply.body).group_list == ["group-a", "group-b"]


async def test_system_topics_are_those_of_java_4_9_7(subject: Subject) -> None:
    reply = await subject.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    found = set(bodies.decode(TopicList, reply.body).topic_list)
    # What mqadmin 4.9.7 gets from a broker of that version.
    assert found >= {
        "BenchmarkTest", "OFFSET_MOVED_EVENT", "RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC", CLUSTER, f"{CLUSTER}_REPLY_TOPIC", NAME,
    }  # fmt: skip


async def test_a_deleted_topic_takes_its_queues_and_offsets_along(subject: Subject) -> None:
    await commit(subject, "T", "group", 1)
    assert (await delete(subject, "T")).code == ResponseCode.SUCCESS
    assert (await stats(subject, "T")).code == ResponseCode.TOPIC_NOT_EXIST
    assert subject.parts.deliveries.consumer_offsets.get("T", "group", 0) is None
    assert not (Path(subject.broker.store.root) / "consumequeue/T").exists()
    assert (
        await delete(subject, "T")
    ).code == ResponseCode.SUCCESS  # again is no error, as in Java


async def test_a_deleted_topic_does_not_come_back_after_a_kill(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        for queue_id in range(4):
            await subject.send("T", b"old", queue_id=queue_id)
        await subject.send("Kept", b"kept")
        await commit(subject, "T", "group", 1)
        await delete(subject, "T")
        # What a kill leaves: nothing that happens at a stop.
        subject.parts.saved_tables.save_all = lambda: None  # type: ignore[method-assign]
        subject.broker.store.abandon()
    async with broker_subject.running(tmp_path) as subject:
        assert subject.parts.topics.get("T") is None
        assert subject.broker.store.max_offset("T", 0) == 0
        assert subject.parts.deliveries.consumer_offsets.get("T", "group", 0) is None
        assert subject.broker.store.max_offset("Kept", 0) == 1
        await subject.send("T", b"new", queue_id=2)  # made anew: it begins at 0
        (one,) = broker_subject.messages_in((await subject.pull("T", 2)).body)
        assert (one.body, one.queue_offset) == (b"new", 0)


async def test_a_topic_that_a_send_makes_is_in_the_file_however_many_there_are(
    subject: Subject,
) -> None:
    broker = subject.broker
    for number in range(1500):
        broker.parts.topics.table.put(TopicConfig(f"Other{number}", 1, 1, 6), 0)
    for task in broker.loops._tasks:  # no table is saved because its time has come
        task.cancel()
    assert (await subject.send("New")).code == ResponseCode.SUCCESS
    saved = json.loads((Path(broker.store.root) / "config/topics.json").read_text())
    assert saved["topicConfigTable"].keys() == broker.parts.topics.all().keys()
    assert {"New", "Other1499"} <= saved["topicConfigTable"].keys()


async def test_queues_of_topics_that_no_table_has_are_cleaned(subject: Subject) -> None:
    now_ms = subject.broker.clock.now_ms()
    subject.parts.topics.delete("T", now_ms)  # the table alone, as an older version left it
    assert subject.broker.store.max_offset("T", 3) == 1
    assert (await subject.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
    assert subject.broker.store.max_offset("T", 3) == 0


async def test_cleaning_queues_leaves_those_with_messages(subject: Subject) -> None:
    assert (await subject.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == ResponseCode.SUCCESS
    assert subject.broker.store.max_offset("T", 3) == 1


# --- of 5.x -----------------------------------------------------------------


async def settings(subject: Subject, name: str) -> dict[str, Any]:
    reply = await subject.ask(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic=name))
    found: dict[str, Any] = json.loads(reply.body)
    return found


async def test_attributes_are_set_changed_kept_and_told(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        reply = await create(subject, "A", attributes="+message.type=FIFO,+reserve.time=-1")
        assert reply.code == ResponseCode.SUCCESS
        await create(subject, "A", attributes="+message.type=DELAY,-reserve.time")
        assert (await create(subject, "A")).code == ResponseCode.SUCCESS  # 4.9 says nothing of them
        body = TopicConfigList(topic_config_list=[as_data("B")])
        body.topic_config_list[0].attributes = {"+message.type": "TRANSACTION"}
        await subject.tell(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
    async with broker_subject.running(tmp_path) as subject:
        assert (await settings(subject, "A"))["attributes"] == {"message.type": "DELAY"}
        reply = await subject.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        table = bodies.decode(TopicConfigTable, reply.body).topic_config_table
        assert table["B"].attributes == {"message.type": "TRANSACTION"}
        # What only proxies look at does not take a topic's messages off the fast path.
        assert subject.parts.topics.write_queue_count("A") == 2


# Texts up to the semicolon are those of Java's AttributeParser and AttributeUtil.
@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("New", "message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("New", "message.type", "delete attribute format is wrong: message.type"),
        ("New", "+a=1,+a=2", "key duplication: +a"),
        ("New", "+color=red", "unsupported key: color"),
        ("New", "-message.type", "only add attribute is supported while creating topic. key: "),
        ("New", "++message.type=FIFO", "kv string format wrong."),
        ("New", "+message.type=LOUD", "message.type is 'LOUD'; allowed: UNSPECIFIED, NORMAL, "),
        ("New", "+reserve.time=soon", "reserve.time is 'soon'; allowed: -1 to 9223372036854775807"),
        ("New", "+queue.type=RocksDBCQ", "'RocksDBCQ'; allowed: BatchCQ, SimpleCQ"),
        ("New", "+cleanup.policy=COMPACTION", "allowed: DELETE"),
        ("T", "-message.type", "attempt to delete a nonexistent key: message.type"),
        ("T", "+queue.type=SimpleCQ", "attempt to update an unchangeable attribute. key: queue"),
        ("T", "+message.type=FIFO,-message.type", "alter duplication key. key: message.type"),
    ],
)
async def test_attributes_that_make_no_sense_are_refused(
    subject: Subject, name: str, changes: str, why: str
) -> None:
    before = subject.parts.topics.get(name)
    reply = await create(subject, name, attributes=changes)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert why in (reply.remark or "")
    assert subject.parts.topics.get(name) == before


async def test_a_topic_of_every_kind_must_be_allowed(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        reply = await create(subject, "M", attributes="+message.type=MIXED")
        assert reply.code == ResponseCode.INVALID_PARAMETER
        assert "MIXED message type is not supported." in (reply.remark or "")
    async with broker_subject.running(tmp_path, enable_mixed_message_type=True) as subject:
        await create(subject, "M", attributes="+message.type=MIXED")
        assert (await settings(subject, "M"))["attributes"] == {"message.type": "MIXED"}


async def test_order_is_what_the_last_request_says(subject: Subject) -> None:
    await create(subject, "O", order=True)
    assert (await settings(subject, "O"))["order"] is True
    await create(subject, "O")
    assert (await settings(subject, "O"))["order"] is False


async def test_what_a_group_reads(subject: Subject) -> None:
    await commit(subject, "T", "g", 1)
    reply = await subject.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupHeader(group="g"))
    assert json.loads(reply.body) == {"brokerAddr": subject.address, "topicList": ["T"]}
    header = GroupAndTopicHeader(group="g", topic="T")
    reply = await subject.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header)
    assert json.loads(reply.body) == {"group": "g", "topic": "T"}

    one = SubscriptionData(topic="T", sub_string="TagA", sub_version=5)
    data = ConsumerData(
        consume_from_where="CONSUME_FROM_LAST_OFFSET", consume_type="CONSUME_PASSIVELY",
        group_name="g", message_model="CLUSTERING", subscription_data_set=[one], unit_mode=False,
    )  # fmt: skip
    body = HeartbeatData(client_id="one", consumer_data_set=[data], producer_data_set=[])
    await subject.tell(RequestCode.HEART_BEAT, body)
    reply = await subject.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header)
    found = bodies.decode(GroupSubscription, reply.body).subscription_data
    assert found is not None
    assert (found.sub_string, found.sub_version) == ("TagA", 5)


def test_a_topic_that_is_made_again_is_written_after_those_made_meanwhile(tmp_path: Path) -> None:
    topics = Topics(TopicTable.load(str(tmp_path), Disk()), BrokerConfig(broker_name=NAME))
    topics.on_make = lambda: None
    written: list[str] = []
    topics.on_written.append(written.append)

    def make(name: str) -> None:
        topics.for_group(f"%RETRY%{name}", 1, 6, 0)

    make("again")
    make("other")
    topics.delete("%RETRY%again", 0)
    make("again")
    topics.written(2)
    assert written == ["%RETRY%other"]
    topics.written(3)
    assert written == ["%RETRY%other", "%RETRY%again"]
