"""Requests have the same effect on the fast path and in the processors: see ``broker_pair``.

The requests are those of ``request_corpus``. ``fuzz.test_broker_paths`` sends random ones.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import broker_pair
from broker_pair import NOW_MS, Pair, replies_in
from cases import case
from reput.format import names, properties as props
from reput.format.codes import ResponseCode
from reput.format.command import IS_ONEWAY, LENGTH, MARK, Serialization
from reput.format.message import Host
from reput.store.config import BrokerRole
from reput.store.tables.groups import SubscriptionGroup
from reput.store.writing.incoming import IncomingMessage
from reput.store.writing.pop_reader import PopReader
from request_corpus import (
    ACK_BATCHES,
    ACKS,
    COMMIT,
    COMMITTED,
    ENDS,
    HALF,
    LOOKUPS,
    MESSAGES,
    OTHER_ACK_BATCHES,
    OTHER_ACKS,
    OTHER_ENDS,
    OTHER_LOOKUPS,
    OTHER_POPS,
    OTHER_PULLS,
    OTHER_SEND_BACKS,
    OTHER_SENDS,
    POPS,
    PULLS,
    ROLLED_BACK,
    SEND_BACKS,
    SENDS,
    TEXT,
    TIMER,
    Place,
    ack,
    ack_batch,
    end,
    half,
    heartbeat,
    members_pull,
    pop,
    pull,
    query,
    send,
    send_back,
    tagged_sends,
)

JSON = (Serialization.JSON,)
"""The only encoding of headers of some kinds of requests."""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with broker_pair.open_pair(tmp_path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make both brokers try queues and retries in the same order."""
    monkeypatch.setattr("reput.broker.pop.pops.random.random", lambda: 0.5)


def frames_of(
    table: Mapping[str, Any], make: Callable[..., bytes], kinds: Iterable[Serialization]
) -> list[tuple[str, bytes]]:
    """Return the names and frames of a table, in encodings that clients use."""
    return [
        (f"{name}, {kind.name}", make(**{"serialization": kind} | fields))
        for name, fields in table.items()
        for kind in kinds
    ]


def check_fast(pair: Pair, frames: Iterable[tuple[str, bytes]], other: bytes) -> None:
    """Check that requests take the fast path: alone, repeated, and between others."""
    for name, frame in frames:
        with case(name):
            assert pair.feed(frame) == 1
            assert pair.feed(frame * 2) == 2, "a client without an answer repeats it"
            assert pair.feed(other + frame + other) == 3


def check_slow(pair: Pair, frames: Iterable[tuple[str, bytes]], other: bytes) -> None:
    """Check that requests fall back; replies keep their order between fast ones."""
    for name, frame in frames:
        with case(name):
            assert pair.feed(frame) == 0
            assert pair.feed(other + frame + other) == 2


# --- sends ------------------------------------------------------------------------------------


def test_sends_on_the_fast_path(pair: Pair) -> None:
    # Creates the rows of all topics.
    pair.feed(send(topic="Narrow", queue_id=0) + send() + half() + send(properties=TIMER))
    check_fast(pair, frames_of(SENDS, send, Serialization), send(opaque=1))


def test_other_sends_fall_back(pair: Pair) -> None:
    pair.feed(send())
    check_slow(pair, frames_of(OTHER_SENDS, send, Serialization), send(opaque=1))


def test_the_first_send_creates_a_topic_for_the_fast_path(pair: Pair) -> None:
    assert pair.feed(send(topic="New")) == 0
    assert pair.feed(send(topic="New") * 2) == 2


def test_sends_are_cut_anywhere(pair: Pair) -> None:
    pair.feed(send())
    pair.cut_anywhere(send(opaque=1) + send(opaque=2, command_flag=IS_ONEWAY) + send(opaque=3))


@pytest.mark.parametrize(
    ("properties", "topic"), [(HALF, names.OP_HALF_TOPIC), (TIMER, names.TIMER_TOPIC)]
)
def test_the_first_waiting_message_creates_its_topics(
    pair: Pair, properties: str, topic: str
) -> None:
    pair.feed(send())
    assert pair.feed(send(properties=properties)) == 0
    assert pair.feed(send(properties=properties) * 3) == 3
    pair.delete_topic(topic)
    assert pair.feed(send(properties=properties)) == 0
    assert pair.feed(send(properties=properties)) == 1


def test_half_messages_fall_back_where_they_are_rejected(pair: Pair) -> None:
    pair.feed(send() + half())
    pair.reconfigure(rejectTransactionMessage="true")
    assert pair.feed(send() + half() + send()) == 2


def test_timers_start_at_the_time_of_the_clock(pair: Pair) -> None:
    """Store times do not go back with the clock."""
    pair.feed(send() + send(properties=TIMER))
    pair.advance(-3_000)
    assert pair.feed(send(properties=TIMER)) == 1


def test_timers_fall_back_where_their_number_is_limited(pair: Pair) -> None:
    for broker in pair.brokers:
        limited = dataclasses.replace(broker.settings.store, timer_congest_num_each_slot=1)
        broker.parts.timers.config = limited
    pair.feed(send() + send(properties=TIMER))
    assert pair.feed(send(properties=TIMER)) == 0


def test_deliver_times_are_in_the_units(pair: Pair) -> None:
    delayed = send(properties="DELAY\x013\x02TAGS\x01a\x02")
    pair.feed(send() + delayed * 2)
    assert pair.feed(delayed) == 1
    for wire in pair.wires:
        codes = wire.queue(names.SCHEDULE_TOPIC, 2).units(0, 3)["tags_code"].tolist()
        assert codes == [NOW_MS + 10_000] * 3


def framed(header: bytes, body: bytes = b"") -> bytes:
    """Return the frame of a JSON header."""
    return LENGTH.pack(4 + len(header) + len(body)) + MARK.pack(len(header)) + header + body


def header_of(frame: bytes) -> bytes:
    return frame[8 : 8 + int.from_bytes(frame[5:8])]


def test_keys_in_any_order(pair: Pair) -> None:
    pair.feed(send())
    document = json.loads(header_of(send()))
    document["extFields"] = dict(sorted(document["extFields"].items(), reverse=True))
    header = json.dumps(dict(sorted(document.items())), separators=(",", ":")).encode()
    assert pair.feed(framed(header + b"\n", b"body")) == 1


HEADERS = {
    "space": (',"', ', "'),
    "tab in text": ("producers", "pro\tducers"),
    "escape in text": ("producers", "pro\\u0064ucers"),
    "escape in a key": ('"b":', '"\\u0062":'),
    "number as a field": ('"d":"4"', '"d":4'),
    "null": ('"d":"4"', '"d":null'),
    "key twice": ('"opaque":7', '"opaque":7,"opaque":7'),
    "field twice": ('"d":"4"', '"d":"4","d":"4"'),
    "unknown key": ('"opaque":7', '"opaque":7,"more":1'),
    "zero in front": ('"opaque":7', '"opaque":07'),
    "fraction": ('"opaque":7', '"opaque":7.0'),
    "quoted number": ('"opaque":7', '"opaque":"7"'),
    "no opaque": (',"opaque":7', ""),
    "language as a number": ('"language":"PYTHON"', '"language":3'),
    "other escapes": ("TAGS", "T\\u0041GS"),
    "escaped controls": ("TAGS", "T\\u0003GS"),
    "comma at the end": ('"m":"false"', '"m":"false",'),
    "array": ('"extFields":{', '"extFields":[{'),
    "after it": ('"}}', '"}}x'),
}


def test_json_of_other_forms_falls_back(pair: Pair) -> None:
    """Some of it closes the connection."""
    pair.feed(send())
    header = header_of(send()).decode()
    for name, (old, new) in HEADERS.items():
        with case(name):
            assert old in header
            for wire in pair.wires:
                pair.runner.run(wire.connect())
            assert pair.feed(framed(header.replace(old, new, 1).encode(), b"body")) == 0


def test_rolls_of_files_are_in_between(pair: Pair) -> None:
    """Log, queue and index files end between the sends of one read."""
    pair.feed(send())
    frame = send(b"x" * 4000)
    for _ in range(25):
        pair.feed(frame * 200)
    assert pair.store.max_physical_offset > 16 << 20


# --- pulls ------------------------------------------------------------------------------------


@pytest.fixture
def full(pair: Pair) -> Pair:
    """Return a pair with messages of two tags in queue 1."""
    pair.feed(tagged_sends(MESSAGES))
    return pair


def test_pulls_on_the_fast_path(full: Pair) -> None:
    """The processor answers the first one of each group, topic and subscription."""
    assert full.feed(pull()) == 0
    frames = frames_of(PULLS, pull, Serialization)
    full.feed(b"".join(frame for _, frame in frames))
    check_fast(full, frames, pull(opaque=1))


def test_an_empty_subscription(full: Pair) -> None:
    for serialization, is_fast in ((Serialization.JSON, True), (Serialization.ROCKETMQ, False)):
        frame = pull(subscription="", serialization=serialization)
        full.feed(frame)
        assert full.feed(frame * 3) == 3 * is_fast


def test_other_pulls_fall_back(full: Pair) -> None:
    full.feed(pull())
    frames = frames_of(OTHER_PULLS, pull, Serialization)
    full.feed(b"".join(frame for _, frame in frames))
    check_slow(full, frames, pull(opaque=1))


def test_sends_and_pulls_in_one_read(full: Pair) -> None:
    full.feed(pull())
    news = pull(queue_offset=MESSAGES)
    assert full.feed(send() + news + send() + send() + pull() + news) == 6


def test_pulls_are_cut_anywhere(full: Pair) -> None:
    full.feed(pull())
    full.cut_anywhere(pull(opaque=1) + pull(opaque=2, queue_offset=MESSAGES) + pull(opaque=3))


def test_members_get_the_messages_of_their_subscription(full: Pair) -> None:
    full.feed(members_pull())  # No such group.
    full.feed(heartbeat("TagA", 5))
    assert full.feed(members_pull()) == 0
    assert full.feed(members_pull() * 2) == 2
    # A client whose version is newer than its heartbeat is refused.
    assert full.feed(members_pull(sub_version=6)) == 0
    assert full.feed(members_pull(sub_version=4)) == 1
    # An older heartbeat is ignored, a newer one replaces the subscription.
    full.feed(heartbeat("*", 4))
    assert full.feed(members_pull()) == 1
    full.feed(heartbeat("TagB", 7))
    assert full.feed(members_pull()) == 0
    assert full.feed(members_pull(sub_version=7)) == 1
    # Neither the topic nor the member exists any more.
    full.feed(heartbeat("*", 8, "Narrow"))
    assert full.feed(members_pull()) == 0
    full.feed(heartbeat("*", (1 << 63) - 1))  # The largest version.
    full.feed(members_pull())
    assert full.feed(members_pull()) == 1
    for wire in full.wires:
        wire.broker.parts.members.forget(wire.channel)
    assert full.feed(members_pull()) == 0


def codes_of(pair: Pair, frame: bytes) -> list[int]:
    """Feed a frame to both brokers; return the codes of the replies."""
    answers = [wire.feed(frame) for wire in pair.wires]
    assert answers[0] == answers[1]
    return [reply.code for reply in replies_in(answers[0])]


def test_withdrawn_permissions(full: Pair) -> None:
    def repeat() -> None:
        full.feed(pull())
        assert full.feed(pull()) == 1

    def refused(code: ResponseCode) -> None:
        assert full.feed(pull()) == 0
        assert codes_of(full, pull()) == [code]

    repeat()
    for changes, code in (
        ({"perm": 2}, ResponseCode.NO_PERMISSION),
        ({"read_queue_count": 1}, ResponseCode.SYSTEM_ERROR),
    ):
        full.put_topic("T", **changes)
        refused(code)
        full.put_topic("T")
        repeat()
    for enabled, permission in ((False, "6"), (True, "2")):
        for parts in full.parts:
            group = SubscriptionGroup(name="readers", consume_enable=enabled)
            parts.subscription_groups.put(group, NOW_MS)
        full.reconfigure(brokerPermission=permission)
        refused(ResponseCode.NO_PERMISSION)
    full.reconfigure(brokerPermission="6")
    repeat()
    full.delete_topic("T")
    refused(ResponseCode.TOPIC_NOT_EXIST)


def test_the_fast_port_refuses_pulls(full: Pair) -> None:
    full.feed(pull())
    wire, frame = full.with_kernel, pull()
    assert wire.broker.frontend is not None
    wire.broker._buffer[: len(frame)] = frame
    view, before = memoryview(wire.broker._buffer), full.fast_count
    end = wire.broker.frontend.on_bytes(wire.channel, view, len(frame), takes_pulls=False)
    assert (end, full.fast_count) == (len(frame), before)


def test_units_that_are_read_from_files(full: Pair) -> None:
    """A tail has only the last units; earlier ones are read ahead from the file."""
    for _ in range(30):
        full.feed(tagged_sends(100))
    total = MESSAGES + 3000
    assert full.feed(pull(queue_offset=0)) == 0
    for subscription in ("*", "TagB"):
        fast_count = queue_offset = pulls = 0
        while queue_offset < total:
            pulls += 1
            frame = pull(queue_offset=queue_offset, max_msg_nums=32, subscription=subscription)
            fast_count += full.feed(frame)
            (reply, _) = (replies_in(wire.feed(frame)) for wire in full.wires)
            queue_offset = int((reply[0].ext_fields or {})["nextBeginOffset"])
        assert pulls * 0.8 < fast_count < pulls, "some read the file"


def test_a_truncated_queue_is_read_again(full: Pair) -> None:
    for _ in range(12):
        full.feed(tagged_sends(100))
    full.feed(pull(queue_offset=0))
    assert full.feed(pull(queue_offset=0)) == 1
    for wire in full.wires:
        queue = wire.queue("T", 1)
        middle = queue.unit(20)
        assert middle is not None
        queue.cut(middle.physical_offset)
    assert full.feed(pull(queue_offset=0)) == 0
    assert full.feed(pull(queue_offset=19)) == 1
    assert full.feed(pull(queue_offset=20)) == 0, "where the queue ends now"


def test_the_last_commit_of_a_group_counts(full: Pair) -> None:
    def committing(consumer_offset: int, **fields: Any) -> bytes:
        flag = COMMIT | fields.pop("sys_flag", TEXT)
        return pull(sys_flag=flag, commit_offset=consumer_offset, **fields)

    full.feed(heartbeat("*", 5))
    member = {"sys_flag": 0, "subscription": None, "sub_version": 5}
    tags = {"subscription": "TagA"}
    full.feed(committing(1) + committing(2, **tags) + committing(3, **member))
    assert full.feed(committing(5) + committing(10, **tags) + committing(20)) == 3
    assert full.feed(committing(19) + committing(20, **member) + committing(3)) == 3
    last = committing(8, queue_offset=MESSAGES) + committing(6, **tags)
    assert full.feed(committing(7, **tags) + last) == 2


def test_many_replies_are_sent_in_parts(full: Pair) -> None:
    """One read requests more replies than a buffer holds."""
    full.feed(b"".join(send(b"%d" % i * 1000) for i in range(20)))
    full.feed(pull())
    assert full.feed(pull(queue_offset=MESSAGES, max_msg_nums=32) * 30) == 30


# --- the broker that replies to pulls suggest, as Java's PullMessageProcessor of 4.9.7 does -----

ALL_IS_FAR = {"access_message_in_memory_max_ratio": 0}
"""Every message counts as far from the end of the log."""


def read_slaves(pair: Pair, broker_id: int = 0, slow_broker_id: int = 1) -> None:
    """Switch slaveReadEnable on, and set the brokers of the group that reads."""
    pair.reconfigure(slaveReadEnable="true")
    group = SubscriptionGroup(name="readers", broker_id=broker_id, slow_broker_id=slow_broker_id)
    for parts in pair.parts:
        parts.subscription_groups.put(group, NOW_MS)


def suggested(pair: Pair, **fields: Any) -> tuple[set[str], int]:
    """Pull three times; return the suggested ids and the number of fast replies."""
    frame = pull(**fields)
    fast_count = pair.feed(frame) + pair.feed(frame * 2)
    replies = [replies_in(wire.feed(frame))[0] for wire in pair.wires]
    return {(reply.ext_fields or {})["suggestWhichBrokerId"] for reply in replies}, fast_count


@pytest.mark.parametrize("is_far", [False, True])
def test_the_suggestion_depends_on_the_distance(tmp_path: Path, is_far: bool) -> None:
    with broker_pair.open_pair(tmp_path, **(ALL_IS_FAR if is_far else {})) as pair:
        pair.feed(tagged_sends(MESSAGES))
        for serialization in Serialization:
            fields = {"serialization": serialization}
            assert suggested(pair, **fields) == ({"0"}, 2), "slaveReadEnable is off by default"
            read_slaves(pair)
            assert suggested(pair, **fields) == ({"01"[is_far]}, 2)
            read_slaves(pair, 3, 9)
            assert suggested(pair, **fields) == ({"39"[is_far]}, 2)
            pair.reconfigure(slaveReadEnable="false")
        for ids in ((10, 12), (-1, -2)):  # They are no digit.
            read_slaves(pair, *ids)
            assert suggested(pair) == ({str(ids[is_far])}, 0)
        # Without messages the distance is not known: Java suggests the group's broker.
        read_slaves(pair, 3)
        assert suggested(pair, queue_offset=MESSAGES) == ({"3"}, 0)


def test_a_slave_takes_the_fast_path(tmp_path: Path) -> None:
    """It answers as the processor does, and stores no offset that came with a pull."""
    with broker_pair.open_pair(tmp_path) as pair:
        pair.feed(tagged_sends(MESSAGES))
    with broker_pair.open_pair(tmp_path, broker_role=BrokerRole.SLAVE) as pair:
        fields = {"sys_flag": TEXT | COMMIT, "commit_offset": 7}
        assert suggested(pair, **fields) == ({"0"}, 2)
        assert pair.with_kernel.state()["consumer offsets"] == []
        read_slaves(pair, 2)
        assert suggested(pair, **fields) == ({"2"}, 2)


# --- pops: the fast path caches headers, and takes messages with a kernel ------------------------


class Pops:
    """A pair with messages, and the pops in its fast path."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        frontend = pair.brokers[0].frontend
        assert frontend is not None
        self.cached = frontend._pops._known
        self.taken_count = 0
        self._count_taken(pair.store.pop_reader)
        for _ in range(4):
            pair.feed(tagged_sends(100))
        for _ in range(pair.brokers[0].settings.broker.revive_queue_num):  # Creates its queues.
            self.feed(pop(consumer_group="first"))
        pair.forget_pops()

    def _count_taken(self, reader: PopReader) -> None:
        read = reader.pop

        def counted(*arguments: Any, **more: Any) -> Any:
            batch = read(*arguments, **more)
            self.taken_count += batch is not None
            return batch

        reader.pop = counted  # type: ignore[method-assign]

    def feed(self, data: bytes) -> None:
        """Feed both brokers a millisecond later, and compare."""
        self.pair.advance(1)
        self.pair.feed(data)

    def codes(self) -> list[int]:
        """Pop a millisecond later; return the codes of the replies."""
        self.pair.advance(1)
        return codes_of(self.pair, pop())


@pytest.fixture
def pops(pair: Pair) -> Pops:
    return Pops(pair)


TAKEN = ("as clients send it", "a tag", "any queue", "an attempt", "the largest opaque")


def test_pops_on_the_fast_path(pops: Pops) -> None:
    for number, (name, fields) in enumerate(POPS.items()):
        with case(name):
            pops.pair.forget_pops()
            pops.feed(pop(**fields))
            assert len(pops.cached) == 1
            pops.feed(pop(**{"born_time": NOW_MS + 5, "opaque": 99, **fields}))
            assert len(pops.cached) == 1
            before = pops.taken_count
            fields = {**fields, "consumer_group": f"K{number}"}
            pops.feed(pop(**fields) + send(b"x") + pop(**{**fields, "max_msg_nums": 1}))
            pops.feed(pop(**fields))
            if name in TAKEN:
                assert pops.taken_count >= before + 2


def test_headers_of_other_pops_are_not_cached(pops: Pops) -> None:
    for name, fields in OTHER_POPS.items():
        with case(name):
            pops.pair.forget_pops()
            pops.feed(pop(**fields))
            assert len(pops.cached) == 0
            pops.feed(pop(opaque=1) + pop(**fields) + pop(opaque=2))
            assert len(pops.cached) == 1


def test_pops_of_units_that_were_read_ahead(pops: Pops) -> None:
    """The kernel takes units that have left the tail once the processor has read ahead."""
    for wire in pops.pair.wires:
        queue = wire.queue("T", 1)
        queue.write_out()
        queue.drop_tail()
    for _ in range(4):
        pops.feed(pop(consumer_group="reader", max_msg_nums=32))
    assert pops.taken_count >= 3
    pops.feed(pop(consumer_group="reader of a tag", exp="TagB", max_msg_nums=32) * 3)


def test_pops_with_headers_in_another_order(pops: Pops) -> None:
    header = pop()[8:]
    fields = header[header.index(b'"extFields"') : -1]
    plain = header.replace(b"," + fields, b"")[1:-1]
    code = b'{"code":200050,'
    inside = fields.replace(b"}", b',"opaque":7,"a":"b"}')
    for text in (
        code + fields + b',"flag":0,"opaque":5}',
        code + b'"opaque":5,' + fields + b',"opaque":6,"flag":0}',
        code + b'"flag":0,"opaque":5,' + inside + b"}",
        code + b'"opaque":0,' + fields + b',"flag":0}',
        code + fields + b',"opaque":31,"flag":0}',
        b"{" + plain + b"," + fields + b"} ",
    ):
        pops.feed(framed(text))
    assert len(pops.cached) == 3, "the first three are not plain"


def test_changes_evict_headers_of_pops(pops: Pops) -> None:
    pair = pops.pair

    def refused(code: ResponseCode) -> None:
        assert pops.codes() == [code]
        assert len(pops.cached) == 0

    def repeat() -> None:
        assert pops.codes() == [ResponseCode.SUCCESS]
        assert len(pops.cached) == 1

    def forbid(*, is_forbidden: bool) -> None:
        for parts in pair.parts:
            parts.subscription_groups.forbid("G", "T", NOW_MS, is_forbidden=is_forbidden)

    repeat()
    for change, undo, code in (
        (lambda: pair.put_topic("T", perm=2), lambda: pair.put_topic("T"),
         ResponseCode.NO_PERMISSION),
        (lambda: pair.put_topic("T", read_queue_count=1), lambda: pair.put_topic("T"),
         ResponseCode.INVALID_PARAMETER),
        (lambda: forbid(is_forbidden=True), lambda: forbid(is_forbidden=False),
         ResponseCode.NO_PERMISSION),
        (lambda: pair.reconfigure(brokerPermission="2"),
         lambda: pair.reconfigure(brokerPermission="6"), ResponseCode.NO_PERMISSION),
    ):  # fmt: skip
        change()
        refused(code)
        undo()
        repeat()
    for broker in pair.brokers:
        broker.identity.is_stopping = True
    assert pops.codes() == [ResponseCode.SERVICE_NOT_AVAILABLE]
    for broker in pair.brokers:
        broker.identity.is_stopping = False
    pair.delete_topic("T")
    refused(ResponseCode.TOPIC_NOT_EXIST)


def test_pops_are_cut_anywhere(pops: Pops) -> None:
    data = pop(opaque=1, max_msg_nums=1) + pop(opaque=2, max_msg_nums=2)
    for cut in range(0, len(data), 7):
        pops.feed(data[:cut])
        pops.pair.feed(data[cut:])


def test_long_headers_of_pops_are_not_cached(pops: Pops) -> None:
    """Thousands of headers as long as a read would take a gigabyte."""
    pops.feed(pop(exp="TagA || " * 400 + "TagB"))
    assert all(len(words) < 4096 for words in pops.cached)


# --- acknowledgements -------------------------------------------------------------------------


@pytest.fixture
def popped(full: Pair) -> Pair:
    """Return a pair with two pops of a group: messages 0 to 31, and 32 to 63."""
    full.feed(pop(max_msg_nums=32) * 2)
    return full


def test_acks_on_the_fast_path(popped: Pair) -> None:
    check_fast(popped, frames_of(ACKS, ack, JSON), ack(5, opaque=1))
    check_fast(popped, ACK_BATCHES.items(), ack_batch(b"\2", opaque=1))


def test_other_acks_fall_back(popped: Pair) -> None:
    check_slow(popped, frames_of(OTHER_ACKS, ack, JSON), ack(5, opaque=1))
    check_slow(popped, OTHER_ACK_BATCHES.items(), ack_batch(b"\2", opaque=1))


def test_acks_of_all_messages_end_checkpoints(popped: Pair) -> None:
    checkpoints = popped.parts[0].pops.revive.checkpoints
    assert popped.feed(b"".join(ack(number, opaque=number) for number in range(32))) == 32
    assert len(checkpoints) == 1
    assert popped.feed(b"".join(ack(number, start=32) for number in range(63, 31, -1))) == 32
    assert len(checkpoints) == 0


def test_batches_end_checkpoints(popped: Pair) -> None:
    checkpoints = popped.parts[0].pops.revive.checkpoints
    assert popped.feed(ack_batch(b"\xff\xff\xff")) == 1
    assert len(checkpoints) == 2
    assert popped.feed(ack_batch(b"\xff" * 4) + ack_batch(b"\xff" * 4, so=32)) == 2
    assert len(checkpoints) == 0


def test_acks_between_other_requests(popped: Pair) -> None:
    acks = ack(1) + ack(33, start=32) + ack(2)
    sends = 2
    assert popped.feed(send() + acks + pop() + acks + send() + ack(70, start=64)) == 7 + sends


def test_acks_are_cut_anywhere(popped: Pair) -> None:
    popped.cut_anywhere(ack(1, opaque=1) + ack(2, opaque=2) + ack(34, start=32, opaque=3), 3)


def test_more_acks_than_fit_in_one_call(popped: Pair) -> None:
    acks = (ack(number % 64, start=number % 2, opaque=number) for number in range(2_000))
    assert popped.feed(b"".join(acks)) == 2_000


def test_acks_of_a_deleted_topic(popped: Pair) -> None:
    popped.delete_topic("T")
    assert popped.feed(ack(1) + ack(2)) == 0
    assert codes_of(popped, ack(1)) == [ResponseCode.TOPIC_NOT_EXIST]


# --- ends of transactions: the fast path decides consecutive ones in one put ----------------------

INTERVAL_MS = 30_000


@pytest.fixture
def halved(pair: Pair) -> Pair:
    """Return a pair with a half message."""
    pair.feed(send() + half())  # Creates topics and queues.
    return pair


def halves(pair: Pair) -> list[Place]:
    """Return queue offset and physical offset of each half message."""
    queue = pair.with_kernel.queue(names.HALF_TOPIC, 0)
    return list(enumerate(queue.units(0, queue.max_offset)["physical_offset"].tolist()))


def ends(places: list[Place], **fields: Any) -> bytes:
    return b"".join(end(place, opaque=i, **fields) for i, place in enumerate(places))


def test_ends_on_the_fast_path(halved: Pair) -> None:
    for (name, fields), serialization in itertools.product(ENDS.items(), Serialization):
        with case(name, serialization):
            halved.feed(half() * 6)
            places = halves(halved)[-6:]
            fields = {"serialization": serialization, **fields}
            before = halved.store.max_offset("T", 1)
            assert halved.feed(ends(places[:4], **fields)) == 4
            assert halved.feed(end(places[5], **fields)) == 1
            assert halved.feed(end(places[4], **fields)) == 1
            committed = 6 * (fields.get("decision", COMMITTED) == COMMITTED)
            assert halved.store.max_offset("T", 1) == before + committed


def test_other_ends_fall_back(halved: Pair) -> None:
    for (name, fields), serialization in itertools.product(OTHER_ENDS.items(), Serialization):
        with case(name, serialization):
            halved.feed(half() * 4)
            first, second, third, fourth = halves(halved)[-4:]
            other = end(third, serialization=serialization, **fields)
            # Between plain requests, in one read: replies keep their order.
            assert halved.feed(ends([first, second]) + other + end(fourth)) == 3
            assert halved.feed(other) == 0


def test_a_half_message_and_its_end_in_one_read(halved: Pair) -> None:
    place = (1, halved.store.max_physical_offset)
    sends = 2
    assert halved.feed(half() + end(place) + send(opaque=1)) == 1 + sends


def test_alternating_commits_and_rollbacks(halved: Pair) -> None:
    halved.feed(half(queue_id=2) * 3 + half(topic="Narrow", queue_id=0) * 4)
    data = [end(place, (COMMITTED, ROLLED_BACK)[place[0] % 2]) for place in halves(halved)[::-1]]
    assert halved.feed(b"".join(data)) == 8


def test_repeated_ends(halved: Pair) -> None:
    halved.feed(half() * 3)
    first, second, third, fourth = halves(halved)
    assert halved.feed(ends([first, first, second]) + end(first, ROLLED_BACK) + end(third)) == 3
    assert halved.feed(end(first) + end(second, ROLLED_BACK)) == 0
    assert halved.feed(end(fourth, ROLLED_BACK) * 2) == 1


def test_copies_of_half_messages(halved: Pair) -> None:
    """A decision about a half message or about its copy for a check counts for both."""
    halved.feed(half() * 3)
    for parts in halved.parts:
        parts.transactions.step(NOW_MS)
    halved.advance(2 * INTERVAL_MS)
    for parts in halved.parts:
        while parts.transactions.step(halved.now_ms):
            pass
    places = halves(halved)
    assert len(places) == 8
    sends = 1
    assert halved.feed(half() + ends([places[0], places[5], places[4]])) == sends
    assert halved.feed(ends([halves(halved)[8], places[7]])) == 1


def test_ends_for_a_topic_that_was_deleted(halved: Pair) -> None:
    halved.feed(half(topic="Narrow", queue_id=0))
    halved.delete_topic("Narrow")
    halved.feed(ends(halves(halved)))
    assert halved.store.max_offset("Narrow", 0) == 1


def test_ends_that_the_store_refuses(halved: Pair) -> None:
    halved.feed(half() * 2)
    places = halves(halved)
    halved.refuse_puts("the disk failed")
    assert halved.feed(ends(places)) == 0
    halved.refuse_puts("")
    assert halved.feed(ends(places)) == 3


def test_the_log_file_ends_between_ends(halved: Pair) -> None:
    file_size = halved.store.config.mapped_file_size_commit_log
    halved.feed(half(b"x" * 4000) * 50)
    places = halves(halved)
    while halved.store.max_physical_offset < file_size - 200_000:
        halved.feed(send(b"x" * 4000) * 20)
    assert halved.feed(ends(places)) == len(places)
    assert halved.store.max_physical_offset > file_size


def test_an_end_is_cut_anywhere(halved: Pair) -> None:
    halved.cut_anywhere(ends(halves(halved)))


# --- messages that are sent back: the fast path puts consecutive ones together --------------------

RETRIED = b"RETRY_TOPIC\1Orders\2REAL_TOPIC\1x\2REAL_QID\0017\2DELAY\0014\2WAIT\1true"
CONSUMED = {
    "plain": IncomingMessage("T", b"plain", 1, b"TAGS\1a\2KEYS\1k\2"),
    "again": IncomingMessage(
        "T", b"again", 1, RETRIED + b"\2ORIGIN_MESSAGE_ID\1AC\2", reconsume_times=3
    ),
    "fifteen times": IncomingMessage("T", b"15", 1, b"", reconsume_times=15),
    "often enough": IncomingMessage("T", b"16", 1, b"", reconsume_times=16),
    "six": IncomingMessage("T", b"six", 1, b"", born_host=Host(bytes(15) + b"\1", 4711)),
    "prepared": IncomingMessage("T", b"half", 1, b"", sys_flag=4),
    "rolled back": IncomingMessage("T", b"half", 1, b"", sys_flag=12),
    "full": IncomingMessage("T", b"full", 1, b"a\1" + b"x" * 32_700),
    "a name twice": IncomingMessage("T", b"twice", 1, b"KEYS\1k\2TAGS\1a\2KEYS\1k\2"),
    "an origin twice": IncomingMessage("T", b"twice", 1, b"RETRY_TOPIC\1A\2RETRY_TOPIC\1B"),
    "65 names": IncomingMessage("T", b"65", 1, b"".join(b"p%d\1v\2" % i for i in range(65))),
}


@pytest.fixture
def consumed(pair: Pair) -> dict[str, int]:
    """Return the physical offsets of consumed messages."""
    pair.feed(send())  # Creates topics and queues.
    places = {name: pair.put(message) for name, message in CONSUMED.items()}
    assert pair.last_records(len(places)) == list(places.values())
    pair.compare_records()
    return places


def test_send_backs_on_the_fast_path(pair: Pair, consumed: dict[str, int]) -> None:
    plain = send_back(consumed["plain"])
    for name in ("plain", "again", "fifteen times"):
        with case(name):
            make = functools.partial(send_back, consumed[name])
            frames = frames_of(SEND_BACKS, make, Serialization)
            pair.feed(b"".join(frame for _, frame in frames))  # Creates topics of groups.
            check_fast(pair, frames, plain)


def test_other_send_backs_fall_back_in_order(pair: Pair, consumed: dict[str, int]) -> None:
    plain, nearly = consumed["plain"], consumed["fifteen times"]
    pair.feed(send_back(plain))
    make = functools.partial(send_back, plain)
    check_slow(pair, frames_of(OTHER_SEND_BACKS, make, Serialization), make())
    others = {
        **{name: send_back(consumed[name]) for name in list(CONSUMED)[3:]},
        "with its own maximum": send_back(nearly, max_reconsume_times=15),
        "too old to have one": send_back(nearly, max_reconsume_times=15, version=100),
    }
    check_slow(pair, others.items(), make())
    assert pair.feed(b"".join(others.values())) == 0


def test_a_broker_that_stores_nothing(pair: Pair, consumed: dict[str, int]) -> None:
    pair.refuse_puts("no")
    assert pair.feed(send_back(consumed["plain"]) * 2) == 0


# --- lookups ------------------------------------------------------------------------------------

KEYS = ("k1", "k2", "Aa", "BB")  # the last two have one hash


def test_lookups(tmp_path: Path) -> None:
    with broker_pair.open_pair(tmp_path, max_hash_slot_num=5, max_index_num=64) as pair:
        for number in range(60):
            keys = f"{KEYS[number % 4]} all" if number % 3 else "all"
            known = {props.UNIQ_KEY: f"u{number // 2}", props.KEYS: keys, props.TAGS: "t"}
            pair.put(
                IncomingMessage(
                    "Narrow" if number % 5 == 0 else "T",
                    b"x" * 700 if number % 7 else b"short",
                    0 if number % 5 == 0 else number % 2,
                    props.encode(known),
                ),
                NOW_MS + number * 100,
            )
        pair.compare_records()
        check_fast(pair, LOOKUPS.items(), query("k2"))
        check_slow(pair, OTHER_LOOKUPS.items(), query("k2"))
