"""The control block: the words that kernels and Python share, without a second copy of any of them.

One int64 each, in native order, at an address that never moves. ``reput.store.hot_state`` owns the
memory; kernels get the block's address and nothing else. A row (of a topic, a queue, a reader, a
delivery) is a run of words too, and is named by its address.

Each constant is the number of a word. The layouts have its unit and its meaning as data. Units:
``address`` (of memory), ``position`` (a byte of a file or buffer), ``bytes`` (a size), ``count``,
``number`` (an id or code), ``ms`` (a time or a duration), ``flag`` (0 or 1), ``bits``, and the
offsets of ARCHITECTURE.md.
"""

from typing import NamedTuple


class Field(NamedTuple):
    """A word of a layout, or several."""

    name: str
    number: int
    """Number of its first word."""
    unit: str
    meaning: str
    words: int
    """How many words it has."""


class Layout:
    """The fields of a run of words, in order."""

    def __init__(self) -> None:
        self.fields: list[Field] = []
        self.size = 0
        """Words of all fields."""

    def word(self, name: str, unit: str, meaning: str, words: int = 1) -> int:
        """Add a field; return the number of its first word."""
        number = self.size
        self.fields.append(Field(name, number, unit, meaning, words))
        self.size += words
        return number


FRAME_FIELDS_MAX = 23
"""Fields of a request whose values have words in the block."""
READ_UNITS_MAX = 4096
"""Units that one pull or pop reads at most."""

BLOCK = Layout()

# --- the log -----------------------------------------------------------------

LOG_ADDRESS = BLOCK.word(
    "LOG_ADDRESS",
    "address",
    "Byte 0 of the current log file: its map, or a pool buffer; 0: no file",
)
LOG_START = BLOCK.word("LOG_START", "physical offset", "Byte 0 of the current log file")
LOG_POSITION = BLOCK.word("LOG_POSITION", "position", "The next record goes here")
LOG_LIMIT = BLOCK.word("LOG_LIMIT", "position", "End of the reserved room")
LOG_SIZE = BLOCK.word("LOG_SIZE", "position", "End of the file")
LOG_TIMESTAMP = BLOCK.word("LOG_TIMESTAMP", "ms", "Store time of the last record")
HAS_RECORD_CRC = BLOCK.word(
    "HAS_RECORD_CRC", "flag", "Records end with a ``__CRC32#`` property, whose digits are filled in"
)
CRC_TABLES = BLOCK.word("CRC_TABLES", "address", "The tables of ``hot.crc_tables``")
CHECKS_CONTENT = BLOCK.word(
    "CHECKS_CONTENT",
    "flag",
    "Dispatch stops at records that lost a part; else only their lengths and offsets are checked",
)

# --- dispatch ----------------------------------------------------------------

IS_LIVE = BLOCK.word(
    "IS_LIVE",
    "flag",
    "A put is dispatched in the same pass; 0: dispatch waits for a flush or a commit",
)
DISPATCHED = BLOCK.word("DISPATCHED", "physical offset", "End of the last dispatched record")
LAST_PHYSICAL_OFFSET = BLOCK.word(
    "LAST_PHYSICAL_OFFSET", "physical offset", "The last dispatched record"
)
LAST_STORE_TIMESTAMP = BLOCK.word(
    "LAST_STORE_TIMESTAMP", "ms", "Store time of the last dispatched record"
)
HAS_LIGHT_QUEUES = BLOCK.word(
    "HAS_LIGHT_QUEUES",
    "flag",
    "Stop after records with INNER_MULTI_DISPATCH, which go to further queues",
)
DELAYS = BLOCK.word(
    "DELAYS", "address", "The milliseconds of each delay level, a word each; level 1 first"
)
DELAY_COUNT = BLOCK.word("DELAY_COUNT", "count", "Delay levels")
TOPICS = BLOCK.word(
    "TOPICS", "address", "The topic table: a word per slot, the address of a topic row or 0"
)
TOPIC_SLOTS = BLOCK.word(
    "TOPIC_SLOTS", "count", "Slots of the topic table: a power of two, more than there are topics"
)
DIRTY = BLOCK.word("DIRTY", "address", "List of the queue rows with units that are in no file")
DIRTY_COUNT = BLOCK.word("DIRTY_COUNT", "count", "Rows in the list")
TOUCHED = BLOCK.word(
    "TOUCHED", "address", "List of the queue rows that got units since the listeners were notified"
)
TOUCHED_COUNT = BLOCK.word("TOUCHED_COUNT", "count", "Rows in the list")

# --- the index file ----------------------------------------------------------

INDEX_ADDRESS = BLOCK.word("INDEX_ADDRESS", "address", "Map of the current index file; 0: no file")
INDEX_FILES = BLOCK.word(
    "INDEX_FILES", "address", "The rows of all index files, the oldest first (``lookup_args``)"
)
INDEX_FILE_COUNT = BLOCK.word(
    "INDEX_FILE_COUNT", "count", "Index files; -1: the rows are not current"
)
INDEX_IS_ON = BLOCK.word("INDEX_IS_ON", "flag", "Keys are indexed")
INDEX_HAS_TAGS = BLOCK.word("INDEX_HAS_TAGS", "flag", "Tags are indexed too, as 5.4 and later do")
INDEX_SLOTS = BLOCK.word("INDEX_SLOTS", "count", "Hash slots of the file")
INDEX_ENTRIES_MAX = BLOCK.word("INDEX_ENTRIES_MAX", "number", "Entry numbers stay below this")
INDEX_LIMIT = BLOCK.word(
    "INDEX_LIMIT", "number", "Entry numbers stay below this until more room is reserved"
)
INDEX_NEXT = BLOCK.word("INDEX_NEXT", "number", "The next entry")
INDEX_SLOTS_USED = BLOCK.word("INDEX_SLOTS_USED", "count", "Slots with an entry")
INDEX_BEGIN_TIMESTAMP = BLOCK.word(
    "INDEX_BEGIN_TIMESTAMP", "ms", "Store time of the first indexed record"
)
INDEX_END_TIMESTAMP = BLOCK.word(
    "INDEX_END_TIMESTAMP", "ms", "Store time of the last indexed record"
)
INDEX_BEGIN_OFFSET = BLOCK.word("INDEX_BEGIN_OFFSET", "physical offset", "The first indexed record")
INDEX_END_OFFSET = BLOCK.word("INDEX_END_OFFSET", "physical offset", "The last indexed record")

# --- the log's files for reading ---------------------------------------------

FILES = BLOCK.word(
    "FILES", "address", "The addresses of the log files, a word for each file; 0: not mapped"
)
FILE_COUNT = BLOCK.word("FILE_COUNT", "count", "Files in the list")
FILES_START = BLOCK.word("FILES_START", "physical offset", "Start of the first file")
FILE_SIZE = BLOCK.word("FILE_SIZE", "bytes", "Size of each file")
READABLE = BLOCK.word("READABLE", "physical offset", "End of what may be read")
MEMORY_BYTES = BLOCK.word(
    "MEMORY_BYTES",
    "bytes",
    "Records further from the end of the log than this are taken to be on disk only",
)
BYTES_IN_MEMORY_MAX = BLOCK.word("BYTES_IN_MEMORY_MAX", "bytes", "Limit of one read")
COUNT_IN_MEMORY_MAX = BLOCK.word("COUNT_IN_MEMORY_MAX", "count", "Limit of one read, in messages")
BYTES_ON_DISK_MAX = BLOCK.word(
    "BYTES_ON_DISK_MAX", "bytes", "Limit of one read that reaches back to the disk"
)
COUNT_ON_DISK_MAX = BLOCK.word(
    "COUNT_ON_DISK_MAX", "count", "Limit of one read that reaches back to the disk, in messages"
)

# --- arguments and results of a call: words, as a word costs a tenth of a call's argument

INPUT_SIZE = BLOCK.word("INPUT_SIZE", "bytes", "``append``: size of the records")
INPUT_TIME = BLOCK.word("INPUT_TIME", "ms", "``append``: store time of the records")
PLACES = BLOCK.word(
    "PLACES", "address", "``append``: its result for each record, ``PLACE_BYTES`` each"
)
PULL_UNITS = BLOCK.word("PULL_UNITS", "address", "``pull``: the units")
PULL_UNIT_COUNT = BLOCK.word("PULL_UNIT_COUNT", "count", "``pull``: units")
PULL_QUEUE_OFFSET = BLOCK.word(
    "PULL_QUEUE_OFFSET",
    "queue offset",
    "``pull``: the first unit; -1 where records do not have it (light queues)",
)
PULL_BUFFER = BLOCK.word("PULL_BUFFER", "address", "``pull``: where the records go")
PULL_ROOM = BLOCK.word("PULL_ROOM", "bytes", "``pull``: size of the buffer")
PULL_COUNT_MAX = BLOCK.word("PULL_COUNT_MAX", "count", "``pull``: limit of the messages")
PULL_CODES = BLOCK.word(
    "PULL_CODES", "address", "``pull``: the wanted tags codes, a word each, ascending"
)
PULL_CODE_COUNT = BLOCK.word(
    "PULL_CODE_COUNT", "count", "``pull``: wanted tags codes; 0: all messages are wanted"
)
INPUT_POSITION = BLOCK.word(
    "INPUT_POSITION", "position", "In: where the input begins. Out: where the call stopped"
)
STOP = BLOCK.word("STOP", "number", "Why the call stopped: ``STOP_DONE`` and the following")
STOP_ROW = BLOCK.word("STOP_ROW", "address", "The row that a stop is about")
RESULT_COUNT = BLOCK.word("RESULT_COUNT", "count", "Messages of the result")
RESULT_BYTES = BLOCK.word("RESULT_BYTES", "bytes", "Size of the result")
RESULT_SCANNED = BLOCK.word("RESULT_SCANNED", "count", "Units that were looked at")
RESULT_LAST_OFFSET = BLOCK.word(
    "RESULT_LAST_OFFSET", "physical offset", "The last unit that was looked at"
)
RESULT_GONE = BLOCK.word("RESULT_GONE", "count", "Units whose record is no longer in the log")
RESULT_DAMAGED = BLOCK.word(
    "RESULT_DAMAGED", "count", "Units that do not point at a record of theirs"
)

# --- receive: sends in a receive buffer --------------------------------------

RECEIVE_IS_ON = BLOCK.word(
    "RECEIVE_IS_ON",
    "flag",
    "0: all sends fall back; the store is closed, or a slave's, or sends are held",
)
RECEIVE_ADDRESS = BLOCK.word("RECEIVE_ADDRESS", "address", "The receive buffer")
RECEIVE_END = BLOCK.word("RECEIVE_END", "position", "End of the bytes in it")
RECEIVE_POSITION = BLOCK.word(
    "RECEIVE_POSITION",
    "position",
    "In: the first frame. Out: end of the last frame that was answered",
)
REPLIES_ADDRESS = BLOCK.word("REPLIES_ADDRESS", "address", "The buffer of replies")
REPLIES_ROOM = BLOCK.word("REPLIES_ROOM", "bytes", "Size of the buffer of replies")
REPLIES_BYTES = BLOCK.word(
    "REPLIES_BYTES", "bytes", "In and out: replies in the buffer; new ones follow them"
)
SCRATCH_ADDRESS = BLOCK.word(
    "SCRATCH_ADDRESS",
    "address",
    "Records before they are appended; INPUT_POSITION is that of a stop's record",
)
SCRATCH_ROOM = BLOCK.word("SCRATCH_ROOM", "bytes", "Size of the scratch")
NOTES_ADDRESS = BLOCK.word(
    "NOTES_ADDRESS", "address", "Notes of the frames that are not answered yet"
)
NOTES_ROOM = BLOCK.word(
    "NOTES_ROOM", "count", "Frames that fit: ``send_rules.NOTE_BYTES`` each, PLACES among them"
)
BODY_BYTES_MAX = BLOCK.word("BODY_BYTES_MAX", "bytes", "Limit of a body")
RECORD_BYTES_MAX = BLOCK.word("RECORD_BYTES_MAX", "bytes", "Limit of a record")
BORN_ADDRESS = BLOCK.word("BORN_ADDRESS", "number", "IPv4 address of the client")
BORN_PORT = BLOCK.word("BORN_PORT", "number", "Port of the client")
STORE_ADDRESS = BLOCK.word("STORE_ADDRESS", "number", "IPv4 address in message ids")
STORE_PORT = BLOCK.word("STORE_PORT", "number", "Port in message ids")
SUFFIX_ADDRESS = BLOCK.word(
    "SUFFIX_ADDRESS",
    "address",
    "Properties that are added to each message: whole pairs with their separators",
)
SUFFIX_SIZE = BLOCK.word("SUFFIX_SIZE", "bytes", "Size of these properties")

# --- receive: pulls among them -----------------------------------------------

DELIVER_IS_ON = BLOCK.word(
    "DELIVER_IS_ON", "flag", "0: all pulls fall back, as on a port that serves none"
)
DELIVER_COUNT = BLOCK.word(
    "DELIVER_COUNT",
    "count",
    "Out: pulls that the call answered; one call answers sends or pulls, not both",
)
FILTERED_UNITS_MAX = BLOCK.word(
    "FILTERED_UNITS_MAX",
    "count",
    "Units that a pull of some tags looks at, if it wants fewer messages than that",
)
READERS = BLOCK.word(
    "READERS", "address", "The reader table: a word per slot, the address of a reader row or 0"
)
READER_SLOTS = BLOCK.word(
    "READER_SLOTS",
    "count",
    "Slots of the reader table: a power of two, more than there are readers",
)
DELIVERED = BLOCK.word(
    "DELIVERED", "address", "List of the delivery rows that have counted something"
)
DELIVERED_COUNT = BLOCK.word("DELIVERED_COUNT", "count", "Rows in the list")

# --- a frame: what the kernel has read of it; only FRAME_CODE is of use to others

FRAME_CODE = BLOCK.word(
    "FRAME_CODE",
    "number",
    "Request code of the frame at RECEIVE_POSITION, a hint: 0 if it was not found",
)
FRAME_SERIALIZATION = BLOCK.word("FRAME_SERIALIZATION", "number", "JSON or binary")
FRAME_FLAG = BLOCK.word("FRAME_FLAG", "bits", "Flag of the header")
FRAME_OPAQUE = BLOCK.word("FRAME_OPAQUE", "number", "Opaque of the header")
FRAME_SEEN = BLOCK.word(
    "FRAME_SEEN",
    "bits",
    "Fields that it has: from bit 0 by number, from bit 32 by their long names",
)
FRAME_TOPIC_ROW = BLOCK.word(
    "FRAME_TOPIC_ROW", "address", "Topic row of the frame before, in this call; 0: none"
)
FRAME_VALUES = BLOCK.word(
    "FRAME_VALUES",
    "address",
    "Address and size of each field's value, by the number of the field",
    2 * FRAME_FIELDS_MAX,
)
FRAME_NAMES = BLOCK.word(
    "FRAME_NAMES",
    "address",
    "The names of its fields (``scan_args``); 0: those of sends and pulls",
)
FRAME_HELD = BLOCK.word(
    "FRAME_HELD", "number", "Delay level, HELD_HALF or HELD_TIMER; 0: the message does not wait"
)
TAKES_HALVES = BLOCK.word(
    "TAKES_HALVES",
    "flag",
    "Half messages take the fast path; 0: they are refused, or their topics are missing",
)

# --- receive: messages that wait for the timer -------------------------------

TAKES_TIMERS = BLOCK.word(
    "TAKES_TIMERS",
    "flag",
    "Timer messages take the fast path; 0: they are refused, or their topic is missing",
)
TIMER_PRECISION_MS = BLOCK.word("TIMER_PRECISION_MS", "ms", "Deliver times are rounded to this")
TIMER_DELAY_MS_MAX = BLOCK.word(
    "TIMER_DELAY_MS_MAX", "ms", "Messages with a longer delay fall back; the processor refuses them"
)
CLOCK_TIME = BLOCK.word(
    "CLOCK_TIME", "ms", "Where a delay begins; INPUT_TIME may be later, if the clock was set back"
)
BROKER_NAME = BLOCK.word("BROKER_NAME", "address", "Name of the broker in recall handles")
BROKER_NAME_SIZE = BLOCK.word("BROKER_NAME_SIZE", "bytes", "Size of the name")
FRAME_OUT_MS = BLOCK.word(
    "FRAME_OUT_MS",
    "address",
    "The value of TIMER_OUT_MS in the scratch; 0: the message has no recall handle",
)
FRAME_KEY = BLOCK.word("FRAME_KEY", "address", "The frame's UNIQ_KEY in the scratch")
FRAME_KEY_SIZE = BLOCK.word("FRAME_KEY_SIZE", "bytes", "Size of the key; 0: it has none")
BLOCK_WORDS = BLOCK.size

# --- a topic row -------------------------------------------------------------

TOPIC_ROW = Layout()
TOPIC_NAME = TOPIC_ROW.word("TOPIC_NAME", "address", "The name in UTF-8")
TOPIC_NAME_SIZE = TOPIC_ROW.word("TOPIC_NAME_SIZE", "bytes", "Size of the name")
TOPIC_HASH = TOPIC_ROW.word(
    "TOPIC_HASH",
    "number",
    "Java hash of ``name#``, unsigned: the hash of an index key continues it",
)
TOPIC_KIND = TOPIC_ROW.word("TOPIC_KIND", "number", "KIND_PLAIN, KIND_SCHEDULE or KIND_SLOW")
TOPIC_QUEUES = TOPIC_ROW.word(
    "TOPIC_QUEUES", "address", "The addresses of the queue rows by queue id; 0: none"
)
TOPIC_QUEUE_LIMIT = TOPIC_ROW.word("TOPIC_QUEUE_LIMIT", "count", "Words of that list")
TOPIC_MESSAGE_COUNT = TOPIC_ROW.word(
    "TOPIC_MESSAGE_COUNT", "count", "Messages that were put, for statistics"
)
TOPIC_BYTE_COUNT = TOPIC_ROW.word(
    "TOPIC_BYTE_COUNT", "bytes", "Bytes that were put, for statistics"
)
TOPIC_WRITE_QUEUES = TOPIC_ROW.word(
    "TOPIC_WRITE_QUEUES",
    "count",
    "Sends to queue ids below this take the fast path; 0: all fall back",
)
TOPIC_WORDS = TOPIC_ROW.size

KIND_PLAIN = 0
KIND_SCHEDULE = 1
"""Units of delayed messages have the deliver time."""
KIND_SLOW = 2
"""Python dispatches the topic: extension units, batch queues."""

# --- a queue row -------------------------------------------------------------

QUEUE_ROW = Layout()
QUEUE_NEXT_OFFSET = QUEUE_ROW.word(
    "QUEUE_NEXT_OFFSET", "queue offset", "The next message that is put"
)
QUEUE_MAX_OFFSET = QUEUE_ROW.word(
    "QUEUE_MAX_OFFSET", "queue offset", "The next message that is dispatched: the end for readers"
)
QUEUE_MIN_OFFSET = QUEUE_ROW.word("QUEUE_MIN_OFFSET", "queue offset", "The first message")
QUEUE_TAIL = QUEUE_ROW.word("QUEUE_TAIL", "address", "The units in memory; 0: none")
QUEUE_TAIL_OFFSET = QUEUE_ROW.word("QUEUE_TAIL_OFFSET", "queue offset", "The first unit in memory")
QUEUE_TAIL_LIMIT = QUEUE_ROW.word("QUEUE_TAIL_LIMIT", "count", "Units that fit")
QUEUE_WRITTEN_OFFSET = QUEUE_ROW.word(
    "QUEUE_WRITTEN_OFFSET", "queue offset", "Units before this one are in the file"
)
QUEUE_NOTIFIED_OFFSET = QUEUE_ROW.word(
    "QUEUE_NOTIFIED_OFFSET", "queue offset", "Listeners were notified of units before this one"
)
QUEUE_END_PHYSICAL = QUEUE_ROW.word(
    "QUEUE_END_PHYSICAL", "physical offset", "End of the record of the last unit"
)
QUEUE_MARKS = QUEUE_ROW.word("QUEUE_MARKS", "bits", "MARK_DIRTY, MARK_TOUCHED")
QUEUE_AHEAD = QUEUE_ROW.word(
    "QUEUE_AHEAD", "address", "Units that Python has read from the file ahead of a reader"
)
QUEUE_AHEAD_OFFSET = QUEUE_ROW.word(
    "QUEUE_AHEAD_OFFSET", "queue offset", "The first of these units"
)
QUEUE_AHEAD_COUNT = QUEUE_ROW.word("QUEUE_AHEAD_COUNT", "count", "These units")
QUEUE_MAPPED = QUEUE_ROW.word(
    "QUEUE_MAPPED", "address", "Units of a file that is mapped for searches by time; 0: none"
)
QUEUE_MAPPED_OFFSET = QUEUE_ROW.word(
    "QUEUE_MAPPED_OFFSET", "queue offset", "The first of these units"
)
QUEUE_MAPPED_COUNT = QUEUE_ROW.word("QUEUE_MAPPED_COUNT", "count", "These units")
QUEUE_WORDS = QUEUE_ROW.size

MARK_DIRTY = 1
MARK_TOUCHED = 2

# --- a reader row: a group that reads a topic, as its pulls describe it ------

READER_ROW = Layout()
READER_GROUP = READER_ROW.word("READER_GROUP", "address", "Name of the group")
READER_GROUP_SIZE = READER_ROW.word("READER_GROUP_SIZE", "bytes", "Size of the name")
READER_TOPIC = READER_ROW.word("READER_TOPIC", "address", "Name of the topic")
READER_TOPIC_SIZE = READER_ROW.word("READER_TOPIC_SIZE", "bytes", "Size of the name")
READER_SUBSCRIPTION = READER_ROW.word(
    "READER_SUBSCRIPTION", "address", "The expression in its pulls"
)
READER_SUBSCRIPTION_SIZE = READER_ROW.word(
    "READER_SUBSCRIPTION_SIZE",
    "bytes",
    "Size of the expression; -1: pulls have none, the heartbeat's counts",
)
READER_VERSION = READER_ROW.word(
    "READER_VERSION",
    "number",
    "Version of the heartbeat's subscription: pulls of a newer one fall back",
)
READER_CODES = READER_ROW.word(
    "READER_CODES", "address", "The wanted tags codes, a word each, ascending"
)
READER_CODE_COUNT = READER_ROW.word(
    "READER_CODE_COUNT", "count", "Wanted tags codes; 0: all messages are wanted"
)
READER_DELIVERIES = READER_ROW.word(
    "READER_DELIVERIES",
    "address",
    "The group's delivery rows of the topic, consecutive, by queue id",
)
READER_QUEUES = READER_ROW.word(
    "READER_QUEUES", "count", "Delivery rows: pulls of other queues fall back"
)
READER_BROKER = READER_ROW.word(
    "READER_BROKER", "number", "Id of the broker suggested in replies, 0 to 9"
)
READER_FAR_BROKER = READER_ROW.word(
    "READER_FAR_BROKER",
    "number",
    "The same, in replies with records that are far from the end of the log",
)
READER_WORDS = READER_ROW.size

# --- a delivery row: what a group got from a queue since the counts were last collected

DELIVERY_ROW = Layout()
DELIVERY_PULLS = DELIVERY_ROW.word(
    "DELIVERY_PULLS", "count", "Pulls that were answered; the first one adds the row to the list"
)
DELIVERY_MESSAGES = DELIVERY_ROW.word("DELIVERY_MESSAGES", "count", "Messages in the replies")
DELIVERY_BYTES = DELIVERY_ROW.word("DELIVERY_BYTES", "bytes", "Bytes of these messages")
DELIVERY_CONSUMER_OFFSET = DELIVERY_ROW.word(
    "DELIVERY_CONSUMER_OFFSET", "consumer offset", "Last committed with a pull; -1: none"
)
DELIVERY_NUMBER = DELIVERY_ROW.word("DELIVERY_NUMBER", "number", "Topic and group, for Python")
DELIVERY_QUEUE_ID = DELIVERY_ROW.word("DELIVERY_QUEUE_ID", "number", "The queue")
DELIVERY_WORDS = DELIVERY_ROW.size

# --- why a call stopped ---------------------------------------------------------

STOP_DONE = 0
STOP_ROLL = 1
"""The record does not fit the current log file."""
STOP_RESERVE = 2
"""No room is reserved in the log file for the record."""
STOP_TOPIC = 3
"""The topic has no row."""
STOP_QUEUE = 4
"""The queue has no row; STOP_ROW is the topic's."""
STOP_UNITS = 5
"""The queue's tail has no room, or does not exist; STOP_ROW is the queue's."""
STOP_INDEX = 6
"""The index file is missing, or has no room for all keys of the record."""
STOP_SLOW = 7
"""The record falls back to the slow path of dispatch or put."""
STOP_LIGHT = 8
"""The record before INPUT_POSITION goes to light queues too; STOP_ROW is its address."""
STOP_GAP = 9
"""The record's queue offset is beyond the queue's next one; STOP_ROW is the queue's."""
STOP_DAMAGE = 10
"""There is no record at INPUT_POSITION."""
STOP_UNMAPPED = 11
"""RESULT_LAST_OFFSET is in a log file that is not mapped, or gone."""
STOP_BUFFER = 12
"""The first record needs RESULT_BYTES of room."""
STOP_PART = 13
"""The record is longer than the input."""
STOP_FRAME = 14
"""The frame at RECEIVE_POSITION falls back to its processor."""
STOP_REPLIES = 15
"""The replies must be written first: no room for one more, or it is of the other kind."""
STOP_LENGTH = 16
"""The length at RECEIVE_POSITION is invalid for a frame."""
STOP_BEGUN = 17
"""The record is the first of its queue, which has units of earlier records; STOP_ROW is the
queue's."""
STOP_TORN = 18
"""The record at INPUT_POSITION has valid lengths, and lost a part of its content."""

HELD_HALF = -1
"""FRAME_HELD of a half message."""
HELD_TIMER = -2
"""FRAME_HELD of a timer message."""

PLACE_BYTES = 16
"""Result of ``append`` for a record: physical offset and queue offset, a word each."""
FILE_IS_GONE = -1
"""Address of a log file that does not exist."""
