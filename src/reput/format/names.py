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
LITE_PREFIX = "%LMQ%$"
"""Beginning of the light queue of a lite topic."""
_LITE_SEPARATOR = "$"

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace of the name servers' key-value table: number of queues per broker of ordered topics."""

TOOLS_CONSUMER = "TOOLS_CONSUMER"
"""Group of tools that read without being members of a group; every broker has it."""
TOOLS_PRODUCER = "TOOLS_PRODUCER"
"""Group of tools that send."""

BROADCAST_SYSTEM_GROUPS = frozenset(
    {"CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"}
)
"""System groups that may broadcast."""
SYSTEM_GROUPS = BROADCAST_SYSTEM_GROUPS | {
    TOOLS_CONSUMER,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
}
"""Groups that every broker has. Source: ``MixAll``, ``SubscriptionGroupManager.init``."""
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Group whose consumer offsets are the progress on half and op messages."""
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"  # 5.x

TOPIC_LENGTH_MAX = 127
"""Longest topic in bytes whose length fits the one-byte field of a V1 record."""
LONG_TOPIC_LENGTH_MAX = 255
"""Longest %RETRY% and %DLQ% topic in 5.x, stored in V2 records."""

FOLDER_BYTES_MAX = 255
"""Maximum length of a folder name in UTF-8 bytes, on ext4, xfs and tmpfs."""
QUEUE_ID_MAX = (1 << 20) - 1
"""Largest queue id of a put. Queue ids index tables of rows, so that a forged id must not allocate
rows for all ids below it."""

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
"""Groups whose consumer offsets are the progress of brokers; clients may not set them."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def is_written_by_brokers(topic: str) -> bool:
    """Return whether only brokers may put messages into a topic: their loops trust its records.

    Java lets clients send to the revive topic.
    """
    return topic in WRITTEN_BY_BROKERS or topic.startswith(REVIVE_TOPIC_PREFIX)


def is_system_topic(topic: str) -> bool:
    """Return whether a topic is reserved for brokers and clients.

    Retry and dead-letter topics belong to groups and do not count. Neither do the topics named
    after a cluster or a broker, which cannot be recognised by name.
    """
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    """Return whether a group is reserved for brokers and tools."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_retry_topic(topic: str) -> bool:
    """Return whether a topic is the retry topic of a group."""
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    """Return whether a topic is the dead-letter topic of a group."""
    return topic.startswith(DLQ_PREFIX)


def kind_of(topic: str) -> str:
    """Return the kind of a topic: ``user``, ``system``, ``retry``, ``dead letter`` or ``light``."""
    if is_system_topic(topic):
        return "system"
    if is_retry_topic(topic):
        return "retry"
    if is_dlq_topic(topic):
        return "dead letter"
    return "light" if is_light(topic) else "user"


def is_light(name: str) -> bool:
    """Return whether a name is that of a light queue, or of a group that reads light queues."""
    return name.startswith(LMQ_PREFIX)


def lite_queue(topic: str, lite_topic: str) -> str:
    """Return the light queue of a lite topic (5.5), a child of ``topic``."""
    return f"{LITE_PREFIX}{topic}{_LITE_SEPARATOR}{lite_topic}"


def lite_topic_of(name: str) -> tuple[str, str] | None:
    """Return the parent and the lite topic of a light queue; None for another light queue."""
    if not name.startswith(LITE_PREFIX):
        return None
    topic, _, lite_topic = name.removeprefix(LITE_PREFIX).partition(_LITE_SEPARATOR)
    if not topic or not lite_topic or _LITE_SEPARATOR in lite_topic:
        return None
    return topic, lite_topic


_WAITING = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, CHECK_MAX_TIME_TOPIC})
"""Topics of messages that are delivered to another topic later."""


def may_have_light_queues(topic: str) -> bool:
    """Return whether messages of a topic are dispatched to the light queues that they name.

    Delayed messages are dispatched when they are delivered, half messages when they are committed,
    and those of retry topics and of 5.x system topics never (``MultiDispatchUtils``, which does not
    leave out half messages: known-bugs.md#light-half-messages).
    """
    return topic not in _WAITING and not topic.startswith((RETRY_PREFIX, SYSTEM_TOPIC_PREFIX))


def is_legal_topic(topic: str, length_max: int = TOPIC_LENGTH_MAX) -> bool:
    """Return whether clients may create a topic: 1 to ``length_max`` of ``[%|a-zA-Z0-9_-]``."""
    return 0 < len(topic) <= length_max and _LEGAL.match(topic) is not None


def is_legal_group(group: str) -> bool:
    """Return whether clients may create a consumer group; the length is not checked."""
    return _LEGAL.match(group) is not None


def is_legal_group_topic(topic: str) -> bool:
    """Return whether a retry or dead-letter topic may be created: legal characters, at most 255.

    Version 2 of a pop retry topic has a ``+`` between group and topic.
    """
    group, _, popped = topic.partition("+")
    is_named = _LEGAL.match(group) is not None and (group == topic or _LEGAL.match(popped))
    return bool(is_named) and len(topic) <= LONG_TOPIC_LENGTH_MAX


def is_printable(name: str) -> bool:
    """Return whether a name has no control characters and surrogates and can be logged."""
    return name.isprintable()


def printable(name: str) -> str:
    """Return a name for an error message, truncated to the maximum length of a name."""
    return name if len(name) <= LONG_TOPIC_LENGTH_MAX else name[:LONG_TOPIC_LENGTH_MAX] + "…"


def is_folder_name(topic: str) -> bool:
    """Return whether a topic can name a queue folder inside the store."""
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
        return False
    # A character takes at most four bytes.
    return 4 * len(topic) <= FOLDER_BYTES_MAX or len(_utf8(topic)) <= FOLDER_BYTES_MAX


def retry_topic(group: str) -> str:
    """Return the retry topic of a consumer group."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the dead-letter topic of a consumer group."""
    return DLQ_PREFIX + group


def pop_retry_topic(topic: str, group: str) -> str:
    """Return the pop retry topic of a group and topic."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def pop_retry_topic_v2(topic: str, group: str) -> str:
    """Return the pop retry topic with ``enableRetryTopicV2``."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def popped_topic(topic: str, group: str) -> str:
    """Return the topic of a pop retry topic; any other topic is returned unchanged."""
    for prefix in (pop_retry_topic_v2("", group), pop_retry_topic("", group)):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
