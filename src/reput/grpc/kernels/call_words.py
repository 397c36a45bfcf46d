"""Arguments and results of the kernels of gRPC calls: one block of int64 words, tables, and rows.

The words are described here, what the kernels do with them in ``http2_calls``, ``grpc_sends`` and
``grpc_acks``. Positions are those of the receive buffer. Sizes are in bytes.
"""

from collections.abc import Iterator

_words: Iterator[int] = iter(range(1 << 8))

# --- the bytes of a connection ---------------------------------------------------------

BUFFER = next(_words)
"""Address of the receive buffer."""
POSITION = next(_words)
"""Position of the first frame; after the call, end of the last frame that was handled."""
END = next(_words)
"""End of the bytes in the buffer; the last frame may be incomplete."""
HAS_OTHER = next(_words)
"""After the call: 1 if the frame at POSITION is left to the caller, 0 if it is incomplete, or the
rows or the room are used up."""
ROWS = next(_words)
ROW_MAX = next(_words)
"""Number of rows that there is room for."""
FIELDS = next(_words)
"""Address of the room for header fields: size of the name, size of the value, as 32-bit numbers of
this machine, then both."""
FIELDS_ROOM = next(_words)
OUT = next(_words)
"""Address of the room for frames to send."""
OUT_SIZE = next(_words)
"""Size of these frames after the call."""
TABLE = next(_words)
"""Address of the connection's header table."""
STATIC = next(_words)
"""Address of the words of the static table; its bytes follow."""
HUFFMAN = next(_words)
"""Address of the tables of the Huffman code."""
LAST_STREAM = next(_words)
"""Number of the latest stream."""
STREAMS_LEFT = next(_words)
"""Number of streams that the peer may still open."""
OPEN_STREAMS = next(_words)
"""Address of the numbers of the open streams."""
OPEN_COUNT = next(_words)
WINDOW = next(_words)
"""Bytes that may be sent on the connection."""
RECEIVE_WINDOW = next(_words)
"""Bytes that the peer may send on the connection."""
RECEIVE_WINDOW_MAX = next(_words)
CONTROL_FRAMES = next(_words)
"""Control frames in this second since the latest call."""
CONTROL_FRAMES_MAX = next(_words)
EMPTY_FRAMES = next(_words)
EMPTY_FRAMES_MAX = next(_words)

# --- what makes a call fast ------------------------------------------------------------

CLIENT = next(_words)
"""Address of the id of the connection's client; 0: no call is fast."""
CLIENT_SIZE = next(_words)
PATHS = next(_words)
"""Address of pairs of words: address and size of a path. A row has its number, from 1."""
PATH_COUNT = next(_words)

# --- sends -----------------------------------------------------------------------------

TOPICS = next(_words)
"""Address of the topics, each of TOPIC_WORDS words."""
TOPIC_COUNT = next(_words)
TURN = next(_words)
"""Number of sends so far: the queue of the next one."""
NOW_MS = next(_words)
"""Born time of a message without one, ms since the epoch."""
BORN_HOST = next(_words)
"""Address of the born host of a message without one."""
BORN_HOST_SIZE = next(_words)
LANGUAGE = next(_words)
"""Language of the client, as brokers number it."""
OPAQUE = next(_words)
"""Opaque of the first row; that of row i is greater by i."""
FRAMES = next(_words)
"""Address of the room for the requests to the broker."""
FRAMES_ROOM = next(_words)
FRAMES_SIZE = next(_words)
REPLIES = next(_words)
"""Address of the broker's replies."""
REPLIES_SIZE = next(_words)
INITIAL_WINDOW = next(_words)
"""Bytes that may be sent on a stream that has sent nothing."""
HEADERS_BLOCK = next(_words)
"""Address of the header block of a reply."""
HEADERS_SIZE = next(_words)
TRAILERS_BLOCK = next(_words)
TRAILERS_SIZE = next(_words)
OUT_ROOM = next(_words)
BODY_BYTES_MAX = next(_words)
PAIRS = next(_words)
"""Address of pairs of topic and group, each of PAIR_WORDS words."""
PAIR_COUNT = next(_words)
BROKER_NAME = next(_words)
"""Address of the name of the broker."""
BROKER_NAME_SIZE = next(_words)

M_WORDS = 32
M_FIRST = next(_words)
"""Fields of a message. These words are for the kernel alone."""
WORDS = M_FIRST + M_WORDS

# --- a row: a request -------------------------------------------------------------------

ROW_STREAM = 0
ROW_STATE = 1
"""One of the numbers below."""
ROW_FIELDS = 2
"""Position of its header fields in the room for them."""
ROW_FIELDS_END = 3
ROW_DATA = 4
"""Position of its data; -1 without data."""
ROW_DATA_END = 5
ROW_IS_ENDED = 6
"""1 if the end of the request has arrived."""
ROW_PATH = 7
"""Number of its path if it may be fast; else 0."""
ROW_ID = 8
"""Position of the message id."""
ROW_ID_SIZE = 9
ROW_HANDLE = 10
"""Position of the receipt handle."""
ROW_HANDLE_SIZE = 11
ROW_GROUP = 12
"""Position of the name of the group."""
ROW_GROUP_SIZE = 13
ROW_WORDS = 14

STATE_NEW = 0
STATE_ASKED = 1
"""Its request to the broker is made."""
STATE_DONE = 2
"""Its reply is written."""

# --- the header table of a connection ---------------------------------------------------

T_INSERTED = 0
"""Number of entries so far."""
T_COUNT = 1
"""Number of entries in the table."""
T_BYTES = 2
"""Size of the table as RFC 7541 counts it."""
T_BYTES_MAX = 3
T_ALLOWED_BYTES = 4
T_END = 5
"""End of the bytes in use."""
T_SLOTS = 6
SLOTS = 256
"""Slots of entries, a ring: position << 32 | size of the name << 16 | size of the value."""
TABLE_WORDS = T_SLOTS + SLOTS
DATA_BYTES = 12 << 10
"""Room for names and values."""
TABLE_BYTES = 8 * TABLE_WORDS + DATA_BYTES
BLOCK_BYTES_MAX = 4096
"""Largest header block that is read."""
INSERTS_MAX = 64
"""Maximum of entries that a block may insert, so that the table before it can be restored."""
ENTRY_BYTES = 32
SLACK = 32
"""Bytes that may be read or written after the end of a room."""

# --- the tables of the Huffman code -----------------------------------------------------

SHORT_BITS = 9
SHORT_CODES = 0
"""Words by the next SHORT_BITS bits: byte << 8 | length; 0 for a longer code."""
LENGTH_MAX = 30
FIRST_CODES = SHORT_CODES + (1 << SHORT_BITS)
"""First code of each length."""
COUNTS = FIRST_CODES + LENGTH_MAX + 1
"""Number of codes of each length."""
FIRST_SYMBOLS = COUNTS + LENGTH_MAX + 1
"""Place of the first code of each length among the symbols."""
SYMBOLS = FIRST_SYMBOLS + LENGTH_MAX + 1
"""Bytes in the order of their codes, then the end."""
SYMBOL_COUNT = 257
HUFFMAN_WORDS = SYMBOLS + SYMBOL_COUNT

SEND_PATH, ACK_PATH = 1, 2
"""Numbers of the paths of SendMessage and AckMessage among PATHS."""

# --- a topic ----------------------------------------------------------------------------

TOPIC_NAME = 0
"""Address of its name."""
TOPIC_NAME_SIZE = 1
TOPIC_QUEUES = 2
"""Number of queues that can be written."""
TOPIC_WORDS = 3
PAIR_WORDS = 4
"""Address and size of the topic's name, then of the group's."""
