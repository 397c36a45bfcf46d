"""timercheck against those of Java's stores."""

import pytest

import golden
from reput.errors import CorruptRecord
from reput.format import timer_check
from reput.format.timer_check import TimerCheck


def test_java_wrote_it() -> None:
    data = golden.files("5.5.0", "v5")["config/timercheck"]
    expected = golden.manifest("5.5.0", "v5")["timerCheckpoint"]
    found = timer_check.decode(data)
    assert found[:4] == (
        expected["lastReadTimeMs"],
        expected["lastTimerLogFlushPos"],
        expected["lastTimerQueueOffset"],
        expected["masterTimerQueueOffset"],
    )
    assert timer_check.encode_file(found) == data
    assert data.startswith(timer_check.encode(found))


def test_a_short_file() -> None:
    with pytest.raises(CorruptRecord, match="55 bytes; 56 are needed"):
        timer_check.decode(timer_check.encode(TimerCheck(1, 2, 3, 4))[:-1])
