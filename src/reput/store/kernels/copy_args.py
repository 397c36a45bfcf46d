"""Argument block of the kernels that copy stored records: ``copy_records``, ``copy_for_retry`` ...

One int64 each, in native order. One of them is the address of the control block, which has the
addresses of the mapped log files. The kernels' own modules say what they do with a word.
"""

from collections.abc import Iterator

from reput.format import properties as props

_words: Iterator[int] = iter(range(1 << 6))

# --- the rule: what becomes of records that are put again ---------------------

TOPIC = next(_words)
"""Address of the topic they go to; 0: each goes where its REAL_TOPIC and REAL_QID say."""
TOPIC_SIZE = next(_words)
QUEUE_ID = next(_words)
FROM_TOPIC = next(_words)
"""Address of the topic that they must be stored under."""
FROM_TOPIC_SIZE = next(_words)
"""0: any."""
SYS_FLAGS_OFF = next(_words)
"""Bits of the sys flag that are taken away."""
SYS_FLAGS_ON = next(_words)
"""Bits that are set, after that."""
PREPARED_IS_PLACE = next(_words)
"""1: the prepared transaction offset becomes the physical offset of what was stored. 0: 0."""
RECONSUME_MORE = next(_words)
"""Is added to how often the message was consumed."""
DROPPED = next(_words)
"""Address of names of properties that are left out, each with ``\\x02`` behind it."""
DROPPED_SIZE = next(_words)
RULE_WORDS = next(_words)
"""So many are the rule's; from here on it is the call's and the caller's. Not used itself."""

# --- who calls ------------------------------------------------------------------

BLOCK = next(_words)
"""Address of the control block; READABLE in it is as the log stands."""
TOPIC_MAX = next(_words)
"""Bytes that a REAL_TOPIC has at most."""
RECORD_MAX = next(_words)
"""Bytes that a record has at most."""
HAS_LIGHT_QUEUES = next(_words)
"""1: messages with INNER_MULTI_DISPATCH are Python's."""
SCRATCH = next(_words)
"""Where the records are made."""
SCRATCH_ROOM = next(_words)
SIZES = next(_words)
"""Address of a word a place: the size of the record that was made; of ``waiting``: WAITING rows."""

# --- a call -------------------------------------------------------------------------

PLACES = next(_words)
"""Address of rows that say where the stored records stand."""
PLACE_COUNT = next(_words)
MORE = next(_words)
"""Address of property strings that are appended, which rows cut out."""
OP = next(_words)
"""Of ``decided``: address of an op message that lacks its body."""
OP_SIZE = next(_words)

# --- what it tells ------------------------------------------------------------------

STOP = next(_words)
RESULT_BYTES = next(_words)
"""Of the records that were made."""
STOP_OFFSET = next(_words)
"""Physical offset in the file that is not mapped."""

WORDS = next(_words)

# --- a row of PLACES ------------------------------------------------------------------

PLACE_QUEUE_OFFSET = 0
"""-1: whichever the record says."""
PLACE_PHYSICAL_OFFSET = 1
PLACE_SIZE = 2
"""0: what the record says; below: Python's."""
PLACE_MORE = 3
"""Where in MORE its properties begin."""
PLACE_MORE_SIZE = 4
PLACE_WORDS = 5

# --- a row of PLACES of ``later``: a message that is sent back -------------------------------
# Its first words are those above; MORE has the pairs that say where it goes then.

LATER_LEVEL = 5
"""The delay level that is wanted; 0: as many attempts as there were, and FIRST_DELAY_LEVEL."""
LATER_TIMES_MAX = 6
"""Messages that were consumed as often are Python's: they may be dead letters."""
LATER_WORDS = 7

FIRST_DELAY_LEVEL = 3
"""Of a first retry, 10 s by default; each further one has the next level."""
TOLD_ORIGIN = 1
"""In a row of what ``later`` tells, behind the record's size: where the topic stands that the
message was sent to, and its size. One that is that of the row before has its address."""
TOLD_ORIGIN_SIZE = 2
TOLD_WORDS = 3

# --- a row of PLACES of ``decided``: a half message whose producer has decided ----------------
# Its first words are those above.

DECIDED_GROUP = 5
"""Where in MORE the name of the producer's group stands; its properties are none of it."""
DECIDED_GROUP_SIZE = 6
DECIDED_IS_COMMIT = 7
DECIDED_WORDS = 8

DECIDED_FINAL_SIZE = 0
"""In a row of what ``decided`` tells: the sizes of both records; 0: there is no final message."""
DECIDED_OP_SIZE = 1
DECIDED_TOLD_WORDS = 2

# --- a row of what ``waiting`` tells ------------------------------------------------------

WAITING_OUT_MS = 0
"""TIMER_OUT_MS; -1: the record is not common, or not there; the rest of the row says nothing."""
WAITING_STORED_MS = 1
WAITING_ROLL_TIMES = 2
"""TIMER_ROLL_TIMES; 0 if it has none, or one that is no number."""
WAITING_IS_RECALL = 3
"""1: it has TIMER_DEL_UNIQKEY."""
WAITING_TOPIC = 4
"""FNV-1a of REAL_TOPIC, 64 bits, signed; that of no bytes if it has none."""
WAITING_WORDS = 5

# --- why a call stopped ------------------------------------------------------------------

STOP_DONE = 0
STOP_UNCOMMON = 1
"""The next place is Python's."""
STOP_UNMAPPED = 2
"""The next record lies in a file that is not mapped."""
STOP_ROOM = 3
"""The scratch has no room for the next record."""

# --- names that are looked at ----------------------------------------------------------

SYSTEM_PREFIX = "RMQ_SYS_"
"""A REAL_TOPIC that begins so is Python's: nothing leads there but half messages."""
DIGITS_MAX = 18
"""Numbers of more digits are Python's."""
PROPERTIES_MAX = props.LENGTH_MAX
FNV_START = 0xCBF29CE484222325 - (1 << 64)
FNV_FACTOR = 0x100000001B3
