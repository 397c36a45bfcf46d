"""The calls of the kernels that copy stored records: ``copy_records``, ``copy_for_retry`` ...

The modules of the kernels describe what they do with the fields.
"""

from reput.format import properties as props
from reput.format.kernels.rows import Row, columns_of, row, word
from reput.store.kernels.control_block import ControlBlock

# --- rows that locate stored records --------------------------------------------------------


class Place(Row):
    """A record that is copied."""

    queue_offset = word("queue offset", "Of the record; -1: any")
    physical_offset = word("physical offset", "Of the record")
    size = word("bytes", "Size of the record; 0: as in the record; below 0: it falls back")
    more = word("position", "Properties that are appended to it, in the ``more`` of the call")
    more_size = word("bytes", "Size of these properties")


class RetryPlace(Place):
    """A message that is sent back; ``more`` are the pairs with topic and queue of its retry."""

    level = word("number", "Delay level; 0: FIRST_DELAY_LEVEL plus the number of attempts so far")
    times_max = word(
        "count", "Limit of attempts: messages with as many fall back, they may be dead letters"
    )


class DecisionPlace(Place):
    """A half message that is committed or rolled back; nothing is appended to its properties."""

    group = word("position", "Name of the producer group, in the ``more`` of the call")
    group_size = word("bytes", "Size of the name")
    is_commit = word("flag", "It is committed; 0: it is rolled back")


PLACE = columns_of(Place)
RETRY_PLACE = columns_of(RetryPlace)
DECISION_PLACE = columns_of(DecisionPlace)

FIRST_DELAY_LEVEL = 3
"""Delay level of a first retry, 10 s by default; each further one has the next level."""

# --- rows of results ------------------------------------------------------------------------


class CopySize(Row):
    """The result of ``copy_records`` for a record."""

    size = word("bytes", "Size of the copy")


class RetryResult(Row):
    """The result of ``copy_for_retry`` for a message."""

    size = word("bytes", "Size of the copy")
    origin = word(
        "address",
        "The topic that it was sent to first; equal topics of consecutive rows have one address",
    )
    origin_size = word("bytes", "Size of that topic")


class DecisionResult(Row):
    """The result of ``copy_for_commit`` for a half message."""

    final_size = word("bytes", "Size of the final message; 0: there is none")
    op_size = word("bytes", "Size of the op message")


class TimerProperties(Row):
    """The result of ``copy_timers`` for a message."""

    out_ms = word(
        "ms", "TIMER_OUT_MS; -1: it falls back or is missing, and the rest has no meaning"
    )
    stored_ms = word("ms", "Store time")
    roll_times = word("count", "TIMER_ROLL_TIMES; 0: it is absent, or not a number")
    is_recall = word("flag", "It has TIMER_DEL_UNIQKEY")
    topic = word(
        "number", "FNV-1a of REAL_TOPIC, 64 bits, signed; that of no bytes if it is absent"
    )


TIMER = columns_of(TimerProperties)

# --- the call -------------------------------------------------------------------------------


class RuleWords(Row):
    """How a copy differs from the stored record."""

    topic = word(
        "address", "Topic of the copies; 0: REAL_TOPIC and REAL_QID of each name topic and queue"
    )
    topic_size = word("bytes", "Size of that topic")
    queue_id = word("number", "Queue of the copies")
    from_topic = word("address", "Topic that the records must be stored under")
    from_topic_size = word("bytes", "Size of that topic; 0: any topic")
    sys_flags_off = word("bits", "Bits of the sys flag that are cleared")
    sys_flags_on = word("bits", "Bits that are set, after that")
    has_prepared_offset = word(
        "flag",
        "The prepared transaction offset is the physical offset of the stored record; 0: it is 0",
    )


class CopyCall(Row):
    """A call of a kernel that copies; those of the other kernels differ in their rows."""

    rule = row(RuleWords, "The rule")

    # The caller.
    block = word(
        "address", "The control block; ``readable`` in it must be current", to=ControlBlock
    )
    topic_size_max = word("bytes", "Limit of a REAL_TOPIC")
    record_size_max = word("bytes", "Limit of a record")
    has_light_queues = word("flag", "Messages with INNER_MULTI_DISPATCH fall back")
    scratch = word("address", "Room for the records")
    scratch_room = word("bytes", "Size of that room")

    # The call.
    place_count = word("count", "Rows that locate stored records")
    more = word("address", "Property strings; the rows have slices of it")
    op = word("address", "An op message without a body, for ``copy_for_commit``")
    op_size = word("bytes", "Size of the op message")

    # Results.
    stop = word("number", "Why the call stopped: STOP_DONE and the following")
    result_size = word("bytes", "Size of the records that were made")
    stop_offset = word("physical offset", "A record in the file that is not mapped")


class PlainCall(CopyCall):
    """A call of ``copy_records``."""

    places = word("address", "The stored records", to=Place)
    results = word("address", "A row for each record", to=CopySize)


class TimerCall(CopyCall):
    """A call of ``copy_timers``."""

    places = word("address", "The stored records", to=Place)
    results = word("address", "A row for each record", to=TimerProperties)


class RetryCall(CopyCall):
    """A call of ``copy_for_retry``."""

    places = word("address", "The stored records", to=RetryPlace)
    results = word("address", "A row for each record", to=RetryResult)


class DecisionCall(CopyCall):
    """A call of ``copy_for_commit``."""

    places = word("address", "The half messages", to=DecisionPlace)
    results = word("address", "A row for each half message", to=DecisionResult)


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
