"""Log lines for faults of clients: few, whatever the number of clients."""

import logging

import pytest

from reput.remoting.client_faults import KINDS_MAX, LINES_PER_S, ClientFaults

_log = logging.getLogger("reput.faults")


class Now:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def faults(now: Now, caplog: pytest.LogCaptureFixture) -> ClientFaults:
    caplog.set_level(logging.WARNING, "reput.faults")
    return ClientFaults(_log, now)


def test_a_flood_writes_a_few_lines_a_second(
    faults: ClientFaults, now: Now, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1_000):
        faults.warn("bad", "request %d is bad", number)
    assert len(caplog.records) == LINES_PER_S
    now.s += 1
    faults.warn("bad", "request %d is bad", 1_000)
    left_out = 1_000 - LINES_PER_S
    assert caplog.messages[-1] == f"request 1000 is bad ({left_out} lines of this kind left out)"
    faults.warn("bad", "request %d is bad", 1_001)
    assert caplog.messages[-1] == "request 1001 is bad"


def test_each_kind_of_fault_has_its_own_rate(
    faults: ClientFaults, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        faults.warn("bad", "bad")
        faults.warn("worse", "worse")
    assert caplog.messages.count("bad") == caplog.messages.count("worse") == LINES_PER_S


def test_unlimited_kinds_share_a_rate(
    faults: ClientFaults, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10 * KINDS_MAX):
        faults.warn(f"kind {number}", "bad")
    assert len(caplog.records) == KINDS_MAX + LINES_PER_S
