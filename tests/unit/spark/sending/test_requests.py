"""Requests of outgoing messages: batches, queues, and unique keys."""

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


def parcel(outgoing: OutgoingMessage, task: TaskIdentity = TASK) -> Parcel:
    return Packer(OPTIONS, KeyMaker(task)).parcel(outgoing)


def queue(queue_id: int, broker: str = "a") -> MessageQueue:
    return MessageQueue(topic="T", broker_name=broker, queue_id=queue_id)


# --- keys -------------------------------------------------------------------


def test_the_same_row_gets_the_same_key() -> None:
    assert parcel(message()).unique_key == parcel(message()).unique_key


def test_content_and_place_of_a_row_determine_the_key() -> None:
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


def test_keys_have_javas_format_with_the_start_of_a_month() -> None:
    """``MessageClientIDSetter.getNearlyTimeFromID`` takes bytes 10 to 13 for the time."""
    data = bytes.fromhex(parcel(message()).unique_key)
    assert (len(data), data[10:14]) == (16, bytes(4))


def test_a_given_key_is_kept() -> None:
    sent = parcel(message(uniq_key="OWN", tags="t"))
    assert (sent.unique_key, sent.is_derived) == ("OWN", False)
    assert props.decode(sent.properties) == {"UNIQ_KEY": "OWN", "TAGS": "t"}
    derived = parcel(message(tags="t"))
    assert props.decode(derived.properties) == {"UNIQ_KEY": derived.unique_key, "TAGS": "t"}


@pytest.mark.parametrize("body", [b"", bytes(OPTIONS.max_message_bytes + 1)])
def test_bodies_of_invalid_size_are_refused(body: bytes) -> None:
    with pytest.raises(BadRow, match=f"row 5, column 'body': has {len(body)} bytes; .*4194304"):
        parcel(message(5, body))


def test_properties_without_room_for_the_key_are_refused() -> None:
    with pytest.raises(BadRow, match=r"row 5, column 'properties': take .* at most 32767"):
        parcel(message(5, properties={"n": "x" * 32_760}))


# --- lanes ------------------------------------------------------------------


def lane_of(messages: list[OutgoingMessage], **given: Any) -> list[list[int]]:
    """Return the rows of each request."""
    lane = Lane(queue(0), replace(OPTIONS, **given))
    for outgoing in messages:
        lane.add(parcel(outgoing))
    lane.close()
    assert not lane.is_open
    assert all(request.is_batch is (len(request.parcels) > 1) for request in lane.ready)
    return [[packed.message.row for packed in request.parcels] for request in lane.ready]


def test_consecutive_messages_are_batched() -> None:
    assert lane_of([message(row) for row in range(5)]) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_other_modes_send_single_messages(mode: str) -> None:
    assert lane_of([message(row) for row in range(3)], mode=mode) == [[0], [1], [2]]


def test_the_size_of_requests_is_limited() -> None:
    size = parcel(message(body=bytes(100))).size_bytes
    messages = [message(row, bytes(100)) for row in range(5)]
    assert lane_of(messages, batch_bytes=2 * size) == [[0, 1], [2, 3], [4]]
    assert lane_of(messages, batch_bytes=3 * size - 1) == [[0, 1], [2, 3], [4]]
    assert lane_of(messages, batch_bytes=size - 1) == [[0], [1], [2], [3], [4]]
    assert lane_of(messages, max_message_bytes=2 * size) == [[0, 1], [2, 3], [4]]


def test_the_message_count_of_requests_is_limited() -> None:
    lanes = lane_of([message(row) for row in range(BATCH_COUNT_MAX + 1)])
    assert [len(rows) for rows in lanes] == [BATCH_COUNT_MAX, 1]


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
def test_messages_that_cannot_be_batched_are_sent_alone(given: dict[str, Any]) -> None:
    messages = [message(0), message(1), message(2, **given), message(3), message(4)]
    assert lane_of(messages) == [[0, 1], [2], [3, 4]]


def test_a_batch_has_one_born_timestamp() -> None:
    born = [1, 1, 2, None, None, 1]
    messages = [message(row, born_timestamp_ms=ms) for row, ms in enumerate(born)]
    assert lane_of(messages) == [[0, 1], [2], [3, 4], [5]]


def test_the_body_of_a_batch() -> None:
    lane = Lane(queue(0), OPTIONS)
    sent = [parcel(message(0, flag=7, tags="t")), parcel(message(1, b"y"))]
    for packed in sent:
        lane.add(packed)
    lane.close()
    (request,) = lane.ready
    inner = batch.decode(request.body())
    assert [(message.flag, message.body, message.property_bytes) for message in inner] == [
        (request.message.flag, request.message.body, request.properties) for request in sent
    ]
    assert (request.properties(), request.rows) == ("", "rows 0 to 1")


# --- queues -----------------------------------------------------------------


def test_messages_without_a_queue_are_spread_round_robin() -> None:
    dealer = QueueDealer([queue(i) for i in range(3)], partition=4)
    queue_ids = []
    for _ in range(4):
        queue_ids.append(dealer.queue(message()).queue_id)
        assert dealer.queue(message()).queue_id == queue_ids[-1]
        dealer.turn()
    assert queue_ids == [1, 2, 0, 1]


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


def test_alternative_queues_are_on_other_brokers() -> None:
    dealer = QueueDealer([queue(0), queue(1), queue(0, "b"), queue(1, "b")], 3)
    assert list(dealer.others(queue(0))) == [queue(1, "b"), queue(0, "b")]
    assert list(QueueDealer([queue(0)], 0).others(queue(0))) == []
