"""Counts of refused requests: by kind and address, in /metrics, and in few lines of the log."""

from pathlib import Path

import pytest

import world
from reput.broker.access.refusals import ADDRESSES_MAX, LINE_MS, OTHERS, AccessRefusals
from reput.clock import ManualClock
from reput.format.codes import RequestCode as Code
from reput.remoting import metrics_server


def test_one_line_a_minute_for_an_address_and_kind(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0)
    refusals = AccessRefusals(clock.monotonic_ms)

    def refuse(address: str, *, is_unverified: bool = True) -> None:
        refusals.add(address, 310, "the reason", is_unverified=is_unverified)

    for _ in range(1000):
        refuse("192.0.2.1")
    refuse("192.0.2.1", is_unverified=False)
    refuse("192.0.2.2")
    clock.advance(LINE_MS - 1)
    refuse("192.0.2.1")
    assert len(caplog.records) == 3
    clock.advance(1)
    refuse("192.0.2.1")
    assert len(caplog.records) == 4
    line = "192.0.2.1: request 310 refused: 'the reason'"
    assert caplog.messages == [
        line, line, line.replace("0.2.1", "0.2.2"), f"{line} (1000 more since the last line)"
    ]  # fmt: skip
    assert refusals.by_address == {"192.0.2.1": 1002, "192.0.2.2": 1}
    assert (refusals.unauthenticated_count, refusals.unauthorized_count) == (1003, 1)


def test_many_addresses_share_a_count_and_a_line(caplog: pytest.LogCaptureFixture) -> None:
    refusals = AccessRefusals(ManualClock(0).monotonic_ms)
    count = 50 * ADDRESSES_MAX
    for i in range(count):
        refusals.add(f"2001:db8::{i:x}", 310, "the reason", is_unverified=True)
    by_address = refusals.by_address
    assert len(by_address) == ADDRESSES_MAX + 1
    assert by_address[OTHERS] == count - ADDRESSES_MAX
    assert sum(by_address.values()) == refusals.unauthenticated_count == count
    assert len(caplog.records) == ADDRESSES_MAX + 1
    refusals.add("2001:db8::0", 310, "the reason", is_unverified=True)
    assert refusals.by_address["2001:db8::0"] == 2


async def test_refusals_are_metrics(tmp_path: Path) -> None:
    access = world.access_settings(authorization_enabled=False)
    async with world.broker(tmp_path, access=access) as subject:
        for _ in range(3):
            assert (await subject.ask(Code.GET_BROKER_CONFIG)).code == 16
        families = await world.meter(subject.broker).measure()
        lines = metrics_server.text_of(families).decode().splitlines()
    assert 'reput_access_refused_total{reason="not_authenticated"} 3.0' in lines
    assert 'reput_access_refused_total{reason="not_authorized"} 0.0' in lines
    assert 'reput_access_not_authenticated_total{address="127.0.0.1"} 3.0' in lines


async def test_without_access_control_there_are_no_such_metrics(tmp_path: Path) -> None:
    async with world.broker(tmp_path) as subject:
        families = await world.meter(subject.broker).measure()
    assert not [family.name for family in families if family.name.startswith("reput_access")]
