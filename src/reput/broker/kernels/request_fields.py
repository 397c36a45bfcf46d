"""Kernels: the fields of a request with either kind of header: names, plain text, numbers.

A reader of headers (``header_json``, ``header_binary``) writes the address and size of each field's
value to the control block; ``send``, ``deliver`` and ``scan_requests`` check the values. The names
of the first two are compiled in, those of ``scan_requests`` are a list.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels import pull_rules, send_rules
from reput.format.kernels.hashes import same_bytes
from reput.format.kernels.memory import COMPILE_OPTIONS, get_i64, get_u8
from reput.format.kernels.plain_text import first_word, name_word, number
from reput.format.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

SEND_FIELD_COUNT = len(send_rules.FIELD_NAMES)
FIELD_NAMES = send_rules.FIELD_NAMES + pull_rules.FIELD_NAMES
LONG = 32
"""Number of the first long name. Long names are numbered like the letters, from here on."""
assert len(FIELD_NAMES) < LONG - 1

GROUP = FIELD_NAMES.index("producerGroup")
TOPIC = FIELD_NAMES.index("topic")
DEFAULT_TOPIC = FIELD_NAMES.index("defaultTopic")
DEFAULT_QUEUES = FIELD_NAMES.index("defaultTopicQueueNums")
QUEUE_ID = FIELD_NAMES.index("queueId")
SYS_FLAG = FIELD_NAMES.index("sysFlag")
BORN_TIMESTAMP = FIELD_NAMES.index("bornTimestamp")
FLAG = FIELD_NAMES.index("flag")
PROPERTIES = FIELD_NAMES.index("properties")
RECONSUME_TIMES = FIELD_NAMES.index("reconsumeTimes")
UNIT_MODE = FIELD_NAMES.index("unitMode")
MAX_RECONSUME_TIMES = FIELD_NAMES.index("maxReconsumeTimes")
BATCH = FIELD_NAMES.index("batch")
BROKER_NAME = FIELD_NAMES.index("bname")
CONSUMER_GROUP = FIELD_NAMES.index("consumerGroup")
QUEUE_OFFSET = FIELD_NAMES.index("queueOffset")
MAX_MESSAGES = FIELD_NAMES.index("maxMsgNums")
COMMIT_OFFSET = FIELD_NAMES.index("commitOffset")
SUSPEND_TIMEOUT = FIELD_NAMES.index("suspendTimeoutMillis")
SUBSCRIPTION = FIELD_NAMES.index("subscription")
SUB_VERSION = FIELD_NAMES.index("subVersion")
EXPRESSION_TYPE = FIELD_NAMES.index("expressionType")
MAX_BYTES = FIELD_NAMES.index("maxMsgBytes")

LETTER_A = ord("a")
LONG_MAX = pull_rules.LONG_MAX


IGNORED = -2
"""Bit of a field that is ignored: of signatures, namespaces and the clients of a cloud."""
W_ACCESS_KEY, LAST_ACCESS_KEY = name_word(ACCESS_KEY), ord(ACCESS_KEY[-1])
W_SIGNATURE, LAST_SIGNATURE = name_word(SIGNATURE), ord(SIGNATURE[-1])
assert len(ACCESS_KEY) == len(SIGNATURE) == 9
W_CHANNEL, W_CHANNEL_END = name_word("OnsChannel"), name_word("OnsChannel"[-8:])
W_TOKEN, W_TOKEN_END = name_word(SECURITY_TOKEN), name_word(SECURITY_TOKEN[-8:])
assert len(SECURITY_TOKEN) == 13
W_NS, W_NSD = name_word("ns"), name_word("nsd")
W_PRODUCER = name_word("producerGroup")
W_TOPIC = name_word("topic")
W_DEFAULT = name_word("defaultTopic")
W_QUEUE_ID = name_word("queueId")
W_SYS_FLAG = name_word("sysFlag")
W_BORN = name_word("bornTimestamp")
W_FLAG = name_word("flag")
W_PROPERTIES = name_word("properties")
W_RECONSUME = name_word("reconsumeTimes")
W_UNIT_MODE = name_word("unitMode")
W_MAX_RECONSUME = name_word("maxReconsumeTimes")
W_BATCH = name_word("batch")
W_BNAME = name_word("bname")
W_ER_GROUP = name_word("producerGroup"[-8:])
W_LT_TOPIC = name_word("defaultTopic"[-8:])
W_UEUE_NUMS = name_word("defaultTopicQueueNums"[-8:])
W_PIC_QUEUE = name_word("defaultTopicQueueNums"[8:16])
W_TIMESTAMP = name_word("bornTimestamp"[-8:])
W_OPERTIES = name_word("properties"[-8:])
W_UME_TIMES = name_word("reconsumeTimes"[-8:])
W_SUME_TIME = name_word("maxReconsumeTimes"[8:16])
W_CONSUMER = name_word("consumerGroup")
W_QUEUE_OFFSET = name_word("queueOffset")
W_MAX_MSG_NUMS = name_word("maxMsgNums")
W_COMMIT_OFFSET = name_word("commitOffset")
W_SUSPEND = name_word("suspendTimeoutMillis")
W_SUBSCRIPTION = name_word("subscription")
W_SUB_VERSION = name_word("subVersion")
W_EXPRESSION = name_word("expressionType")
W_MAX_MSG_BYTES = name_word("maxMsgBytes")
W_MERGROUP = name_word("consumerGroup"[-8:])
W_UEOFFSET = name_word("queueOffset"[-8:])
W_XMSGNUMS = name_word("maxMsgNums"[-8:])
W_ITOFFSET = name_word("commitOffset"[-8:])
W_IMEOUTMILLIS = name_word("suspendTimeoutMillis"[8:16])
W_UTMILLIS = name_word("suspendTimeoutMillis"[-8:])
W_CRIPTION = name_word("subscription"[-8:])
W_BVERSION = name_word("subVersion"[-8:])
W_IONTYPE = name_word("expressionType"[-8:])
W_MSGBYTES = name_word("maxMsgBytes"[-8:])


@njit(**COMPILE_OPTIONS)
def long_name_number(address, size):
    """Return the number of a field by its long name; -1 if it is unknown."""
    first = first_word(address, size)
    last = get_i64(address + size - 8) if size >= 8 else 0
    if size == 4:
        return FLAG if first == W_FLAG else -1
    if size == 5:
        if first == W_TOPIC:
            return TOPIC
        if first == W_BNAME:
            return BROKER_NAME
        return BATCH if first == W_BATCH else -1
    if size == 7:
        if first == W_QUEUE_ID:
            return QUEUE_ID
        return SYS_FLAG if first == W_SYS_FLAG else -1
    if size == 8:
        return UNIT_MODE if first == W_UNIT_MODE else -1
    if size == 10:
        if first == W_MAX_MSG_NUMS and last == W_XMSGNUMS:
            return MAX_MESSAGES
        if first == W_SUB_VERSION and last == W_BVERSION:
            return SUB_VERSION
        return PROPERTIES if first == W_PROPERTIES and last == W_OPERTIES else -1
    if size == 11:
        if first == W_QUEUE_OFFSET and last == W_UEOFFSET:
            return QUEUE_OFFSET
        return MAX_BYTES if first == W_MAX_MSG_BYTES and last == W_MSGBYTES else -1
    if size == 12:
        if first == W_COMMIT_OFFSET and last == W_ITOFFSET:
            return COMMIT_OFFSET
        if first == W_SUBSCRIPTION and last == W_CRIPTION:
            return SUBSCRIPTION
        return DEFAULT_TOPIC if first == W_DEFAULT and last == W_LT_TOPIC else -1
    if size == 13:
        if first == W_CONSUMER and last == W_MERGROUP:
            return CONSUMER_GROUP
        if first == W_PRODUCER and last == W_ER_GROUP:
            return GROUP
        return BORN_TIMESTAMP if first == W_BORN and last == W_TIMESTAMP else -1
    if size == 14:
        if first == W_EXPRESSION and last == W_IONTYPE:
            return EXPRESSION_TYPE
        return RECONSUME_TIMES if first == W_RECONSUME and last == W_UME_TIMES else -1
    if size == 17:
        is_max = first == W_MAX_RECONSUME and get_i64(address + 8) == W_SUME_TIME
        return MAX_RECONSUME_TIMES if is_max and last == W_UME_TIMES else -1
    if size == 20:
        is_timeout = first == W_SUSPEND and get_i64(address + 8) == W_IMEOUTMILLIS
        return SUSPEND_TIMEOUT if is_timeout and last == W_UTMILLIS else -1
    if size == 21:
        is_nums = first == W_DEFAULT and get_i64(address + 8) == W_PIC_QUEUE
        return DEFAULT_QUEUES if is_nums and last == W_UEUE_NUMS else -1
    return -1


@njit(**COMPILE_OPTIONS)
def field_bit(address, size):
    """Return the number of a field's bit in ``frame_seen``, by its name; -1 if it is unknown."""
    if size == 1:
        number = get_u8(address) - LETTER_A
        return number if 0 <= number < SEND_FIELD_COUNT else -1
    number = long_name_number(address, size)
    return number + LONG if number >= 0 else -1


@njit(**COMPILE_OPTIONS)
def listed_number(names, address, size):
    """Return the number of a field in a list of names; -1 if it is not among them.

    The list is ``frame_names``.
    """
    for i in range(names.count):
        field = names.fields[i]
        if field.name_size == size and same_bytes(field.name, address, size):
            return i
    return -1


@njit(**COMPILE_OPTIONS)
def is_ignored(address, size):
    """Return whether clients add a field of this name to any request, and a broker ignores it."""
    first = first_word(address, size)
    if size == 9:
        last = get_u8(address + 8)
        return (first == W_ACCESS_KEY and last == LAST_ACCESS_KEY) or (
            first == W_SIGNATURE and last == LAST_SIGNATURE
        )
    if size == 10:
        return first == W_CHANNEL and get_i64(address + 2) == W_CHANNEL_END
    if size == 13:
        return first == W_TOKEN and get_i64(address + 5) == W_TOKEN_END
    return first in (W_NS, W_NSD) and size <= 3


@njit(**COMPILE_OPTIONS)
def known_bit(names, address, size):
    """Return the number of a field's bit in ``frame_seen``; IGNORED, or -1 if the field is unknown.

    ``names`` is ``frame_names``.
    """
    bit = field_bit(address, size) if names == 0 else listed_number(names, address, size)
    return IGNORED if bit < 0 and is_ignored(address, size) else bit


@njit(**COMPILE_OPTIONS)
def may_be_escaped(names, bit):
    """Return whether a field may have any text: only the properties of a send may."""
    return names == 0 and bit & (LONG - 1) == PROPERTIES


@njit(**COMPILE_OPTIONS)
def set_field(block, bit, value, size):
    """Record the address and size of a field's value."""
    place = block.frame_values[bit & (LONG - 1)]
    place.start = value
    place.size = size


@njit(**COMPILE_OPTIONS)
def is_text(address, size, other, other_size):
    """Return whether two texts are equal."""
    return size == other_size and same_bytes(address, other, size)


# --- fields of the frame that was read ---------------------------------------


@njit(**COMPILE_OPTIONS)
def has_field(block, field):
    """Return whether the frame has a field."""
    seen = block.frame_seen
    return (seen | seen >> LONG) >> field & 1 != 0


@njit(**COMPILE_OPTIONS)
def field_place(block, field):
    """Return the address and the size of a field's value; 0, 0 if the frame lacks it."""
    if not has_field(block, field):
        return 0, 0
    place = block.frame_values[field]
    return place.start, place.size


@njit(**COMPILE_OPTIONS)
def field_number(block, field):
    """Return the value of a field; -1 if it is absent, or not of the form of ``number``."""
    address, size = field_place(block, field)
    return number(address, size)


@njit(**COMPILE_OPTIONS)
def is_number(block, field, limit):
    """Return whether a field is a number up to ``limit``; store its value for ``value_of``."""
    value = field_number(block, field)
    block.frame_values[field].start = value
    return 0 <= value <= limit


@njit(**COMPILE_OPTIONS)
def value_of(block, field):
    """Return the value of a field that ``is_number`` has read."""
    return block.frame_values[field].start
