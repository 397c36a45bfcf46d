"""Pops have the same effect on the fast path and in the processor.

Two brokers get the same bytes, one of them without the fast path, which caches headers and takes
messages with a kernel. Replies, held messages, statistics and stored records must be equal for all
requests.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import broker_pair
import broker_subject
from behaviour.test_both_send_paths import send
from broker_pair import ADDED, NOW_MS, Both, Wire, replies_in
from broker_subject import with_fields
from reput.broker.counters import stats
from reput.format import command as commands, headers
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import IS_ONEWAY, Command
from reput.format.headers import PopMessageHeader
from reput.store.tables.config_tables import TopicConfig
from reput.store.writing.pop_reader import PopBatch, PopReader

MESSAGES = 400


def pop(
    *,
    flag: int = 0,
    opaque: int = 7,
    body: bytes = b"",
    remark: str | None = None,
    extra: dict[str, str] | None = None,
    **fields: Any,
) -> bytes:
    header = with_fields(
        PopMessageHeader(
            consumer_group="G",
            topic="T",
            queue_id=1,
            max_msg_nums=3,
            invisible_time=60_000,
            poll_time=0,
            born_time=NOW_MS,
            init_mode=0,
            exp_type="TAG",
            exp="*",
        ),
        fields,
    )
    ext_fields = headers.encode(header) | (extra or {})
    return commands.encode(
        Command(
            RequestCode.POP_MESSAGE, opaque, flag, remark=remark, ext_fields=ext_fields, body=body
        )
    )


class PopBoth:
    """Two brokers with messages of two tags."""

    def __init__(self, both: Both) -> None:
        self.both = both
        frontend = both.with_kernel.broker.frontend
        assert frontend is not None
        self.fast_pops = frontend._pops
        for wire in self.wires:
            wire.broker.parts.pops.revive.store_host = broker_pair.STORE_HOST
        self.taken_count = 0
        self._count_taken(both.with_kernel.broker.store.pop_reader)
        for start in range(0, MESSAGES, 100):
            frames = (
                send(b"%d" % i, properties=f"TAGS\1Tag{'AB'[i % 2]}")
                for i in range(start, start + 100)
            )
            both.feed(b"".join(frames))
        for _ in range(both.without.broker.settings.broker.revive_queue_num):  # Creates its queues.
            self.feed(pop(consumer_group="first", queue_id=1))
        self.fast_pops.forget()

    def _count_taken(self, reader: PopReader) -> None:
        read = reader.pop

        def counted(*arguments: Any, **more: Any) -> PopBatch | None:
            taken = read(*arguments, **more)
            self.taken_count += taken is not None
            return taken

        reader.pop = counted  # type: ignore[method-assign]

    @property
    def wires(self) -> tuple[Wire, Wire]:
        return self.both.with_kernel, self.both.without

    @property
    def known_count(self) -> int:
        return len(self.fast_pops._known)

    def feed(self, data: bytes) -> list[Command]:
        """Feed both brokers a millisecond later, and compare; return the replies."""
        for wire in self.wires:
            wire.broker.clock.advance(1)  # type: ignore[attr-defined]
        answered, expected = (wire.feed(data) for wire in self.wires)
        assert answered == expected
        stored, expected_records = (wire.new_records() for wire in self.wires)
        assert stored == expected_records
        assert state(self.wires[0]) == state(self.wires[1])
        return replies_in(answered)


def state(wire: Wire) -> object:
    broker = wire.broker
    known = broker.parts.pops.revive.checkpoints._by_key
    counted = [
        broker.parts.deliveries.stats.values(name)
        for name in (stats.GROUP_CK_NUMS, stats.GROUP_GET_NUMS)
    ]
    return (
        list(known),
        counted,
        len(broker.parts.pops.held),
        broker.parts.pops.offsets.find("T", "G", 1),
    )


@pytest.fixture(autouse=True)
def no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make both brokers try queues and retries in the same order."""
    monkeypatch.setattr("reput.broker.pop.pops.random.random", lambda: 0.5)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PopBoth]:
    for pair_of_stores in broker_pair.open_both(tmp_path_factory.mktemp("pair")):
        yield PopBoth(pair_of_stores)


@pytest.fixture
def both(pair: PopBoth) -> PopBoth:
    """Return a pair for all tests; only cached headers would affect the next test."""
    pair.fast_pops.forget()
    return pair


PLAIN: dict[str, dict[str, Any]] = {
    "as clients send it": {},
    "a tag": {"exp": "TagB"},
    "a tag that none has": {"exp": "TagZ"},
    "any queue": {"queue_id": -1},
    "an empty queue": {"queue_id": 2},
    "an empty queue, and may wait": {"queue_id": 2, "poll_time": 1_000},
    "in order": {"order": True},
    "an attempt": {"attempt_id": "x"},
    "signed": {"extra": ADDED},
    "as 5.x sends it": {"extra": {"bname": "broker-a"}},
    "opaque 0": {"opaque": 0},
    "the largest opaque": {"opaque": (1 << 31) - 1},
    "as long as is allowed": {"invisible_time": 3 * 86_400_000},
    "a body": {"body": b"x"},
    "a remark": {"remark": "x"},
    "words that look like others": {"extra": {"x": '"opaque":5,"bornTime":"6"'}},
}
OTHERS: dict[str, dict[str, Any]] = {
    "one-way": {"flag": IS_ONEWAY},
    "too many": {"max_msg_nums": 33},
    "no time": {"invisible_time": 0},
    "longer than is allowed": {"invisible_time": 3 * 86_400_000 + 1},
    "longer than anything": {"invisible_time": 10**20},
    "no such topic": {"topic": "Nobody"},
    "no such queue": {"queue_id": 4},
    "only separators": {"exp": "||"},
    "SQL92 is off": {"exp_type": "SQL92", "exp": "a = 1"},
    "no number": {"extra": {"queueId": "x"}},
    "a time that is none": {"extra": {"bornTime": "x"}},
}


@pytest.mark.parametrize("name", PLAIN)
def test_headers_that_are_cached(both: PopBoth, name: str) -> None:
    both.feed(pop(**PLAIN[name]))
    assert both.known_count == 1
    both.feed(pop(**{"born_time": NOW_MS + 5, "opaque": 99, **PLAIN[name]}))
    assert both.known_count == 1
    both.feed(pop(**PLAIN[name]) + send(b"x") + pop(**PLAIN[name]))


@pytest.mark.parametrize("name", OTHERS)
def test_headers_that_are_not_cached(both: PopBoth, name: str) -> None:
    both.feed(pop(**OTHERS[name]))
    assert both.known_count == 0
    both.feed(pop(opaque=1) + pop(**OTHERS[name]) + pop(opaque=2))
    assert both.known_count == 1


TAKEN = ("as clients send it", "a tag", "any queue", "an attempt", "the largest opaque")


@pytest.mark.parametrize("name", PLAIN)
def test_the_kernel_takes_messages(both: PopBoth, name: str) -> None:
    before = both.taken_count
    fields = {**PLAIN[name], "consumer_group": f"K{list(PLAIN).index(name)}"}
    both.feed(pop(**fields) + send(b"x") + pop(**{**fields, "max_msg_nums": 1}))
    both.feed(pop(**fields))
    if name in TAKEN:
        assert both.taken_count >= before + 2


def test_units_that_were_read_ahead(both: PopBoth) -> None:
    """The kernel takes units that have left the tail once the processor has read ahead."""
    for wire in both.wires:
        wire.broker.store.queues.find("T", 1).write_out()  # type: ignore[union-attr]
        wire.broker.store.queues.find("T", 1).drop_tail()  # type: ignore[union-attr]
    before = both.taken_count
    replies = [both.feed(pop(consumer_group="reader", max_msg_nums=32)) for _ in range(4)]
    assert [part.code for reply in replies for part in reply] == [ResponseCode.SUCCESS] * 4
    assert both.taken_count >= before + 3
    both.feed(pop(consumer_group="reader of a tag", exp="TagB", max_msg_nums=32) * 3)


def test_headers_in_another_order(both: PopBoth) -> None:
    frame = pop()
    header = frame[8:]
    fields = header[header.index(b'"extFields"') : -1]
    plain = header.replace(b"," + fields, b"")[1:-1]
    last = b'{"code":200050,' + fields + b',"flag":0,"opaque":5}'
    twice = b'{"code":200050,"opaque":5,' + fields + b',"opaque":6,"flag":0}'
    inside = (
        b'{"code":200050,"flag":0,"opaque":5,'
        + fields.replace(b"}", b',"opaque":7,"a":"b"}')
        + b"}"
    )
    zeros = b'{"code":200050,"opaque":0,' + fields + b',"flag":0}'
    first = b'{"code":200050,' + fields + b',"opaque":31,"flag":0}'
    for text in (last, twice, inside, zeros, first, b"{" + plain + b"," + fields + b"} "):
        size = len(text)
        both.feed((size + 4).to_bytes(4) + size.to_bytes(4) + text)
    assert both.known_count == 3, "the first three are not plain"


def test_changes_evict_headers(tmp_path: Path) -> None:
    for pair in broker_pair.open_both(tmp_path):
        check_changes(PopBoth(pair))


def check_changes(both: PopBoth) -> None:
    def refused(code: ResponseCode) -> None:
        assert [reply.code for reply in both.feed(pop())] == [code]
        assert both.known_count == 0

    def repeat() -> None:
        assert [reply.code for reply in both.feed(pop())] == [ResponseCode.SUCCESS]
        assert both.known_count == 1

    repeat()
    for changes, code in (
        ({"perm": 2}, ResponseCode.NO_PERMISSION),
        ({"read_queue_count": 1}, ResponseCode.INVALID_PARAMETER),
    ):
        for wire in both.wires:
            topic = TopicConfig(
                **{"name": "T", "read_queue_count": 4, "write_queue_count": 4, "perm": 6, **changes}
            )
            wire.broker.parts.topics.put(topic, NOW_MS)
        refused(code)
        for wire in both.wires:
            wire.broker.parts.topics.put(
                TopicConfig(name="T", read_queue_count=4, write_queue_count=4, perm=6), NOW_MS
            )
        repeat()
    for wire in both.wires:
        wire.broker.parts.subscription_groups.forbid("G", "T", NOW_MS, is_forbidden=True)
    refused(ResponseCode.NO_PERMISSION)
    for wire in both.wires:
        wire.broker.parts.subscription_groups.forbid("G", "T", NOW_MS, is_forbidden=False)
    repeat()
    for wire in both.wires:
        broker_subject.reconfigure(wire.broker, {"brokerPermission": "2"})
    refused(ResponseCode.NO_PERMISSION)
    for wire in both.wires:
        broker_subject.reconfigure(wire.broker, {"brokerPermission": "6"})
    repeat()
    for wire in both.wires:
        wire.broker.identity.is_stopping = True
    assert [reply.code for reply in both.feed(pop())] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    for wire in both.wires:
        wire.broker.identity.is_stopping = False
        wire.broker.parts.topics.delete("T", NOW_MS)
    refused(ResponseCode.TOPIC_NOT_EXIST)


def test_a_buffer_may_be_cut_anywhere(both: PopBoth) -> None:
    data = pop(opaque=1, max_msg_nums=1) + pop(opaque=2, max_msg_nums=2)
    for cut in range(0, len(data), 7):
        for wire in both.wires:
            wire.broker.clock.advance(1)  # type: ignore[attr-defined]
        replies, other = ([wire.feed(data[:cut]), wire.feed(data[cut:])] for wire in both.wires)
        assert replies == other


def test_long_headers_are_not_cached(both: PopBoth) -> None:
    """Thousands of headers as long as a read would take a gigabyte."""
    both.feed(pop(exp="TagA || " * 400 + "TagB"))
    known = both.fast_pops._known
    assert all(len(words) < 4096 for words in known)
