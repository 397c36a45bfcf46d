"""The clocks."""

import time

import pytest

from reput.clock import Clock, ManualClock, SystemClock


def test_the_system_clock_returns_the_time_of_the_system() -> None:
    clock: Clock = SystemClock()
    before_ms = time.time_ns() // 1_000_000
    now_ms = clock.now_ms()
    assert before_ms <= now_ms <= time.time_ns() // 1_000_000
    assert clock.monotonic_ms() <= clock.monotonic_ms()


def test_a_manual_clock_changes_only_when_set() -> None:
    clock = ManualClock(1_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_000, 0)
    clock.advance(250)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_250, 250)


def test_setting_the_wall_clock_back_keeps_monotonic_time() -> None:
    clock: Clock = (manual := ManualClock(5_000))
    manual.advance(100)
    manual.set(0)
    assert (clock.now_ms(), clock.monotonic_ms()) == (0, 100)


def test_monotonic_time_never_decreases() -> None:
    with pytest.raises(AssertionError):
        ManualClock().advance(-1)
