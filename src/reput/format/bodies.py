"""JSON bodies of requests and replies.

Structs in Java's order of fields, which is alphabetical. A field with a default is left out where
it has that value: Java's bean has the same one. Maps keyed by a message queue are ``QueueMap``;
they are printed with the object as key, as Java does, and readers of 5.4 and later take them no
other way (checked with 5.5.0). What a struct does not name is ignored.
Source: rocketmq 4.9.8 ``org.apache.rocketmq.common.protocol.body``, ``.heartbeat``, ``.route``.
"""

import math
import struct
import zlib
from collections import UserDict
from collections.abc import Generator
from typing import Any, ClassVar, TypeVar

import msgspec

from reput import limits
from reput.errors import InvalidBody, excerpt
from reput.format import fastjson
from reput.format.java import Int, Long
from reput.limits import Limit

_LONG_MIN = -(1 << 63)
_LONG_MAX = (1 << 63) - 1

_T = TypeVar("_T")
_V = TypeVar("_V")


class Body(msgspec.Struct, rename="camel", omit_defaults=True):
    """Base of all bodies; wire names are the fields' in camelCase."""


class RequestBody(Body):
    """Base of the bodies that servers get from anybody, which are limited in size."""

    size_limit: ClassVar[Limit] = limits.BODY_BYTES
    lenient_limit: ClassVar[Limit] = limits.LENIENT_JSON_BYTES
    """Where it is no standard JSON of the body's types."""


class MessageQueue(msgspec.Struct, rename="camel", frozen=True, order=True):
    """One queue's address."""

    topic: str
    broker_name: str
    queue_id: Int


class QueueMap(UserDict[MessageQueue, _V]):
    """A map from message queue to something."""

    value_type: ClassVar[Any] = Any


class QueueOffsets(QueueMap[Long]):
    """Message queue to queue offset."""

    value_type = Long


def encode(value: object) -> bytes:
    """Return the JSON of a body."""
    return msgspec.json.encode(value, enc_hook=_encode_map)


def encode_pair(key: object, value: object) -> bytes:
    """Return the JSON of an entry of a map, whose key may be a message queue."""
    name = _alphabetical(key) if isinstance(key, MessageQueue) else key
    return encode(name) + b":" + encode(value)


def decode(
    kind: type[_T],
    data: bytes,
    *,
    size_limit: Limit | None = None,
    lenient_limit: Limit | None = None,
) -> _T:
    """Return a body from its JSON, or from what fastjson takes for JSON.

    Args:
        kind: What it should be.
        data: The body.
        size_limit: Of what is looked at; None: that of the kind, if it has one.
        lenient_limit: Of what is no standard JSON of the kind's types, which takes much longer to
            read; None: that of the kind, or as much as a frame holds.

    Raises:
        InvalidBody: It is neither, or lacks a field, or has a number that Java's type does not.
        LimitExceeded: It is too large.
    """
    if size_limit is None:
        size_limit = getattr(kind, "size_limit", None)
    if size_limit is not None:
        size_limit.check(len(data), kind.__name__)
    try:
        return msgspec.json.decode(data, type=kind, strict=False, dec_hook=_decode_map)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    if lenient_limit is None:
        lenient_limit = getattr(kind, "lenient_limit", limits.LENIENT_REPLY_BYTES)
    lenient_limit.check(len(data), kind.__name__)
    try:
        text = data.decode()
        lenient = fastjson.parse(text)
        fastjson.check_text(text, lenient)
        _name_ordinals(lenient)
        return msgspec.convert(lenient, kind, strict=False, dec_hook=_decode_map)
    except UnicodeDecodeError as error:
        raise InvalidBody(f"body is no {kind.__name__}: byte {error.start} is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise InvalidBody(f"body is no {kind.__name__}: {excerpt(str(error))}") from error


_ORDINALS = {
    "consumeFromWhere": (
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
    "consumeType": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"),
    "messageModel": ("BROADCASTING", "CLUSTERING", "LITE_SELECTIVE"),
}
"""The values of Java's enums in their order."""


def _name_ordinals(found: Any) -> None:
    """Put names in the place of enums' numbers: fastjson takes both, the C++ client has numbers."""
    if isinstance(found, list):
        for one in found:
            _name_ordinals(one)
    elif isinstance(found, dict):
        for key, value in found.items():
            names = _ORDINALS.get(key)
            if names is None:
                _name_ordinals(value)
            elif type(value) is int and 0 <= value < len(names):
                found[key] = names[value]


def _encode_map(value: Any) -> Any:
    if not isinstance(value, QueueMap):
        raise NotImplementedError(f"{type(value).__name__} is in no body")
    pairs = (encode_pair(one, other) for one, other in value.items())
    return msgspec.Raw(b"{" + b",".join(pairs) + b"}")


def _alphabetical(queue: MessageQueue) -> dict[str, object]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def _decode_map(kind: type, value: Any) -> Any:
    if not issubclass(kind, QueueMap):
        raise NotImplementedError(f"{kind.__name__} is in no body")
    if isinstance(value, dict):
        # The object as a string: older writers, and ours before Java's readers were known.
        pairs = [(_parsed_key(key), other) for key, other in value.items()]
    else:
        pairs = list(value)
    return kind(
        {
            msgspec.convert(key, MessageQueue, strict=False): msgspec.convert(
                other, kind.value_type, strict=False
            )
            for key, other in pairs
        }
    )


def _parsed_key(text: str) -> Any:
    """Return an object that is a key as a string."""
    found = fastjson.parse(text)
    fastjson.check_text(text, found)
    return found


def _check_numbers(value: Any) -> None:
    """Refuse numbers that are no ``long`` or ``double`` of Java. Raises ``ValueError``."""
    if isinstance(value, int):
        if not _LONG_MIN <= value <= _LONG_MAX:
            raise ValueError(f"a number outside of {_LONG_MIN} to {_LONG_MAX}")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is no number of JSON")
    elif isinstance(value, dict):
        for item in value.values():
            _check_numbers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_numbers(item)


# --- routes -----------------------------------------------------------------------


class QueueData(Body, kw_only=True):
    """How many queues a topic has on a broker."""

    broker_name: str
    perm: Int
    read_queue_nums: Int
    topic_sys_flag: Int = 0
    write_queue_nums: Int


class BrokerData(Body, kw_only=True):
    """Where a broker's master and slaves are."""

    broker_addrs: dict[Long, str]
    """Broker id to ``ip:port``; 0 is the master."""
    broker_name: str
    cluster: str


class TopicRouteData(Body, kw_only=True):
    """To 105."""

    broker_datas: list[BrokerData]
    filter_server_table: dict[str, list[str]] | None = None
    order_topic_conf: str | None = None
    queue_datas: list[QueueData]


class ClusterInfo(Body, kw_only=True):
    """To 106."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, list[str]]


class DataVersion(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """How often a table has changed, and when last."""

    counter: Long = msgspec.field(default_factory=int)  # always written, as the timestamp
    state_version: Long = 0  # 5.x
    timestamp: Long = msgspec.field(default_factory=int)
    """Always written: Java's default is the time of reading."""


class TopicConfigData(Body, kw_only=True):
    """A topic as brokers tell it to each other."""

    attributes: dict[str, str] | None = None  # 5.x
    order: bool
    perm: Int
    read_queue_nums: Int
    topic_filter_type: str
    topic_name: str
    topic_sys_flag: Int
    write_queue_nums: Int


class TopicConfigTable(Body, kw_only=True):
    """To 21; part of the body of 103."""

    data_version: DataVersion
    topic_config_table: dict[str, TopicConfigData]


class RegisterBrokerBody(Body, kw_only=True):
    """103, when it is not compressed."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigTable


class KvTable(Body, kw_only=True):
    """To 103, 219, 28."""

    table: dict[str, str]


class TopicList(Body, kw_only=True):
    """To 206, 224, 304, 305, 311 to 313, 343."""

    broker_addr: str | None = None
    topic_list: list[str]


# --- heartbeats and members -------------------------------------------------------


class SubscriptionData(Body, kw_only=True):
    """What a group wants of a topic."""

    class_filter_mode: bool = False
    code_set: list[Int] = []
    expression_type: str | None = "TAG"
    sub_string: str | None = None
    sub_version: Long
    tags_set: list[str] = []
    topic: str


class ConsumerData(Body, kw_only=True):
    """A member of a consumer group."""

    consume_from_where: str
    consume_type: str
    group_name: str
    message_model: str
    subscription_data_set: list[SubscriptionData] = msgspec.field(default_factory=lambda: [])
    unit_mode: bool = msgspec.field(default_factory=bool)


class ProducerData(Body, kw_only=True):
    """A member of a producer group."""

    group_name: str


class HeartbeatData(RequestBody, kw_only=True):
    """34. The C++ client leaves out what it has not; Java writes all of it, and so do we."""

    client_id: str = msgspec.field(name="clientID")
    consumer_data_set: list[ConsumerData] = msgspec.field(default_factory=lambda: [])
    producer_data_set: list[ProducerData] = msgspec.field(default_factory=lambda: [])


class CheckClientBody(RequestBody, kw_only=True):
    """46."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


class ConsumerList(Body, kw_only=True):
    """To 38."""

    consumer_id_list: list[str]


class LockBody(RequestBody, kw_only=True):
    """41, 42."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue]


class LockReply(Body, kw_only=True):
    """To 41."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(name="lockOKMQSet")


class Connection(Body, kw_only=True):
    """A client as 203 and 204 show it."""

    client_addr: str
    client_id: str
    language: str
    version: Int


class ConsumerConnection(Body, kw_only=True):
    """To 203."""

    connection_set: list[Connection]
    consume_from_where: str
    consume_type: str
    message_model: str
    subscription_table: dict[str, SubscriptionData]


class ProducerConnection(Body, kw_only=True):
    """To 204."""

    connection_set: list[Connection]


class ProducerInfo(Body, kw_only=True):
    """A producer as 328 shows it."""

    client_id: str
    language: str
    last_update_timestamp: Long
    remote_ip: str = msgspec.field(name="remoteIP")
    version: Int


class ProducerTable(Body, kw_only=True):
    """To 328."""

    data: dict[str, list[ProducerInfo]]


# --- statistics -------------------------------------------------------------------


class TopicOffset(Body, kw_only=True):
    """A queue in ``TopicStats``."""

    last_update_timestamp: Long
    max_offset: Long
    min_offset: Long


class TopicOffsets(QueueMap[TopicOffset]):
    """Message queue to where it begins and ends."""

    value_type = TopicOffset


class TopicStats(Body, kw_only=True):
    """To 202."""

    offset_table: TopicOffsets


class OffsetWrapper(Body, kw_only=True):
    """A queue in ``ConsumeStats``."""

    broker_offset: Long
    consumer_offset: Long
    last_timestamp: Long
    pull_offset: Long = 0
    """Of 5.x: how far it has pulled; what lies between is in flight."""


class OffsetWrappers(QueueMap[OffsetWrapper]):
    """Message queue to where a group is in it."""

    value_type = OffsetWrapper


class ConsumeStats(Body, kw_only=True):
    """To 208."""

    consume_tps: float
    offset_table: OffsetWrappers


class ConsumeStatsInBroker(Body, kw_only=True):
    """To 317."""

    broker_addr: str
    consume_stats_list: list[dict[str, list[ConsumeStats]]]
    total_diff: Long


class HaRuntimeInfo(msgspec.Struct, rename="camel", kw_only=True):
    """To 907, of a master."""

    ha_connection_info: tuple[()] = ()
    """Its slaves."""
    in_sync_slave_nums: Int = 0
    master: bool = True
    master_commit_log_max_offset: Long


class StatsItem(Body, kw_only=True):
    """A sum over a time, in ``BrokerStats``."""

    avgpt: float
    sum: Long
    tps: float


class BrokerStats(Body, kw_only=True):
    """To 315."""

    stats_day: StatsItem
    stats_hour: StatsItem
    stats_minute: StatsItem


class GroupList(Body, kw_only=True):
    """To 300."""

    group_list: list[str]


class QueueTimeSpan(Body, kw_only=True):
    """A queue in ``TimeSpans``."""

    consume_time_stamp: Long
    delay_time: Long
    max_time_stamp: Long
    message_queue: MessageQueue
    min_time_stamp: Long


class TimeSpans(Body, kw_only=True):
    """To 303."""

    consume_time_span_set: list[QueueTimeSpan]


class ConsumeQueueUnit(Body, kw_only=True):
    """A unit in ``ConsumeQueueUnits``."""

    bit_map: str | None = None
    eval: bool = False
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: Long
    physic_size: Int
    tags_code: Long


class ConsumeQueueUnits(Body, kw_only=True):
    """To 321."""

    filter_data: str | None = None
    max_queue_index: Long
    min_queue_index: Long
    queue_data: list[ConsumeQueueUnit]
    subscription_data: SubscriptionData | None = None


# --- offsets ----------------------------------------------------------------------


class ResetOffsets(Body, kw_only=True):
    """220 to a client, and to 222."""

    offset_table: QueueOffsets


class ConsumerStatus(Body, kw_only=True):
    """To 223, 221."""

    consumer_table: dict[str, QueueOffsets] = {}
    message_queue_table: QueueOffsets


class OffsetMovedEvent(Body, kw_only=True):
    """The body of an ``OFFSET_MOVED_EVENT`` message."""

    consumer_group: str
    message_queue: MessageQueue
    offset_new: Long
    offset_request: Long


class ConsumeDirectlyResult(Body, kw_only=True):
    """To 309."""

    auto_commit: bool
    consume_result: str
    order: bool
    remark: str | None = None
    spent_time_mills: Long


# --- the compressed body of 103 ---------------------------------------------------

_REGISTRATION_INT = struct.Struct(">i")


_INFLATED_PART_BYTES = 1 << 20
_PART_TOPICS = 100
"""Topics that are read before others have their turn."""


def decompress_registration(data: bytes) -> Generator[None, None, RegisterBrokerBody]:
    """Return a registration from its compressed form; yield where others may have their turn.

    zlib of: length and data version as JSON, count of topics, of each its length and
    ``name read write perm filterType``, length and filter servers as JSON. Order and system flag
    of a topic get lost on this way. Source: rocketmq 4.9.8 ``RegisterBrokerBody.encode``.

    5.x has a topic's attributes behind its words, and the mapping of static topics at the end: the
    first are taken, the second is left alone.

    Raises:
        InvalidBody: It is damaged.
        LimitExceeded: It is too large.
    """
    reader = _RegistrationReader(data)
    size_limit = limits.REGISTRATION_PART_BYTES
    version = decode(DataVersion, (yield from reader.sized()), size_limit=size_limit)
    count = yield from reader.count()
    limits.REGISTRATION_TOPICS.check(count)
    topics = {}
    for number in range(count):
        topic = _topic_of_words((yield from reader.sized()))
        topics[topic.topic_name] = topic
        if number % _PART_TOPICS == _PART_TOPICS - 1:
            yield
    servers = yield from reader.sized()
    yield from reader.skip_rest()
    table = TopicConfigTable(data_version=version, topic_config_table=topics)
    return RegisterBrokerBody(
        filter_server_list=(
            [] if servers == b"null" else decode(list[str], servers, size_limit=size_limit)
        ),
        topic_config_serialize_wrapper=table,
    )


class _RegistrationReader:
    """Inflates a registration, and reads ints and what has its length before it.

    No more of it is in memory than one part and what is inflated at a time: to put 64 MiB together
    would take 30 ms at once.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._inflater = zlib.decompressobj()
        self._consumed = 0  # bytes of the compressed data
        self._inflated = b""
        self._position = 0  # of what is read next, in what is inflated
        self._size = 0  # of all that was inflated

    def count(self) -> Generator[None, None, int]:
        """Read an int. Raises ``InvalidBody``."""
        (found,) = _REGISTRATION_INT.unpack((yield from self._read(_REGISTRATION_INT.size)))
        return int(found)

    def sized(self) -> Generator[None, None, bytes]:
        """Read what has its length before it. Raises ``InvalidBody``, ``LimitExceeded``."""
        length = yield from self.count()
        if length < 0:
            raise InvalidBody(f"registration of {len(self._data)} bytes has a length of {length}")
        limits.REGISTRATION_PART_BYTES.check(length)
        return (yield from self._read(length))

    def skip_rest(self) -> Generator[None, None, None]:
        """Inflate what is left, and forget it. Raises ``InvalidBody``, ``LimitExceeded``."""
        while self._inflate():
            yield

    def _read(self, count: int) -> Generator[None, None, bytes]:
        while len(self._inflated) - self._position < count:
            rest = self._inflated[self._position :]
            if not self._inflate():
                raise InvalidBody(f"compressed registration of {len(self._data)} bytes is cut")
            self._inflated, self._position = rest + self._inflated, 0
            yield
        start, self._position = self._position, self._position + count
        return self._inflated[start : self._position]

    def _inflate(self) -> bool:
        """Inflate a piece, which may come to nothing; return False at the end of the stream."""
        if self._inflater.eof:
            return False
        # In small pieces of the input too: what is left of a piece is copied each time.
        piece = self._inflater.unconsumed_tail
        if not piece:
            end = self._consumed + (_INFLATED_PART_BYTES >> 4)
            piece, self._consumed = self._data[self._consumed : end], end
        if not piece:
            raise InvalidBody(f"compressed registration of {len(self._data)} bytes is cut")
        try:
            self._inflated = self._inflater.decompress(piece, _INFLATED_PART_BYTES)
        except zlib.error as error:
            text = f"compressed registration of {len(self._data)} bytes: {error}"
            raise InvalidBody(text) from error
        self._size += len(self._inflated)
        if self._size > limits.REGISTRATION_BYTES.maximum:
            raise limits.REGISTRATION_BYTES.exceeded()
        return True


def _topic_of_words(data: bytes) -> TopicConfigData:
    limits.REGISTRATION_PART_BYTES.check(len(data))
    words = data.decode(errors="replace").split(" ", 5)
    try:
        name, read_count, write_count, perm, filter_type = words[:5]
        attributes = words[5] if len(words) > 5 else ""
        fields = {
            "attributes": decode(dict[str, str], attributes.encode()) if attributes else None,
            "order": False,
            "perm": int(perm),
            "readQueueNums": int(read_count),
            "topicFilterType": filter_type,
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": int(write_count),
        }
        return msgspec.convert(fields, TopicConfigData)
    except ValueError as error:
        raise InvalidBody(f"topic {data[:300]!r} in a registration: {error}") from error


# --- what a consumer says of itself ------------------------------------------------


class ProcessQueueInfo(Body, kw_only=True):
    """A queue in ``ConsumerRunningInfo``; ``transaction`` is what an orderly listener has."""

    cached_msg_count: Int
    cached_msg_max_offset: Long
    cached_msg_min_offset: Long
    cached_msg_size_in_mi_b: Int
    commit_offset: Long
    droped: bool
    last_consume_timestamp: Long
    last_lock_timestamp: Long
    last_pull_timestamp: Long
    locked: bool
    transaction_msg_count: Int
    transaction_msg_max_offset: Long
    transaction_msg_min_offset: Long
    try_unlock_times: Long


class ProcessQueueInfos(QueueMap[ProcessQueueInfo]):
    """Message queue to what of it is in a consumer."""

    value_type = ProcessQueueInfo


class PopQueueInfo(Body, kw_only=True):
    """What is popped from in ``ConsumerRunningInfo``."""

    droped: bool
    last_pop_timestamp: Long
    wait_ack_count: Int


class PopQueueInfos(QueueMap[PopQueueInfo]):
    """Message queue, whose id may be -1, to what of it is in a consumer."""

    value_type = PopQueueInfo


class ConsumeStatus(Body, kw_only=True):
    """A topic in ``ConsumerRunningInfo``; times in ms, rates a second."""

    consume_failed_msgs: Long
    consume_failed_tps: float = msgspec.field(name="consumeFailedTPS")
    consume_ok_tps: float = msgspec.field(name="consumeOKTPS")
    consume_rt: float = msgspec.field(name="consumeRT")
    pull_rt: float = msgspec.field(name="pullRT")
    pull_tps: float = msgspec.field(name="pullTPS")


class ConsumerRunningInfo(Body, kw_only=True):
    """To 307."""

    jstack: str | None = None
    mq_pop_table: PopQueueInfos = msgspec.field(default_factory=PopQueueInfos)  # 5.x
    mq_table: ProcessQueueInfos
    properties: dict[str, str]
    status_table: dict[str, ConsumeStatus]
    subscription_set: list[SubscriptionData]


# --- consumer groups' settings ----------------------------------------------------


class SubscriptionGroupConfig(RequestBody, kw_only=True):
    """200; a group in ``SubscriptionGroupTable``. Defaults are Java's."""

    attributes: dict[str, str] | None = None  # 5.x
    broker_id: Long = 0
    """Where members read from."""
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False  # 5.x
    consume_timeout_minute: Int = 15  # 5.x
    group_name: str
    group_retry_policy: dict[str, Any] | None = None  # 5.x
    group_sys_flag: Int = 0  # 5.x
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Int = 16
    retry_queue_nums: Int = 1
    subscription_data_set: list[dict[str, Any]] | None = None  # 5.x
    which_broker_when_consume_slowly: Long = 1

    def __post_init__(self) -> None:
        """Refuse what tables cannot hold in the parts that are kept as they came."""
        if self.group_retry_policy or self.subscription_data_set:
            _check_numbers((self.group_retry_policy, self.subscription_data_set))


class SubscriptionGroupTable(Body, kw_only=True):
    """To 201."""

    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, Int]] | None = None  # 5.x
    subscription_group_table: dict[str, SubscriptionGroupConfig]


class GroupSubscription(Body, kw_only=True):
    """To 345."""

    group: str
    subscription_data: SubscriptionData | None = None
    topic: str


class GroupForbidden(Body, kw_only=True):
    """To 353."""

    group: str
    readable: bool
    topic: str


class SubscriptionGroupList(RequestBody, kw_only=True):
    """225."""

    group_config_list: list[SubscriptionGroupConfig]


# --- what admin tools send and get besides ------------------------------------------


class TopicConfigList(RequestBody, kw_only=True):
    """18."""

    topic_config_list: list[TopicConfigData]


class OffsetTable(Body, kw_only=True):
    """To 45: delay level to queue offset."""

    offset_table: dict[Int, Long]


class CorrectionOffsets(Body, kw_only=True):
    """To 308: queue id to the least consumer offset of a topic's groups."""

    correction_offsets: dict[Int, Long]


class ConsumerOffsetTable(Body, kw_only=True):
    """To 43: ``topic@group`` to queue id to consumer offset."""

    offset_table: dict[str, dict[Int, Long]]


class QueueOffset(Body, kw_only=True):
    """A queue in ``ResetOffsetList``."""

    broker_name: str
    offset: Long
    queue_id: Int
    topic: str


class ResetOffsetList(Body, kw_only=True):
    """220 to a client in C++, which reads no objects as keys."""

    offset_table: list[QueueOffset]


# --- who pops, and from where -----------------------------------------------------


class QueryAssignmentBody(RequestBody, kw_only=True, omit_defaults=False):
    """400. Java's broker needs all of it."""

    client_id: str
    consumer_group: str
    message_model: str = "CLUSTERING"
    strategy_name: str = "AVG"
    topic: str


class QueueAssignment(msgspec.Struct, rename="camel", kw_only=True):
    """A queue, and how it is to be read."""

    attachments: dict[str, str] | None = None
    message_queue: MessageQueue
    mode: str


class Assignments(Body, kw_only=True):
    """To 400."""

    message_queue_assignments: list[QueueAssignment] | None = None
    """None: the member keeps what it has."""


class RequestModeBody(RequestBody, kw_only=True, omit_defaults=False):
    """401: how a group reads a topic."""

    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: Int = 0
    topic: str


class RequestModesBody(Body, kw_only=True):
    """To 402: topic to group to mode."""

    message_request_mode_map: dict[str, dict[str, RequestModeBody]] = {}
