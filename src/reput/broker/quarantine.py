"""Stored records that a background loop cannot process: counted, reported, skipped.

The content of the log comes from clients. A loop that works through stored records must not stop at
one that it cannot process: it reports the record here and continues with the next.
"""

import logging
from collections import Counter, deque
from dataclasses import dataclass

RECENT_MAX = 32
"""Records that ``/health`` lists."""
LOGGED_MAX = 100
"""Maximum number of logged records per loop; later records are only counted."""
TEXT_LETTERS_MAX = 300
"""Maximum length of a place and of a reason."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A skipped record."""

    loop: str
    place: str
    """Topic and offset, in a form that an operator can look up."""
    reason: str


class Quarantine:
    """The records that loops have skipped since the start."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Loop -> number of records."""
        self.recent: deque[QuarantinedRecord] = deque(maxlen=RECENT_MAX)

    def add(self, loop: str, place: str, reason: Exception | str) -> None:
        """Report a record.

        Args:
            loop: The loop that skipped it: ``timers``, ``pops``, ``transactions``, ``delayed``.
            place: Location of the record: topic, queue and offset, or physical offset.
            reason: Why it cannot be processed.
        """
        text = str(reason)
        if isinstance(reason, Exception) and not text:
            text = type(reason).__name__
        record = QuarantinedRecord(loop, _writable(place), _writable(text))
        self.recent.append(record)
        self.counts[loop] += 1
        if self.counts[loop] <= LOGGED_MAX:
            _log.error("%s: a record is skipped: %s: %s", loop, record.place, record.reason)
        if self.counts[loop] == LOGGED_MAX:
            _log.error("%s: further skipped records are only counted", loop)


def _writable(text: str) -> str:
    """Truncate a text and escape characters that are not valid UTF-8, as clients choose names."""
    return text[:TEXT_LETTERS_MAX].encode("utf-8", "backslashreplace").decode()
