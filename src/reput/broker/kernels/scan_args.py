"""The call of the kernel ``scan_requests``: known fields, and a row per request.

``reput.broker.fastpath.request_table`` makes and reads them.
"""

from reput.format.kernels.rows import Row, columns_of, row, rows, word
from reput.store.kernels.control_block import FRAME_FIELDS_MAX, KnownFields

FIELDS_MAX = FRAME_FIELDS_MAX

TEXT = 0
"""Any plain text: ASCII, but no control, quote or backslash."""
INT = 1
"""A number from 0 to 2,147,483,647, without sign or leading zero."""
LONG = 2
"""A number of up to 18 digits, without sign or leading zero."""
BOOL = 3
"""``true`` or ``false``."""
ABSENT = -1
"""Size of a field that the request lacks; its value is 0."""


class ScannedValue(Row):
    """A field of a request.

    A TEXT equal to that of the row before has the same address, so that callers recognize it.
    """

    value = word("number", "A number, 1 or 0 for BOOL, or the address of TEXT")
    size = word("bytes", "Size of the text; ABSENT: the request lacks the field")


class ScannedRow(Row):
    """A request."""

    opaque = word("number", "Opaque of the header")
    flag = word("bits", "0, or IS_ONEWAY")
    serialization = word("number", "JSON or binary")
    end = word("position", "End of the frame in the buffer")
    body = word("address", "The body")
    body_size = word("bytes", "Size of the body")
    values = rows(0, ScannedValue, "The known fields")


ROW = columns_of(ScannedRow)


class ScanCall(Row):
    """A call of ``scan_requests``."""

    code = word("number", "The request code")
    rows = word("address", "The rows, each ``row_bytes`` after the one before", to=ScannedRow)
    rows_max = word("count", "Rows that there is room for")
    row_bytes = word("bytes", "Size of a row with its fields")
    required = word("bits", "The required fields; that of the first field is 1")
    names = row(KnownFields, "The known fields")
