"""What a store does, of whatever kind: one suite over ``MessageStore`` and ``MemoryStore``.

Expected values are RocketMQ's rules: statuses, their order and the next offsets of a get.
"""

import functools
import itertools
import struct
from collections.abc import Callable
from typing import Any

import pytest

from reput.format import (
    batch,
    cq_unit,
    java,
    message as record,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.message import Host
from reput.store.getting import GetStatus
from reput.store.incoming import PutStatus
from reput.store.kernels import hot, hot_twin
from reput.store.reader import Boundary
from reput.store.verify import FindingKind
from store_fixture import START_MS, Stores
from store_subject import KINDS, Subject, batch_body, decoded, message

Open = Callable[..., Subject]

LEVELS_MS = [1000, 5000, 10_000, 30_000, *(n * 60_000 for n in range(1, 11))]
LEVELS_MS += [20 * 60_000, 30 * 60_000, 3_600_000, 7_200_000]
HOST_V6 = Host(bytes.fromhex("fd000000000000000000000000000002"), 10911)
HOST_V4 = Host(bytes([192, 0, 2, 1]), 10911)


@pytest.fixture(params=KINDS)
def open_subject(
    request: pytest.FixtureRequest, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> Open:
    """``open_subject(**settings)``: a store of each kind in turn."""
    if request.param == "twin":
        for name in ("append", "pull", "dispatch"):
            monkeypatch.setattr(hot, name, getattr(hot_twin, name))
    return functools.partial(Subject, request.param, stores)


@pytest.fixture
def subject(open_subject: Open) -> Subject:
    """A store of each kind in turn, with the settings of ``store_fixture``."""
    return open_subject()


def status_of(subject: Subject, *args: Any, **fields: Any) -> PutStatus:
    """What becomes of a put that may be refused."""
    result = subject.store.put(message(*args, **fields))
    assert bool(result.reason) == (not result.status.is_stored), "what is refused says why"
    return result.status


def property_bytes(size: int, letter: str = "v") -> bytes:
    """Properties that take this many bytes."""
    letters = size - len(props.encode({"name": "v"})) + 1
    return f"name\x01{letter * letters}\x02".encode()[:size]


# --- putting: what is stored ------------------------------------------------------------------


def test_every_field_of_a_message_is_stored(subject: Subject) -> None:
    given = message(
        "TopicA",
        b"body",
        3,
        tags="TagA",
        keys="k1 k2",
        unique_key="U1",
        born_timestamp=START_MS - 17,
        born_host=Host(bytes([10, 0, 0, 1]), 1234),
        store_host=HOST_V4,
        flag=42,
        sys_flag=flags.COMPRESSED | flags.MULTI_TAGS,
        reconsume_times=2,
        prepared_transaction_offset=77,
    )

    result = subject.store.put(given, START_MS + 5)
    subject.settle()

    (one,) = decoded(subject.store.get("TopicA", 3, 0))
    assert result.status is PutStatus.PUT_OK
    assert (one.topic, one.body, one.queue_id, one.queue_offset) == ("TopicA", b"body", 3, 0)
    assert (one.physical_offset, one.store_size) == (result.physical_offset, result.size)
    assert (one.born_timestamp, one.born_host) == (START_MS - 17, Host(bytes([10, 0, 0, 1]), 1234))
    assert (one.store_timestamp, one.store_host) == (START_MS + 5, HOST_V4)
    assert (one.flag, one.sys_flag) == (42, flags.COMPRESSED | flags.MULTI_TAGS)
    assert (one.reconsume_times, one.prepared_transaction_offset) == (2, 77)
    assert one.property_bytes == given.property_bytes
    assert result.store_timestamp == START_MS + 5


def test_the_clock_gives_the_store_time(subject: Subject) -> None:
    subject.clock.advance(123)

    result = subject.put()

    assert result.store_timestamp == START_MS + 123
    assert subject.store.store_time("TopicA", 0, 0) == START_MS + 123


def test_messages_follow_each_other_in_log_and_queue(subject: Subject) -> None:
    results = [subject.put(queue_id=i % 2) for i in range(6)]

    assert [one.queue_offset for one in results] == [0, 0, 1, 1, 2, 2]
    for one, following in itertools.pairwise(results):
        assert following.physical_offset == one.end_offset
    # 91 bytes and body and topic: a record without properties.
    assert results[0].size == 91 + len(b"hello") + len("TopicA")


def test_the_offset_id_is_made_of_host_and_place(subject: Subject) -> None:
    store_host = Host(bytes([127, 0, 0, 1]), 20911)

    assert subject.put(store_host=store_host).offset_id == "7F000001000051AF0000000000000000"


def test_put_many_gives_each_message_its_own_result(subject: Subject) -> None:
    given = [
        message(body=b"one"),
        message("x" * 128),
        message(body=b"two"),
        message(body=b"x" * (16 * 1024 + 1)),
        message("TopicB", b"three"),
    ]

    results = subject.store.put_many(given)
    subject.settle()

    assert [one.status for one in results] == [
        PutStatus.PUT_OK,
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.PUT_OK,
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.PUT_OK,
    ]
    assert [one.queue_offset for one in results if one.status.is_stored] == [0, 1, 0]
    assert subject.bodies() == [b"one", b"two"]
    assert subject.bodies("TopicB") == [b"three"]


def test_begin_put_comes_to_a_result(subject: Subject) -> None:
    pending = [subject.store.begin_put(message(body=body)) for body in (b"one", b"two")]

    subject.settle()

    assert [one.result and one.result.status for one in pending] == [PutStatus.PUT_OK] * 2
    assert [one.result and one.result.queue_offset for one in pending] == [0, 1]
    assert subject.bodies() == [b"one", b"two"]


def test_begin_put_says_at_once_what_is_refused(subject: Subject) -> None:
    pending = subject.store.begin_put(message("x" * 128))

    assert pending.result is not None
    assert pending.result.status is PutStatus.MESSAGE_ILLEGAL


def test_large_and_sparse_queue_ids(subject: Subject) -> None:
    queue_ids = (0, 7, 8, 1023, 65_537)
    for queue_id in queue_ids:
        subject.put(queue_id=queue_id, body=str(queue_id).encode())

    for queue_id in queue_ids:
        assert subject.bodies(queue_id=queue_id) == [str(queue_id).encode()]
    assert subject.store.get("TopicA", 9, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE


def test_topics_that_differ_little_are_different(subject: Subject) -> None:
    topics = ["A", "AA", "a", "Ä", "主题", "BB", "Aa", "Aa#", "%RETRY%A"]
    for topic in topics:
        subject.put(topic, topic.encode())

    assert [subject.bodies(topic) for topic in topics] == [[topic.encode()] for topic in topics]


# --- putting: what is refused, in which order -------------------------------------------------


def test_a_closed_store_refuses_before_it_looks(subject: Subject) -> None:
    subject.store.close()

    assert subject.store.refusal
    assert status_of(subject, "x" * 1000) is PutStatus.SERVICE_NOT_AVAILABLE
    batch_result = subject.store.put_batch(message(body=batch_body(message())))
    assert batch_result.status is PutStatus.SERVICE_NOT_AVAILABLE
    (many,) = subject.store.put_many([message()])
    assert many.status is PutStatus.SERVICE_NOT_AVAILABLE


def test_closing_twice_does_nothing(subject: Subject) -> None:
    with subject.store:
        subject.put()
    subject.store.close()


def test_a_slave_takes_no_puts(open_subject: Open) -> None:
    slave = open_subject(broker_role="SLAVE")

    assert "SLAVE" in slave.store.refusal
    assert status_of(slave, "x" * 1000) is PutStatus.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("x" * 127, PutStatus.PUT_OK),
        ("x" * 128, PutStatus.MESSAGE_ILLEGAL),
        ("", PutStatus.MESSAGE_ILLEGAL),
        ("%RETRY%" + "x" * 248, PutStatus.PUT_OK),
        ("%RETRY%" + "x" * 249, PutStatus.MESSAGE_ILLEGAL),
    ],
)
def test_the_length_of_a_topic_is_checked(
    subject: Subject, topic: str, expected: PutStatus
) -> None:
    assert status_of(subject, topic) is expected


@pytest.mark.parametrize(
    ("size", "letter", "expected"),
    [
        (32_767, "v", PutStatus.PUT_OK),
        (32_768, "v", PutStatus.MESSAGE_ILLEGAL),  # Java counts characters first ...
        (32_768, "é", PutStatus.PROPERTIES_SIZE_EXCEEDED),  # ... and then bytes
        (65_000, "é", PutStatus.PROPERTIES_SIZE_EXCEEDED),
    ],
)
def test_properties_that_do_not_fit_are_refused(
    open_subject: Open, size: int, letter: str, expected: PutStatus
) -> None:
    subject = open_subject(mapped_file_size_commit_log=256 * 1024)
    data = property_bytes(size // len(letter.encode()) if letter != "v" else size, "v")
    if letter != "v":
        room = size - len("name\x01\x02")
        data = f"name\x01{letter * (room // 2)}\x02".encode()
        data += b"x" * (size - len(data))

    assert len(data) == size
    assert status_of(subject, property_bytes=data) is expected


def test_properties_that_a_delay_adds_count(subject: Subject) -> None:
    data = props.append(property_bytes(32_767 - 10), b"DELAY\x011\x02")
    assert len(data) < 32_767

    assert status_of(subject, property_bytes=data) is PutStatus.PROPERTIES_SIZE_EXCEEDED


def test_the_checksum_counts(open_subject: Open) -> None:
    subject = open_subject(enabled_append_prop_crc=True, mapped_file_size_commit_log=256 * 1024)

    assert status_of(subject, property_bytes=property_bytes(32_747)) is PutStatus.PUT_OK
    refused = status_of(subject, property_bytes=property_bytes(32_748))
    assert refused is PutStatus.PROPERTIES_SIZE_EXCEEDED


def test_the_size_of_a_body_is_checked(open_subject: Open) -> None:
    subject = open_subject(max_message_size=1000)

    assert status_of(subject, body=b"x" * 1000) is PutStatus.PUT_OK
    assert status_of(subject, body=b"x" * 1001) is PutStatus.MESSAGE_ILLEGAL
    assert status_of(subject, body=b"") is PutStatus.PUT_OK


def test_a_record_that_no_log_file_holds_is_refused(open_subject: Open) -> None:
    # Java answers success and stores nothing.
    subject = open_subject(mapped_file_size_commit_log=1000, max_message_size=900)
    fixed = 91 + len("TopicA")

    assert status_of(subject, body=b"x" * (1000 - 8 - fixed)) is PutStatus.PUT_OK
    room = 1000 - 8 - fixed - len("name\x01vv\x02")
    assert status_of(subject, body=b"x" * room, properties={"name": "vv"}) is PutStatus.PUT_OK
    refused = status_of(subject, body=b"x" * room, properties={"name": "vvv"})
    assert refused is PutStatus.MESSAGE_ILLEGAL


def test_checks_are_made_in_the_brokers_order(subject: Subject) -> None:
    long_topic, long_body = "x" * 128, b"x" * (16 * 1024 + 1)
    long_text, long_bytes = b"n\x01" + b"v" * 32_770, b"n\x01" + "é".encode() * 16_384

    def why(*args: Any, **fields: Any) -> str:
        return subject.store.put(message(*args, **fields)).reason

    assert "topic" in why(long_topic, long_body, property_bytes=long_text)
    assert "propert" in why(body=long_body, property_bytes=long_text)
    assert "propert" in why(body=long_body, property_bytes=long_bytes)
    assert "body" in why(body=long_body, queue_id=-1)
    assert "queue" in why(queue_id=-1)


def test_a_refused_message_leaves_no_trace(subject: Subject) -> None:
    status_of(subject, "TopicB", body=b"x" * (16 * 1024 + 1))
    subject.settle()

    assert subject.store.max_physical_offset == 0
    assert subject.store.get("TopicB", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert subject.put("TopicB").queue_offset == 0


# --- properties -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", "\x02"])
def test_properties_stay_as_they_came(subject: Subject, end: str) -> None:
    data = f"KEYS\x01k1\x02TAGS\x01TagA{end}".encode()

    subject.put(property_bytes=data)

    (one,) = decoded(subject.store.get("TopicA", 0, 0))
    assert one.property_bytes == data
    assert (one.tags, one.keys) == ("TagA", ["k1"])
    by_tag = subject.store.get("TopicA", 0, 0, tags_codes=[java.string_hash("TagA")])
    assert by_tag.message_count == 1


def test_what_is_added_does_not_damage_the_last_property(open_subject: Open) -> None:
    subject = open_subject(enabled_append_prop_crc=True)

    subject.put(property_bytes=b"KEYS\x01k1\x02TAGS\x01TagA")

    (one,) = decoded(subject.store.get("TopicA", 0, 0))
    assert one.tags == "TagA"
    assert list(one.properties) == ["KEYS", "TAGS", "__CRC32#"]


def test_a_value_with_a_separator_is_kept(subject: Subject) -> None:
    subject.put(property_bytes=b"a\x01x\x01y\x02TAGS\x01TagA\x02")

    (one,) = decoded(subject.store.get("TopicA", 0, 0))
    assert one.properties == {"a": "x\x01y", "TAGS": "TagA"}


def test_a_value_with_a_separator_cannot_be_written_anew(subject: Subject) -> None:
    data = b"a\x01x\x01y\x02DELAY\x011\x02"

    assert status_of(subject, property_bytes=data) is PutStatus.MESSAGE_ILLEGAL


def test_the_record_checksum_is_written_when_enabled(open_subject: Open) -> None:
    subject = open_subject(enabled_append_prop_crc=True)
    plain = message(tags="TagA", body=b"hello")

    subject.put(tags="TagA", body=b"hello")
    subject.put(body=b"bare")

    first, second = subject.store.get("TopicA", 0, 0).records
    one = record.decode(first)  # compares the checksum
    assert one.property_bytes.startswith(plain.property_bytes)
    assert len(one.property_bytes) == len(plain.property_bytes) + 20
    # Made by the codec alone, from the record without its checksum.
    size = len(first) - 20
    bare = bytearray(first[:size])
    struct.pack_into(">i", bare, 0, size)
    record.PROPERTIES_LENGTH.pack_into(
        bare, size - len(plain.property_bytes) - 2, len(plain.property_bytes)
    )
    assert record.append_crc_property(bytes(bare)) == first
    assert list(record.decode(second).properties) == ["__CRC32#"]


def test_no_checksum_unless_enabled(subject: Subject) -> None:
    subject.put(tags="TagA")

    (one,) = decoded(subject.store.get("TopicA", 0, 0))
    assert list(one.properties) == ["TAGS"]


# --- hosts, long topics -----------------------------------------------------------------------


@pytest.mark.parametrize("store_host", [HOST_V4, HOST_V6])
@pytest.mark.parametrize("born_host", [HOST_V4, HOST_V6])
def test_hosts_of_both_families(subject: Subject, born_host: Host, store_host: Host) -> None:
    result = subject.put(
        body=b"six", tags="TagA", keys="k1", born_host=born_host, store_host=store_host
    )
    subject.put(body=b"four")

    (one, _) = decoded(subject.store.get("TopicA", 0, 0))
    assert (one.born_host, one.store_host, one.body) == (born_host, store_host, b"six")
    assert bool(one.sys_flag & flags.BORN_HOST_V6) == born_host.is_v6
    assert bool(one.sys_flag & flags.STORE_HOST_V6) == store_host.is_v6
    assert one.store_timestamp == START_MS == subject.store.store_time("TopicA", 0, 0)
    assert len(subject.store.query("TopicA", "k1").records) == 1
    assert len(result.offset_id) == (56 if store_host.is_v6 else 32)
    assert subject.bodies() == [b"six", b"four"]


def test_the_flag_follows_the_host(subject: Subject) -> None:
    subject.put(sys_flag=flags.BORN_HOST_V6 | flags.STORE_HOST_V6)

    (one,) = decoded(subject.store.get("TopicA", 0, 0))
    assert not one.sys_flag & (flags.BORN_HOST_V6 | flags.STORE_HOST_V6)


def test_long_retry_topics_take_the_longer_head(subject: Subject) -> None:
    topic = "%RETRY%" + "g" * 248

    subject.put(topic, b"long", tags="TagA", keys="k1", born_host=HOST_V6)
    subject.put(topic, b"longer")

    first, second = decoded(subject.store.get(topic, 0, 0))
    assert (first.version, first.topic, first.body) == (2, topic, b"long")
    assert second.queue_offset == 1
    assert len(subject.store.query(topic, "k1").records) == 1


# --- batches ----------------------------------------------------------------------------------


def test_the_messages_of_a_batch_follow_each_other(subject: Subject) -> None:
    subject.put(body=b"before")
    inner = [message(body=f"m{i}".encode(), keys=f"k{i}", flag=i) for i in range(3)]
    outer = message(body=batch_body(*inner), sys_flag=0, born_host=HOST_V6, store_host=HOST_V4)

    result = subject.store.put_batch(outer)
    subject.settle()

    assert result.status is PutStatus.PUT_OK
    assert (result.queue_offset, result.message_count) == (1, 3)
    found = decoded(subject.store.get("TopicA", 0, 1))
    assert [one.body for one in found] == [b"m0", b"m1", b"m2"]
    assert [one.queue_offset for one in found] == [1, 2, 3]
    assert [one.flag for one in found] == [0, 1, 2]
    assert {one.born_host for one in found} == {HOST_V6}
    assert tuple(one.physical_offset for one in found) == result.physical_offsets
    assert sum(one.store_size for one in found) == result.size
    assert len(result.offset_id.split(",")) == 3
    assert len(subject.store.query("TopicA", "k1").records) == 1


def test_messages_of_a_batch_keep_their_own_unique_keys(subject: Subject) -> None:
    # 4.9 to 5.3.3 append the batch's properties, its unique key among them.
    inner = [message(unique_key=f"U{i}", properties={"n": str(i)}) for i in range(3)]
    outer = message(body=batch_body(*inner), unique_key="BATCH", properties={"WAIT": "true"})

    subject.store.put_batch(outer)
    subject.settle()

    found = decoded(subject.store.get("TopicA", 0, 0))
    assert [one.unique_key for one in found] == ["U0", "U1", "U2"]
    assert [one.property_bytes for one in found] == [one.property_bytes for one in inner]
    assert len(subject.store.query("TopicA", "U1").records) == 1
    assert not subject.store.query("TopicA", "BATCH").records


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x" * 10,
        batch_body(message())[:-1],
        batch_body(message(), message())[:-3],
        batch_body(message(body=b"x" * 17_000)),
    ],
)
def test_a_batch_that_is_none_is_refused(subject: Subject, body: bytes) -> None:
    result = subject.store.put_batch(message(body=body))

    assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert result.reason
    assert subject.store.max_physical_offset == 0


def test_of_a_batch_all_messages_are_stored_or_none(open_subject: Open) -> None:
    subject = open_subject(mapped_file_size_commit_log=2000, max_message_size=1800)
    heavy = b"x" * 800
    too_long = batch.encode(
        [batch.InnerMessage(0, b"fits", b""), batch.InnerMessage(0, b"x", b"n\x01" + b"v" * 1750)]
    )

    assert subject.store.put_batch(message(body=too_long)).status is PutStatus.MESSAGE_ILLEGAL
    assert subject.store.max_physical_offset == 0
    results = [
        subject.store.put_batch(message(body=batch_body(message(body=heavy), message())))
        for _ in range(3)
    ]
    subject.settle()

    assert [one.queue_offset for one in results] == [0, 2, 4]
    assert subject.bodies() == [heavy, b"hello"] * 3


# --- delayed messages, transactions -----------------------------------------------------------


@pytest.mark.parametrize(("level", "stored_level"), [(1, 1), (3, 3), (18, 18), (19, 18), (999, 18)])
def test_delayed_messages_wait_in_their_levels_queue(
    subject: Subject, level: int, stored_level: int
) -> None:
    result = subject.put("TopicA", b"later", 5, tags="TagA", properties={"DELAY": str(level)})

    assert result.queue_offset == 0
    assert subject.store.get("TopicA", 5, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    # The tags code of the unit is the time when the message is due.
    due_ms = START_MS + LEVELS_MS[stored_level - 1]
    found = subject.store.get(names.SCHEDULE_TOPIC, stored_level - 1, 0, tags_codes=[due_ms])
    (one,) = decoded(found)
    assert one.body == b"later"
    assert one.properties == {
        "TAGS": "TagA",
        "DELAY": str(stored_level),
        "REAL_TOPIC": "TopicA",
        "REAL_QID": "5",
    }


@pytest.mark.parametrize("level", ["0", "-1", "soon", "1.5"])
def test_what_is_no_level_delays_nothing(subject: Subject, level: str) -> None:
    subject.put(body=b"now", properties={"DELAY": level})

    assert subject.bodies() == [b"now"]


def test_levels_are_configured(open_subject: Open) -> None:
    subject = open_subject(message_delay_level="2s 1d")

    subject.put(properties={"DELAY": "7"})

    due_ms = START_MS + 86_400_000
    found = subject.store.get(names.SCHEDULE_TOPIC, 1, 0, tags_codes=[due_ms])
    assert found.message_count == 1


@pytest.mark.parametrize(
    ("kind", "is_queued", "is_indexed", "is_delayed"),
    [
        (flags.TRANSACTION_NONE, True, True, True),
        (flags.TRANSACTION_PREPARED, False, True, False),
        (flags.TRANSACTION_COMMIT, True, True, True),
        (flags.TRANSACTION_ROLLBACK, False, False, False),
    ],
)
def test_transactions(
    subject: Subject, kind: int, is_queued: bool, is_indexed: bool, is_delayed: bool
) -> None:
    first = subject.put(body=b"first", sys_flag=kind, keys="k1")
    second = subject.put(body=b"second", sys_flag=kind)
    plain = subject.put(body=b"plain")

    assert [first.queue_offset, second.queue_offset] == ([0, 1] if is_queued else [0, 0])
    assert plain.queue_offset == (2 if is_queued else 0)
    assert subject.bodies() == ([b"first", b"second"] if is_queued else []) + [b"plain"]
    assert len(subject.store.query("TopicA", "k1").records) == is_indexed
    data = subject.store.record_at(second.physical_offset)
    assert data is not None
    assert record.decode(data).body == b"second"

    subject.put("TopicB", sys_flag=kind, properties={"DELAY": "2"})
    assert subject.store.max_offset(names.SCHEDULE_TOPIC, 1) == is_delayed


# --- light queues -----------------------------------------------------------------------------


def test_messages_go_to_the_light_queues_they_name(open_subject: Open) -> None:
    subject = open_subject(enable_multi_dispatch=True)
    both = {"INNER_MULTI_DISPATCH": "%LMQ%x,%LMQ%y"}
    only = {"INNER_MULTI_DISPATCH": "%LMQ%x"}

    subject.put(body=b"one", queue_id=3, properties=both, tags="TagA")
    subject.put(body=b"two", queue_id=3, properties=only)
    subject.put(body=b"three", queue_id=3)

    assert subject.bodies("%LMQ%x") == [b"one", b"two"]
    assert subject.bodies("%LMQ%y") == [b"one"]
    assert subject.bodies(queue_id=3) == [b"one", b"two", b"three"]
    first, second, _ = decoded(subject.store.get("TopicA", 3, 0))
    assert first.properties["INNER_MULTI_QUEUE_OFFSET"] == "0,0"
    assert second.properties["INNER_MULTI_QUEUE_OFFSET"] == "1"
    code = java.string_hash("TagA")
    assert subject.store.get("%LMQ%x", 0, 0, tags_codes=[code]).message_count == 1


def test_messages_put_together_follow_each_other_in_light_queues(open_subject: Open) -> None:
    subject = open_subject(enable_multi_dispatch=True)
    given = [
        message(body=f"m{i}".encode(), properties={"INNER_MULTI_DISPATCH": "%LMQ%x"})
        for i in range(6)
    ]

    subject.store.put_many([given[0], message(body=b"between"), given[1]])
    for one in given[2:4]:
        subject.store.begin_put(one)
    subject.store.put_batch(message(body=batch_body(*given[4:])))
    subject.settle()

    # Those of a batch go to no light queue, as in Java.
    assert subject.bodies("%LMQ%x") == [b"m0", b"m1", b"m2", b"m3"]
    assert subject.store.max_offset("TopicA", 0) == 7


@pytest.mark.parametrize(
    ("topic", "delay"), [("%RETRY%group", ""), ("TopicA", "3"), ("rmq_sys_wheel_timer", "")]
)
def test_retried_delayed_and_system_messages_go_to_no_light_queue(
    open_subject: Open, topic: str, delay: str
) -> None:
    subject = open_subject(enable_multi_dispatch=True)

    subject.put(topic, properties={"INNER_MULTI_DISPATCH": "%LMQ%x", "DELAY": delay})

    assert subject.store.get("%LMQ%x", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE


def test_light_queues_are_off_by_default(subject: Subject) -> None:
    subject.put(properties={"INNER_MULTI_DISPATCH": "%LMQ%x"})

    assert subject.store.get("%LMQ%x", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE


def test_topics_may_be_limited_to_less_than_usual(open_subject: Open) -> None:
    subject = open_subject(max_topic_length=10)

    assert status_of(subject, "t" * 10) is PutStatus.PUT_OK
    assert status_of(subject, "t" * 11) is PutStatus.MESSAGE_ILLEGAL


def test_a_prepared_message_takes_no_offset_of_a_light_queue(open_subject: Open) -> None:
    subject = open_subject(enable_multi_dispatch=True)
    light = {"INNER_MULTI_DISPATCH": "%LMQ%x"}
    subject.put(properties=light, sys_flag=flags.TRANSACTION_PREPARED)
    last = subject.put(properties=light)

    assert subject.store.max_offset("%LMQ%x", 0) == 1
    (found,) = subject.store.get("%LMQ%x", 0, 0).records
    assert record.decode(found).physical_offset == last.physical_offset


def test_light_queues_are_counted(open_subject: Open) -> None:
    subject = open_subject(enable_multi_dispatch=True, max_lmq_consume_queue_num=1)
    subject.put(properties={"INNER_MULTI_DISPATCH": "%LMQ%x"})

    refused = status_of(subject, properties={"INNER_MULTI_DISPATCH": "%LMQ%y"})

    assert refused is PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
    assert subject.put(properties={"INNER_MULTI_DISPATCH": "%LMQ%x"}).queue_offset == 1


# --- getting: statuses and next offsets -------------------------------------------------------


def test_reading_creates_nothing(subject: Subject) -> None:
    store = subject.store
    subject.put("Other")

    for _ in range(2):
        result = store.get("TopicA", 0, 7)
        assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        assert (result.min_offset, result.max_offset) == (0, 0)
    assert (store.min_offset("TopicA", 0), store.max_offset("TopicA", 0)) == (0, 0)
    assert store.offset_by_time("TopicA", 0, START_MS) == 0
    assert store.store_time("TopicA", 0, 0) is None
    assert store.earliest_message_time("TopicA", 0) is None
    assert store.lag_bytes("TopicA", 0, 0) == 0
    assert store.query("TopicA", "k1").records == []
    assert store.get("Other", 1, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert store.delete_topic("TopicA") == 0


def test_a_queue_without_messages(subject: Subject) -> None:
    subject.put(sys_flag=flags.TRANSACTION_PREPARED)

    result = subject.store.get("TopicA", 0, 5)

    assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)


@pytest.mark.parametrize(
    ("queue_offset", "status", "next_offset"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 3),
        (2, GetStatus.FOUND, 3),
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),  # D17: 4.5 goes back to 0
        (1 << 60, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
    ],
)
def test_statuses_and_next_offsets(
    subject: Subject, queue_offset: int, status: GetStatus, next_offset: int
) -> None:
    for _ in range(3):
        subject.put()

    result = subject.store.get("TopicA", 0, queue_offset)

    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (0, 3)
    assert (
        result.message_count
        == len(result.records)
        == max(0, next_offset - queue_offset) * (status is GetStatus.FOUND)
    )


def test_messages_that_have_expired(open_subject: Open) -> None:
    subject = open_subject(mapped_file_size_commit_log=4096, max_message_size=2000)
    results = [subject.put(body=bytes([i]) * 500, keys=f"k{i}") for i in range(20)]
    gone = subject.put("Gone", b"x" * 100)
    later = [subject.put(body=bytes([i]) * 500) for i in range(20, 30)]

    log_min = subject.expire(later[4].physical_offset)

    every = results + later
    low = next(i for i, one in enumerate(every) if one.physical_offset >= log_min)
    assert log_min > gone.physical_offset
    assert subject.store.min_offset("TopicA", 0) == low
    result = subject.store.get("TopicA", 0, low - 1)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
    assert subject.bodies() == [bytes([i]) * 500 for i in range(low, 30)]
    assert subject.store.record_at(every[low].physical_offset) is not None
    assert subject.store.record_at(every[low - 1].physical_offset) is None
    assert subject.store.query("TopicA", "k0").records == []
    assert subject.store.store_time("TopicA", 0, low - 1) is None
    # A queue all of whose messages are gone begins where it ends, and goes on there.
    assert (subject.store.min_offset("Gone", 0), subject.store.max_offset("Gone", 0)) == (1, 1)
    assert subject.store.get("Gone", 0, 0).next_offset == 1
    assert subject.store.earliest_message_time("Gone", 0) is None
    assert subject.put("Gone").queue_offset == 1


def test_a_slave_keeps_offsets_that_it_would_correct(open_subject: Open, stores: Stores) -> None:
    master = open_subject()
    if master.kind == "memory":
        pytest.skip("a slave of what is in memory has nothing")
    master.put()
    master.store.close()
    stores.allow(FindingKind.CHECKPOINT)

    for offset_check, overflow, unknown in ((False, 9, 7), (True, 1, 0)):
        slave = open_subject(broker_role="SLAVE", offset_check_in_slave=offset_check)
        assert slave.store.get("TopicA", 0, 9).next_offset == overflow
        assert slave.store.get("TopicA", 0, 9).status is GetStatus.OFFSET_OVERFLOW_BADLY
        assert slave.store.get("TopicX", 0, 7).next_offset == unknown
        slave.store.close()


# --- getting: how much ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "asked", "size", "expected"),
    [
        ({}, 5, 100, 5),
        ({}, 32, 100, 32),
        ({}, 1000, 100, 32),
        ({"max_transfer_count_on_message_in_memory": 7}, 32, 100, 7),
        ({"max_transfer_bytes_on_message_in_memory": 250}, 32, 100, 2),
        ({"max_transfer_bytes_on_message_in_memory": 300}, 32, 100, 3),
        ({"max_transfer_bytes_on_message_in_memory": 1}, 32, 3000, 1),  # the first always passes
        ({"access_message_in_memory_max_ratio": 0}, 32, 100, 8),
        ({"access_message_in_memory_max_ratio": 0}, 5, 100, 5),
        (
            {
                "access_message_in_memory_max_ratio": 0,
                "max_transfer_bytes_on_message_in_disk": 450,
            },
            32,
            100,
            4,
        ),
        (
            {"access_message_in_memory_max_ratio": 0, "max_transfer_bytes_on_message_in_disk": 1},
            32,
            3000,
            1,
        ),
        (
            {
                "access_message_in_memory_max_ratio": 0,
                "max_transfer_count_on_message_in_disk": 3,
            },
            32,
            100,
            3,
        ),
    ],
)
def test_a_get_has_limits(
    open_subject: Open, settings: dict[str, int], asked: int, size: int, expected: int
) -> None:
    subject = open_subject(
        mapped_file_size_commit_log=256 * 1024, mapped_file_size_consume_queue=20 * 100, **settings
    )
    subject.store.put_many([message(body=b"x" * (size - 97)) for _ in range(40)])
    subject.settle()

    result = subject.store.get("TopicA", 0, 0, asked)

    assert result.message_count == expected
    assert (result.status, result.next_offset) == (GetStatus.FOUND, expected)
    assert len(result.data) == expected * size
    assert result.suggests_slave == ("access_message_in_memory_max_ratio" in settings)


def test_a_message_larger_than_any_limit_is_returned(open_subject: Open) -> None:
    subject = open_subject(
        mapped_file_size_commit_log=2 * 1024 * 1024, max_message_size=1024 * 1024
    )
    body = bytes(range(256)) * 4096

    subject.put(body=body)
    subject.put(body=b"small")

    result = subject.store.get("TopicA", 0, 0)
    assert [one.body for one in decoded(result)] == [body]
    assert result.next_offset == 1
    assert subject.bodies() == [body, b"small"]


# --- getting: filters -------------------------------------------------------------------------


class EveryThird:
    """Wants every third body, and says of each unit whether it was asked."""

    looks_at_tags = True

    def __init__(self) -> None:
        self.codes: list[int] = []

    def takes_unit(self, tags_code: int, *_: Any) -> bool:
        self.codes.append(tags_code)
        return tags_code != java.string_hash("Never")

    def takes_record(self, data: memoryview) -> bool:
        return int(record.decode(data).body) % 3 == 0


class EveryThirdRecord(EveryThird):
    """The same, but does not want to see units."""

    looks_at_tags = False


FILTERS = pytest.mark.parametrize("wanted", [EveryThird, EveryThirdRecord])


def test_tags_are_filtered_by_their_codes(subject: Subject) -> None:
    for i in range(10):
        subject.put(body=str(i).encode(), tags=("TagA", "TagB", "")[i % 3])
    code_a, code_b = java.string_hash("TagA"), java.string_hash("TagB")

    result = subject.store.get("TopicA", 0, 0, tags_codes=[code_a])
    assert [one.body for one in decoded(result)] == [b"0", b"3", b"6", b"9"]
    assert result.next_offset == 10
    result = subject.store.get("TopicA", 0, 0, 3, tags_codes=[code_a, code_b])
    assert [one.body for one in decoded(result)] == [b"0", b"1", b"3"]
    result = subject.store.get("TopicA", 0, 0, tags_codes=[0])
    assert [one.body for one in decoded(result)] == [b"2", b"5", b"8"]


def test_no_message_is_wanted(subject: Subject) -> None:
    for _ in range(5):
        subject.put(tags="TagA")

    result = subject.store.get("TopicA", 0, 1, tags_codes=[java.string_hash("TagB")])

    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 5)
    assert (result.message_count, result.data) == (0, b"")


def test_the_whole_tags_value_is_one_code(subject: Subject) -> None:
    subject.put(tags="TagA||TagB")

    assert not subject.store.get(
        "TopicA", 0, 0, tags_codes=[java.string_hash("TagA")]
    ).message_count
    assert subject.store.get(
        "TopicA", 0, 0, tags_codes=[cq_unit.tags_code("TagA||TagB")]
    ).message_count


def test_a_filter_decides_by_unit_and_by_record(subject: Subject) -> None:
    tags = ["TagA", "Never", ""]
    for i in range(9):
        subject.put(body=str(i).encode(), tags=tags[i // 3])
    wanted = EveryThird()

    result = subject.store.get("TopicA", 0, 0, message_filter=wanted)

    assert [one.body for one in decoded(result)] == [b"0", b"6"]
    assert (result.status, result.next_offset) == (GetStatus.FOUND, 9)
    expected = [java.string_hash("TagA")] * 3 + [java.string_hash("Never")] * 3 + [0] * 3
    assert wanted.codes == expected


@FILTERS
def test_a_filtered_get_has_the_same_limits(open_subject: Open, wanted: type[EveryThird]) -> None:
    subject = open_subject(max_transfer_bytes_on_message_in_memory=250)
    for i in range(10):
        subject.put(body=f"{i:03d}".encode())  # 100 bytes

    result = subject.store.get("TopicA", 0, 0, message_filter=wanted())
    assert [one.body for one in decoded(result)] == [b"000", b"003"]
    # The next unit that does not fit any more ends it, wanted or not.
    assert result.next_offset == 4
    result = subject.store.get("TopicA", 0, 1, 1, message_filter=wanted())
    assert [one.body for one in decoded(result)] == [b"003"]
    assert result.next_offset == 4


@FILTERS
def test_a_filter_that_wants_nothing_gets_on(subject: Subject, wanted: type[EveryThird]) -> None:
    for i in range(7):
        subject.put(body=str(3 * i + 1).encode())

    result = subject.store.get("TopicA", 0, 2, message_filter=wanted())

    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 7)


def test_one_get_looks_at_so_many_units(open_subject: Open) -> None:
    subject = open_subject(
        max_filter_message_size=20 * 50, mapped_file_size_consume_queue=20 * 1000
    )
    subject.store.put_many([message(tags="TagA") for _ in range(120)])
    subject.settle()
    code = java.string_hash("TagB")

    result = subject.store.get("TopicA", 0, 0, tags_codes=[code])
    assert result.status is GetStatus.NO_MATCHED_MESSAGE
    # A get may end earlier, where a file or a buffer does, but it always gets on.
    assert 0 < result.next_offset <= 50
    result = subject.store.get("TopicA", 0, 0, 100, tags_codes=[code])
    assert 0 < result.next_offset <= 100


# --- offsets by time --------------------------------------------------------------------------

TIMES = [10, 20, 20, 20, 30, 50, 50]
"""Store times of seven messages, after START_MS."""


@pytest.fixture
def timed(subject: Subject) -> Subject:
    """A store with messages of some equal times."""
    for at in TIMES:
        subject.store.put(message(), START_MS + at)
    subject.settle()
    return subject


@pytest.mark.parametrize(
    ("at", "lower", "upper"),
    [
        (-(10**13), 0, 0),
        (9, 0, 0),
        (10, 0, 0),
        (11, 1, 0),
        (20, 1, 3),
        (25, 4, 3),
        (30, 4, 4),
        (49, 5, 4),
        (50, 5, 6),
        (51, 7, 6),
        (10**15, 7, 6),
    ],
)
def test_offset_by_time(timed: Subject, at: int, lower: int, upper: int) -> None:
    assert timed.store.offset_by_time("TopicA", 0, START_MS + at) == lower
    assert timed.store.offset_by_time("TopicA", 0, START_MS + at, Boundary.UPPER) == upper


def test_offset_by_time_stays_within_the_queue(open_subject: Open) -> None:
    subject = open_subject(mapped_file_size_commit_log=2048, max_message_size=1000)
    results = [subject.store.put(message(body=b"x" * 500), START_MS + i // 2) for i in range(12)]
    subject.settle()
    log_min = subject.expire(results[7].physical_offset)
    low = next(i for i, one in enumerate(results) if one.physical_offset >= log_min)

    assert low > 0
    for boundary, end in ((Boundary.LOWER, 12), (Boundary.UPPER, 11)):
        assert subject.store.offset_by_time("TopicA", 0, START_MS - 1, boundary) == low
        assert subject.store.offset_by_time("TopicA", 0, START_MS + 99, boundary) == end


def test_a_clock_that_is_set_back_a_little_is_waited_for(subject: Subject) -> None:
    subject.clock.advance(5000)
    subject.put(keys="k1")
    subject.clock.set(START_MS)

    result = subject.put(keys="k2")

    assert result.store_timestamp == START_MS + 5000
    assert subject.store.store_time("TopicA", 0, 1) == START_MS + 5000
    assert len(subject.store.query("TopicA", "k2", 32, START_MS + 5000).records) == 1


def test_a_clock_that_is_set_back_far_is_believed(subject: Subject, stores: Stores) -> None:
    stores.allow(FindingKind.CLOCK_BACK)
    subject.put(body=b"before", keys="k")
    subject.clock.set(START_MS - 3_600_000)

    result = subject.put(body=b"after", keys="k")

    assert result.store_timestamp == START_MS - 3_600_000
    assert subject.bodies() == [b"before", b"after"]
    found = subject.store.query("TopicA", "k").records
    assert [record.decode(one).body for one in found] == [b"before", b"after"]
    assert 0 <= subject.store.offset_by_time("TopicA", 0, START_MS) <= 2


def test_the_earliest_message_and_its_time(subject: Subject) -> None:
    for at in (5, 6):
        subject.store.put(message(), START_MS + at)
    subject.settle()

    assert subject.store.earliest_message_time("TopicA", 0) == START_MS + 5
    assert subject.store.store_time("TopicA", 0, 1) == START_MS + 6
    assert subject.store.store_time("TopicA", 0, 2) is None
    assert subject.store.store_time("TopicA", 0, -1) is None


def test_lag_is_counted_from_the_next_message_to_the_end_of_the_log(subject: Subject) -> None:
    first = subject.put()
    subject.put("Other", b"x" * 1000)
    last = subject.put()

    assert subject.store.lag_bytes("TopicA", 0, 0) == last.end_offset - first.physical_offset
    assert subject.store.lag_bytes("TopicA", 0, -5) == last.end_offset - first.physical_offset
    assert subject.store.lag_bytes("TopicA", 0, 1) == last.size
    assert subject.store.lag_bytes("TopicA", 0, 2) == 0
    assert subject.store.lag_bytes("TopicA", 0, 99) == 0
    assert subject.store.max_physical_offset == last.end_offset
    assert subject.store.min_physical_offset == 0


# --- by place and by key ----------------------------------------------------------------------


def test_records_by_place(subject: Subject) -> None:
    first, second = subject.put(body=b"one"), subject.put(body=b"two")
    store = subject.store

    assert store.record_at(first.physical_offset) == bytes(store.get("TopicA", 0, 0).records[0])
    data = store.record_at(second.physical_offset)
    assert data is not None
    assert record.decode(data).body == b"two"
    for elsewhere in (1, second.physical_offset - 1, second.end_offset, 1 << 50, -1):
        assert store.record_at(elsewhere) is None


def test_messages_by_key(subject: Subject) -> None:
    subject.put(body=b"one", keys="k1  k2", unique_key="U1")
    subject.put(body=b"two", keys="k2 k2", unique_key="U2")
    subject.put("TopicB", b"elsewhere", keys="k1 k2")

    def query(key: str, topic: str = "TopicA") -> list[bytes]:
        result = subject.store.query(topic, key)
        assert not result.is_truncated
        return [record.decode(one).body for one in result.records]

    assert query("k1") == [b"one"]
    assert query("k2") == [b"one", b"two"]
    assert query("U2") == [b"two"]
    assert query("k2", "TopicB") == [b"elsewhere"]
    assert query("k1  k2") == []
    assert query("k3") == []
    assert query("") == []
    assert query("k1", "TopicC") == []


def test_keys_of_equal_hash_are_told_apart(subject: Subject) -> None:
    keys = ["AaAa", "AaBB", "BBAa", "BBBB"]
    assert len({java.string_hash(f"TopicA#{key}") for key in keys}) == 1
    assert java.string_hash("Aa#k") == java.string_hash("BB#k")
    for key in keys:
        subject.put(body=key.encode(), keys=key)
    for topic in ("Aa", "BB"):
        subject.put(topic, topic.encode(), keys="k")

    for key in keys:
        result = subject.store.query("TopicA", key, 1)
        assert [record.decode(one).body for one in result.records] == [key.encode()]
        assert not result.is_truncated
    for topic in ("Aa", "BB"):
        (data,) = subject.store.query(topic, "k").records
        assert record.decode(data).topic == topic


def test_limits_are_clamped_and_said(open_subject: Open) -> None:
    subject = open_subject(max_msgs_num_batch=5)
    for i in range(7):
        subject.put(body=str(i).encode(), keys="k")

    def query(most: int) -> tuple[list[bytes], bool]:
        result = subject.store.query("TopicA", "k", most)
        return [record.decode(one).body for one in result.records], result.is_truncated

    # The newest, in the order of the log.
    assert query(3) == ([b"4", b"5", b"6"], True)
    assert query(5) == ([b"2", b"3", b"4", b"5", b"6"], True)
    assert query(2_000_000_000) == query(5)
    assert query(0) == ([], True)
    assert query(-1) == ([], True)


def test_what_is_whole_is_not_said_to_be_truncated(subject: Subject) -> None:
    for _ in range(3):
        subject.put(keys="k")

    assert not subject.store.query("TopicA", "k", 3).is_truncated
    assert not subject.store.query("TopicA", "absent", 0).is_truncated


@pytest.mark.parametrize("part_ms", [0, 1, 500, 999])
def test_a_query_from_the_exact_time_finds_the_message(subject: Subject, part_ms: int) -> None:
    # Entry times are whole seconds after the first entry of the file.
    subject.store.put(message(keys="first"), START_MS)
    at = START_MS + 7_000 + part_ms
    subject.store.put(message(keys="k"), at)
    subject.settle()

    def count(begin_ms: int, end_ms: int) -> int:
        return len(subject.store.query("TopicA", "k", 32, begin_ms, end_ms).records)

    assert count(at, at) == 1
    assert count(at, at + 10_000) == 1
    assert count(0, at) == 1
    assert count(at + 1, at + 10_000) == 0
    assert count(0, at - 1) == 0


def test_after_an_idle_time_the_first_entry_of_an_index_file_is_found(subject: Subject) -> None:
    for i in range(39):
        subject.store.put(message(keys=f"k{i}"), START_MS)
    late = START_MS + 8 * 3_600_000
    subject.store.put(message(keys="late"), late)
    subject.store.put(message(keys="later"), late + 1)
    subject.settle()

    for key, at in (("late", late), ("later", late + 1)):
        assert len(subject.store.query("TopicA", key, 32, at, at).records) == 1


def test_a_message_with_many_keys(subject: Subject) -> None:
    # More than an index file holds.
    keys = [f"key{i}" for i in range(100)]
    subject.put(body=b"many", keys=" ".join(keys), unique_key="U1")
    subject.put(body=b"one", keys="key99")

    for key in ("U1", "key0", "key38", "key39", "key98"):
        (data,) = subject.store.query("TopicA", key).records
        assert record.decode(data).body == b"many"
    assert len(subject.store.query("TopicA", "key99").records) == 2


def test_there_need_not_be_an_index(open_subject: Open) -> None:
    subject = open_subject(message_index_enable=False)

    subject.put(keys="k1")

    assert subject.store.query("TopicA", "k1").records == []
    assert subject.bodies() == [b"hello"]


# --- listeners --------------------------------------------------------------------------------


def test_listeners_are_told_once_of_what_can_be_read(subject: Subject) -> None:
    told: list[tuple[str, int, int, int]] = []

    def listen(topic: str, queue_id: int, first: int, behind: int) -> None:
        assert subject.store.max_offset(topic, queue_id) >= behind
        count = subject.store.get(topic, queue_id, first, behind - first).message_count
        assert count == behind - first
        told.append((topic, queue_id, first, behind))

    subject.put(body=b"before")
    subject.store.add_listener(listen)
    subject.settle()
    assert told == []

    for i in range(3):
        subject.store.begin_put(message(body=str(i).encode(), queue_id=i % 2))
    subject.store.begin_put(message("TopicB"))
    subject.settle()
    assert sorted(told) == [("TopicA", 0, 1, 3), ("TopicA", 1, 0, 1), ("TopicB", 0, 0, 1)]

    told.clear()
    subject.settle()
    assert told == []
    subject.put(queue_id=1)
    assert told == [("TopicA", 1, 1, 2)]


def test_listeners_hear_of_light_queues_but_not_of_prepared_messages(open_subject: Open) -> None:
    subject = open_subject(enable_multi_dispatch=True)
    told: list[tuple[str, int, int, int]] = []
    subject.store.add_listener(lambda *args: told.append(args))

    subject.put(sys_flag=flags.TRANSACTION_PREPARED)
    assert told == []
    subject.put(properties={"INNER_MULTI_DISPATCH": "%LMQ%x"})
    assert sorted(told) == [("%LMQ%x", 0, 0, 1), ("TopicA", 0, 0, 1)]


# --- deleting ---------------------------------------------------------------------------------


def test_a_deleted_topic_has_no_queues_and_begins_anew(subject: Subject) -> None:
    old = subject.put(body=b"old", keys="k")
    subject.put(body=b"old", queue_id=2)
    subject.put("Other", b"stays")

    assert subject.store.delete_topic("TopicA") == 2

    assert subject.store.get("TopicA", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert subject.store.record_at(old.physical_offset) is not None
    assert subject.bodies("Other") == [b"stays"]
    subject.settle()
    assert subject.store.max_offset("TopicA", 0) == 0
    assert subject.put(body=b"new").queue_offset == 0
    assert subject.bodies() == [b"new"]
    assert subject.store.delete_topic("TopicA") == 1
