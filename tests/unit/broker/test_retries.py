"""Messages that are sent back, compared with the records of Java's brokers."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import golden
from reput.broker.group.subscription_groups import SubscriptionGroups
from reput.broker.republish import copied_message
from reput.broker.retries import Retries
from reput.broker.settings.config import BrokerConfig
from reput.broker.topic.topics import Topics
from reput.clock import ManualClock
from reput.format import message as record, names, properties as props
from reput.format.codes import VERSION
from reput.format.headers import SendBackHeader
from reput.format.message import Host, StoredMessage
from reput.store.files.disk import Disk
from reput.store.reader import StoreReader
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.groups import SubscriptionGroup, SubscriptionGroupTable
from reput.store.tables.topics import TopicTable
from reput.store.writing import incoming
from reput.store.writing.incoming import IncomingMessage, PutStatus, Refused
from store_fixture import Stores, needs_kernels

LEVEL_COUNT = 18


class Subject:
    """Retries over tables in memory."""

    def __init__(self, **settings: Any) -> None:
        config = BrokerConfig(broker_ip1="127.0.0.1", **settings)
        self.changed: list[str] = []
        topics, groups = TopicTable("", Disk()), SubscriptionGroupTable("", Disk())
        for table in (topics, groups):
            table._decode({})
        self.topics = Topics(topics, config)
        self.topics.on_change.append(self.changed.append)
        self.groups = SubscriptionGroups(groups, config)
        self.retries = Retries(self.topics, self.groups, ManualClock(1_700_000_000_000))

    def group(self, **settings: Any) -> SubscriptionGroup:
        group = SubscriptionGroup(name="G", **settings)
        self.groups.put(group, 0)
        return group

    def sent_back(
        self, stored: StoredMessage, group: SubscriptionGroup, version: int = VERSION, **fields: Any
    ) -> IncomingMessage:
        header = SendBackHeader(**{"offset": 0, "group": group.name, "delay_level": 0, **fields})
        topic = self.retries.topic_of(group, is_unit=bool(header.unit_mode))
        timers: Any = _NoTimer()
        return self.retries.message(stored, header, version, group, topic, timers)


class _NoTimer:
    def park(self, *_: object) -> bool:
        return False


@pytest.fixture
def subject() -> Subject:
    return Subject()


def without_place(stored: StoredMessage) -> StoredMessage:
    """Return the message's fields except its place; the properties are sorted."""
    return dataclasses.replace(
        stored, queue_offset=0, physical_offset=0, store_timestamp=0, property_bytes=b""
    )


def message(reconsume_times: int = 0, **properties: str) -> StoredMessage:
    encoded = props.encode({"TAGS": "a", **properties})
    return StoredMessage(
        topic="T", body=b"body", queue_id=3, queue_offset=9, physical_offset=4711,
        born_timestamp=5, born_host=Host(b"\x0a\0\0\1", 1), store_timestamp=6,
        store_host=Host(b"\x0a\0\0\2", 10911), flag=7, sys_flag=1,
        reconsume_times=reconsume_times, property_bytes=encoded, properties=props.decode(encoded),
    )  # fmt: skip


# --- against Java ---------------------------------------------------------------------


def sent_back_by_java(version: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (message, stored copy) of each message that Java's broker itself sent back."""
    pairs = []
    latest: dict[str, dict[str, Any]] = {}
    for java in golden.messages(version, "clean"):
        key, properties = java["uniqKey"], java["properties"]
        was_delayed = java["topic"] == "SCHEDULE_TOPIC_XXXX"
        if "ORIGIN_MESSAGE_ID" in properties and (was_delayed or java["topic"].startswith("%DLQ%")):
            pairs.append((latest[key], java))
        if not was_delayed and key is not None:
            latest[key] = java
    return pairs


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_stored_messages_are_equal_to_those_of_java(version: str, subject: Subject) -> None:
    """First, second and third attempts, dead letters, compressed messages, IPv6 hosts."""
    reader = StoreReader.open(str(golden.unpack(version, "clean")))
    group = SubscriptionGroup(name="CG_Retry", retry_max=2)
    pairs = sent_back_by_java(version)
    assert len(pairs) > 9
    assert {after["topic"] for _, after in pairs} == {"SCHEDULE_TOPIC_XXXX", "%DLQ%CG_Retry"}
    for before, after in pairs:
        stored = reader.message_at(before["commitLogOffset"])
        sent_back = subject.sent_back(stored, group, offset=stored.physical_offset)
        sent_back = incoming.delayed(sent_back, LEVEL_COUNT)
        assert sent_back.topic == after["topic"]
        assert sent_back.queue_id == after["queueId"]
        assert sent_back.properties == after["properties"]
        assert sent_back.reconsume_times == after["reconsumeTimes"]
        assert (sent_back.flag, sent_back.sys_flag) == (after["flag"], after["sysFlag"])
        assert sent_back.born_timestamp == after["bornTimestamp"]
        assert str(sent_back.born_host) == after["bornHost"]
        assert str(sent_back.store_host) == after["storeHost"]
        assert len(sent_back.body) == after["storedBodyLength"]
        size = len(incoming.encode(sent_back, sent_back.topic.encode()))
        is_separator_missing = version == "4.9.7"  # the final separator: we write one, 4.9 does not
        assert size == after["storeSize"] + is_separator_missing
        assert not sent_back.waits


@needs_kernels
@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_the_kernel_stores_the_same(version: str, subject: Subject, stores: Stores) -> None:
    reader = StoreReader.open(str(golden.unpack(version, "clean")))
    group = SubscriptionGroup(name="CG_Retry", retry_max=2)
    store = stores.open()
    counts = [0, 0]
    for before, after in sent_back_by_java(version):
        if after["topic"] != names.SCHEDULE_TOPIC:
            continue
        message = reader.message_at(before["commitLogOffset"])
        place = store.put(copied_message(message, message.topic, message.queue_id)).physical_offset
        stored = record.decode(store.record_at(place) or b"")
        slow = store.put(subject.sent_back(stored, group, offset=place))
        expected = record.decode(store.record_at(slow.physical_offset) or b"")
        place_of_next = b"REAL_TOPIC\1%RETRY%CG_Retry\2REAL_QID\0010\2"
        row = (-1, place, 0, 0, len(place_of_next), 0, group.retry_max)
        count, origins = store.copier.put_for_retry(np.array([row], np.int64), place_of_next)
        assert count == (not message.born_host.is_v6)
        counts[count] += 1
        if count:
            (origin,) = origins
            assert origin.decode() == expected.properties["RETRY_TOPIC"]
            quick = record.decode(store.last_record() or b"")
            assert quick.property_bytes == expected.property_bytes
            assert without_place(quick) == without_place(expected)
    assert all(counts), counts


# --- sent back ------------------------------------------------------------------------


def test_the_topics_are_created_once(subject: Subject) -> None:
    group = subject.group(retry_queue_count=3)
    seen = {subject.sent_back(message(), group).queue_id for _ in range(100)}
    assert seen == {0, 1, 2}
    subject.sent_back(message(), group, delay_level=-1)
    assert subject.changed == ["%RETRY%G", "%DLQ%G"]
    retry, dead = subject.topics.get("%RETRY%G"), subject.topics.get("%DLQ%G")
    assert retry == TopicConfig("%RETRY%G", 3, 3, 6)
    assert dead == TopicConfig("%DLQ%G", 1, 1, 6)


def test_the_checksum_of_the_record_is_removed(subject: Subject) -> None:
    sent_back = subject.sent_back(message(**{"__CRC32#": "0123456789"}), subject.group())
    assert "__CRC32#" not in sent_back.properties


def test_a_message_without_room_for_the_properties_is_refused(subject: Subject) -> None:
    with pytest.raises(Refused) as raised:
        subject.sent_back(message(long="x" * 32_700), subject.group())
    assert raised.value.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
