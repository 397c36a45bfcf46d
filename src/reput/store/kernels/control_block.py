"""The control block: the words that kernels and Python share, so that there is one truth.

One int64 each, in native order, at an address that never moves. ``reput.store.hot_state`` owns the
memory; kernels get the block's address and nothing else. A row (of a topic or a queue) is a run of
words too, and is named by its address.
"""

from collections.abc import Iterator

_words: Iterator[int] = iter(range(1 << 10))

# --- the block: the log ------------------------------------------------------

LOG_ADDRESS = next(_words)
"""Where byte 0 of the current log file is written: its map, or a pool buffer; 0: no file."""
LOG_START = next(_words)
"""Physical offset of byte 0."""
LOG_POSITION = next(_words)
"""The next record goes here, in bytes from byte 0."""
LOG_LIMIT = next(_words)
"""Room is reserved up to this position."""
LOG_SIZE = next(_words)
"""Where the file ends."""
LOG_TIMESTAMP = next(_words)
"""Store time of the last record."""
HAS_RECORD_CRC = next(_words)
"""1: records end with a ``__CRC32#`` property, whose digits are filled in."""
CRC_TABLES = next(_words)

# --- dispatch ----------------------------------------------------------------

IS_LIVE = next(_words)
"""1: what is put is dispatched in the same pass. 0: dispatch waits for a flush or a commit."""
DISPATCHED = next(_words)
"""Physical offset behind the last dispatched record."""
LAST_PHYSICAL_OFFSET = next(_words)
"""Of the last dispatched record."""
LAST_STORE_TIMESTAMP = next(_words)
HAS_LIGHT_QUEUES = next(_words)
"""1: stop behind records with INNER_MULTI_DISPATCH, which go to further queues."""
DELAYS = next(_words)
"""Address of the delay levels' milliseconds, one word each; level 1 first."""
DELAY_COUNT = next(_words)
TOPICS = next(_words)
"""Address of the topic table: a word per slot, the address of a topic row or 0."""
TOPIC_SLOTS = next(_words)
"""A power of two, more than there are topics."""
DIRTY = next(_words)
"""Address of a list of queue rows that have units which are in no file."""
DIRTY_COUNT = next(_words)
TOUCHED = next(_words)
"""Address of a list of queue rows that got units since the listeners were told."""
TOUCHED_COUNT = next(_words)

# --- the index file ----------------------------------------------------------

INDEX_ADDRESS = next(_words)
"""Where the current index file is mapped; 0: no file."""
INDEX_IS_ON = next(_words)
INDEX_HAS_TAGS = next(_words)
"""1: tags are indexed too, as 5.4 and later do."""
INDEX_SLOTS = next(_words)
INDEX_ENTRIES_MAX = next(_words)
"""Entry numbers stay below this."""
INDEX_LIMIT = next(_words)
"""Entry numbers stay below this until more room is reserved."""
INDEX_NEXT = next(_words)
INDEX_SLOTS_USED = next(_words)
INDEX_BEGIN_TIMESTAMP = next(_words)
INDEX_END_TIMESTAMP = next(_words)
INDEX_BEGIN_OFFSET = next(_words)
INDEX_END_OFFSET = next(_words)

# --- the log's files for reading ----------------------------------------------

FILES = next(_words)
"""Address of the files' addresses, a word each, 0 where not mapped; one for each file's place."""
FILE_COUNT = next(_words)
FILES_START = next(_words)
"""Physical offset where the first of them starts."""
FILE_SIZE = next(_words)
READABLE = next(_words)
"""Physical offset behind what may be read."""

MEMORY_BYTES = next(_words)
"""Records further behind the end of the log than this are thought to be on disk only."""
BYTES_IN_MEMORY_MAX = next(_words)
COUNT_IN_MEMORY_MAX = next(_words)
BYTES_ON_DISK_MAX = next(_words)
COUNT_ON_DISK_MAX = next(_words)
"""What one read may return, and one that reaches back to the disk."""

# --- arguments and results of a call -------------------------------------------
# Words, because a word costs a tenth of what an argument of a call costs.

INPUT_SIZE = next(_words)
"""Of ``append``: bytes of the records."""
INPUT_TIME = next(_words)
"""Of ``append``: their store time, ms."""
PLACES = next(_words)
"""Of ``append``: address of what it tells of each record, ``PLACE_BYTES``."""
PULL_UNITS = next(_words)
"""Of ``pull``: address of the units."""
PULL_UNIT_COUNT = next(_words)
PULL_QUEUE_OFFSET = next(_words)
"""Of the first unit; -1 where records do not say it (light queues)."""
PULL_BUFFER = next(_words)
PULL_ROOM = next(_words)
"""Bytes of the buffer."""
PULL_COUNT_MAX = next(_words)
PULL_CODES = next(_words)
"""Address of the wanted tags codes, a word each, ascending."""
PULL_CODE_COUNT = next(_words)
"""0: all are wanted."""
INPUT_POSITION = next(_words)
"""In: where to begin in the input. Out: where the call stopped."""
STOP = next(_words)
STOP_ROW = next(_words)
"""The row that a stop is about."""
RESULT_COUNT = next(_words)
RESULT_BYTES = next(_words)
RESULT_SCANNED = next(_words)
RESULT_LAST_OFFSET = next(_words)
"""Physical offset of the last unit that was looked at."""
RESULT_GONE = next(_words)
"""Units whose record is not in the log any more."""
RESULT_DAMAGED = next(_words)
"""Units that point at something else than a record of theirs."""

# --- receive: sends that stand in a receive buffer -------------------------------

RECEIVE_IS_ON = next(_words)
"""0: every send is Python's; the store is closed, or a slave's, or sends are held back."""
RECEIVE_ADDRESS = next(_words)
RECEIVE_END = next(_words)
"""How many bytes stand there."""
RECEIVE_POSITION = next(_words)
"""In: where the first frame starts. Out: behind the last one that was answered."""
REPLIES_ADDRESS = next(_words)
REPLIES_ROOM = next(_words)
REPLIES_BYTES = next(_words)
"""In and out: how many bytes stand there; replies go behind them."""
SCRATCH_ADDRESS = next(_words)
"""Where records stand before they are appended: a stop's record is at INPUT_POSITION of it."""
SCRATCH_ROOM = next(_words)
NOTES_ADDRESS = next(_words)
"""What is remembered of each frame until it is answered."""
NOTES_ROOM = next(_words)
"""For how many frames there is room: ``send_rules.NOTE_BYTES`` each, PLACES among them."""
BODY_BYTES_MAX = next(_words)
RECORD_BYTES_MAX = next(_words)
BORN_ADDRESS = next(_words)
"""IPv4 address of the connection's other side, as a number."""
BORN_PORT = next(_words)
STORE_ADDRESS = next(_words)
"""IPv4 address that message ids bear."""
STORE_PORT = next(_words)
SUFFIX_ADDRESS = next(_words)
"""What is added to the properties of each message: whole pairs, each with its last separator."""
SUFFIX_SIZE = next(_words)

# --- receive: pulls among them ------------------------------------------------------

DELIVER_IS_ON = next(_words)
"""0: every pull is Python's, as on a port that serves none."""
DELIVER_COUNT = next(_words)
"""Out: how many pulls a call has answered. One call answers sends or pulls, not both."""
FILTERED_UNITS_MAX = next(_words)
"""Units that a pull of some tags looks at, if it wants less messages than that."""
READERS = next(_words)
"""Address of the reader table: a word per slot, the address of a reader row or 0."""
READER_SLOTS = next(_words)
"""A power of two, more than there are readers."""
DELIVERED = next(_words)
"""Address of a list of delivery rows that have counted something."""
DELIVERED_COUNT = next(_words)

FRAME_CODE = next(_words)
"""What the frame at RECEIVE_POSITION asks for, a hint: 0 if it was not found.

From here on: what the kernel has read of a frame, and nobody else's but for this.
"""
FRAME_SERIALIZATION = next(_words)
FRAME_FLAG = next(_words)
FRAME_OPAQUE = next(_words)
FRAME_SEEN = next(_words)
"""Bits of the fields that it has: 0 to 13 for ``a`` to ``n``, 32 on for long names."""
FRAME_TOPIC_ROW = next(_words)
"""Of the frame before, in this call; 0: none."""
FRAME_A, FRAME_A_SIZE = next(_words), next(_words)
FRAME_B, FRAME_B_SIZE = next(_words), next(_words)
FRAME_C, FRAME_C_SIZE = next(_words), next(_words)
FRAME_D, FRAME_D_SIZE = next(_words), next(_words)
FRAME_E, FRAME_E_SIZE = next(_words), next(_words)
FRAME_F, FRAME_F_SIZE = next(_words), next(_words)
FRAME_G, FRAME_G_SIZE = next(_words), next(_words)
FRAME_H, FRAME_H_SIZE = next(_words), next(_words)
FRAME_I, FRAME_I_SIZE = next(_words), next(_words)
FRAME_J, FRAME_J_SIZE = next(_words), next(_words)
FRAME_K, FRAME_K_SIZE = next(_words), next(_words)
FRAME_L, FRAME_L_SIZE = next(_words), next(_words)
FRAME_M, FRAME_M_SIZE = next(_words), next(_words)
FRAME_N, FRAME_N_SIZE = next(_words), next(_words)
"""Address and size of each field's value, ``a`` to ``n``."""
FRAME_O, FRAME_O_SIZE = next(_words), next(_words)
FRAME_P, FRAME_P_SIZE = next(_words), next(_words)
FRAME_Q, FRAME_Q_SIZE = next(_words), next(_words)
FRAME_R, FRAME_R_SIZE = next(_words), next(_words)
FRAME_S, FRAME_S_SIZE = next(_words), next(_words)
FRAME_T, FRAME_T_SIZE = next(_words), next(_words)
FRAME_U, FRAME_U_SIZE = next(_words), next(_words)
FRAME_V, FRAME_V_SIZE = next(_words), next(_words)
FRAME_W, FRAME_W_SIZE = next(_words), next(_words)
"""The same of the fields that only pulls have."""
FRAME_NAMES = next(_words)
"""Address of the names of its fields (``collect_rules``); 0: those of sends and pulls."""
FRAME_HELD = next(_words)
"""Where the message waits: 0 nowhere, HELD_HALF, HELD_TIMER, or the queue of this delay level."""

TAKES_HALVES = next(_words)
"""1: half messages are common. 0: they are Python's; they are refused, or their topics are missing.
"""

# --- receive: messages that wait for the timer ----------------------------------------

TAKES_TIMERS = next(_words)
"""1: messages with a time of their own are common. 0: they are Python's; they are refused, looked
at one by one, or their topic is missing."""
TIMER_PRECISION_MS = next(_words)
TIMER_DELAY_MS_MAX = next(_words)
"""Those that want to wait for longer are Python's, which refuses them."""
CLOCK_TIME = next(_words)
"""What the clock says, ms: where a delay begins. INPUT_TIME may be later, if it went back."""
BROKER_NAME, BROKER_NAME_SIZE = next(_words), next(_words)
"""Address and size of the broker's name, which recall handles bear."""
FRAME_OUT_MS = next(_words)
"""Where in the scratch the value of TIMER_OUT_MS stands; 0: the message has no recall handle.

This and what follows is the kernel's own, as from FRAME_CODE on.
"""
FRAME_KEY, FRAME_KEY_SIZE = next(_words), next(_words)
"""The same of UNIQ_KEY."""

BLOCK_WORDS = next(_words)

# --- a topic row ---------------------------------------------------------------

TOPIC_NAME = 0
"""Address of the name's UTF-8."""
TOPIC_NAME_SIZE = 1
TOPIC_HASH = 2
"""Java hash of ``name#``, unsigned: where the hash of an index key goes on."""
TOPIC_KIND = 3
TOPIC_QUEUES = 4
"""Address of the queue rows' addresses by queue id; 0 where there is none."""
TOPIC_QUEUE_LIMIT = 5
TOPIC_MESSAGE_COUNT = 6
TOPIC_BYTE_COUNT = 7
TOPIC_WRITE_QUEUES = 8
"""Sends to queue ids below this are common. 0: all sends to the topic are Python's."""
TOPIC_WORDS = 9

KIND_PLAIN = 0
KIND_SCHEDULE = 1
"""Units of delayed messages carry their deliver time."""
KIND_SLOW = 2
"""Dispatched in Python: extension units, batch queues."""

# --- a queue row ---------------------------------------------------------------

QUEUE_NEXT_OFFSET = 0
"""Queue offset of the next message that is put."""
QUEUE_MAX_OFFSET = 1
"""Queue offset of the next message that is dispatched: what readers see as the end."""
QUEUE_MIN_OFFSET = 2
QUEUE_TAIL = 3
"""Address of the units that are kept in memory; 0: none."""
QUEUE_TAIL_OFFSET = 4
"""Queue offset of the first of them."""
QUEUE_TAIL_LIMIT = 5
"""How many units fit."""
QUEUE_WRITTEN_OFFSET = 6
"""Units before this one are in the file."""
QUEUE_TOLD_OFFSET = 7
"""Listeners have been told of units before this one."""
QUEUE_END_PHYSICAL = 8
"""Physical offset behind the record of the last unit."""
QUEUE_MARKS = 9
QUEUE_AHEAD = 10
"""Address of units that Python has read from the file ahead of a reader."""
QUEUE_AHEAD_OFFSET = 11
"""Queue offset of the first of them."""
QUEUE_AHEAD_COUNT = 12
QUEUE_WORDS = 13

MARK_DIRTY = 1
MARK_TOUCHED = 2

# --- a reader row: a group that reads a topic, as pulls say it -------------------------

READER_GROUP = 0
"""Address of the group's name."""
READER_GROUP_SIZE = 1
READER_TOPIC = 2
READER_TOPIC_SIZE = 3
READER_SUBSCRIPTION = 4
"""Address of the expression that its pulls bring."""
READER_SUBSCRIPTION_SIZE = 5
"""-1: its pulls bring none; what is wanted is known from heartbeats."""
READER_VERSION = 6
"""Of what is known from heartbeats: pulls of a newer one are Python's."""
READER_CODES = 7
"""Address of the wanted tags codes, a word each, ascending."""
READER_CODE_COUNT = 8
"""0: all messages are wanted."""
READER_DELIVERIES = 9
"""Address of its group's delivery rows of the topic, one behind the other, by queue id."""
READER_QUEUES = 10
"""How many: other queues are Python's."""
READER_WORDS = 11

# --- a delivery row: what a group got from a queue since Python looked -----------------

DELIVERY_PULLS = 0
"""Pulls that were answered; with the first one the row is put on the list."""
DELIVERY_MESSAGES = 1
DELIVERY_BYTES = 2
DELIVERY_CONSUMER_OFFSET = 3
"""What the group has said last of how far it has read; -1: nothing."""
DELIVERY_NUMBER = 4
"""For Python: of which topic and group."""
DELIVERY_QUEUE_ID = 5
DELIVERY_WORDS = 6

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
"""The record needs what only Python does."""
STOP_LIGHT = 8
"""The record before INPUT_POSITION goes to light queues too; STOP_ROW is its address."""
STOP_GAP = 9
"""The record's queue offset is beyond the queue's next one; STOP_ROW is the queue's."""
STOP_DAMAGE = 10
"""No record stands at INPUT_POSITION."""
STOP_UNMAPPED = 11
"""RESULT_LAST_OFFSET lies in a log file that is not mapped, or gone."""
STOP_BUFFER = 12
"""The first record needs RESULT_BYTES of room."""
STOP_PART = 13
"""The record goes on behind the end of what was given."""
STOP_FRAME = 14
"""The frame at RECEIVE_POSITION is neither a common send nor a common pull: it is Python's."""
STOP_REPLIES = 15
"""The replies must leave first: there is no room for one more, or it is of the other kind."""
STOP_LENGTH = 16
"""The length at RECEIVE_POSITION is none that a frame may have."""

HELD_HALF = -1
"""In FRAME_HELD: among the half messages."""
HELD_TIMER = -2
"""In FRAME_HELD: in the timer's queue."""

PLACE_BYTES = 16
"""What ``append`` tells of a record: physical offset and queue offset, a word each."""
FILE_IS_GONE = -1
"""Instead of the address of a log file: it is not there."""
