"""The rows of the kernels of ``digest``.

A digest has the records of a piece of a log file as entries of fixed size: everything that queues
and index need of them. The fields are described here, what the kernels do with them in ``digest``.
"""

from reput.format.kernels.rows import Row, columns_of, word
from reput.store.kernels.control_block import TopicRow


class DigestEntry(Row):
    """A record of the piece; it begins where the one before it ends."""

    position = word("position", "Its first byte in the log file")
    size = word("bytes", "Its size")
    topic = word("number", "Its topic among those of the digest")
    queue_id = word("number", "Its queue")
    queue_offset = word("queue offset", "Its queue offset")
    tags_code = word("number", "Tags code of its unit")
    timestamp = word("ms", "Store time")
    flags = word("bits", "Transaction type of the system flag, FLAG_LIGHT and FLAG_DELAY")
    hashes_end = word("count", "Hashes of this and all earlier entries")


ENTRY = columns_of(DigestEntry)

FLAG_LIGHT = 1 << 32
"""The record names light queues."""
FLAG_DELAY = 1 << 33
"""The record has a delay level."""


class DigestTopic(Row):
    """A topic of the piece."""

    name = word("address", "The name in the log")
    name_size = word("bytes", "Size of the name")
    hash = word("number", "Java hash of ``name#``, unsigned")
    row = word("address", "Row of the topic; 0 until it is looked up", to=TopicRow)


class DigestWords(Row):
    """A digest."""

    file = word("address", "Byte 0 of the log file, where other positions count from")
    start = word("position", "Begin of the piece: anywhere in a record, unless ``is_start``")
    is_start = word("flag", "A record begins at ``start``")
    stop = word("position", "The records of the piece begin before it")
    end = word("position", "End of the bytes in the file")
    file_end = word("position", "End of the file")
    base = word("physical offset", "Of position 0")
    has_keys = word("flag", "Keys are hashed")
    has_tags = word("flag", "Tags are hashed among the keys")
    crc_tables = word("address", "The tables of ``hot.crc_tables``")
    entries = word("address", "Room for the entries", to=DigestEntry)
    entries_max = word("count", "Entries that fit")
    topics = word("address", "Room for the topics", to=DigestTopic)
    topics_max = word("count", "Topics that fit")
    topic_slots = word(
        "address", "Open-addressing table of zeros, for the numbers of topics plus 1", to=int
    )
    topic_slot_count = word("count", "Its slots, a power of two")
    hashes = word("address", "Room for the hashes of the keys, int32, in order")
    hashes_max = word("count", "Hashes that fit")
    topic_count = word("count", "Topics; 0 before the call")
