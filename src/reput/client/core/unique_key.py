"""UNIQ_KEY: the id that a client gives a message before sending it.

Upper-case hexadecimal of::

    address (4 or 16 bytes) | process id (2, low bits) | salt (4)
    | milliseconds since the first of the month, local time (4) | counter (2)

The salt is the hash of a class loader in Java; here it is random and distinguishes producers of one
process. Source: rocketmq 4.9.7 ``MessageClientIDSetter``.
"""

import struct
from datetime import UTC, datetime

_COUNT = 1 << 16
_FIXED = struct.Struct(">HI")


class UniqueKeys:
    """Generator of unique ids.

    Args:
        address: Address of the machine, 4 or 16 bytes.
        process_id: Process id, of which the low 16 bits are used.
        salt: 32 bits, different for each generator of a process.
    """

    def __init__(self, address: bytes, process_id: int, salt: int) -> None:
        fixed = address + _FIXED.pack(process_id & 0xFFFF, salt & 0xFFFFFFFF)
        self._fixed = fixed.hex().upper()
        self._counter = 0
        self._month_start_ms = 0
        self._month_end_ms = -1
        self._millisecond = -1
        self._prefix = ""

    def next(self, now_ms: int) -> str:
        """Return a new id for a time in ms since the epoch."""
        if now_ms != self._millisecond:
            if not self._month_start_ms <= now_ms < self._month_end_ms:
                self._month_start_ms, self._month_end_ms = _month(now_ms)
            self._millisecond = now_ms
            self._prefix = f"{self._fixed}{now_ms - self._month_start_ms:08X}"
        counter = self._counter
        self._counter = (counter + 1) % _COUNT
        return f"{self._prefix}{counter:04X}"


def _month(now_ms: int) -> tuple[int, int]:
    """Return the start of a time's month and of the next one, by the local calendar."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone()
    # Without a zone astimezone uses the local one, with that day's summer time.
    start = datetime(now.year, now.month, 1)  # noqa: DTZ001
    end = datetime(now.year + now.month // 12, now.month % 12 + 1, 1)  # noqa: DTZ001
    return int(start.astimezone().timestamp() * 1000), int(end.astimezone().timestamp() * 1000)
