"""Arguments and results of the kernels ``find_by_key`` and ``find_by_time``.

Each has a block of int64 words, described here; what the kernels do with them: ``lookup``.
"""

from collections.abc import Iterator

RECORDS_MAX = 64
"""Most records that one call of ``find_by_key`` finds."""
FALLS_BACK = -1
"""Result of a search that is left to slower code."""
IS_UNMAPPED = -2
"""Result of a search that needs a log file that is not mapped for kernels."""
TIME_MAX_MS = 1 << 60
"""Later times mean this one, so that sums of times do not overflow."""

_words: Iterator[int] = iter(range(1 << 6))

# --- by key: arguments ----------------------------------------------------------

IS_TAGS = next(_words)
"""Whether the key is the whole TAGS property: 0 or 1."""
BEGIN_MS = next(_words)
"""Minimum store time, ms."""
END_MS = next(_words)
"""Maximum store time, ms."""
COUNT_MAX = next(_words)
"""Most records that are wanted, up to RECORDS_MAX."""
STEPS_MAX = next(_words)
"""Index entries after which the search is left to the slices of ``getting``."""
RECORD_BYTES_MAX = next(_words)
"""Maximum size of a record."""
BUFFER = next(_words)
"""Address of the room for the records, which are concatenated."""
BUFFER_ROOM = next(_words)

# --- by key: results --------------------------------------------------------------

IS_TRUNCATED = next(_words)
"""Whether there are more than COUNT_MAX records: 0 or 1."""
UNMAPPED = next(_words)
"""Physical offset in a log file that is not mapped for kernels: map it, and call again."""
BYTES = next(_words)
"""Size of all records."""

PLACES = next(_words)
"""The records that were found, in the order of the log: physical offset, address and size."""
WORDS = PLACES + 3 * RECORDS_MAX
"""Size of the block of ``find_by_key``, in words."""

# --- rows of index files -----------------------------------------------------------

_file_words: Iterator[int] = iter(range(1 << 3))
FILE_ADDRESS = next(_file_words)
FILE_BEGIN_MS = next(_file_words)
FILE_END_MS = next(_file_words)
FILE_NEXT = next(_file_words)
"""Number of the next entry. In the row of the current file, these three are not current."""
FILE_WORDS = next(_file_words)

# --- by time -----------------------------------------------------------------------

_time_words: Iterator[int] = iter(range(1 << 4))
QUEUE_ROW = next(_time_words)
"""Address of the row of the queue."""
LOW = next(_time_words)
"""First queue offset of the span that is searched."""
HIGH = next(_time_words)
"""Queue offset after the last of the span."""
TIME_MS = next(_time_words)
"""The time that is looked for, ms."""
IS_UPPER = next(_time_words)
"""Whether the result is the first offset after all messages of that time, not the first of them."""
TIME_RECORD_BYTES_MAX = next(_time_words)
"""Maximum size of a record."""
TIME_UNMAPPED = next(_time_words)
"""Physical offset as UNMAPPED."""
TIME_WORDS = next(_time_words)
