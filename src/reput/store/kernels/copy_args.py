"""Arguments of the kernels that copy stored records: ``copy_records``, ``copy_for_retry`` ...

One int64 each, in native order. One of them is the address of the control block, which has the
addresses of the mapped log files. The modules of the kernels describe what they do with the words.
"""

from collections.abc import Iterator

from reput.format import properties as props

_words: Iterator[int] = iter(range(1 << 6))

# --- the rule: how a copy differs from the stored record ----------------------

TOPIC = next(_words)
"""Address of the topic of the copies; 0: REAL_TOPIC and REAL_QID of each name topic and queue."""
TOPIC_SIZE = next(_words)
QUEUE_ID = next(_words)
FROM_TOPIC = next(_words)
"""Address of the topic that the records must be stored under."""
FROM_TOPIC_SIZE = next(_words)
"""Size of that topic; 0: any topic."""
SYS_FLAGS_OFF = next(_words)
"""Bits of the sys flag that are cleared."""
SYS_FLAGS_ON = next(_words)
"""Bits that are set, after that."""
HAS_PREPARED_OFFSET = next(_words)
"""1: the prepared transaction offset is the physical offset of the stored record. 0: it is 0."""
RULE_WORDS = next(_words)
"""Number of words of the rule. The words from here on are the call's. This word is not used."""

# --- the caller ---------------------------------------------------------------

BLOCK = next(_words)
"""Address of the control block; READABLE in it must be current."""
TOPIC_MAX = next(_words)
"""Maximum size of a REAL_TOPIC, bytes."""
RECORD_MAX = next(_words)
"""Maximum size of a record, bytes."""
HAS_LIGHT_QUEUES = next(_words)
"""1: messages with INNER_MULTI_DISPATCH fall back."""
SCRATCH = next(_words)
"""Address of the room for the records."""
SCRATCH_ROOM = next(_words)
SIZES = next(_words)
"""Address of a word for each record: its size. For ``copy_timers``: of its result rows."""

# --- a call -------------------------------------------------------------------------

PLACES = next(_words)
"""Address of the rows that locate the stored records."""
PLACE_COUNT = next(_words)
MORE = next(_words)
"""Address of property strings that are appended; the rows have slices of it."""
OP = next(_words)
"""Address of an op message without a body, for ``copy_for_commit``."""
OP_SIZE = next(_words)

# --- results ------------------------------------------------------------------

STOP = next(_words)
RESULT_BYTES = next(_words)
"""Size of the records that were made, bytes."""
STOP_OFFSET = next(_words)
"""Physical offset in the file that is not mapped."""

WORDS = next(_words)

# --- a row of PLACES ------------------------------------------------------------------

PLACE_QUEUE_OFFSET = 0
"""Queue offset of the record; -1: any."""
PLACE_PHYSICAL_OFFSET = 1
PLACE_SIZE = 2
"""Size of the record; 0: as in the record; below 0: falls back."""
PLACE_MORE = 3
"""Position of its properties in MORE."""
PLACE_MORE_SIZE = 4
PLACE_WORDS = 5

# --- a row of PLACES of ``copy_for_retry``: a message that is sent back ----------------------
# The first words are those above; MORE has the pairs with topic and queue of the next attempt.

RETRY_LEVEL = 5
"""Delay level of the retry; 0: FIRST_DELAY_LEVEL plus the number of attempts so far."""
RETRY_TIMES_MAX = 6
"""Maximum of attempts. Messages with as many fall back: they may be dead letters."""
RETRY_WORDS = 7

FIRST_DELAY_LEVEL = 3
"""Delay level of a first retry, 10 s by default; each further one has the next level."""
RETRY_RESULT_ORIGIN = 1
"""Address of the topic that a message was sent to first, in a result row of ``copy_for_retry``
after the size of the record. Equal topics of consecutive rows have the same address.
"""
RETRY_RESULT_ORIGIN_SIZE = 2
RETRY_RESULT_WORDS = 3

# --- a row of PLACES of ``copy_for_commit``: a half message that is committed or rolled back ---
# The first words are those above.

DECISION_GROUP = 5
"""Position of the name of the producer group in MORE; no properties are appended."""
DECISION_GROUP_SIZE = 6
DECISION_IS_COMMIT = 7
DECISION_WORDS = 8

DECISION_RESULT_FINAL_SIZE = 0
"""Size of the final message in a result row of ``copy_for_commit``; 0 if there is none."""
DECISION_RESULT_OP_SIZE = 1
DECISION_RESULT_WORDS = 2

# --- a result row of ``copy_timers`` ------------------------------------------------------

TIMER_OUT_MS = 0
"""TIMER_OUT_MS; -1: the record falls back or is missing, and the rest of the row has no meaning."""
TIMER_STORED_MS = 1
TIMER_ROLL_TIMES = 2
"""TIMER_ROLL_TIMES; 0 if it is absent, or not a number."""
TIMER_IS_RECALL = 3
"""1 if the message has TIMER_DEL_UNIQKEY."""
TIMER_TOPIC = 4
"""FNV-1a of REAL_TOPIC, 64 bits, signed; that of no bytes if it is absent."""
TIMER_WORDS = 5

# --- why a call stopped ------------------------------------------------------------------

STOP_DONE = 0
STOP_FALLS_BACK = 1
"""The next place falls back."""
STOP_UNMAPPED = 2
"""The next record is in a file that is not mapped."""
STOP_ROOM = 3
"""The scratch has no room for the next record."""

# --- names of topics and properties ----------------------------------------------------------

SYSTEM_PREFIX = "RMQ_SYS_"
"""Beginning of REAL_TOPICs that fall back: only half messages go there."""
DIGITS_MAX = 18
"""Maximum of digits. Longer numbers fall back."""
PROPERTIES_MAX = props.LENGTH_MAX
FNV_START = 0xCBF29CE484222325 - (1 << 64)
FNV_FACTOR = 0x100000001B3
