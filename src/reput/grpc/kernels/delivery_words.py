"""Arguments and results of the kernel ``grpc_delivery``: one block of int64 words, and rows."""

from collections.abc import Iterator

_words: Iterator[int] = iter(range(1 << 6))

RECORDS = next(_words)
"""Address of the records."""
ROWS = next(_words)
TEXTS = next(_words)
"""Address of handles and digests."""
TOPIC = next(_words)
"""Address of the name of the topic that the client reads."""
TOPIC_SIZE = next(_words)
"""Its size, at most 125 bytes."""
INVISIBLE_MS = next(_words)
"""Invisible time of the messages, in ms."""
OUT = next(_words)
OUT_ROOM = next(_words)
"""Size of the room for the messages, bytes."""
SCRATCH = next(_words)
"""Address of SCRATCH_BYTES."""
SCRATCH_BYTES = 64 << 10

P_TAG, P_KEYS, P_ID, P_HOST, P_GROUP = range(next(_words), 19, 2)
"""Address and size of the properties that become fields. These words are for the kernel alone."""
P_FIRST, P_WORDS = P_TAG, 10
WORDS = 32

ROW_RECORD = 0
"""Position of the record."""
ROW_HANDLE = 1
"""Position of the receipt handle among the texts."""
ROW_HANDLE_SIZE = 2
ROW_DIGEST = 3
"""Position of the digest: 32 letters."""
ROW_ATTEMPT = 4
"""Number of this delivery, from 1."""
ROW_BEGIN, ROW_END = 5, 6
"""Begin and end of the message in the room; equal if the record is left."""
ROW_WORDS = 7
