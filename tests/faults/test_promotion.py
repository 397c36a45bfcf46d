"""After a promotion: the old master returns with a diverged tail, and other brokers open the store.

Rows 27 and 28 of docs/reference/replication.md.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import seeds
from faults.harness import REPUT, Node, Pair
from faults.history import Guarantee, History, Rule, Send, Status, summary
from faults.traffic import Traffic
from interop import java_oracle
from reput.errors import RequestTimedOut

pytestmark = [pytest.mark.crash, pytest.mark.slow]

COUNT = 30
TAIL_COUNT = 5
GUARD_S = 120.0
LATER_S = 6.0
"""Time longer than the retry interval of a slave."""
Place = tuple[str, int, int]

JAVA = (pytest.mark.interop,)
SLOW_JAVA = (
    *JAVA,
    pytest.mark.skipif(
        not java_oracle.wants_all_versions(),
        reason="make interop-all: Java's slaves are slow",
    ),
)


@pytest.fixture
def start_pair(tmp_path: Path) -> Callable[..., Pair]:
    """Return a function that makes a pair, whose master acknowledges alone."""

    def start(*kinds: str, diverged_policy: str = "refuse") -> Pair:
        if set(kinds) != {REPUT}:
            try:
                for kind in set(kinds) - {REPUT}:
                    java_oracle.cluster_jars(kind)
            except java_oracle.JavaUnavailable as reason:
                pytest.skip(f"missing java: {reason}")
        first, second = kinds
        chance = seeds.random("promotion", "links")
        return Pair(
            tmp_path, (first, second), chance, Guarantee.ASYNC, diverged_policy=diverged_policy
        )

    return start


def traffic_of(pair: Pair) -> Traffic:
    loop = asyncio.get_running_loop()
    history = History(pair.guarantee, [node.name for node in pair.nodes])
    return Traffic(
        pair, history, seeds.random("promotion", "traffic"), lambda: int(loop.time() * 1000)
    )


async def send_many(traffic: Traffic, node: Node, count: int) -> list[Send]:
    sends = [await traffic.send("p", node) for _ in range(count)]
    assert {send.status for send in sends} == {Status.OK}, sends
    return sends


async def read_all(traffic: Traffic, node: Node) -> dict[Place, str]:
    """Return the keys of all messages by queue and queue offset."""
    async with asyncio.timeout(GUARD_S):
        while True:
            traffic.history.reads.clear()
            with contextlib.suppress(RequestTimedOut):  # on a busy machine
                await traffic.read_all(node)
                break
    return {read.place: read.key for read in traffic.history.reads}


async def diverge(pair: Pair, traffic: Traffic) -> tuple[list[Send], list[Send]]:
    """Promote the slave while the master has a tail that the slave lacks, and send to it.

    Returns:
        Messages that both have, and the old master's tail.
    """
    both = await send_many(traffic, pair.master, COUNT)
    assert await pair.wait_in_sync(GUARD_S)
    pair.slave_link.stop_traffic()
    tail = await send_many(traffic, pair.master, TAIL_COUNT)
    await pair.kill(pair.master)
    pair.slave_link.cut()
    pair.slave_link.heal()
    await pair.promote(pair.slave)
    both += await send_many(traffic, pair.master, TAIL_COUNT)
    return both, tail


def kept_bytes(node: Node) -> bytes:
    """Return all bytes that a node kept when it cut its log."""
    return b"".join(file.read_bytes() for file in (node.store / "cut").rglob("*") if file.is_file())


# --- 27: an old master with a diverged tail -------------------------------------------------


@pytest.mark.soak
async def test_a_diverged_tail_is_cut_and_kept(start_pair: Callable[..., Pair]) -> None:
    async with start_pair(REPUT, REPUT, diverged_policy="truncate") as pair:
        traffic = traffic_of(pair)
        old = pair.master
        both, tail = await diverge(pair, traffic)
        await pair.start(old, is_master=False)
        assert await pair.wait_in_sync(GUARD_S), old.log()
        assert set((await read_all(traffic, old)).values()) == {send.key for send in both}
        await traffic.read_all(pair.master)
        traffic.history.logs += [
            node.log_copy(*await pair.log_ends(node)) for node in reversed(pair.nodes)
        ]
        problems = traffic.history.check()
        assert not [problem for problem in problems if problem.rule is Rule.DIVERGED], summary(
            problems
        )
        kept = kept_bytes(old)
        assert [
            send.key for send in tail if b"KEYS\x01%b\x02" % send.key.encode() not in kept
        ] == []


async def test_a_diverged_tail_is_refused_by_default(start_pair: Callable[..., Pair]) -> None:
    async with start_pair(REPUT, REPUT) as pair:
        traffic = traffic_of(pair)
        old = pair.master
        both, tail = await diverge(pair, traffic)
        await pair.start(old, is_master=False)
        _, end = await pair.log_ends(old)
        await asyncio.sleep(LATER_S)
        assert await pair.log_ends(old) == (0, end)
        keys = set((await read_all(traffic, old)).values())
        assert keys == {send.key for send in both[:COUNT] + tail}
        assert kept_bytes(old) == b""
        # The log of the process names the offset at which the two begin to differ.
        assert str(tail[0].physical_offset) in old.log()


# --- 28: another broker opens a promoted store ------------------------------------------------


@pytest.mark.parametrize(
    ("master", "slave", "opener"),
    [
        pytest.param(REPUT, REPUT, "4.9.7", marks=JAVA),
        pytest.param(REPUT, REPUT, "5.5.0", marks=SLOW_JAVA),
        pytest.param("4.9.7", REPUT, "4.9.7", marks=JAVA),
        pytest.param("5.5.0", REPUT, "5.5.0", marks=SLOW_JAVA),
        pytest.param(REPUT, "4.9.7", REPUT, marks=SLOW_JAVA),
        pytest.param(REPUT, "5.5.0", REPUT, marks=SLOW_JAVA),
        pytest.param("4.9.7", REPUT, REPUT, marks=SLOW_JAVA),
    ],
)
@pytest.mark.rotating
async def test_another_broker_opens_a_promoted_store(
    start_pair: Callable[..., Pair], master: str, slave: str, opener: str
) -> None:
    async with start_pair(master, slave) as pair:
        traffic = traffic_of(pair)
        sends = await send_many(traffic, pair.master, COUNT)
        assert await pair.wait_in_sync(GUARD_S)
        await pair.kill(pair.master)
        promoted = pair.slave
        await pair.promote(promoted)
        sends += await send_many(traffic, promoted, COUNT)
        before = await read_all(traffic, promoted)
        assert sorted(before.values()) == sorted(send.key for send in sends)
        await pair.stop(promoted)
        promoted.kind = opener
        await pair.start(promoted, is_master=True)
        await assert_continued(traffic, promoted, before)


@pytest.mark.parametrize(
    ("master", "slave", "opener"),
    [
        pytest.param(REPUT, "4.9.7", REPUT, marks=SLOW_JAVA),
        pytest.param(REPUT, "5.5.0", REPUT, marks=SLOW_JAVA),
        pytest.param("5.5.0", "5.5.0", REPUT, marks=SLOW_JAVA),
        pytest.param(REPUT, REPUT, "4.9.7", marks=SLOW_JAVA),
        pytest.param("5.5.0", REPUT, "5.5.0", marks=SLOW_JAVA),
    ],
)
async def test_another_broker_is_the_master_on_the_store_of_a_slave(
    start_pair: Callable[..., Pair], master: str, slave: str, opener: str
) -> None:
    async with start_pair(master, slave) as pair:
        traffic = traffic_of(pair)
        await send_many(traffic, pair.master, COUNT)
        assert await pair.wait_in_sync(GUARD_S)
        before = await read_all(traffic, pair.master)
        assert len(before) == COUNT
        await pair.kill(pair.master)
        promoted = pair.slave
        promoted.kind = opener
        await pair.promote(promoted)
        await assert_continued(traffic, promoted, before)


async def assert_continued(traffic: Traffic, master: Node, before: dict[Place, str]) -> None:
    """Check that a master has the messages of a store, and continues its queues."""
    async with asyncio.timeout(2 * GUARD_S):
        while await read_all(traffic, master) != before:
            await asyncio.sleep(0.1)  # Java dispatches after its start.
    ends = Counter[tuple[str, int]]()
    for topic, queue_id, queue_offset in before:
        ends[topic, queue_id] = max(ends[topic, queue_id], queue_offset + 1)
    for send in await send_many(traffic, master, COUNT):
        assert send.queue_offset == ends[send.topic, send.queue_id]
        ends[send.topic, send.queue_id] += 1
