"""Arguments and results of the kernel ``scan_requests``: known fields, and a row per request.

Words of 64 bits, in native order. ``reput.broker.fastpath.request_table`` makes and reads them.
"""

from reput.store.kernels.control_block import FRAME_FIELDS_MAX

# --- the known fields: CODE to NAMES, then FIELD_WORDS for each field ---------------------

CODE = 0
"""The request code."""
ROWS = 1
"""Address of the rows."""
ROWS_MAX = 2
"""Number of rows that there is room for."""
REQUIRED = 3
"""Bits of the required fields; that of the first field is 1."""
NAMES = 4
"""Number of known fields. FRAME_NAMES points here."""
FIELDS_MAX = FRAME_FIELDS_MAX

FIELD_NAME = 0
"""Address of the field's name, which is ASCII."""
FIELD_NAME_SIZE = 1
FIELD_KIND = 2
FIELD_WORDS = 3

TEXT = 0
"""Any plain text: ASCII, but no control, quote or backslash."""
INT = 1
"""A number from 0 to 2,147,483,647, without sign or leading zero."""
LONG = 2
"""A number of up to 18 digits, without sign or leading zero."""
BOOL = 3
"""``true`` or ``false``."""

# --- a row: a request, then FIELD_WORDS_OF_ROW for each field that is known ---------------

ROW_OPAQUE = 0
ROW_FLAG = 1
"""0, or IS_ONEWAY."""
ROW_SERIALIZATION = 2
ROW_END = 3
"""End of the frame, a position in the buffer."""
ROW_BODY = 4
"""Address of the body."""
ROW_BODY_SIZE = 5
ROW_WORDS = 6

VALUES = 2
"""Words of a field: a number, 1 or 0 for BOOL, or the address of TEXT; and the size of the text.

A TEXT equal to that of the previous row has the same address, so that callers recognize it.
"""
ABSENT = -1
"""Size of a field that the request lacks; its number is 0."""
