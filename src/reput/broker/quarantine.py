"""Stored records that a background loop cannot process: counted, named, passed over.

Everything in the log comes from clients. A loop that works through stored records must go on
behind one that it cannot take: it reports the record here and continues with the next.
"""

import logging
from collections import Counter, deque
from dataclasses import dataclass

RECENT_MAX = 32
"""Records that are kept for ``/health``."""
LOGGED_MAX = 100
"""Records of one loop that get a line each in the log; later ones are only counted."""
TEXT_LETTERS_MAX = 300
"""Letters that are kept of a place and of a reason."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A record that was passed over."""

    loop: str
    place: str
    """Topic and offset, as an operator would look it up."""
    reason: str


class Quarantine:
    """The records that loops passed over since the start."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Loop -> records."""
        self.recent: deque[QuarantinedRecord] = deque(maxlen=RECENT_MAX)

    def add(self, loop: str, place: str, reason: Exception | str) -> None:
        """Report a record.

        Args:
            loop: Which loop passed it over: ``timers``, ``pops``, ``transactions``, ``delayed``.
            place: Where the record is: topic, queue and offset, or physical offset.
            reason: What is wrong with it.
        """
        text = str(reason)
        if isinstance(reason, Exception) and not text:
            text = type(reason).__name__
        record = QuarantinedRecord(loop, _writable(place), _writable(text))
        self.recent.append(record)
        self.counts[loop] += 1
        if self.counts[loop] <= LOGGED_MAX:
            _log.error("%s: a record is passed over: %s: %s", loop, record.place, record.reason)
        if self.counts[loop] == LOGGED_MAX:
            _log.error("%s: further records that are passed over are only counted", loop)


def _writable(text: str) -> str:
    """Return the beginning of a text, with what is no UTF-8 spelt out: names come from clients."""
    return text[:TEXT_LETTERS_MAX].encode("utf-8", "backslashreplace").decode()
