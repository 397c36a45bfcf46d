"""Names of fields and properties, and limits of the kernel ``send``, which its callers use too."""

from reput.format import properties as props
from reput.format.kernels.rows import size_of
from reput.store.kernels.control_block import AppendPlace, SendNote

FIELD_NAMES = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
    "bname",
)
"""Fields of code 10; those of code 310 are ``a`` to ``n``. Their meaning: ``headers``."""

NAMES_OF_PYTHON = {
    "DELAY": "waits in the schedule topic (4.9, 5.x), see HELD_BACK",
    "TIMER_": "waits for the timer, see HELD_BACK, or is set by the timer (5.x)",
    "TRAN": "half messages, their checks; TRAN_MSG=true: see HELD_BACK (4.9, 5.x)",
    "CHECK_IM": "CHECK_IMMUNITY_TIME_IN_SECONDS: of half messages too (4.9, 5.x)",
    "REAL_": "REAL_TOPIC, REAL_QID: destination of waiting and half messages (4.9, 5.x)",
    "RETRY_TO": "RETRY_TOPIC: topic of a retried message; consumers show it as the topic (4.9)",
    "ORIGIN_": "ORIGIN_MESSAGE_ID, ORIGIN_GROUP: of retried messages (4.9, 5.x)",
    "POP_CK": "of messages that were popped; a send must not have it (5.x removes it)",
    "INNER_": "light queues (4.9), batches that are one record (5.x)",
    "CLUSTER": "set by the broker; a sent one would be there twice",
    "_": "_SYS_MSG_PRIORITY_ decides the queue, __LITE_TOPIC the light queue, __CRC32# is read as "
    "the record's checksum, __RMQ.TRANSIENT. must not be stored (5.x); all others but BORN_HOST "
    "are reserved",
}
"""Beginnings of names that fall back, and why. At most eight characters of a name are compared."""

BORN_HOST = "__BORNHOST"
"""A property of all messages of 5.x clients, which no broker interprets."""
TIMER_UNITS_MS = {props.TIMER_DELAY_SEC: 1000, props.TIMER_DELAY_MS: 1, props.TIMER_DELIVER_MS: 0}
"""Properties for the timer -> the unit of their value, ms; 0 for a time instead of a delay."""
HELD_BACK = (props.TRANSACTION_PREPARED, props.DELAY, *TIMER_UNITS_MS)
"""Names among them that take the fast path with certain values, one per message: ``true``, the
number of a level, a future time. Such a message waits in another topic; its properties then name
the topic and queue where it belongs.
"""
WAIT_PAIR = f"{props.WAIT}\1true\2"
"""A pair that half messages keep, after the suffix, and timer messages, after all other pairs.
Other messages are stored without it.
"""
OUT_MS_NAME = f"{props.TIMER_OUT_MS}\1"
REAL_TOPIC_NAME = f"{props.REAL_TOPIC}\1"
REAL_QUEUE_NAME = f"\2{props.REAL_QUEUE_ID}\1"
HANDLE_PARTS_MAX = 192
"""Maximum of topic, broker name and unique key in a recall handle, bytes. Longer ones fall back."""
TRANSACTION_ID_NAME = f"{props.TRANSACTION_ID}\1"
KEY_BYTES_MAX = 128
"""Maximum size of a unique key, bytes: it is part of the reply. Longer ones fall back."""
HELD_BYTES_MAX = 256 + KEY_BYTES_MAX
"""Room for the additions to a message that waits: the name of its topic, and these pairs, bytes."""

NAMES_MAX = 64
"""Maximum of properties of a fast send, without WAIT: each name is compared with those before it.
A message with more falls back to the processor, which has a dictionary for them.
"""
GAP = 16
"""Bytes between the addresses that the kernel writes properties to and reads them from."""
SLACK = 16
"""Bytes that it may write or read after their end."""

NOTE_BYTES = size_of(SendNote) + size_of(AppendPlace)
"""Size of the note of a frame and of its place, bytes."""
REPLY_BYTES_MAX = 352 + KEY_BYTES_MAX
"""Room that a reply needs, bytes."""
HANDLE_BYTES_MAX = 320
"""Room that a recall handle and its name need in addition, bytes."""
