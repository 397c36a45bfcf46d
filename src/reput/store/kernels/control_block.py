"""The control block: the words that kernels and Python share, without a second copy of any of them.

Its address never moves. ``reput.store.hot_state`` owns the memory; kernels get the address and
nothing else. A row (of a topic, a queue, a reader, a delivery) is named by its address too.
"""

from reput.format.kernels.rows import Row, rows, word

FRAME_FIELDS_MAX = 23
"""Fields of a request whose values have words in the block."""
READ_UNITS_MAX = 4096
"""Units that one pull or pop reads at most."""


class AppendPlace(Row):
    """The result of ``append`` for a record."""

    physical_offset = word("physical offset", "Of the record")
    queue_offset = word("queue offset", "Of the message")


class IndexFileRow(Row):
    """An index file. Of the current file only ``map`` is current."""

    map = word("address", "Map of the file")
    begin_ms = word("ms", "Store time of the first record")
    end_ms = word("ms", "Store time of the last record")
    next_entry = word("number", "The next entry")


class KnownField(Row):
    """A field of requests that a kernel knows."""

    name = word("address", "Its name, which is ASCII")
    name_size = word("bytes", "Size of the name")
    kind = word("number", "Kind of its value: TEXT, INT, LONG or BOOL of ``scan_args``")


class KnownFields(Row):
    """The fields of requests that a kernel knows."""

    count = word("count", "Known fields")
    fields = rows(0, KnownField, "The known fields")


class SendNote(Row):
    """What the reply to a send needs."""

    opaque = word("number", "Opaque of the send")
    serialization = word("number", "JSON or binary")
    queue_id = word("number", "The queue")
    end = word("position", "End of the frame")
    out_ms = word("address", "As ``frame_out_ms``")
    key = word("address", "As ``frame_key``")
    key_size = word("bytes", "Size of the key")


class FrameValue(Row):
    """The value of a field of a request."""

    start = word("address", "The value")
    size = word("bytes", "Its size")


KIND_PLAIN = 0
KIND_SCHEDULE = 1
"""Units of delayed messages have the deliver time."""
KIND_SLOW = 2
"""Python dispatches the topic: extension units, batch queues."""

MARK_DIRTY = 1
MARK_TOUCHED = 2


class QueueRow(Row):
    """A queue."""

    next_offset = word("queue offset", "The next message that is put")
    max_offset = word("queue offset", "The next message that is dispatched: the end for readers")
    min_offset = word("queue offset", "The first message")
    tail = word("address", "The units in memory; 0: none")
    tail_offset = word("queue offset", "The first unit in memory")
    tail_limit = word("count", "Units that fit")
    written_offset = word("queue offset", "Units before this one are in the file")
    notified_offset = word("queue offset", "Listeners were notified of units before this one")
    end_physical = word("physical offset", "End of the record of the last unit")
    marks = word("bits", "MARK_DIRTY, MARK_TOUCHED")
    ahead = word("address", "Units that Python has read from the file ahead of a reader")
    ahead_offset = word("queue offset", "The first of these units")
    ahead_count = word("count", "These units")
    mapped = word("address", "Units of a file that is mapped for searches by time; 0: none")
    mapped_offset = word("queue offset", "The first of these units")
    mapped_count = word("count", "These units")


class TopicRow(Row):
    """A topic."""

    name = word("address", "The name in UTF-8")
    name_size = word("bytes", "Size of the name")
    hash = word("number", "Java hash of ``name#``, unsigned: the hash of an index key continues it")
    kind = word("number", "KIND_PLAIN, KIND_SCHEDULE or KIND_SLOW")
    queues = word(
        "address", "The addresses of the queue rows by queue id; 0: none", to=list[QueueRow]
    )
    queue_limit = word("count", "Words of that list")
    message_count = word("count", "Messages that were put, for statistics")
    byte_count = word("bytes", "Bytes that were put, for statistics")
    write_queues = word(
        "count", "Sends to queue ids below this take the fast path; 0: all fall back"
    )


class DeliveryRow(Row):
    """What a group got from a queue since the counts were last collected."""

    pulls = word("count", "Pulls that were answered; the first one adds the row to the list")
    messages = word("count", "Messages in the replies")
    bytes = word("bytes", "Bytes of these messages")
    consumer_offset = word("consumer offset", "Last committed with a pull; -1: none")
    number = word("number", "Topic and group, for Python")
    queue_id = word("number", "The queue")


class ReaderRow(Row):
    """A group that reads a topic, as its pulls describe it."""

    group = word("address", "Name of the group")
    group_size = word("bytes", "Size of the name")
    topic = word("address", "Name of the topic")
    topic_size = word("bytes", "Size of the name")
    subscription = word("address", "The expression in its pulls")
    subscription_size = word(
        "bytes", "Size of the expression; -1: pulls have none, the heartbeat's counts"
    )
    version = word(
        "number", "Version of the heartbeat's subscription: pulls of a newer one fall back"
    )
    codes = word("address", "The wanted tags codes, a word each, ascending", to=int)
    code_count = word("count", "Wanted tags codes; 0: all messages are wanted")
    deliveries = word(
        "address",
        "The group's delivery rows of the topic, consecutive, by queue id",
        to=DeliveryRow,
    )
    queues = word("count", "Delivery rows: pulls of other queues fall back")
    broker = word("number", "Id of the broker suggested in replies, 0 to 9")
    far_broker = word(
        "number", "The same, in replies with records that are far from the end of the log"
    )


class ControlBlock(Row):
    """The control block."""

    # The log.
    log_address = word(
        "address", "Byte 0 of the current log file: its map, or a pool buffer; 0: no file"
    )
    log_start = word("physical offset", "Byte 0 of the current log file")
    log_position = word("position", "The next record goes here")
    log_limit = word("position", "End of the reserved room")
    log_size = word("position", "End of the file")
    log_timestamp = word("ms", "Store time of the last record")
    has_record_crc = word(
        "flag", "Records end with a ``__CRC32#`` property, whose digits are filled in"
    )
    crc_tables = word("address", "The tables of ``hot.crc_tables``")
    checks_content = word(
        "flag",
        "Dispatch stops at records that lost a part; else only their lengths and offsets are "
        "checked",
    )

    # Dispatch.
    is_live = word(
        "flag", "A put is dispatched in the same pass; 0: dispatch waits for a flush or a commit"
    )
    dispatched = word("physical offset", "End of the last dispatched record")
    last_physical_offset = word("physical offset", "The last dispatched record")
    last_store_timestamp = word("ms", "Store time of the last dispatched record")
    has_light_queues = word(
        "flag", "Stop after records with INNER_MULTI_DISPATCH, which go to further queues"
    )
    delays = word(
        "address", "The milliseconds of each delay level, a word each; level 1 first", to=int
    )
    delay_count = word("count", "Delay levels")
    topics = word(
        "address",
        "The topic table: a word per slot, the address of a topic row or 0",
        to=list[TopicRow],
    )
    topic_slots = word(
        "count", "Slots of the topic table: a power of two, more than there are topics"
    )
    dirty = word(
        "address", "List of the queue rows with units that are in no file", to=list[QueueRow]
    )
    dirty_count = word("count", "Rows in the list")
    touched = word(
        "address",
        "List of the queue rows that got units since the listeners were notified",
        to=list[QueueRow],
    )
    touched_count = word("count", "Rows in the list")

    # The index file.
    index_address = word("address", "Map of the current index file; 0: no file")
    index_files = word(
        "address",
        "The rows of all index files, the oldest first",
        to=IndexFileRow,
    )
    index_file_count = word("count", "Index files; -1: the rows are not current")
    index_is_on = word("flag", "Keys are indexed")
    index_has_tags = word("flag", "Tags are indexed too, as 5.4 and later do")
    index_slots = word("count", "Hash slots of the file")
    index_entries_max = word("number", "Entry numbers stay below this")
    index_limit = word("number", "Entry numbers stay below this until more room is reserved")
    index_next = word("number", "The next entry")
    index_slots_used = word("count", "Slots with an entry")
    index_begin_timestamp = word("ms", "Store time of the first indexed record")
    index_end_timestamp = word("ms", "Store time of the last indexed record")
    index_begin_offset = word("physical offset", "The first indexed record")
    index_end_offset = word("physical offset", "The last indexed record")

    # The log's files for reading.
    files = word(
        "address", "The addresses of the log files, a word for each file; 0: not mapped", to=int
    )
    file_count = word("count", "Files in the list")
    files_start = word("physical offset", "Start of the first file")
    file_size = word("bytes", "Size of each file")
    readable = word("physical offset", "End of what may be read")
    memory_bytes = word(
        "bytes", "Records further from the end of the log than this are taken to be on disk only"
    )
    bytes_in_memory_max = word("bytes", "Limit of one read")
    count_in_memory_max = word("count", "Limit of one read, in messages")
    bytes_on_disk_max = word("bytes", "Limit of one read that reaches back to the disk")
    count_on_disk_max = word(
        "count", "Limit of one read that reaches back to the disk, in messages"
    )

    # Arguments and results of a call: words, as a word costs a tenth of a call's argument.
    input_size = word("bytes", "``append``: size of the records")
    input_time = word("ms", "``append``: store time of the records")
    places = word("address", "``append``: its result for each record", to=AppendPlace)
    pull_units = word("address", "``pull``: the units")
    pull_unit_count = word("count", "``pull``: units")
    pull_queue_offset = word(
        "queue offset", "``pull``: the first unit; -1 where records do not have it (light queues)"
    )
    pull_buffer = word("address", "``pull``: where the records go")
    pull_room = word("bytes", "``pull``: size of the buffer")
    pull_count_max = word("count", "``pull``: limit of the messages")
    pull_codes = word("address", "``pull``: the wanted tags codes, a word each, ascending", to=int)
    pull_code_count = word("count", "``pull``: wanted tags codes; 0: all messages are wanted")
    input_position = word("position", "In: where the input begins. Out: where the call stopped")
    stop = word("number", "Why the call stopped: ``STOP_DONE`` and the following")
    stop_row = word("address", "The row that a stop is about")
    result_count = word("count", "Messages of the result")
    result_bytes = word("bytes", "Size of the result")
    result_scanned = word("count", "Units that were looked at")
    result_last_offset = word("physical offset", "The last unit that was looked at")
    result_gone = word("count", "Units whose record is no longer in the log")
    result_damaged = word("count", "Units that do not point at a record of theirs")

    # Receive: sends in a receive buffer.
    receive_is_on = word(
        "flag", "0: all sends fall back; the store is closed, or a slave's, or sends are held"
    )
    receive_address = word("address", "The receive buffer")
    receive_end = word("position", "End of the bytes in it")
    receive_position = word(
        "position", "In: the first frame. Out: end of the last frame that was answered"
    )
    replies_address = word("address", "The buffer of replies")
    replies_room = word("bytes", "Size of the buffer of replies")
    replies_bytes = word("bytes", "In and out: replies in the buffer; new ones follow them")
    scratch_address = word(
        "address", "Records before they are appended; ``input_position`` is that of a stop's record"
    )
    scratch_room = word("bytes", "Size of the scratch")
    notes = word(
        "address",
        "Notes of the frames that are not answered yet; after all of them, their ``places``",
        to=SendNote,
    )
    notes_room = word("count", "Frames that fit: ``send_rules.NOTE_BYTES`` each")
    body_bytes_max = word("bytes", "Limit of a body")
    record_bytes_max = word("bytes", "Limit of a record")
    born_address = word("number", "IPv4 address of the client")
    born_port = word("number", "Port of the client")
    store_address = word("number", "IPv4 address in message ids")
    store_port = word("number", "Port in message ids")
    suffix_address = word(
        "address", "Properties that are added to each message: whole pairs with their separators"
    )
    suffix_size = word("bytes", "Size of these properties")

    # Receive: pulls among them.
    deliver_is_on = word("flag", "0: all pulls fall back, as on a port that serves none")
    deliver_count = word(
        "count", "Out: pulls that the call answered; one call answers sends or pulls, not both"
    )
    filtered_units_max = word(
        "count", "Units that a pull of some tags looks at, if it wants fewer messages than that"
    )
    readers = word(
        "address",
        "The reader table: a word per slot, the address of a reader row or 0",
        to=list[ReaderRow],
    )
    reader_slots = word(
        "count", "Slots of the reader table: a power of two, more than there are readers"
    )
    delivered = word(
        "address", "List of the delivery rows that have counted something", to=list[DeliveryRow]
    )
    delivered_count = word("count", "Rows in the list")

    # A frame: what the kernel has read of it; only ``frame_code`` is of use to others.
    frame_code = word(
        "number", "Request code of the frame at ``receive_position``, a hint: 0 if it was not found"
    )
    frame_serialization = word("number", "JSON or binary")
    frame_flag = word("bits", "Flag of the header")
    frame_opaque = word("number", "Opaque of the header")
    frame_seen = word(
        "bits", "Fields that it has: from bit 0 by number, from bit 32 by their long names"
    )
    frame_topic_row = word(
        "address", "Topic row of the frame before, in this call; 0: none", to=TopicRow
    )
    frame_values = rows(FRAME_FIELDS_MAX, FrameValue, "Its values, by the number of the field")
    frame_names = word(
        "address", "The names of its fields; 0: those of sends and pulls", to=KnownFields
    )
    frame_held = word(
        "number", "Delay level, HELD_HALF or HELD_TIMER; 0: the message does not wait"
    )
    takes_halves = word(
        "flag", "Half messages take the fast path; 0: they are refused, or their topics are missing"
    )

    # Receive: messages that wait for the timer.
    takes_timers = word(
        "flag", "Timer messages take the fast path; 0: they are refused, or their topic is missing"
    )
    timer_precision_ms = word("ms", "Deliver times are rounded to this")
    timer_delay_ms_max = word(
        "ms", "Messages with a longer delay fall back; the processor refuses them"
    )
    clock_time = word(
        "ms", "Where a delay begins; ``input_time`` may be later, if the clock was set back"
    )
    broker_name = word("address", "Name of the broker in recall handles")
    broker_name_size = word("bytes", "Size of the name")
    frame_out_ms = word(
        "address", "The value of TIMER_OUT_MS in the scratch; 0: the message has no recall handle"
    )
    frame_key = word("address", "The frame's UNIQ_KEY in the scratch")
    frame_key_size = word("bytes", "Size of the key; 0: it has none")


# --- why a call stopped ---------------------------------------------------------

STOP_DONE = 0
STOP_ROLL = 1
"""The record does not fit the current log file."""
STOP_RESERVE = 2
"""No room is reserved in the log file for the record."""
STOP_TOPIC = 3
"""The topic has no row."""
STOP_QUEUE = 4
"""The queue has no row; ``stop_row`` is the topic's."""
STOP_UNITS = 5
"""The queue's tail has no room, or does not exist; ``stop_row`` is the queue's."""
STOP_INDEX = 6
"""The index file is missing, or has no room for all keys of the record."""
STOP_SLOW = 7
"""The record falls back to the slow path of dispatch or put."""
STOP_LIGHT = 8
"""The record before ``input_position`` goes to light queues too; ``stop_row`` is its address."""
STOP_GAP = 9
"""The record's queue offset is beyond the queue's next one; ``stop_row`` is the queue's."""
STOP_DAMAGE = 10
"""There is no record at ``input_position``."""
STOP_UNMAPPED = 11
"""``result_last_offset`` is in a log file that is not mapped, or gone."""
STOP_BUFFER = 12
"""The first record needs ``result_bytes`` of room."""
STOP_PART = 13
"""The record is longer than the input."""
STOP_FRAME = 14
"""The frame at ``receive_position`` falls back to its processor."""
STOP_REPLIES = 15
"""The replies must be written first: no room for one more, or it is of the other kind."""
STOP_LENGTH = 16
"""The length at ``receive_position`` is invalid for a frame."""
STOP_BEGUN = 17
"""The record is the first of its queue, which has units of earlier records; ``stop_row`` is the
queue's."""
STOP_TORN = 18
"""The record at ``input_position`` has valid lengths, and lost a part of its content."""

HELD_HALF = -1
"""``frame_held`` of a half message."""
HELD_TIMER = -2
"""``frame_held`` of a timer message."""

FILE_IS_GONE = -1
"""Address of a log file that does not exist."""
