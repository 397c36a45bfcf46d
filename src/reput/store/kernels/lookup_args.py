"""The calls of the kernels ``find_by_key`` and ``find_by_time``: arguments and results.

What the kernels do with the fields: ``lookup``.
"""

from reput.format.kernels.rows import Row, rows, word
from reput.store.kernels.control_block import QueueRow

RECORDS_MAX = 64
"""Most records that one call of ``find_by_key`` finds."""
FALLS_BACK = -1
"""Result of a search that is left to slower code."""
IS_UNMAPPED = -2
"""Result of a search that needs a log file that is not mapped for kernels."""
TIME_MAX_MS = 1 << 60
"""Later times mean this one, so that sums of times do not overflow."""

# --- by key --------------------------------------------------------------------------------


class KeyMatch(Row):
    """A record that was found."""

    physical_offset = word("physical offset", "Of the record")
    record = word("address", "The record")
    size = word("bytes", "Its size")


class KeySearch(Row):
    """A search by key."""

    is_tags = word("flag", "The key is the whole TAGS property")
    begin_ms = word("ms", "Minimum store time")
    end_ms = word("ms", "Maximum store time")
    count_max = word("count", "Most records that are wanted, up to RECORDS_MAX")
    steps_max = word(
        "count", "Index entries after which the search is left to the slices of ``getting``"
    )
    record_size_max = word("bytes", "Limit of a record")
    buffer = word("address", "Room for the records, which are concatenated")
    buffer_room = word("bytes", "Size of that room")

    is_truncated = word("flag", "Result: there are more than ``count_max`` records")
    unmapped = word(
        "physical offset", "Result: in a log file that is not mapped: map it, and call again"
    )
    result_size = word("bytes", "Result: size of all records")
    matches = rows(RECORDS_MAX, KeyMatch, "Result: the records, in the order of the log")


# --- by time -------------------------------------------------------------------------------


class TimeSearch(Row):
    """A search by time."""

    queue_row = word("address", "Row of the queue", to=QueueRow)
    low = word("queue offset", "First of the span that is searched")
    high = word("queue offset", "After the last of the span")
    time_ms = word("ms", "The time that is looked for")
    is_upper = word(
        "flag",
        "The result is the first offset after all messages of that time; 0: the first of them",
    )
    record_size_max = word("bytes", "Limit of a record")
    unmapped = word("physical offset", "Result: as in ``KeySearch``")
