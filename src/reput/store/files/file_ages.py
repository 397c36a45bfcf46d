"""The ages of files, independent of changes of the machine's clock.

The age of a file decides when its messages are deleted (``fileReservedTime``), and a clock that is
set a year ahead by mistake makes every file a year older at once. RocketMQ then deletes all files
but the last. Here only time that has passed counts:

    the clock jumps ahead while the    the jump does not count for files written before it
    store is open
    it jumps back again                the jump ahead is cancelled, by the size of the jump back
    a file's time is in the future     the file is as old as the oldest one that was written later
    the store is opened, and all of    the time since the newest file was written does not count:
    its files have expired             the machine was off, or its clock is wrong

Deletions because of a full disk are not affected.
"""

import logging
from collections.abc import Sequence

JUMP_MS = 60_000
"""A clock was set if its distance to the monotonic clock has changed by more than this."""
_MS_PER_HOUR = 3_600_000

_log = logging.getLogger(__name__)


class FileAges:
    """The ages of the files of one open store."""

    def __init__(self) -> None:
        self.jump_level = logging.ERROR
        """Level of the log for jumps of the clock; lower where tests set it."""
        self._distance_ms: int | None = None  # wall clock minus monotonic clock
        self._jumps: list[tuple[int, int]] = []  # (time after the jump, size of the jump), in ms
        self._set_back_ms = 0  # jumps back in excess of jumps ahead: the same way ahead counts

    @property
    def warning(self) -> str:
        """Reason why time does not count towards ages now, for ``/health``; empty if it counts."""
        if not self._jumps:
            return ""
        hours = sum(size for _, size in self._jumps) / _MS_PER_HOUR
        return (
            f"{hours:.1f} hours by the clock do not count for the age of log files: it was set "
            "ahead, or the store was closed for longer than fileReservedTime"
        )

    def note_time(self, now_ms: int, monotonic_ms: int) -> None:
        """Compare the two clocks; call it before and as often as ``age_ms``."""
        distance_ms = now_ms - monotonic_ms
        previous_ms, self._distance_ms = self._distance_ms, distance_ms
        if previous_ms is None:
            return
        jump_ms = distance_ms - previous_ms
        if jump_ms > JUMP_MS:
            _log.log(
                self.jump_level,
                "the clock was set ahead by %.1f hours: that does not make files expire",
                jump_ms / _MS_PER_HOUR,
            )
            returned_ms = min(jump_ms, self._set_back_ms)
            self._set_back_ms -= returned_ms
            if jump_ms - returned_ms > JUMP_MS:
                self._jumps.append((now_ms, jump_ms - returned_ms))
        elif jump_ms < -JUMP_MS:
            _log.log(
                self.jump_level, "the clock was set back by %.1f hours", -jump_ms / _MS_PER_HOUR
            )
            self._cancel_jumps(-jump_ms)

    def note_opening(self, now_ms: int, newest_ms: int, reserved_ms: int) -> None:
        """Exclude the time since the newest file was written, if all files would expire."""
        if now_ms - newest_ms >= reserved_ms:
            self._jumps.append((now_ms, now_ms - newest_ms))
            _log.warning(
                "the store was last written %.1f hours ago, by the clock: that time does not make "
                "files expire",
                (now_ms - newest_ms) / _MS_PER_HOUR,
            )

    def _cancel_jumps(self, left_ms: int) -> None:
        while left_ms > 0 and self._jumps:
            when_ms, size = self._jumps.pop()
            if size > left_ms + JUMP_MS:
                self._jumps.append((when_ms - left_ms, size - left_ms))
            left_ms -= size
        self._set_back_ms += max(left_ms, 0)

    def age_ms(self, modified_ms: Sequence[int], now_ms: int) -> int:
        """Return the age of a file in ms.

        Args:
            modified_ms: Modification times of the file and of all later files.
            now_ms: Current time.
        """
        written_ms = modified_ms[0] if modified_ms[0] <= now_ms else min(modified_ms)
        uncounted = sum(size for when_ms, size in self._jumps if written_ms < when_ms)
        return now_ms - written_ms - uncounted
