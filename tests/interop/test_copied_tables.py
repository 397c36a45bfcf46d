"""Tables that slaves copy from masters, ours and Java's, and what a promoted slave does with them.

A table that Java's own slave copies must reach ours, and the reverse; messages that wait for their
time must not come twice after a promotion.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interop import pairs
from interop.clusters import start_cluster, until
from interop.conftest import _or_skip
from interop.java_cluster import JavaCluster, Settings
from interop.pairs import REPUT, Pair, asked
from interop.wire import Remote
from reput.clock import SystemClock
from reput.format import bodies, names, timer_check
from reput.format.bodies import OffsetTable, RequestModeBody, RequestModesBody
from reput.format.codes import RequestCode, ResponseCode
from reput.format.timer_check import TimerCheck
from reput_cluster import ReputCluster
from world import messages_in

pytestmark = [
    pytest.mark.rotating,
    pytest.mark.interop,
    pytest.mark.slow,
]

CLOCK = SystemClock()
DELAYED, TIMED = "Delayed", "Timed"
TOPICS = RequestCode.GET_ALL_TOPIC_CONFIG.name
MODE = RequestModeBody(consumer_group="poppers", mode="POP", pop_share_queue_num=3, topic=DELAYED)
OURS_S, JAVAS_S = 30, 90
"""Time in which slaves copy all tables: ours every 3 s, Java's of 5.x every 60 s; with a margin
for a busy machine."""
PAIRS = [
    pytest.param("5.5.0", REPUT, 60_000, "5", id="5.5.0-reput"),
    pytest.param(REPUT, REPUT, 60_000, "5", id="reput-reput"),
    pytest.param(REPUT, "5.5.0", 110_000, "6", id="reput-5.5.0"),
]
"""Master, slave, and times after both have the tables: a delay in ms, and a delay level."""


@pytest.fixture
def start_pair(tmp_path: Path) -> Iterator[Callable[[str, str], Pair]]:
    with contextlib.ExitStack() as stack:

        def start(master: str, slave: str) -> Pair:
            return stack.enter_context(_or_skip(lambda: Pair(master, slave, tmp_path)))

        yield start


@pytest.fixture
def promote(tmp_path: Path) -> Iterator[Callable[[Pair, str], ReputCluster | JavaCluster]]:
    """Provide a function that kills the master, and restarts the slave as master."""
    with contextlib.ExitStack() as stack:

        def promoted(pair: Pair, kind: str) -> ReputCluster | JavaCluster:
            pair.master.kill_broker()
            pair.slave.stop_broker()
            settings: Settings = {**pairs.MASTER, "listenPort": pair.slave.port}
            return stack.enter_context(
                start_cluster(kind, kind, tmp_path / "slave", settings, namesrv=pair.namesrv)
            )

        yield promoted


# --- requests ------------------------------------------------------------------------------


def send(address: str, topic: str, body: bytes, **properties: str) -> None:
    async def question(remote: Remote) -> None:
        reply = await remote.send(topic, body, properties=properties)
        assert reply.code == ResponseCode.SUCCESS, reply.remark

    asked(address, question)


def bodies_of(address: str, topic: str) -> list[bytes]:
    async def question(remote: Remote) -> list[bytes]:
        reply = await remote.pull(topic)
        return [message.body for message in messages_in(reply.body)]

    bodies_read: list[bytes] = asked(address, question)
    return bodies_read


def table(address: str, code: RequestCode) -> bytes:
    async def question(remote: Remote) -> bytes:
        reply = await remote.ask(code)
        assert reply.code == ResponseCode.SUCCESS, (code, reply.remark)
        return bytes(reply.body)

    body: bytes = asked(address, question)
    return body


def set_mode(address: str) -> None:
    async def question(remote: Remote) -> None:
        reply = await remote.send_body(RequestCode.SET_MESSAGE_REQUEST_MODE, MODE)
        assert reply.code == ResponseCode.SUCCESS, reply.remark

    asked(address, question)


def modes(address: str) -> Any:
    body = table(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    return bodies.decode(RequestModesBody, body).message_request_mode_map


def check(address: str) -> TimerCheck:
    body = table(address, RequestCode.GET_TIMER_CHECK_POINT)
    assert len(body) == 7 * 8
    return timer_check.decode(body)


def waiting_counts(address: str) -> dict[str, int]:
    """Return the number of messages that wait for the timer, by topic."""
    counts = msgspec.json.decode(table(address, RequestCode.GET_TIMER_METRICS))
    assert counts.keys() == {"dataVersion", "timingCount"}
    assert counts["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}
    assert all(count.keys() == {"count", "timeStamp"} for count in counts["timingCount"].values())
    return {topic: count["count"] for topic, count in counts["timingCount"].items()}


def level_1(address: str) -> int | None:
    """Return the position of delay level 1."""
    offsets = bodies.decode(OffsetTable, table(address, RequestCode.GET_ALL_DELAY_OFFSET))
    return offsets.offset_table.get(1)


# --- tests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("master", "slave", "delay_ms", "level"), PAIRS)
def test_what_waits_comes_once_after_a_promotion(
    master: str,
    slave: str,
    delay_ms: int,
    level: str,
    start_pair: Callable[[str, str], Pair],
    promote: Callable[[Pair, str], ReputCluster | JavaCluster],
) -> None:
    pair = start_pair(master, slave)
    address = pair.master.address
    for topic in (DELAYED, TIMED):
        send(address, topic, b"first")
    set_mode(address)
    pair.until_caught_up(DELAYED)
    now_ms = CLOCK.now_ms()
    later_ms = now_ms + delay_ms
    send(address, TIMED, b"later", TIMER_DELIVER_MS=str(later_ms))
    send(address, TIMED, b"soon", TIMER_DELIVER_MS=str(now_ms + 3_000))
    send(address, DELAYED, b"soon", DELAY="1")
    send(address, DELAYED, b"later", DELAY=level)
    for topic in (DELAYED, TIMED):
        until(lambda topic=topic: bodies_of(address, topic) == [b"first", b"soon"])
    delivered_ms = CLOCK.now_ms()
    until(lambda: level_1(address) == 1)
    until(lambda: waiting_counts(address) == {TIMED: 1})
    guard_s = OURS_S if slave == REPUT else JAVAS_S
    copy = pair.slave.address
    until(lambda: modes(copy) == {DELAYED: {"poppers": MODE}}, guard_s)
    until(lambda: level_1(copy) == 1, guard_s)
    until(lambda: check(copy).read_time_ms > delivered_ms, guard_s)
    assert check(copy).master_queue_offset == 2
    assert bodies_of(copy, TIMED) == bodies_of(copy, DELAYED) == [b"first", b"soon"]
    text = pair.slave.log()
    promoted = promote(pair, slave)
    assert CLOCK.now_ms() < later_ms, "too slow: the old master may have delivered it"
    until(lambda: len(bodies_of(promoted.address, TIMED)) > 2, 180)
    assert CLOCK.now_ms() >= later_ms
    until(lambda: len(bodies_of(promoted.address, DELAYED)) > 2, 180)
    assert bodies_of(promoted.address, TIMED) == [b"first", b"soon", b"later"]
    assert bodies_of(promoted.address, DELAYED) == [b"first", b"soon", b"later"]
    assert modes(promoted.address) == {DELAYED: {"poppers": MODE}}
    assert "answers for" not in text  # a table that cannot be read


@pytest.mark.parametrize("version", ["4.9.7", "4.5.2"])
def test_masters_without_these_tables_delay_no_other(
    version: str, start_pair: Callable[[str, str], Pair]
) -> None:
    pair = start_pair(version, REPUT)
    address, copy = pair.master.address, pair.slave.address
    send(address, DELAYED, b"first")
    pair.until_caught_up(DELAYED)
    for count in (1, 2, 3):
        send(address, DELAYED, b"soon", DELAY="1")
        until(lambda count=count: level_1(address) == count)
        until(lambda count=count: level_1(copy) == count, OURS_S)
    assert DELAYED in pairs.tables(copy)[TOPICS]
    assert "answers for" not in pair.slave.log()


def test_a_slave_of_java_understands_our_tables(start_pair: Callable[[str, str], Pair]) -> None:
    """It logs no exception about the replies 21, 43, 45, 60, 61, 201 and 402."""
    pair = start_pair(REPUT, "5.5.0")
    address, copy = pair.master.address, pair.slave.address
    send(address, DELAYED, b"first")
    set_mode(address)
    later_ms = CLOCK.now_ms() + 600_000
    send(address, TIMED, b"later", TIMER_DELIVER_MS=str(later_ms))
    send(address, DELAYED, b"soon", DELAY="1")

    def is_copied() -> bool:
        return (
            waiting_counts(copy) == {TIMED: 1}
            and level_1(copy) == 1
            and modes(copy) == {DELAYED: {"poppers": MODE}}
        )

    until(is_copied, JAVAS_S)
    until(lambda: check(copy).master_queue_offset == 1)
    warnings = (pair.slave.folder / "warnings.log").read_text(errors="replace")
    exceptions = [line for line in warnings.splitlines() if "Exception" in line]
    assert exceptions == []
    assert names.TIMER_TOPIC in pairs.tables(copy)[TOPICS]
