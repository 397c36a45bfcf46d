"""The rows of the kernel ``gate``: a call, tables, and a row a frame.

The fields are described here, what the kernel does with them in ``gate``. Positions are those of
the receive buffer. A slot of a table is in use if its first word is the epoch of the call: a new
epoch empties both tables at once.
"""

from typing import Final

from reput.format.kernels.rows import Row, columns_of, rows, word, words

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

DIGEST_WORDS = 3
"""Words of a hash: five numbers of 32 bits, and one that is not used."""


class HeaderField(Row):
    """A field of a header."""

    name = word("address", "The name")
    name_size = word("bytes", "Size of the name")
    value = word("address", "The value: in the buffer, or unescaped in the scratch")
    value_size = word("bytes", "Size of the value")


class AccountRow(Row):
    """A slot of the table of accounts."""

    epoch = word("number", "The slot is in use if this is the epoch of the call")
    name = word("address", "The access key, in UTF-8")
    name_size = word("bytes", "Size of the access key")
    inner = words(
        DIGEST_WORDS,
        "bits",
        "Hash of the first block of the inner hash, the secret key xor 0x36: five numbers of 32 "
        "bits",
    )
    outer = words(DIGEST_WORDS, "bits", "The same of the outer hash")


class Grant(Row):
    """A slot of the table of grants."""

    epoch = word("number", "The slot is in use if this is the epoch of the call")
    peer = word("number", "The address that it counts for")
    account = word("number", "Slot of the account")
    code = word("number", "Request code")
    topic = word("address", "Name of the topic")
    topic_size = word("bytes", "Size of the name")
    group = word("address", "Name of the group")
    group_size = word("bytes", "Size of the name")


class GrantableCode(Row):
    """A request code that may be granted."""

    number = word("number", "The request code")
    topic = word("address", "Name of the field with the topic")
    topic_size = word("bytes", "Size of the name")
    group = word("address", "Name of the field with the group")
    group_size = word("bytes", "Size of the name; 0: the group does not count")


class GateRow(Row):
    """A frame."""

    end = word("position", "End of the frame")
    verdict = word("number", "ODD and the following")
    account = word("number", "Slot of the account; -1 unless VERIFIED or GRANTED")
    code = word("number", "Request code; -1 if ODD")
    key = word("position", "Access key of an UNKNOWN account; -1: the header has it with escapes")
    key_size = word("bytes", "Size of the access key")


ROW = columns_of(GateRow)


class GateCall(Row):
    """A call of ``gate``."""

    buffer = word("address", "The receive buffer")
    position = word("position", "The first frame")
    end = word("position", "End of the bytes; the last frame may be incomplete")
    frames = word("address", "The rows", to=GateRow)
    rows_max = word("count", "Rows that there is room for")
    scratch = word("address", "SCRATCH_BYTES for the kernel")
    has_sha = word("flag", "The processor has instructions for SHA-1")
    peer = word("number", "The peer's address: grants count for one address")
    epoch = word("number", "Number of the contents of the tables; not 0")
    seed = word("number", "Start of all hashes: clients cannot choose names of one slot")
    accounts = word("address", "The table of accounts", to=AccountRow)
    account_slots = word("count", "Its slots, a power of two")
    grants = word("address", "The table of grants", to=Grant)
    grant_slots = word("count", "Its slots, a power of two")
    codes = word("address", "The request codes that may be granted", to=GrantableCode)
    code_count = word("count", "These codes")

    # A frame: of use to the kernel only.
    frame_code = word("number", "Request code")
    frame_flag = word("bits", "Flag of the header")
    frame_opaque = word("number", "Opaque of the header")
    field_count = word("count", "Fields")
    texts_end = word("address", "End of the unescaped texts in the scratch")
    hash = words(DIGEST_WORDS, "bits", "The hash: five numbers of 32 bits")
    keys = words(FIELDS_MAX, "bits", "First eight bytes of the name of each field, ascending")
    order = words(FIELDS_MAX, "address", "The fields, in the order of ``keys``", to=HeaderField)
    fields = rows(FIELDS_MAX, HeaderField, "The fields, in the order of the header")


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
