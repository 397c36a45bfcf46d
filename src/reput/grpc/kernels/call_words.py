"""Rows of the kernels of gRPC calls: the calls of a connection, its tables, and a row a request.

The fields are described here, what the kernels do with them in ``http2_calls``, ``grpc_sends`` and
``grpc_acks``. Positions are those of the receive buffer.
"""

from reput.format.kernels.rows import Row, row, size_of, word, words

# --- texts ------------------------------------------------------------------------------


class Text(Row):
    """A text in memory."""

    start = word("address", "Its first byte; 0: there is no text")
    size = word("bytes", "Its size")


class Slice(Row):
    """A text in the receive buffer."""

    start = word("position", "Its first byte")
    size = word("bytes", "Its size")


# --- the header table of a connection ---------------------------------------------------

SLOTS = 256
DATA_BYTES = 12 << 10
"""Room for names and values."""
BLOCK_BYTES_MAX = 4096
"""Largest header block that is read."""
INSERTS_MAX = 64
"""Maximum of entries that a block may insert, so that the table before it can be restored."""
ENTRY_BYTES = 32
SLACK = 32
"""Bytes that may be read or written after the end of a room."""


class HeaderWords(Row):
    """The header table of a connection. DATA_BYTES with names and values follow it."""

    inserted = word("count", "Entries that were ever inserted")
    count = word("count", "Entries in the table")
    size = word("bytes", "Size of the table as RFC 7541 counts it")
    size_max = word("bytes", "Limit of the size, as the peer has chosen it")
    allowed_size = word("bytes", "Limit of that choice")
    end = word("position", "End of the names and values in use")
    slots = words(
        SLOTS, "bits", "Entries, a ring: position << 32 | size of name << 16 | size of value"
    )


TABLE_BYTES = size_of(HeaderWords) + DATA_BYTES
STATIC_COUNT = 61


class StaticWords(Row):
    """The static table of RFC 7541. Its names and values follow it."""

    slots = words(1 + STATIC_COUNT, "bits", "Entries from 1 on, as in ``HeaderWords``")


# --- the tables of the Huffman code -----------------------------------------------------

SHORT_BITS = 9
LENGTH_MAX = 30
SYMBOL_COUNT = 257


class HuffmanWords(Row):
    """The tables of the Huffman code."""

    short_codes = words(
        1 << SHORT_BITS, "bits", "Of the next SHORT_BITS bits: byte << 8 | length; 0: a longer code"
    )
    first_codes = words(LENGTH_MAX + 1, "bits", "First code of each length")
    counts = words(LENGTH_MAX + 1, "count", "Codes of each length")
    first_symbols = words(
        LENGTH_MAX + 1, "number", "Place of the first code of each length among the symbols"
    )
    symbols = words(SYMBOL_COUNT, "number", "Bytes in the order of their codes, then the end")


# --- a request --------------------------------------------------------------------------

STATE_NEW = 0
STATE_ASKED = 1
"""Its request to the broker is made."""
STATE_DONE = 2
"""Its reply is written."""
SEND_PATH, ACK_PATH = 1, 2
"""Numbers of the paths of SendMessage and AckMessage among ``Calls.paths``."""


class CallRow(Row):
    """A request."""

    stream = word("number", "Its stream")
    state = word("number", "STATE_NEW, STATE_ASKED or STATE_DONE")
    fields = word("position", "Its header fields in the room for them")
    fields_end = word("position", "End of its header fields")
    data = word("position", "Its data; -1: it has none")
    data_end = word("position", "End of its data; -1: it has none")
    is_ended = word("flag", "The end of the request has arrived")
    path = word("number", "Number of its path if it may be fast; else 0")
    message_id = row(Slice, "The message id")
    handle = row(Slice, "The receipt handle")
    group = row(Slice, "The name of the group")


class TopicWords(Row):
    """A topic that a message may be sent to."""

    name = row(Text, "Its name")
    queue_count = word("count", "Queues that can be written")


class PairWords(Row):
    """A topic and a group that were checked before."""

    topic = row(Text, "Name of the topic")
    group = row(Text, "Name of the group")


# --- the request that a kernel reads; of use to that kernel only ------------------------

PROPERTIES_MAX = 16
"""Maximum number of user properties."""
NUMBERS_OF_HANDLE = 4


class SentMessage(Row):
    """A message that is sent."""

    topic = row(Text, "Name of the topic")
    tag = row(Text, "The tag")
    message_id = row(Text, "The message id")
    host = row(Text, "The born host")
    body = row(Text, "The body")
    encoding = word("number", "Encoding of the body")
    born_ms = word("ms", "Born time")
    key_count = word("count", "Keys")
    property_count = word("count", "User properties")
    system = word("address", "Its system properties; 0: there are none")
    system_end = word("address", "End of its system properties")
    properties = words(PROPERTIES_MAX, "address", "Entries of the user properties")


class Acknowledgement(Row):
    """An acknowledgement."""

    group = row(Text, "Name of the group")
    topic = row(Text, "Name of the topic")
    message_id = row(Text, "The message id")
    handle = row(Text, "The receipt handle")
    has_entry = word("flag", "It has an entry")
    queue = word("address", "The queue id in the handle")
    offset = word("address", "The queue offset in the handle")
    offset_end = word("address", "End of the queue offset")
    numbers = words(
        NUMBERS_OF_HANDLE, "number", "Start offset, pop time, invisible time and revive queue"
    )


# --- a call of a kernel -----------------------------------------------------------------


class Calls(Row):
    """The calls of a connection: argument and result of the kernels."""

    # The bytes of the connection.
    buffer = word("address", "The receive buffer")
    position = word("position", "The first frame; then the end of the last frame that was handled")
    end = word("position", "End of the bytes; the last frame may be incomplete")
    has_other = word(
        "flag",
        "Result: the frame at ``position`` is left to the caller; 0: it is incomplete, or the rows "
        "or the room are used up",
    )
    rows = word("address", "The rows", to=CallRow)
    row_max = word("count", "Rows that there is room for")
    fields = word(
        "address",
        "Room for header fields: size of name and size of value, 32 bits in native order, then "
        "both",
    )
    fields_room = word("bytes", "Size of that room")
    out = word("address", "Room for frames to send")
    out_size = word("bytes", "Result: size of these frames")
    table = word("address", "The header table of the connection", to=HeaderWords)
    static = word("address", "The static table", to=StaticWords)
    huffman = word("address", "The tables of the Huffman code", to=HuffmanWords)
    last_stream = word("number", "The latest stream")
    streams_left = word("count", "Streams that the peer may still open")
    open_streams = word("address", "The numbers of the open streams", to=int)
    open_count = word("count", "Open streams")
    window = word("bytes", "Bytes that may be sent on the connection")
    receive_window = word("bytes", "Bytes that the peer may send on the connection")
    receive_window_max = word("bytes", "The greatest ``receive_window``")
    control_frames = word("count", "Control frames in this second since the latest call")
    control_frames_max = word("count", "Limit of ``control_frames``")
    empty_frames = word("count", "Frames without data in this second since the latest call")
    empty_frames_max = word("count", "Limit of ``empty_frames``")

    # What makes a call fast.
    client = row(Text, "The id of the connection's client; ``start`` 0: no call is fast")
    paths = word("address", "Paths; a row has the number of its path, from 1", to=Text)
    path_count = word("count", "Paths")

    # Requests to the broker.
    topics = word("address", "The topics", to=TopicWords)
    topic_count = word("count", "Topics")
    turn = word("count", "Sends so far: they choose the queue of the next one")
    now_ms = word("ms", "Born time of a message without one")
    born_host = row(Text, "Born host of a message without one")
    language = word("number", "Language of the client, as brokers number it")
    opaque = word("number", "Opaque of the first row; that of row i is greater by i")
    frames = word("address", "Room for the requests")
    frames_room = word("bytes", "Size of that room")
    frames_size = word("bytes", "Result: size of the requests")
    body_size_max = word("bytes", "Limit of a body")
    pairs = word("address", "Pairs of topic and group", to=PairWords)
    pair_count = word("count", "Pairs")
    broker_name = row(Text, "Name of the broker")

    # Replies.
    replies = row(Text, "The replies of the broker")
    initial_window = word("bytes", "Bytes that may be sent on a stream that has sent nothing")
    headers_block = row(Text, "Header block of a reply")
    trailers_block = row(Text, "Header block after a reply")
    out_room = word("bytes", "Size of the room for frames to send")

    message = row(SentMessage, "The message that is read")
    acknowledgement = row(Acknowledgement, "The acknowledgement that is read")
