"""The names of all files and folders of a store, in both directions; no other module has them.

Paths are relative to the store's root and use ``/``. Layout: docs/formats/store-folder.md.
"""

from reput.errors import StoreUnavailable, excerpt

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
"""File of reput only: the ends of queues at a clean stop. RocketMQ brokers ignore it."""
FORMER_SUMMARY_PREFIX = "queues.former."
"""First part of the name of a file of reput only: the summary of the last clean stop, while the
store is open. The id of the system's boot follows."""
KNOWN_QUEUES = "queues.known"
"""File of reput only: the queues of an open store."""
TOMBSTONES = "topics.deleted"
"""File of reput only: physical offsets before which messages of deleted topics are in no queue."""
DELETED_QUEUES = "queues.deleted"
"""File of reput only: folder of deleted queues, until their files are deleted."""
CUT_BYTES = "cut"
"""Folder of reput only: bytes that were cut from the end of a slave's log."""
SLAVE = "slave"
"""File of reput only: marks the store of a slave, until it is opened as that of a master."""
BULK_APPENDS = "appends.json"
"""File of reput only: the last import, and the last batch of each stream in the log."""

TOPICS = f"{CONFIG}/topics.json"
CONSUMER_OFFSETS = f"{CONFIG}/consumerOffset.json"
LIGHT_CONSUMER_OFFSETS = f"{CONFIG}/lmqConsumerOffset.json"
"""Replaces consumerOffset.json with ``enableLmq``."""
SUBSCRIPTION_GROUPS = f"{CONFIG}/subscriptionGroup.json"
DELAY_OFFSETS = f"{CONFIG}/delayOffset.json"
CONSUMER_FILTERS = f"{CONFIG}/consumerFilter.json"
TIMER_CHECK = f"{CONFIG}/timercheck"
TIMER_PROGRESS = f"{CONFIG}/timerProgress.json"
"""File of reput only: the progress of the timer. RocketMQ brokers use ``timercheck``."""
TIMER_LOG = "timerlog"
"""Folder that RocketMQ derives from the timer's queue; never written by reput."""
USERS = f"{CONFIG}/users.json"
ACLS = f"{CONFIG}/acls.json"
JAVA_USERS = f"{CONFIG}/users/CURRENT"
"""A file of the RocksDB store that Java 5.x has in place of users.json."""
REQUEST_MODES = f"{CONFIG}/messageRequestMode.json"
CONSUMER_ORDER = f"{CONFIG}/consumerOrderInfo.json"
TABLES = (TOPICS, CONSUMER_OFFSETS, SUBSCRIPTION_GROUPS, DELAY_OFFSETS, CONSUMER_FILTERS)
"""JSON tables of a broker."""
BACKUP_SUFFIX = ".bak"
DRAFT_SUFFIX = ".tmp"

LEDGER_PREFIX = "dledger-"
"""First part of the name of a folder with the log of a member of a DLedger group."""
ROCKSDB_SECOND_FORM = f"{CONFIG}/rdb"
"""Folder of tables in the form that configManagerVersion=v2 has, which reput does not read."""
ROCKSDB_MARKS = {
    f"{CONSUME_QUEUE}/CURRENT": "consume queues",
    "consumequeue_rocksdb/CURRENT": "consume queues",
    ROCKSDB_SECOND_FORM: "configuration tables",
    f"{CONFIG}/metadata": "configuration tables",
}
"""Files of a broker in RocksDB mode -> data that it does not keep in plain files."""
ROCKSDB_TABLES = {
    f"{CONFIG}/topics": TOPICS,
    f"{CONFIG}/subscriptionGroups": SUBSCRIPTION_GROUPS,
    f"{CONFIG}/consumerOffsets": CONSUMER_OFFSETS,
}
"""Folders of tables in RocksDB mode, one each by default -> the file that reput reads."""
ROCKSDB_DATA_SUFFIXES = (".sst", ".log")
"""Ends of the names of files with data in such a folder."""

_OFFSET_DIGITS = 20
_OFFSET_MAX = (1 << 63) - 1
_INDEX_DIGITS = 17
_QUEUE_ID_MAX = (1 << 31) - 1


def offset_name(offset_bytes: int) -> str:
    """Return the name of a log or queue file from its start in bytes: 20 digits."""
    return f"{offset_bytes:0{_OFFSET_DIGITS}d}"


def parse_offset_name(name: str) -> int | None:
    """Return the start of a log or queue file in bytes; None for any other name."""
    is_name = len(name) == _OFFSET_DIGITS and name.isascii() and name.isdigit()
    return int(name) if is_name and int(name) <= _OFFSET_MAX else None


def is_index_name(name: str) -> bool:
    """Return True for the name of an index file: yyyyMMddHHmmssSSS, the broker's local time."""
    return len(name) == _INDEX_DIGITS and name.isascii() and name.isdigit()


def is_below(path: str) -> bool:
    """Return False for a path that is absolute, leads out of its folder, or names no file."""
    return not (path.startswith("/") or "\0" in path or (".." in path and ".." in path.split("/")))


def below(path: str) -> str:
    """Return a path within a folder: names come from manifests and tables, which others write.

    Raises:
        StoreUnavailable: It is not below the folder.
    """
    if not is_below(path):
        raise StoreUnavailable(
            f"{excerpt(path)!r} is not in the folder; allowed: paths without a leading slash and .."
        )
    return path


def queue_folder(topic: str, queue_id: int, family: str = CONSUME_QUEUE) -> str:
    """Return the folder of a queue's files."""
    return f"{family}/{topic}/{queue_id}"


def parse_queue_id(name: str) -> int | None:
    """Return the queue id of a folder; None for any other name, which brokers ignore."""
    if not (name.isascii() and name.isdigit()):
        return None
    queue_id = int(name)
    return queue_id if str(queue_id) == name and queue_id <= _QUEUE_ID_MAX else None
