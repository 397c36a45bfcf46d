"""Arguments and results of the kernels of ``digest``: one block of int64 words, and tables.

A digest has the records of a piece of a log file as entries of fixed size: everything that queues
and index need of them. The words are described here, what the kernels do with them in ``digest``.
"""

from collections.abc import Iterator

_words: Iterator[int] = iter(range(1 << 5))

FILE = next(_words)
"""Address of byte 0 of the log file. Other positions count from here."""
START = next(_words)
"""Position where the piece begins: anywhere in a record, unless it is ``IS_START``."""
IS_START = next(_words)
"""1 if a record begins at ``START``."""
STOP = next(_words)
"""Position before which the records of the piece begin."""
END = next(_words)
"""End of the bytes in the file."""
FILE_END = next(_words)
BASE = next(_words)
"""Physical offset of position 0."""
HAS_KEYS, HAS_TAGS = next(_words), next(_words)
"""Whether keys are hashed, and tags among them."""
CRC_TABLES = next(_words)
ENTRIES, ENTRIES_MAX = next(_words), next(_words)
TOPICS, TOPICS_MAX = next(_words), next(_words)
"""Address of the topics of the piece, and the maximum number of them."""
TOPIC_SLOTS, TOPIC_SLOTS_COUNT = next(_words), next(_words)
"""Address of an open-addressing table of int64, a power of two: number of a topic plus 1; zeros."""
HASHES, HASHES_MAX = next(_words), next(_words)
"""Address of the hashes of the keys, int32, in order; and the maximum number of them."""
TOPIC_COUNT = next(_words)
"""Number of topics; 0 before the call."""
WORDS = next(_words)

# --- an entry: a record of the piece; each begins where the one before it ends -------------------

ENTRY_POSITION = 0
ENTRY_SIZE = 1
ENTRY_TOPIC = 2
"""Number of its topic in the digest."""
ENTRY_QUEUE_ID = 3
ENTRY_QUEUE_OFFSET = 4
ENTRY_TAGS_CODE = 5
ENTRY_TIMESTAMP = 6
"""Store time, ms."""
ENTRY_FLAGS = 7
"""The transaction type of the system flag, ``FLAG_LIGHT`` and ``FLAG_DELAY``."""
ENTRY_HASHES_END = 8
"""Number of hashes of this and all earlier entries."""
ENTRY_WORDS = 9

FLAG_LIGHT = 1 << 32
"""The record names light queues."""
FLAG_DELAY = 1 << 33
"""The record has a delay level."""

# --- a topic of a piece ----------------------------------------------------------------------

TOPIC_NAME, TOPIC_NAME_SIZE = 0, 1
"""Address and size of the name in the log."""
TOPIC_HASH = 2
"""Java hash of ``name#``, unsigned."""
TOPIC_ROW = 3
"""Address of the topic's row in the hot state; 0 until it is looked up."""
TOPIC_WORDS = 4
