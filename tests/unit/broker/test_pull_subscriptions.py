"""The pulls that the kernel answers, and their statistics."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reput.broker import pull_subscriptions
from reput.broker.fastpath.send_ingest import Received, SendIngest
from reput.broker.pull_subscriptions import Delivery, PullSubscriptions, Reader
from reput.clock import ManualClock
from reput.format import cq_unit, message as record, properties as props
from reput.format.command import Command, Serialization, encode
from reput.format.message import Host
from reput.store.config import StoreConfig
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage
from store_fixture import needs_kernels

pytestmark = needs_kernels

HOST = Host(b"\x7f\0\0\1", 10911)


class Subject:
    """A store that gets request frames."""

    def __init__(self, root: Path) -> None:
        config = StoreConfig(store_path_root_dir=str(root), mapped_file_size_commit_log=1 << 23)
        self.store = MessageStore.open(config=config, clock=ManualClock(1_700_000_000_000))
        self.ingest = SendIngest(self.store)
        self.ingest.open(HOST, b"", b"")
        self.pull_subscriptions = PullSubscriptions(self.store)

    def put(self, topic: str, count: int, queue_id: int = 0, tag: str = "TagA") -> None:
        for _ in range(count):
            message = IncomingMessage(
                topic=topic,
                body=b"body",
                queue_id=queue_id,
                property_bytes=props.encode({props.TAGS: tag}),
                born_timestamp=0,
                born_host=HOST,
                store_host=HOST,
            )
            assert self.store.put(message).status.is_stored

    def ask(self, topic: str, group: str = "g", count: int = 1, **more: Any) -> Received:
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "2",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
        } | more
        frame = encode(Command(11, 1, ext_fields=fields, serialization=Serialization.JSON)) * count
        buffer = bytearray(frame)
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        return self.ingest.receive(address, 0, len(frame), HOST)

    def reads(self, topic: str, group: str = "g", queues: int = 4, **more: Any) -> Reader:
        """Register a reader with the kernel, as after a pull that the processor answered."""
        self.store.get(topic, 0, 0, 1)
        reader = Reader(topic, group, "*", 0, (), queues)._replace(**more)
        self.pull_subscriptions.add(reader)
        return reader


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[Subject]:
    store = Subject(tmp_path)
    yield store
    store.store.close()


def test_a_registered_reader_is_answered(subject: Subject) -> None:
    subject.put("T", 3)
    assert subject.ask("T").has_frame
    subject.reads("T")
    received = subject.ask("T", count=5)
    assert (received.pull_count, received.send_count, received.has_frame) == (5, 0, False)
    assert subject.ask("T", "other").has_frame
    assert subject.ask("U").has_frame


def test_deliveries_are_reported_once(subject: Subject) -> None:
    subject.put("T", 3)
    subject.reads("T")
    size = len(subject.store.get("T", 0, 0, 1).data)
    assert not subject.pull_subscriptions.has_news
    subject.ask("T", count=2)
    subject.ask("T", sysFlag="5", commitOffset="1", queueOffset="1")
    subject.ask("T", sysFlag="4", commitOffset="2")
    assert subject.pull_subscriptions.has_news
    assert subject.pull_subscriptions.take() == [Delivery("T", "g", 0, 4, 8, 8 * size, 1)]
    assert not subject.pull_subscriptions.has_news
    assert subject.pull_subscriptions.take() == []
    subject.ask("T")
    assert subject.pull_subscriptions.take() == [Delivery("T", "g", 0, 1, 2, 2 * size, None)]


def test_deliveries_outlive_their_reader(subject: Subject) -> None:
    subject.put("T", 3)
    subject.reads("T")
    subject.ask("T", sysFlag="5", commitOffset="1")
    subject.pull_subscriptions.clear()
    assert subject.ask("T").has_frame
    (delivery,) = subject.pull_subscriptions.take()
    assert (delivery.pull_count, delivery.consumer_offset) == (1, 1)


def test_a_changed_subscription_replaces_the_reader(subject: Subject) -> None:
    subject.put("T", 2, tag="TagA")
    subject.put("T", 2, tag="TagB")
    subject.reads("T")
    subject.ask("T")
    subject.reads("T", tags_codes=(cq_unit.tags_code("TagB"),))
    assert len(subject.pull_subscriptions) == 1
    received = subject.ask("T", maxMsgNums="1")
    assert b"TagB" in received.replies
    assert b"TagA" not in received.replies
    assert sum(delivery.pull_count for delivery in subject.pull_subscriptions.take()) == 2


def test_readers_with_long_expressions_are_not_kept(subject: Subject) -> None:
    """Thousands of readers with expressions of 64 kB each would take gigabytes."""
    subject.put("T", 1, tag="TagA")
    subject.reads("T", subscription="x" * 5000)
    subject.reads("T", subscription="y", tags_codes=tuple(range(300)))
    assert len(subject.pull_subscriptions) == 0
    subject.reads("T", subscription="z" * 4000, tags_codes=tuple(range(256)))
    assert len(subject.pull_subscriptions) == 1


def test_many_tags_are_looked_up_in_any_order(subject: Subject) -> None:
    for number in range(40):
        subject.put("T", 1, tag=f"Tag{number}")
    wanted = [7, 0, 39, 21]
    codes = [cq_unit.tags_code(f"Tag{number}") for number in wanted]
    codes += [code for number in range(1000) for code in (number, -number)]
    records = subject.store.get("T", 0, 0, 32, tags_codes=codes).records
    assert [record.decode(data).tags for data in records] == [
        f"Tag{tag_number}" for tag_number in sorted(wanted)
    ]


def test_readers_by_their_expression(subject: Subject) -> None:
    """Readers differ by expression; a pull without one is another reader."""
    subject.put("T", 1, tag="TagA")
    subject.put("T", 1, tag="TagB")
    for tag in ("TagA", "TagB"):
        subject.reads("T", subscription=tag, tags_codes=(cq_unit.tags_code(tag),))
    subject.reads("T", subscription=None, sub_version=7)
    assert len(subject.pull_subscriptions) == 3
    for tag, other in (("TagA", "TagB"), ("TagB", "TagA")):
        replies = subject.ask("T", subscription=tag).replies
        assert tag.encode() in replies
        assert other.encode() not in replies
    assert subject.ask("T", subscription="TagC").has_frame
    assert subject.ask("T", sysFlag="0", subVersion="7").pull_count == 1
    assert subject.ask("T", sysFlag="0", subVersion="8").has_frame


def test_many_readers(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table and the list grow; at a limit all readers are dropped, but not their statistics."""
    monkeypatch.setattr(pull_subscriptions, "_READERS_MAX", 300)
    topics = [f"topic-{i}" for i in range(10)]
    groups = [f"group-{i}" for i in range(30)]
    for topic in topics:
        subject.put(topic, 1)
    for topic in topics:
        for group in groups:
            subject.reads(topic, group, queues=2)
            assert subject.ask(topic, group).pull_count == 1
    assert len(subject.pull_subscriptions) == 300
    for topic in topics:
        for group in groups:
            assert subject.ask(topic, group).pull_count == 1
    subject.reads("topic-0", "one more")
    assert len(subject.pull_subscriptions) == 1
    counts: dict[tuple[str, str], int] = {}
    for delivery in subject.pull_subscriptions.take():
        counts[delivery.topic, delivery.group] = (
            counts.get((delivery.topic, delivery.group), 0) + delivery.pull_count
        )
    assert counts == {(topic, group): 2 for topic in topics for group in groups}


def test_rows_are_bounded(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound counts groups and queues, whatever expressions the pulls of a group have."""
    monkeypatch.setattr(pull_subscriptions, "_ROWS_MAX", 100)
    subject.put("T", 1)
    for i in range(30):
        subject.reads("T", subscription=f"TagA||x{i}", queues=60)
    assert len(subject.pull_subscriptions) == 30
    subject.reads("T", "other", queues=60)
    assert len(subject.pull_subscriptions) == 1
    subject.reads("T", "third", queues=101)
    assert len(subject.pull_subscriptions) == 1
    assert subject.ask("T", "third").has_frame


def test_queues_that_the_kernel_cannot_read(subject: Subject) -> None:
    subject.put("T", 1)
    subject.reads("T", queues=1)
    subject.put("T", 1, queue_id=1)
    assert subject.ask("T", queueId="1").has_frame
    subject.reads("%LMQ%a")
    subject.put("%LMQ%a", 1)
    assert subject.ask("%LMQ%a").has_frame


def test_closing_drops_all_readers(subject: Subject) -> None:
    subject.put("T", 1)
    subject.reads("T")
    subject.pull_subscriptions.close()
    subject.reads("T")
    assert len(subject.pull_subscriptions) == 0
    assert subject.ask("T").has_frame


def test_units_of_few_queues_are_kept_ahead(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue read last is kept; the others fall back to Python."""
    monkeypatch.setattr("reput.store.queues.consume_queues._AHEAD_QUEUES_MAX", 2)
    for topic in ("A", "B", "C"):
        subject.put(topic, 40)  # so that the first 32 are only in a file
        subject.reads(topic)
    assert [subject.ask(topic).pull_count for topic in ("A", "B", "C")] == [0, 1, 1]
