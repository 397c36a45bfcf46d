"""timercheck files, compared with those of Java's stores."""

import pytest

import golden
from reput.errors import CorruptRecord
from reput.format import timer_check
from reput.format.timer_check import TimerCheck


def test_files_of_java() -> None:
    data = golden.files("5.5.0", "v5")["config/timercheck"]
    expected = golden.manifest("5.5.0", "v5")["timerCheckpoint"]
    check = timer_check.decode(data)
    assert check[:4] == (
        expected["lastReadTimeMs"],
        expected["lastTimerLogFlushPos"],
        expected["lastTimerQueueOffset"],
        expected["masterTimerQueueOffset"],
    )
    assert timer_check.encode_file(check) == data
    assert data.startswith(timer_check.encode(check))


def test_a_short_file() -> None:
    with pytest.raises(CorruptRecord, match="55 bytes; 56 are needed"):
        timer_check.decode(timer_check.encode(TimerCheck(1, 2, 3, 4))[:-1])
