"""An outage is a line of the log for each server, not for each queue and attempt."""

import asyncio
import logging

import pytest

from reput.client import PullConsumer, PushConsumer, queue_pulls
from reput.client.group_member import GroupMember
from reput.client.outages import KINDS_MAX, PAUSE_MS, Outages
from reput.clock import ManualClock
from reput.errors import BrokerError, ConnectionLost, RequestTimedOut, Unreachable
from reput.testing import LocalBroker

GUARD_S = 60
A, B = "10.0.0.1:10911", "10.0.0.2:10911"
log = logging.getLogger("reput.client.test")


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_a_server_without_answers_has_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    outages = Outages(clock)
    caplog.set_level(logging.DEBUG, "reput.client")
    outages.warn(log, ConnectionLost(A), "pull from %s", "queue 1")
    outages.warn(log, Unreachable(A, "refused"), "pull from %s", "queue 2")
    outages.warn(log, Unreachable(B, "refused"), "pull from %s", "queue 3")
    clock.advance(PAUSE_MS - 1)
    outages.warn(log, RequestTimedOut(A, 34, 3_000), "heartbeat")
    assert lines(caplog) == [
        f"pull from queue 1: connection to {A} lost: closed by the other side",
        f"pull from queue 3: cannot connect to {B}: refused",
    ]
    assert lines(caplog, logging.DEBUG) == [
        f"pull from queue 2: cannot connect to {A}: refused",
        f"heartbeat: {A} did not answer request 34 within 3000 ms",
    ]
    clock.advance(1)
    for _ in range(2):
        outages.warn(log, Unreachable(A, "refused"), "heartbeat")
    line = f"heartbeat: cannot connect to {A}: refused (2 such lines left out)"
    assert lines(caplog)[2:] == [line]


def test_refusals_with_different_texts_are_different(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages(ManualClock())
    for remark in ("no group G", "no group H", "no group G"):
        outages.warn(log, BrokerError(26, remark, A), "pull")
    assert lines(caplog) == [
        f"pull: {A} answers code 26: no group {name}" for name in ("G", "H")
    ]  # fmt: skip


def test_the_number_of_kinds_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    outages = Outages(clock)
    for number in range(10 * KINDS_MAX):
        outages.warn(log, BrokerError(1, f"{number}"), "pull")
    assert len(lines(caplog)) == KINDS_MAX + 1
    clock.advance(PAUSE_MS)
    outages.warn(log, BrokerError(1, "another"), "pull")
    outages.warn(log, BrokerError(1, "one more"), "pull")
    assert len(lines(caplog)) == KINDS_MAX + 3


class Countdown(logging.Handler):
    """Waits for a number of log records about pulls."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.is_over = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.count -= record.getMessage().startswith("pull from")
        if self.count <= 0:
            self.is_over.set()


@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_an_outage_of_a_consumer_with_many_queues_is_a_few_lines(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_pulls, "PULL_AGAIN_MS", 1)
    topics = {"T": 8, "U": 8}
    async with LocalBroker(topics=topics) as mq:
        consumer: GroupMember = PullConsumer("G", namesrv=mq.namesrv_addr)
        if kind == "push":
            consumer = PushConsumer("G", namesrv=mq.namesrv_addr, listener=lambda *_: None)
        await consumer.start()
        for topic in topics:
            await consumer.subscribe(topic)
        await consumer.ready()
        caplog.clear()
        caplog.set_level(logging.DEBUG, "reput.client")
        failed_pulls = Countdown(5 * sum(topics.values()))
        logging.getLogger("reput.client").addHandler(failed_pulls)
    try:
        async with asyncio.timeout(GUARD_S):
            await failed_pulls.is_over.wait()
        written = {
            record.getMessage()
            for record in caplog.records
            if record.levelno >= logging.WARNING and record.name.startswith("reput.client")
        }
        # The broker stops, and is gone; so does the name server, which had its routes before.
        assert 1 <= len(written) <= 4, written
    finally:
        logging.getLogger("reput.client").removeHandler(failed_pulls)
        await consumer.close()
