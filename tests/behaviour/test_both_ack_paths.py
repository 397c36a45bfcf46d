"""Acknowledgements have the same effect on the fast path and in the processor.

Two brokers get the same bytes, one of them without the fast path. Replies, held messages and
statistics must be equal for all requests.
"""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import broker_pair
from behaviour.test_both_send_paths import send
from broker_pair import ADDED, NOW_MS, Both, Wire, replies_in
from broker_subject import with_fields
from reput.broker.counters import stats
from reput.format import bodies, command as commands, headers
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import IS_ONEWAY, Command
from reput.format.headers import AckMessageHeader, PopMessageHeader

MESSAGES = 90
BROKEN = '{"acks":[{"c":"G","t":"T","r":"%s","so":0,"q":1,"rq":1,"pt":5,"it":6,"b":"%s"}]}'
INVISIBLE_MS = 60_000


def pop(queue_id: int = 1, group: str = "G", **fields: Any) -> bytes:
    header = PopMessageHeader(
        consumer_group=group, topic="T", queue_id=queue_id, max_msg_nums=32,
        invisible_time=INVISIBLE_MS, poll_time=0, init_mode=0, exp_type="TAG", exp="*",
    )  # fmt: skip
    ext_fields = headers.encode(with_fields(header, fields))
    return commands.encode(Command(RequestCode.POP_MESSAGE, ext_fields=ext_fields))


def ack(
    offset: int,
    *,
    start: int = 0,
    info: str | None = None,
    revive: int = 1,
    flag: int = 0,
    opaque: int = 7,
    body: bytes = b"",
    remark: str | None = None,
    extra: dict[str, str] | None = None,
    **fields: Any,
) -> bytes:
    """Return an acknowledgement of a message of the first pop, or of a pop with another start."""
    handle = f"{start} {NOW_MS} {INVISIBLE_MS} {revive} 0 broker-a"
    header = with_fields(
        AckMessageHeader(
            consumer_group="G",
            topic="T",
            queue_id=1,
            offset=offset,
            extra_info=f"{handle} 1 {offset}" if info is None else info,
        ),
        fields,
    )
    ext_fields = headers.encode(header) | (extra or {})
    return commands.encode(
        Command(
            RequestCode.ACK_MESSAGE, opaque, flag, remark=remark, ext_fields=ext_fields, body=body
        )
    )


class AckBoth:
    """Two brokers with two pops of a group: messages 0 to 31, and 32 to 63."""

    def __init__(self, both: Both) -> None:
        self.both = both
        for wire in (both.with_kernel, both.without):
            wire.broker.parts.pops.revive.store_host = broker_pair.STORE_HOST
        both.feed(b"".join(send(b"body %d" % i) for i in range(MESSAGES)))
        both.feed(pop() + pop())

    def feed(self, data: bytes) -> int:
        """Feed both brokers, and compare; return the number of fast acknowledgements."""
        counts = self.both.with_kernel.broker.parts.fast_counts
        before = counts.acks
        self.both.feed(data)
        assert held(self.both.with_kernel) == held(self.both.without)
        return counts.acks - before

    def feed_batches(self, data: bytes) -> int:
        """Feed both brokers, and compare; return the number of batches on the fast path."""
        counts = self.both.with_kernel.broker.parts.fast_counts
        before = counts.ack_batches
        self.feed(data)
        return counts.ack_batches - before


def held(wire: Wire) -> object:
    """Return the held messages, and the counted acknowledgements."""
    broker = wire.broker
    known = broker.parts.pops.revive.checkpoints._by_key
    counted = [
        broker.parts.deliveries.stats.values(name)
        for name in (stats.GROUP_ACK_NUMS, stats.BROKER_ACK_NUMS)
    ]
    return {key: (state.left, state.unsaved) for key, state in known.items()}, counted


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AckBoth]:
    """Return a pair for all tests: acknowledgements of one test do not affect the next."""
    for pair in broker_pair.open_both(tmp_path_factory.mktemp("pair")):
        yield AckBoth(pair)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[AckBoth]:
    for pair in broker_pair.open_both(tmp_path):
        yield AckBoth(pair)


PLAIN: dict[str, dict[str, Any]] = {
    "as clients send it": {"offset": 3},
    "the first": {"offset": 0},
    "of the second pop": {"offset": 40, "start": 32},
    "signed": {"offset": 3, "extra": ADDED},
    "as 5.x sends it": {"offset": 3, "extra": {"bname": "broker-a", "ns": "x"}},
    "one that the checkpoint does not have": {"offset": 35},
    "of a pop that never was": {"offset": 3, "start": 1},
    "far after its start": {"offset": 80},
    "another queue": {"offset": 0, "queue_id": 0},
    "the end": {"offset": MESSAGES},
    "more words": {"offset": 3, "info": f"0 {NOW_MS} 1 1 0 b 9 9 9"},
}
OTHERS: dict[str, dict[str, Any]] = {
    "no such topic": {"offset": 3, "topic": "Nobody"},
    "no group": {"offset": 3, "consumer_group": ""},
    "another group": {"offset": 3, "consumer_group": "others"},
    "a topic beyond ASCII": {"offset": 3, "topic": "grün"},
    "no such queue": {"offset": 3, "queue_id": 4},
    "a negative queue": {"offset": 3, "queue_id": -1},
    "after the end": {"offset": MESSAGES + 1},
    "a negative offset": {"offset": -1},
    "a handle that is none": {"offset": 3, "info": "x"},
    "five words": {"offset": 3, "info": f"0 {NOW_MS} 1 1 0"},
    "two spaces": {"offset": 3, "info": f"0  {NOW_MS} 1 1 0 b"},
    "a sign": {"offset": 3, "info": f"+0 {NOW_MS} 1 1 0 b"},
    "in order": {"offset": 3, "revive": 999},
    "one-way": {"offset": 3, "flag": IS_ONEWAY},
    "a body": {"offset": 3, "body": b"x"},
    "a remark": {"offset": 3, "remark": "x"},
    "a field that is no number": {"offset": 3, "extra": {"offset": "three"}},
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_acknowledgements_take_the_fast_path(both: AckBoth, name: str) -> None:
    frame = ack(**PLAIN[name])
    assert both.feed(frame) == 1
    assert both.feed(frame * 2) == 2, "a client without an answer repeats it"
    assert both.feed(ack(5, opaque=1) + frame + ack(6, opaque=2)) == 3


@pytest.mark.parametrize("name", OTHERS)
def test_other_acknowledgements_fall_back(both: AckBoth, name: str) -> None:
    frame = ack(**OTHERS[name])
    assert both.feed(frame) == 0
    # Between plain requests, in one read: replies keep their order.
    assert both.feed(ack(5, opaque=1) + frame + ack(6, opaque=2) + ack(7, start=32)) == 3


def test_a_whole_pop_at_once(fresh: AckBoth) -> None:
    checkpoints = fresh.both.with_kernel.broker.parts.pops.revive.checkpoints
    assert fresh.feed(b"".join(ack(number, opaque=number) for number in range(32))) == 32
    assert len(checkpoints) == 1
    assert fresh.feed(b"".join(ack(number, start=32) for number in range(63, 31, -1))) == 32
    assert len(checkpoints) == 0


def test_between_other_requests(both: AckBoth) -> None:
    many = ack(1) + ack(33, start=32) + ack(2)
    assert both.feed(send(b"x") + many + pop() + many + send(b"y") + ack(70, start=64)) == 7


def test_a_buffer_may_be_cut_anywhere(both: AckBoth) -> None:
    data = ack(1, opaque=1) + ack(2, opaque=2) + ack(34, start=32, opaque=3)
    for cut in range(0, len(data), 3):
        both.feed(data[:cut])
        both.feed(data[cut:])


def test_more_than_fits_in_one_call(both: AckBoth) -> None:
    frames = b"".join(ack(number % 64, start=number % 2, opaque=number) for number in range(2_000))
    assert both.feed(frames) == 2_000


def test_a_deleted_topic(fresh: AckBoth) -> None:
    for wire in (fresh.both.with_kernel, fresh.both.without):
        wire.broker.parts.topics.delete("T", NOW_MS)
    assert fresh.feed(ack(1) + ack(2)) == 0
    (reply, _) = replies_in(fresh.both.with_kernel.feed(ack(1) + ack(2)))
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST


def batch(
    *bits: bytes,
    flag: int = 0,
    opaque: int = 7,
    remark: str | None = None,
    text: str | None = None,
    **fields: Any,
) -> bytes:
    """Return a request that acknowledges messages of the first pop, or of other pops."""
    acks = [
        {
            "c": "G", "t": "T", "r": "0", "so": 0, "q": 1, "rq": 1, "pt": NOW_MS,
            "it": INVISIBLE_MS, "b": base64.b64encode(bit_map).decode(), **fields,
        }
        for bit_map in bits
    ]  # fmt: skip
    body = (
        bodies.encode({"brokerName": "broker-a", "acks": acks}) if text is None else text.encode()
    )
    request = Command(RequestCode.BATCH_ACK_MESSAGE, opaque, flag, remark=remark, body=body)
    return commands.encode(request)


BATCHES: dict[str, bytes] = {
    "one message": batch(b"\1"),
    "all of a pop": batch(b"\xff" * 4),
    "more than there are": batch(b"\xff" * 8),
    "spread by a filter": batch(b"\1" + b"\0" * 500 + b"\1"),
    "the second pop": batch(b"\x0f", so=32),
    "two of one pop": batch(b"\1", b"\3"),
    "nothing": batch(b""),
    "a retry topic": batch(b"\1", r="1"),
    "no such topic": batch(b"\1", t="Nobody"),
    "numbers as texts": batch(b"\1", so="0", q="1"),
    "a remark": batch(b"\1", remark="x"),
    "the largest opaque": batch(b"\1", opaque=(1 << 31) - 1),
}
ODD_BATCHES: dict[str, bytes] = {
    "one-way": batch(b"\1", flag=IS_ONEWAY),
    "no body": batch(text=""),
    "no acks": batch(),
    "in order": batch(b"\1", rq=999),
    "a kind that is none": batch(b"\1", r="3"),
    "no Base64": batch(text=BROKEN % ("0", "?")),
    "no JSON": batch(text="{"),
    "the second one is wrong": batch(b"\1", b"\1").replace(b'"r":"0"', b'"r":"7"', 1),
    "a negative opaque": batch(b"\1", opaque=-1),
    "more than a checkpoint has": batch(b"\xff" * 9),
    "further away than a pop reaches": batch(b"\0" * 9_000 + b"\1"),
    "in order, very long": batch(b"\xff" * 20_000, rq=999),
    "a start that no Java has": batch(b"\1", so=1 << 70),
    "in order, at the end of all numbers": batch(b"\1", so=(1 << 63) - 1, rq=999),
    "in order, of no topic": batch(b"\1", t="Nobody", rq=999),
}


@pytest.mark.parametrize("name", BATCHES)
def test_plain_batches_take_the_fast_path(both: AckBoth, name: str) -> None:
    assert both.feed_batches(BATCHES[name]) == 1
    assert both.feed_batches(batch(b"\2", opaque=1) + BATCHES[name] + ack(3) + BATCHES[name]) == 3


@pytest.mark.parametrize("name", ODD_BATCHES)
def test_other_batches_fall_back(both: AckBoth, name: str) -> None:
    assert both.feed_batches(ODD_BATCHES[name]) == 0
    assert both.feed_batches(batch(b"\2") + ODD_BATCHES[name] + batch(b"\4", opaque=9)) == 2


def test_batches_end_checkpoints(fresh: AckBoth) -> None:
    checkpoints = fresh.both.with_kernel.broker.parts.pops.revive.checkpoints
    assert fresh.feed_batches(batch(b"\xff\xff\xff")) == 1
    assert len(checkpoints) == 2
    assert fresh.feed_batches(batch(b"\xff" * 4) + batch(b"\xff" * 4, so=32)) == 2
    assert len(checkpoints) == 0


FIELDS = st.fixed_dictionaries(
    {"offset": st.integers(-1, MESSAGES + 2)},
    optional={
        "start": st.sampled_from([0, 0, 32, 32, 64, 5]),
        "revive": st.sampled_from([0, 1, 999]),
        "queue_id": st.integers(-1, 4),
        "consumer_group": st.sampled_from(["G", "others", ""]),
        "topic": st.sampled_from(["T", "T", "Narrow", "Nobody"]),
        "opaque": st.integers(0, 1 << 31),
        "flag": st.sampled_from([0, 0, 0, IS_ONEWAY]),
    },
)


def test_random_acks(tmp_path: Path) -> None:
    pairs = broker_pair.open_both(tmp_path)
    both = AckBoth(next(pairs))
    taken = 0

    @hypothesis.settings(max_examples=50)
    @hypothesis.given(st.lists(FIELDS, min_size=1, max_size=8), st.booleans())
    def check(wanted: list[dict[str, Any]], pops: bool) -> None:
        nonlocal taken
        if pops:  # Again from the beginning.
            for wire in (both.both.with_kernel, both.both.without):
                wire.broker.parts.pops.offsets.set("T", "G", 1, 0)
            both.feed(pop(max_msg_nums=5) + pop())
        taken += both.feed(b"".join(ack(**fields) for fields in wanted))

    try:
        check()
    finally:
        pairs.close()  # type: ignore[attr-defined]
    assert taken > 50, "else this would test little"
