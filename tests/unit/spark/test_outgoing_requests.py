"""Which messages go together, where to, and under which keys."""

from dataclasses import replace
from typing import Any

import pytest

from reput.format import batch, properties as props
from reput.format.bodies import MessageQueue
from reput.spark.option_table import ASYNC, SYNC
from reput.spark.sending.options import RowOptions, SendOptions
from reput.spark.sending.requests import (
    BATCH_COUNT_MAX,
    KeyMaker,
    Lane,
    Packer,
    Parcel,
    QueueDealer,
    TaskIdentity,
)
from reput.spark.sending.rows import BadRow, OutgoingMessage

OPTIONS = SendOptions(rows=RowOptions(), name_server="a:1")
TASK = TaskIdentity("query/7", 3)


def message(row: int = 0, body: bytes = b"x", **given: Any) -> OutgoingMessage:
    return OutgoingMessage(row, given.pop("topic", "T"), body, **given)


def parcel(one: OutgoingMessage, task: TaskIdentity = TASK) -> Parcel:
    return Packer(OPTIONS, KeyMaker(task)).parcel(one)


def queue(queue_id: int, broker: str = "a") -> MessageQueue:
    return MessageQueue(topic="T", broker_name=broker, queue_id=queue_id)


# --- keys -------------------------------------------------------------------


def test_the_same_row_gets_the_same_key() -> None:
    assert parcel(message()).unique_key == parcel(message()).unique_key


def test_all_that_a_row_says_and_where_it_was_make_the_key() -> None:
    rows = [
        message(),
        message(row=1),
        message(body=b"y"),
        message(topic="U"),
        message(tags="t"),
        message(keys=("k",)),
        message(properties={"n": "1"}),
        message(delay_level=1),
    ]
    tasks = [TASK, replace(TASK, partition=4), replace(TASK, write_id="query/8")]
    keys = {parcel(row, task).unique_key for row in rows for task in tasks}
    assert len(keys) == len(rows) * len(tasks)


def test_keys_have_the_shape_of_javas_with_the_start_of_a_month() -> None:
    """``MessageClientIDSetter.getNearlyTimeFromID`` takes bytes 10 to 13 for the time."""
    data = bytes.fromhex(parcel(message()).unique_key)
    assert (len(data), data[10:14]) == (16, bytes(4))


def test_a_row_keeps_its_own_key() -> None:
    found = parcel(message(uniq_key="OWN", tags="t"))
    assert (found.unique_key, found.is_derived) == ("OWN", False)
    assert props.decode(found.properties) == {"UNIQ_KEY": "OWN", "TAGS": "t"}
    derived = parcel(message(tags="t"))
    assert props.decode(derived.properties) == {"UNIQ_KEY": derived.unique_key, "TAGS": "t"}


@pytest.mark.parametrize("body", [b"", bytes(OPTIONS.max_message_bytes + 1)])
def test_bodies_that_brokers_do_not_take(body: bytes) -> None:
    with pytest.raises(BadRow, match=f"row 5, column 'body': has {len(body)} bytes; .*4194304"):
        parcel(message(5, body))


def test_properties_need_room_for_the_key() -> None:
    with pytest.raises(BadRow, match=r"row 5, column 'properties': take .* at most 32767"):
        parcel(message(5, properties={"n": "x" * 32_760}))


# --- lanes ------------------------------------------------------------------


def lane_of(messages: list[OutgoingMessage], **given: Any) -> list[list[int]]:
    """Return the rows of each request."""
    lane = Lane(queue(0), replace(OPTIONS, **given))
    for one in messages:
        lane.add(parcel(one))
    lane.close()
    assert not lane.is_open
    assert all(one.is_batch is (len(one.parcels) > 1) for one in lane.ready)
    return [[one.message.row for one in request.parcels] for request in lane.ready]


def test_messages_go_together_in_order() -> None:
    assert lane_of([message(row) for row in range(5)]) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_other_modes_send_one_by_one(mode: str) -> None:
    assert lane_of([message(row) for row in range(3)], mode=mode) == [[0], [1], [2]]


def test_requests_are_no_larger_than_wanted() -> None:
    size = parcel(message(body=bytes(100))).size_bytes
    messages = [message(row, bytes(100)) for row in range(5)]
    assert lane_of(messages, batch_bytes=2 * size) == [[0, 1], [2, 3], [4]]
    assert lane_of(messages, batch_bytes=3 * size - 1) == [[0, 1], [2, 3], [4]]
    assert lane_of(messages, batch_bytes=size - 1) == [[0], [1], [2], [3], [4]]
    assert lane_of(messages, max_message_bytes=2 * size) == [[0, 1], [2, 3], [4]]


def test_requests_have_so_many_messages_at_most() -> None:
    found = lane_of([message(row) for row in range(BATCH_COUNT_MAX + 1)])
    assert [len(rows) for rows in found] == [BATCH_COUNT_MAX, 1]


@pytest.mark.parametrize(
    "given",
    [
        {"delay_level": 3},
        {"deliver_at_ms": 5},
        {"body": bytes(4096)},
        {"properties": {"TIMER_DELAY_MS": "5"}},
        {"properties": {"WAIT": "false"}},
        {"topic": "%RETRY%g"},
    ],
)
def test_what_no_batch_can_have_goes_by_itself(given: dict[str, Any]) -> None:
    messages = [message(0), message(1), message(2, **given), message(3), message(4)]
    assert lane_of(messages) == [[0, 1], [2], [3, 4]]


def test_times_of_birth_are_said_once_for_a_request() -> None:
    born = [1, 1, 2, None, None, 1]
    messages = [message(row, born_timestamp_ms=ms) for row, ms in enumerate(born)]
    assert lane_of(messages) == [[0, 1], [2], [3, 4], [5]]


def test_the_body_of_a_batch() -> None:
    lane = Lane(queue(0), OPTIONS)
    sent = [parcel(message(0, flag=7, tags="t")), parcel(message(1, b"y"))]
    for one in sent:
        lane.add(one)
    lane.close()
    (request,) = lane.ready
    inner = batch.decode(request.body())
    assert [(one.flag, one.body, one.property_bytes) for one in inner] == [
        (one.message.flag, one.message.body, one.properties) for one in sent
    ]
    assert (request.properties(), request.rows) == ("", "rows 0 to 1")


# --- queues -----------------------------------------------------------------


def test_messages_that_name_no_queue_take_turns() -> None:
    dealer = QueueDealer([queue(i) for i in range(3)], partition=4)
    found = []
    for _ in range(4):
        found.append(dealer.queue(message()).queue_id)
        assert dealer.queue(message()).queue_id == found[-1]
        dealer.turn()
    assert found == [1, 2, 0, 1]


@pytest.mark.parametrize(
    ("key", "count", "queue_id"),
    [
        ("TagA", 4, 2598919 % 4),
        ("abc", 5, 96354 % 5),
        # hashCode() is Integer.MIN_VALUE: -2147483648 % 3 is -2 in Java
        ("polygenelubricants", 3, 2),
    ],
)
def test_sharding_keys_are_hashed_as_in_java(key: str, count: int, queue_id: int) -> None:
    dealer = QueueDealer([queue(i) for i in range(count)], 0)
    assert dealer.queue(message(sharding_key=key)).queue_id == queue_id


def test_named_queues() -> None:
    both = QueueDealer([queue(0), queue(1), queue(0, "b")], 0)
    assert both.queue(message(queue_id=1)) == queue(1)
    with pytest.raises(BadRow, match="is 0, of brokers a, b; name one by option broker"):
        both.queue(message(queue_id=0))
    with pytest.raises(BadRow, match="is 7; topic 'T' has queues 0, 1"):
        both.queue(message(queue_id=7))


def test_queues_of_other_brokers() -> None:
    dealer = QueueDealer([queue(0), queue(1), queue(0, "b"), queue(1, "b")], 3)
    assert list(dealer.others(queue(0))) == [queue(1, "b"), queue(0, "b")]
    assert list(QueueDealer([queue(0)], 0).others(queue(0))) == []
