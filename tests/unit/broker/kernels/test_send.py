"""How sends are stored and answered; ``request_corpus`` has others, which fall back."""

import dataclasses
import itertools
import json
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reput.broker.kernels import hot as kernels, send_rules
from reput.format import (
    command,
    headers,
    message as record,
    properties as props,
    recall_handle,
    send_reply,
)
from reput.format.command import Command, Serialization
from reput.format.message import Host, StoredMessage
from reput.format.recall_handle import RecallHandle
from reput.store.hot_state import HotState
from reput.store.kernels import control_block as state, hot

DATA = Path(__file__).parents[3] / "data" / "remoting"
NOW_MS = 1_700_000_000_456
BORN_MS = 1_700_000_000_000
CLUSTER = "CLUSTER\1DefaultCluster\2"
"""Properties that a 4.9.7 broker appends to those of the client (copied from its commit log)."""
KEY = "7F0000015EF818B4AAC2000000000000"
UNIQ_KEY = f"UNIQ_KEY\x01{KEY}"


if not kernels.is_compiled:
    pytest.skip("no compiled kernels here", allow_module_level=True)


class Store:
    """A log, a topic of four queues, and the memory that ``receive`` needs."""

    def __init__(self) -> None:
        self.hot = HotState()
        block = self.block = self.hot.block
        self.log = np.zeros(1 << 20, np.uint8)
        self.tails = [np.zeros(20 * 1000, np.uint8) for _ in range(4)]
        for queue_id, tail in enumerate(self.tails):
            _, row = self.hot.add_queue(b"TopicTest", queue_id)
            row.tail, row.tail_limit = hot.address_of(tail), 1000
        self.topic = self.hot.topic(b"TopicTest")
        self.topic.words.write_queues = 4
        self.replies = np.zeros(64_000, np.uint8)
        self.scratch = np.zeros(70_000, np.uint8)
        self.notes = np.zeros(send_rules.NOTE_BYTES * 100, np.uint8)
        self.suffix = np.frombuffer(CLUSTER.encode(), np.uint8)
        self.broker_name = np.frombuffer(b"broker-a", np.uint8)
        for name, value in {
            "log_address": hot.address_of(self.log),
            "log_start": 1 << 20,
            "log_limit": len(self.log),
            "log_size": len(self.log),
            "is_live": 1,
            "input_time": NOW_MS,
            "receive_is_on": 1,
            "replies_address": hot.address_of(self.replies),
            "replies_room": len(self.replies),
            "scratch_address": hot.address_of(self.scratch),
            "scratch_room": len(self.scratch),
            "notes": hot.address_of(self.notes),
            "notes_room": 100,
            "body_bytes_max": 50_000,
            "record_bytes_max": 60_000,
            "born_address": 0xC0000201,
            "born_port": 54321,
            "store_address": 0x7F000001,
            "store_port": 10911,
            "suffix_address": hot.address_of(self.suffix),
            "suffix_size": len(self.suffix),
            "takes_timers": 1,
            "timer_precision_ms": 1000,
            "timer_delay_ms_max": 3 * 24 * 3_600_000,
            "clock_time": NOW_MS,
            "broker_name": hot.address_of(self.broker_name),
            "broker_name_size": len(self.broker_name),
        }.items():
            setattr(block, name, value)

    def receive(self, data: bytes) -> int:
        """Pass received bytes to the kernel; return how many frames it answered."""
        self.received = np.frombuffer(data + b"?", np.uint8)
        self.block.receive_address = hot.address_of(self.received)
        self.block.receive_end = len(data)
        self.block.receive_position = 0
        return kernels.receive(self.hot.argument)

    @property
    def stop(self) -> int:
        return self.block.stop

    @property
    def reply_bytes(self) -> bytes:
        return self.replies[: self.block.replies_bytes].tobytes()

    def messages(self) -> list[StoredMessage]:
        data = self.log[: self.block.log_position].tobytes()
        stored, position = [], 0
        while position < len(data):
            verdict, size = record.classify(data, position, self.block.log_start + position)
            assert verdict is record.Verdict.MESSAGE
            stored.append(record.decode(data, position))
            position += size
        return stored

    def is_answered(self, frame: bytes) -> bool:
        """Return whether the kernel answers this frame; if not, check that it left no trace."""
        answered = self.receive(frame)
        if not answered:
            assert self.stop == state.STOP_FRAME
            assert self.block.receive_position == self.block.log_position == 0
            assert self.reply_bytes == b""
        return answered == 1


@pytest.fixture
def store() -> Store:
    return Store()


FIELDS = {
    **{"a": "group", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "3", "f": "0"},
    **{"g": str(BORN_MS), "h": "7", "i": UNIQ_KEY + "\2WAIT\1true\2TAGS\1a"},
    **{"j": "0", "k": "false", "m": "false"},
}


def send(
    changes: dict[str, str | None] | None = None,
    body: bytes = b"Hello",
    serialization: Serialization = Serialization.JSON,
    **about: Any,
) -> bytes:
    """Return a send for the fast path with some changes; a field that is None is left out."""
    fields = {
        name: text for name, text in {**FIELDS, **(changes or {})}.items() if text is not None
    }
    sent = Command(310, 77, ext_fields=fields, body=body, serialization=serialization)
    return command.encode(dataclasses.replace(sent, **about))


# --- records and replies --------------------------------------------------------


@pytest.mark.parametrize("serialization", list(Serialization))
def test_a_send_is_stored_and_answered(store: Store, serialization: Serialization) -> None:
    frames = [send(serialization=serialization, opaque=n) for n in (5, 6)]
    assert store.receive(b"".join(frames)) == 2
    assert store.stop == state.STOP_DONE
    first, second = store.messages()
    expected = StoredMessage(
        topic="TopicTest",
        body=b"Hello",
        queue_id=3,
        queue_offset=0,
        physical_offset=1 << 20,
        born_timestamp=BORN_MS,
        born_host=Host(b"\xc0\0\2\1", 54321),
        store_timestamp=NOW_MS,
        store_host=Host(b"\x7f\0\0\1", 10911),
        flag=7,
        body_crc=zlib.crc32(b"Hello") & 0x7FFFFFFF,
        store_size=first.store_size,
        property_bytes=(UNIQ_KEY + "\2TAGS\1a\2" + CLUSTER).encode(),
        properties=first.properties,
    )
    assert first == expected
    assert (second.queue_offset, second.physical_offset) == (1, (1 << 20) + first.store_size)
    ids = [f"7F00000100002A9F{message.physical_offset:016X}" for message in (first, second)]
    assert store.reply_bytes == b"".join(
        send_reply.send_reply(opaque, serialization, message_id, 3, queue_offset, KEY)
        for opaque, message_id, queue_offset in ((5, ids[0], 0), (6, ids[1], 1))
    )
    assert store.block.receive_position == len(frames[0]) + len(frames[1])
    assert store.topic.words.message_count == 2


def test_replies_are_those_of_java() -> None:
    """Binary replies are equal; Java's order of JSON keys is that of its hash table."""
    message_id = "C0000202000010910000000000000000"
    for name, opaque, key in (("send_reply", 22, ""), ("send_reply_with_key", 23, KEY)):
        binary = send_reply.send_reply(opaque, Serialization.ROCKETMQ, message_id, 3, 77, key)
        assert binary == (DATA / "4.9.7" / f"rocketmq_{name}.frame").read_bytes()
        as_json = send_reply.send_reply(opaque, Serialization.JSON, message_id, 3, 77, key)
        java = (DATA / "4.9.7" / f"json_{name}.frame").read_bytes()
        assert json.loads(as_json[8:]) == json.loads(java[8:])


def test_replies_fit_the_room_that_is_left_for_them() -> None:
    for serialization in Serialization:
        longest_key = "k" * send_rules.KEY_BYTES_MAX
        longest = send_reply.send_reply(
            2**31 - 1, serialization, "F" * 32, 2**31 - 1, 2**63 - 1, longest_key
        )
        assert len(longest) <= send_rules.REPLY_BYTES_MAX
        parts = "t" * 100, "b" * 60, "9" * 19, "k" * (send_rules.HANDLE_PARTS_MAX - 160)
        handle = recall_handle.encode(RecallHandle(*parts))
        more = send_reply.send_reply(
            2**31 - 1, serialization, "F" * 32, 2**31 - 1, 2**63 - 1, longest_key, handle
        )
        assert len(more) - len(longest) <= send_rules.HANDLE_BYTES_MAX


def test_long_names_are_those_of_the_header() -> None:
    header = headers.SendMessageHeader(
        **dict.fromkeys(("producer_group", "topic", "default_topic"), "x"),
        **dict.fromkeys(("default_topic_queue_nums", "queue_id", "sys_flag", "flag"), 1),
        **dict.fromkeys(("born_timestamp", "reconsume_times", "max_reconsume_times"), 1),
        **dict.fromkeys(("unit_mode", "batch"), False),
        properties="x",
    )
    letters = dict(zip(send_rules.FIELD_NAMES, "abcdefghijklmn", strict=True))
    named = {letters[name] for name in headers.encode(header)}
    assert named == set(headers.encode_v2(header)) == set("abcdefghijklm")
    assert all(
        headers.encode_v2(header)[letters[n]] == v for n, v in headers.encode(header).items()
    )


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_frames_of_java(store: Store, version: str) -> None:
    """Frames that Java clients sent; the expected fields come from the general frame decoder."""
    names = ["live_code_310", "json_send_v2_without_properties"]
    names += ["rocketmq_send_v2_without_properties"]
    frames = [(DATA / version / f"{name}.frame").read_bytes() for name in names]
    # The recorded requests have a negative opaque, so they fall back.
    assert not store.is_answered(frames[1])
    frames[1] = frames[1].replace(b'"opaque":-1', b'"opaque":10')
    frames[2] = frames[2][:13] + b"\0\0\0\x0a" + frames[2][17:]
    assert store.receive(b"".join(frames)) == len(frames)
    for frame, stored in zip(frames, store.messages(), strict=True):
        sent = command.decode(frame[4:])
        header = headers.decode_v2(sent.ext_fields)
        assert (stored.topic, stored.queue_id) == (header.topic, header.queue_id)
        assert (stored.body, stored.born_timestamp) == (sent.body, header.born_timestamp)
        expected = props.decode((header.properties or "").encode())
        expected.pop("WAIT", None)
        assert stored.properties == expected | {"CLUSTER": "DefaultCluster"}


def test_frames_of_java_that_fall_back(store: Store) -> None:
    """The first two have text that is not ASCII."""
    kinds = ["send_v2", "send", "send_v2_oneway", "send_v2_to_retry", "send_batch", "pull"]
    kinds += ["send_v2_with_quotes"]
    for place in itertools.product(("4.9.7", "5.5.0"), ("json", "rocketmq"), kinds):
        path = DATA / "{}/{}_{}.frame".format(*place)
        assert not store.is_answered(path.read_bytes()), path


def test_topics_and_times_that_fall_back(store: Store) -> None:
    store.topic.words.write_queues = 0
    assert not store.is_answered(send())
    store.topic.words.write_queues = 4
    store.hot.set_slow(b"TopicTest", is_slow=True)
    assert not store.is_answered(send())
    store.hot.set_slow(b"TopicTest", is_slow=False)
    for name, value in (
        ("receive_is_on", 0),
        ("has_record_crc", 1),
        ("record_bytes_max", 150),
        ("scratch_room", 200),
    ):
        before = getattr(store.block, name)
        setattr(store.block, name, value)
        assert not store.is_answered(send()), name
        setattr(store.block, name, before)
    assert store.is_answered(send())


# --- stops ----------------------------------------------------------------------


@pytest.mark.parametrize("serialization", Serialization)
def test_messages_with_many_properties_fall_back(
    store: Store, serialization: Serialization
) -> None:
    """Each name is compared with those before it: thousands of names would take seconds."""
    most = "".join(f"n{i:03}\1v\2" for i in range(send_rules.NAMES_MAX))
    assert store.is_answered(send({"i": most + "WAIT\1true"}, serialization=serialization))
    more = send({"i": most + "n\1v"}, serialization=serialization)
    assert not Store().is_answered(more)


def test_the_cost_of_many_properties_is_linear() -> None:
    """The cost is linear in the number of names, not quadratic."""

    def cpu_time(name_count: int) -> float:
        pairs = "\2".join(f"{i:04}\1v" for i in range(name_count))
        store = Store()
        frame = send({"i": pairs}, serialization=Serialization.ROCKETMQ)
        assert store.receive(frame) == 0  # warm
        begin = time.process_time()
        for _ in range(20):
            store.receive(frame)
        return time.process_time() - begin

    assert cpu_time(8000) < 32 * cpu_time(500) + 0.05


def test_a_record_without_room_is_in_the_scratch(store: Store) -> None:
    """The caller provides room, as for a put, and calls again."""
    store.block.log_limit = 300
    whole = send()
    assert store.receive(whole * 3) == 1
    assert (store.stop, store.block.receive_position) == (state.STOP_RESERVE, len(whole))
    position = store.block.input_position
    waiting = store.scratch[position : store.block.input_size].tobytes()
    assert record.decode(waiting, check_crc=False).body == b"Hello"
    store.block.log_limit = len(store.log)
    assert kernels.receive(store.hot.argument) == 2
    assert [message.queue_offset for message in store.messages()] == [0, 1, 2]


def test_a_queue_without_a_row(store: Store) -> None:
    store.topic.set_queue(3, 0)
    assert store.receive(send({"e": "0"}) + send()) == 1
    assert store.stop == state.STOP_QUEUE
    assert store.block.stop_row == store.topic.address


def test_full_replies(store: Store) -> None:
    whole = send()
    store.block.replies_room = 2 * send_rules.REPLY_BYTES_MAX
    assert store.receive(whole * 5) == 2
    assert (store.stop, store.block.receive_position) == (state.STOP_REPLIES, 2 * len(whole))


def test_more_frames_than_notes_and_scratch_hold(store: Store) -> None:
    """The calls together give the same result as one call with enough room."""
    store.block.notes_room = 3
    assert store.receive(send() * 10) == 10
    store.block.notes_room = 100
    store.block.scratch_room = 500 + send_rules.KEY_BYTES_MAX
    assert store.receive(send() * 10) == 10
    assert [message.queue_offset for message in store.messages()] == list(range(20))
