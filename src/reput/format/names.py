"""System topics and groups, and the rules for names.

Source: rocketmq 4.9.8 ``TopicValidator``, ``MixAll``; 5.x additions marked.
"""

import re

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
AUTO_CREATE_TOPIC = "TBW102"
BENCHMARK_TOPIC = "BenchmarkTest"
TIMER_TOPIC = "rmq_sys_wheel_timer"  # 5.x
ROCKSDB_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"  # 5.4
ROCKSDB_OP_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"  # 5.4

SYSTEM_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        AUTO_CREATE_TOPIC,
        BENCHMARK_TOPIC,
        TIMER_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_HALF_TOPIC,
    }
)
SYSTEM_TOPIC_PREFIX = "rmq_sys_"  # 5.x: revive log, member sync, wheel timer
SYNC_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"  # 5.x, then the broker's name
REVIVE_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"  # 5.x, then the cluster's name
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace of the name servers' key-value table: which brokers have how many queues of an ordered
topic."""

TOOLS_CONSUMER = "TOOLS_CONSUMER"
"""Group of tools that read without being members of a group: every broker has it."""
TOOLS_PRODUCER = "TOOLS_PRODUCER"
"""Group of tools that send."""

BROADCAST_SYSTEM_GROUPS = frozenset(
    {"CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"}
)
"""Those of the system's groups that may broadcast."""
SYSTEM_GROUPS = BROADCAST_SYSTEM_GROUPS | {
    TOOLS_CONSUMER,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
}
"""Groups that every broker has. Source: ``MixAll``, ``SubscriptionGroupManager.init``."""
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Whose consumer offsets say how far half and op messages are dealt with."""
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"  # 5.x

TOPIC_LENGTH_MAX = 127
"""Longest topic in bytes whose length fits the one-byte field of a V1 record."""
LONG_TOPIC_LENGTH_MAX = 255
"""Longest %RETRY% and %DLQ% topic in 5.x, stored in V2 records."""

FOLDER_BYTES_MAX = 255
"""Longest name of a folder, in UTF-8: what ext4, xfs and tmpfs take."""
QUEUE_ID_MAX = (1 << 20) - 1
"""Largest queue id that a message is put under. Rows of queues are found by it as an index, so a
forged one must not cost memory for all ids below it."""

WRITTEN_BY_BROKERS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_HALF_TOPIC,
    }
)
"""Topics that no client may send to. Source: ``TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET``."""
GROUPS_OF_BROKERS = frozenset({TRANSACTION_GROUP, REVIVE_GROUP})
"""Groups whose consumer offsets say what brokers have dealt with: no client may set them."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def is_written_by_brokers(topic: str) -> bool:
    """Whether only brokers put messages there, which their loops read back and believe.

    Java lets clients send to the revive topic.
    """
    return topic in WRITTEN_BY_BROKERS or topic.startswith(REVIVE_TOPIC_PREFIX)


def is_system_topic(topic: str) -> bool:
    """Whether brokers and clients keep this topic for themselves.

    Retry and dead-letter topics belong to groups and are not counted; nor is the topic
    named after a cluster or a broker, which no name gives away.
    """
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    """Whether brokers and tools keep this group for themselves."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_retry_topic(topic: str) -> bool:
    """Whether the topic holds messages a group asked to see again."""
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    """Whether the topic holds messages a group has given up on."""
    return topic.startswith(DLQ_PREFIX)


def kind_of(topic: str) -> str:
    """Return what a topic is for: ``user``, ``system``, ``retry``, ``dead letter`` or ``light``."""
    if is_system_topic(topic):
        return "system"
    if is_retry_topic(topic):
        return "retry"
    if is_dlq_topic(topic):
        return "dead letter"
    return "light" if is_light(topic) else "user"


def is_light(name: str) -> bool:
    """Whether it is the topic of a light queue, or a group that reads such queues."""
    return name.startswith(LMQ_PREFIX)


def may_have_light_queues(topic: str) -> bool:
    """Whether messages of a topic go to the light queues they name: not retried or delayed ones.

    Those do when they are delivered; system topics of 5.x never do (``MultiDispatchUtils``).
    """
    return topic != SCHEDULE_TOPIC and not topic.startswith((RETRY_PREFIX, SYSTEM_TOPIC_PREFIX))


def is_legal_topic(topic: str, length_max: int = TOPIC_LENGTH_MAX) -> bool:
    """Whether a client may create it: ``[%|a-zA-Z0-9_-]``, 1 to ``length_max`` characters."""
    return 0 < len(topic) <= length_max and _LEGAL.match(topic) is not None


def is_legal_group(group: str) -> bool:
    """Whether a client may make a consumer group of this name, whatever its length."""
    return _LEGAL.match(group) is not None


def is_legal_group_topic(topic: str) -> bool:
    """Whether a retry or dead-letter topic may be made: the same letters, 255 characters.

    That of what a group pops has a ``+`` in the middle, between two names, in its second spelling.
    """
    group, _, popped = topic.partition("+")
    is_named = _LEGAL.match(group) is not None and (group == topic or _LEGAL.match(popped))
    return bool(is_named) and len(topic) <= LONG_TOPIC_LENGTH_MAX


def is_printable(name: str) -> bool:
    """Whether a name is text that files and logs can hold: no control letters, no surrogates."""
    return name.isprintable()


def printable(name: str) -> str:
    """Return a name for a text that says what is wrong with it: no longer than a name may be."""
    return name if len(name) <= LONG_TOPIC_LENGTH_MAX else name[:LONG_TOPIC_LENGTH_MAX] + "…"


def is_folder_name(topic: str) -> bool:
    """Whether a queue's folder can bear the name, and stays inside of the store."""
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
        return False
    # A letter takes at most four bytes.
    return 4 * len(topic) <= FOLDER_BYTES_MAX or len(_utf8(topic)) <= FOLDER_BYTES_MAX


def retry_topic(group: str) -> str:
    """Return the retry topic of a consumer group."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the dead-letter topic of a consumer group."""
    return DLQ_PREFIX + group


def pop_retry_topic(topic: str, group: str) -> str:
    """Return the retry topic of what a group pops of a topic."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def pop_retry_topic_v2(topic: str, group: str) -> str:
    """Return the same as it is called with ``enableRetryTopicV2``."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def popped_topic(topic: str, group: str) -> str:
    """Return the topic that a pop retry topic is of; any other topic is its own."""
    for prefix in (pop_retry_topic_v2("", group), pop_retry_topic("", group)):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
