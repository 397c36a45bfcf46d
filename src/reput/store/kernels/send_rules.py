"""Names of fields and properties, and limits of the kernel ``send``, which its callers use too."""

from reput.format import properties as props
from reput.store.kernels import control_block as state

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
"""The fields of code 10; those of code 310 are ``a`` to ``n``. What they mean: ``headers``."""

NAMES_OF_PYTHON = {
    "DELAY": "waits in the schedule topic (4.9, 5.x); HELD_BACK says which are common",
    "TIMER_": "waits for the timer, see HELD_BACK, or is the timer's own (5.x)",
    "TRAN": "half messages, their checks; TRAN_MSG=true is common, see HELD_BACK (4.9, 5.x)",
    "CHECK_IM": "CHECK_IMMUNITY_TIME_IN_SECONDS: of half messages too (4.9, 5.x)",
    "REAL_": "REAL_TOPIC, REAL_QID: where waiting and half messages keep their own (4.9, 5.x)",
    "RETRY_TO": "RETRY_TOPIC: whose message is retried; consumers show it as the topic (4.9)",
    "ORIGIN_": "ORIGIN_MESSAGE_ID, ORIGIN_GROUP: of retried messages (4.9, 5.x)",
    "POP_CK": "of messages that were popped; a send must not bring it (5.x takes it out)",
    "INNER_": "light queues (4.9), batches that are one record (5.x)",
    "CLUSTER": "the broker's to set; what was sent would be there twice",
    "_": "_SYS_MSG_PRIORITY_ decides the queue, __LITE_TOPIC the light queue, __CRC32# is read as "
    "the record's checksum, __RMQ.TRANSIENT. must not be stored (5.x); all others are reserved",
}
"""Names that begin so are Python's, and why. At most eight characters of a name are compared."""

TIMER_UNITS_MS = {props.TIMER_DELAY_SEC: 1000, props.TIMER_DELAY_MS: 1, props.TIMER_DELIVER_MS: 0}
"""What asks for the timer -> the unit of its value; 0: it is a time, no delay."""
HELD_BACK = (props.TRANSACTION_PREPARED, props.DELAY, *TIMER_UNITS_MS)
"""Names of Python that are common with some values, one of them: ``true``, a level's number, and a
time to come. Such a message waits elsewhere; where it belongs is added to its properties."""
WAIT_PAIR = f"{props.WAIT}\1true\2"
"""What half messages keep, behind the suffix, and those for the timer, behind all else; of all
others it is left out."""
OUT_MS_NAME = f"{props.TIMER_OUT_MS}\1"
REAL_TOPIC_NAME = f"{props.REAL_TOPIC}\1"
REAL_QUEUE_NAME = f"\2{props.REAL_QUEUE_ID}\1"
HANDLE_PARTS_MAX = 192
"""Bytes of topic, broker name and unique key, which recall handles bear; longer ones are Python's.
"""
HELD_BYTES_MAX = 256
"""Room for what a message that waits has more than others: its topic's name, and these pairs."""

NAMES_MAX = 64
"""Properties of a common send, but for WAIT: each name is compared with those before it. A message
with more of them is Python's, which has a dictionary for that."""
GAP = 16
"""Bytes between where the kernel writes properties and where it reads them from."""
SLACK = 16
"""What it may write or read behind their end."""

NOTE_BYTES = 56 + state.PLACE_BYTES
"""What is remembered of a frame: opaque, serialization, queue id, end, FRAME_OUT_MS, FRAME_KEY and
its size; and its place."""
REPLY_BYTES_MAX = 320
"""Room that must be left for a reply."""
HANDLE_BYTES_MAX = 320
"""Room that must be left besides for a recall handle, and its name."""
