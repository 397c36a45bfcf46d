"""Arguments and results of ``scan_requests.collect``: the known fields, and a row for each request.

Words of 64 bits, in native order. ``reput.broker.fastpath.request_table`` makes and reads them.
"""

from reput.store.kernels.control_block import FRAME_FIELDS_MAX

# --- what is wanted: CODE to NAMES, then FIELD_WORDS for each field that is known ---------

CODE = 0
"""The request code."""
ROWS = 1
"""Address of the rows."""
ROWS_MAX = 2
"""For how many there is room."""
REQUIRED = 3
"""Bits of the fields that must be there, the first one's is 1."""
NAMES = 4
"""How many fields are known. From here on it is what FRAME_NAMES points at."""
FIELDS_MAX = FRAME_FIELDS_MAX

FIELD_NAME = 0
"""Address of its name, which is ASCII."""
FIELD_NAME_SIZE = 1
FIELD_KIND = 2
FIELD_WORDS = 3

TEXT = 0
"""Any plain text: ASCII, but no control, quote or backslash."""
INT = 1
"""A number from 0 to 2,147,483,647, as one would write it: no sign, no zero in front."""
LONG = 2
"""The same with up to 18 digits."""
BOOL = 3
"""``true`` or ``false``."""

# --- a row: a request, then FIELD_WORDS_OF_ROW for each field that is known ---------------

ROW_OPAQUE = 0
ROW_FLAG = 1
"""0, or IS_ONEWAY."""
ROW_SERIALIZATION = 2
ROW_END = 3
"""Where the frame ends: a position in the buffer."""
ROW_BODY = 4
"""Address of the body."""
ROW_BODY_SIZE = 5
ROW_WORDS = 6

VALUES = 2
"""Words of a field: a number, 1 or 0 for BOOL, or the address of TEXT; and the size of the text.

TEXT that is that of the row before has its address, so that who looks at rows knows it again.
"""
ABSENT = -1
"""In place of the size: the request lacks the field, its number is 0."""
