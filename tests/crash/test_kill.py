"""kill -9 at random moments, repeatedly, on one store: no acknowledged message is lost.

The child puts under SYNC_FLUSH and prints a line for each acknowledged message; the parent kills
it, opens the store, and compares. ``make soak`` does it hundreds of times.
"""

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import seeds
import store_fixture
from reput.clock import SystemClock
from reput.format import message as record
from reput.store.message_store import MessageStore
from reput.store.verify import FindingKind

pytestmark = [pytest.mark.crash, pytest.mark.slow]

ROUNDS = 4 if hypothesis.settings.default.max_examples <= 100 else 400
LIFE_S = 0.1  # At most, from the first acknowledged message.

CHILD = """
import sys
import seeds
import seeds
import store_fixture
from reput.format import properties as props
from reput.store.writing.incoming import IncomingMessage, PutStatus
from reput.store.message_store import MessageStore

root, seed, is_sync = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "SYNC_FLUSH"
chance = seeds.random("killed child", seed)
store = MessageStore.open(config=store_fixture.config(root, flush_disk_type=sys.argv[3]))
number = 0
while True:
    messages = []
    for _ in range(chance.choice((1, 1, 1, 5, 60))):
        number += 1
        body = f"{seed}-{number}-".encode().ljust(chance.randrange(10, 900), b"x")
        named = {"UNIQ_KEY": f"U{seed}-{number}", "KEYS": f"k{seed}-{number}"}
        topic = chance.choice(("TopicA", "TopicB"))
        messages.append(IncomingMessage(topic, body, chance.randrange(3), props.encode(named)))
    results = store.put_many(messages) if len(messages) > 1 else [store.put(messages[0])]
    report = ""
    for one, result in zip(messages, results):
        assert result.status is PutStatus.PUT_OK, result
        report += f"{one.topic} {one.queue_id} {result.queue_offset} {one.body.decode()}\\n"
    sys.stdout.write(report)
    sys.stdout.flush()
    if chance.random() < 0.2:
        store.step()
"""


def run_and_kill(root: Path, seed: int, flush: str) -> list[list[str]]:
    """Let a child put for a while, kill it; return the messages that it acknowledged."""
    environment = os.environ | {"PYTHONPATH": str(Path(store_fixture.__file__).parent)}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), str(seed), flush],
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert child.stdout is not None
    report = b""
    stop: float | None = None
    life = seeds.random("kill", seed).random() * LIFE_S
    poll = select.poll()
    poll.register(child.stdout, select.POLLIN | select.POLLHUP)
    while stop is None or time.monotonic() < stop:
        left = 30 if stop is None else stop - time.monotonic()
        if poll.poll(max(left, 0) * 1000):
            data = os.read(child.stdout.fileno(), 1 << 16)
            assert data, "the child ended by itself"
            report += data
            stop = stop or time.monotonic() + life
    child.kill()
    report += child.stdout.read()
    child.wait()
    child.stdout.close()
    lines = report.decode().split("\n")
    return [line.split(" ") for line in lines[:-1]]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.sampled(2)
def test_kill_9_loses_no_acknowledged_message(tmp_path: Path, flush: str) -> None:
    """This holds under ASYNC_FLUSH too: the system keeps the bytes that a killed process wrote."""
    root = tmp_path / "store"
    known: dict[tuple[str, int], dict[int, str]] = {}
    for seed in range(ROUNDS // (1 if flush == "SYNC_FLUSH" else 3)):
        for topic, queue_id, queue_offset, body in run_and_kill(root, seed, flush):
            queue = known.setdefault((topic, int(queue_id)), {})
            assert queue.setdefault(int(queue_offset), body) == body, "an offset was used twice"
        store = open_store(root, flush)
        assert not store.recovery.was_clean
        compare(store, known)
        # The next child finds the store after a crash, or after a clean stop.
        store.close() if seed % 3 == 0 else store.abandon()
    open_store(root, flush).close()
    store_fixture.assert_sound(root, allowed={FindingKind.CLOCK_BACK})


def open_store(root: Path, flush: str) -> MessageStore:
    settings: dict[str, Any] = {"flush_disk_type": flush}
    return MessageStore.open(config=store_fixture.config(root, **settings), clock=SystemClock())


def compare(store: MessageStore, known: dict[tuple[str, int], dict[int, str]]) -> None:
    for (topic, queue_id), bodies in known.items():
        queue_offset, end = 0, store.max_offset(topic, queue_id)
        assert end > max(bodies), f"{topic}/{queue_id} ends at {end}, {max(bodies)} was there"
        while queue_offset < end:
            result = store.get(topic, queue_id, queue_offset)
            for data in result.records:
                message = record.decode(data)
                body = bodies.setdefault(message.queue_offset, message.body.decode())
                assert message.body.decode() == body, "another message has its offset"
            queue_offset = result.next_offset
        newest = record.decode(store.get(topic, queue_id, end - 1).records[0])
        hits = store.query(topic, newest.properties["KEYS"], 9).records
        assert [record.decode(hit).queue_offset for hit in hits] == [newest.queue_offset]
