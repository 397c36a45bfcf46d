"""Records that loops skip: the kept entries and the log lines."""

import logging

import pytest

from reput.broker.quarantine import LOGGED_MAX, RECENT_MAX, Quarantine


def test_the_last_entries_are_kept_and_all_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    quarantine = Quarantine()
    with caplog.at_level(logging.ERROR):
        for i in range(LOGGED_MAX + 50):
            quarantine.add("pops", f"topic 0 {i}", ValueError(f"no {i}"))
    assert quarantine.counts == {"pops": LOGGED_MAX + 50}
    assert len(quarantine.recent) == RECENT_MAX
    assert quarantine.recent[-1].place == f"topic 0 {LOGGED_MAX + 49}"
    assert len(caplog.messages) == LOGGED_MAX + 1
    assert "only counted" in caplog.messages[-1]


def test_invalid_utf_8_and_long_texts_can_be_written() -> None:
    quarantine = Quarantine()
    quarantine.add("timers", "topic \ud800", "x" * 10_000)
    (record,) = quarantine.recent
    assert record.place == "topic \\ud800"
    assert len(record.reason) == 300
    quarantine.add("timers", "topic", MemoryError())
    assert quarantine.recent[-1].reason == "MemoryError"
