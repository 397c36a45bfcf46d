"""Every file and folder name of a store, in both directions. Nothing else knows them.

Paths are relative to the store's root and use ``/``. Layout: docs/formats/store-folder.md.
"""

COMMIT_LOG = "commitlog"
CONSUME_QUEUE = "consumequeue"
CONSUME_QUEUE_EXT = "consumequeue_ext"
BATCH_CONSUME_QUEUE = "batchconsumequeue"
INDEX = "index"
CHECKPOINT = "checkpoint"
ABORT = "abort"
LOCK = "lock"
CONFIG = "config"
QUEUE_SUMMARY = "queues.summary"
"""Ours alone: where queues ended at a clean stop. Brokers of RocketMQ do not look at it."""
KNOWN_QUEUES = "queues.known"
"""Ours alone: which queues a store has while it is open."""
TOMBSTONES = "topics.deleted"
"""Ours alone: before which physical offset messages of deleted topics are no longer theirs."""
DELETED_QUEUES = "queues.deleted"
"""Ours alone: a folder of queues that were deleted, until their files are gone."""
BULK_APPENDS = "appends.json"
"""Ours alone: which import was begun, and which batches of streams are in the log."""

TOPICS = f"{CONFIG}/topics.json"
CONSUMER_OFFSETS = f"{CONFIG}/consumerOffset.json"
LIGHT_CONSUMER_OFFSETS = f"{CONFIG}/lmqConsumerOffset.json"
"""Instead of the one above, with ``enableLmq``."""
SUBSCRIPTION_GROUPS = f"{CONFIG}/subscriptionGroup.json"
DELAY_OFFSETS = f"{CONFIG}/delayOffset.json"
CONSUMER_FILTERS = f"{CONFIG}/consumerFilter.json"
TIMER_CHECK = f"{CONFIG}/timercheck"
TIMER_PROGRESS = f"{CONFIG}/timerProgress.json"
"""Ours alone: how far the timer is. Brokers of RocketMQ look at the one above."""
TIMER_LOG = "timerlog"
"""What RocketMQ derives of the timer's queue; never written here."""
REQUEST_MODES = f"{CONFIG}/messageRequestMode.json"
CONSUMER_ORDER = f"{CONFIG}/consumerOrderInfo.json"
TABLES = (TOPICS, CONSUMER_OFFSETS, SUBSCRIPTION_GROUPS, DELAY_OFFSETS, CONSUMER_FILTERS)
"""What a broker keeps as JSON beside its messages."""
BACKUP_SUFFIX = ".bak"
DRAFT_SUFFIX = ".tmp"

ROCKSDB_MARKS = {
    f"{CONSUME_QUEUE}/CURRENT": "consume queues",
    "consumequeue_rocksdb/CURRENT": "consume queues",
    f"{CONFIG}/rdb": "configuration tables",
    f"{CONFIG}/metadata": "configuration tables",
}
"""What a broker in RocksDB mode leaves, and what it keeps there instead of in files."""

_OFFSET_DIGITS = 20
_OFFSET_MAX = (1 << 63) - 1
_INDEX_DIGITS = 17
_QUEUE_ID_MAX = (1 << 31) - 1


def offset_name(offset_bytes: int) -> str:
    """Return the name of a log or queue file from the byte offset it starts at: 20 digits."""
    return f"{offset_bytes:0{_OFFSET_DIGITS}d}"


def parse_offset_name(name: str) -> int | None:
    """Return the byte offset a log or queue file starts at; None for any other name."""
    is_name = len(name) == _OFFSET_DIGITS and name.isascii() and name.isdigit()
    return int(name) if is_name and int(name) <= _OFFSET_MAX else None


def is_index_name(name: str) -> bool:
    """Whether the name is an index file's: yyyyMMddHHmmssSSS, the broker's local time."""
    return len(name) == _INDEX_DIGITS and name.isascii() and name.isdigit()


def queue_folder(topic: str, queue_id: int, family: str = CONSUME_QUEUE) -> str:
    """Return the folder of a queue's files."""
    return f"{family}/{topic}/{queue_id}"


def parse_queue_id(name: str) -> int | None:
    """Return the queue id a folder stands for; None for any other name, which brokers skip."""
    if not (name.isascii() and name.isdigit()):
        return None
    queue_id = int(name)
    return queue_id if str(queue_id) == name and queue_id <= _QUEUE_ID_MAX else None
