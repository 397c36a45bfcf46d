"""Arguments and results of the kernel ``gate``: one block of int64 words, tables, and rows.

The words are described here, what the kernel does with them in ``gate``. Positions are those of the
receive buffer. A slot of a table is in use if its first word is the epoch of the block: a new epoch
empties both tables at once.
"""

from collections.abc import Iterator
from typing import Final

_words: Iterator[int] = iter(range(1 << 10))

FIELDS_MAX = 64
"""Maximum number of fields in a header; one with more is ODD."""
HEADER_BYTES_MAX = 64 * 1024
"""Maximum size of a header, bytes; a longer one is ODD."""
SLACK = 16
"""Bytes that may be written after the end of a text."""
SCRATCH_BYTES = 2 * (HEADER_BYTES_MAX + SLACK) + 256
PROBES_MAX = 32
"""Slots of a table that are tried for a key: the work for a frame does not grow with the table."""
SIGNATURE_BYTES = 28

BUFFER = next(_words)
"""Address of the receive buffer."""
POSITION = next(_words)
"""Position of the first frame."""
END = next(_words)
"""End of the bytes in the buffer; the last frame may be incomplete."""
ROWS = next(_words)
ROWS_MAX = next(_words)
"""Number of rows that there is room for."""
SCRATCH = next(_words)
"""Address of SCRATCH_BYTES bytes."""
HAS_SHA = next(_words)
"""1 if the processor has instructions for SHA-1."""
PEER = next(_words)
"""Number of the peer's address: grants count for one address."""
EPOCH = next(_words)
"""Number of the contents of the tables; not 0."""
SEED = next(_words)
"""Start of all hashes: clients cannot choose names of one slot."""
ACCOUNTS = next(_words)
"""Address of the table of accounts."""
ACCOUNT_SLOTS = next(_words)
"""Slots of the table of accounts: a power of two."""
GRANTS = next(_words)
"""Address of the table of grants."""
GRANT_SLOTS = next(_words)
"""Slots of the table of grants: a power of two."""
CODES = next(_words)
"""Address of the rows of request codes that may be granted."""
CODE_COUNT = next(_words)

FRAME_CODE = next(_words)
"""Code of a frame. The words from here on are for the kernel alone."""
FRAME_FLAG = next(_words)
FRAME_FIELDS = next(_words)
"""Number of fields."""
FRAME_TEXTS = next(_words)
"""End of the unescaped texts in the scratch."""
SHA_STATE = next(_words)
"""The hash: five numbers of 32 bits."""
for _ in range(2):
    next(_words)
KEYS = next(_words)
"""First eight bytes of the name of each field, a word each, ascending."""
for _ in range(FIELDS_MAX - 1):
    next(_words)
ORDER = next(_words)
"""Address of the entry of each field, in the order of KEYS."""
for _ in range(FIELDS_MAX - 1):
    next(_words)
FIELDS = next(_words)
"""The entries of the fields, in the order of the header."""

# --- an entry of a field ------------------------------------------------------------------

FIELD_NAME = 0
FIELD_NAME_SIZE = 1
FIELD_VALUE = 2
"""Address of the value's text: in the buffer, or unescaped in the scratch."""
FIELD_VALUE_SIZE = 3
FIELD_WORDS = 4

WORDS = FIELDS + FIELDS_MAX * FIELD_WORDS

# --- a slot of the table of accounts --------------------------------------------------------

ACCOUNT_EPOCH = 0
ACCOUNT_NAME = 1
"""Address of the access key, in UTF-8."""
ACCOUNT_NAME_SIZE = 2
ACCOUNT_INNER = 3
"""Hash of the first block of the inner hash: the secret key, xor 0x36. Five numbers of 32 bits."""
ACCOUNT_OUTER = 6
"""The same of the outer hash."""
ACCOUNT_WORDS = 9
DIGEST_WORDS = 3
"""Words of a hash: five numbers of 32 bits, and one that is not used."""

# --- a slot of the table of grants ----------------------------------------------------------

GRANT_EPOCH = 0
GRANT_PEER = 1
GRANT_ACCOUNT = 2
"""Slot of the account."""
GRANT_CODE = 3
GRANT_TOPIC = 4
GRANT_TOPIC_SIZE = 5
GRANT_GROUP = 6
GRANT_GROUP_SIZE = 7
GRANT_WORDS = 8

# --- a request code that may be granted -------------------------------------------------------

CODE_NUMBER = 0
CODE_TOPIC = 1
"""Address of the name of the field with the topic."""
CODE_TOPIC_SIZE = 2
CODE_GROUP = 3
CODE_GROUP_SIZE = 4
"""Size of the name of the field with the group; 0: the group does not count."""
CODE_WORDS = 5

# --- a row: a frame ---------------------------------------------------------------------------

ROW_END = 0
"""Position of the end of the frame."""
ROW_VERDICT = 1
ROW_ACCOUNT = 2
"""Slot of the account; -1 unless VERIFIED or GRANTED."""
ROW_CODE = 3
"""Request code; -1 if ODD."""
ROW_KEY = 4
"""Position of the access key of an UNKNOWN account; -1 if the header has it with escapes."""
ROW_KEY_SIZE = 5
ROW_WORDS = 6

ODD: Final = 0
"""The frame has another form: Python decodes and verifies it."""
UNSIGNED: Final = 1
"""There is no access key or no signature."""
UNKNOWN: Final = 2
"""The account is not in the table."""
BAD: Final = 3
"""The signature is another one."""
VERIFIED: Final = 4
"""The signature is that of the account."""
GRANTED: Final = 5
"""VERIFIED, and the table has a grant for the account, the code, the topic and the group."""
