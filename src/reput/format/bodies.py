"""JSON bodies of requests and replies.

Structs in Java's order of fields, which is alphabetical. A field with a default is left out where
it has that value: Java's bean has the same one. Maps keyed by a message queue are ``QueueMap``;
they are printed with the object as key, as Java does, and readers of 5.4 and later take them no
other way (rocketmq-5.5 section 8). What a struct does not name is ignored.
Source: rocketmq 4.9.8 ``org.apache.rocketmq.common.protocol.body``, ``.heartbeat``, ``.route``.
"""

import struct
import zlib
from collections import UserDict
from typing import Any, ClassVar, TypeVar

import msgspec

from reput.errors import InvalidBody
from reput.format import fastjson

_T = TypeVar("_T")
_V = TypeVar("_V")


class Body(msgspec.Struct, rename="camel", omit_defaults=True):
    """Base of all bodies; wire names are the fields' in camelCase."""


class MessageQueue(msgspec.Struct, rename="camel", frozen=True, order=True):
    """One queue's address."""

    topic: str
    broker_name: str
    queue_id: int


class QueueMap(UserDict[MessageQueue, _V]):
    """A map from message queue to something."""

    value_type: ClassVar[Any] = Any


class QueueOffsets(QueueMap[int]):
    """Message queue to queue offset."""

    value_type = int


def encode(value: object) -> bytes:
    """Return the JSON of a body."""
    return msgspec.json.encode(value, enc_hook=_encode_map)


def decode(kind: type[_T], data: bytes) -> _T:
    """Return a body from its JSON, or from what fastjson takes for JSON.

    Raises:
        InvalidBody: It is neither, or lacks a field.
    """
    try:
        return msgspec.json.decode(data, type=kind, strict=False, dec_hook=_decode_map)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    try:
        lenient = fastjson.parse(data.decode())
        _name_ordinals(lenient)
        return msgspec.convert(lenient, kind, strict=False, dec_hook=_decode_map)
    except (ValueError, RecursionError) as error:
        raise InvalidBody(f"body is no {kind.__name__}: {error}") from error


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
    pairs = (encode(_alphabetical(one)) + b":" + encode(other) for one, other in value.items())
    return msgspec.Raw(b"{" + b",".join(pairs) + b"}")


def _alphabetical(queue: MessageQueue) -> dict[str, object]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def _decode_map(kind: type, value: Any) -> Any:
    if not issubclass(kind, QueueMap):
        raise NotImplementedError(f"{kind.__name__} is in no body")
    if isinstance(value, dict):
        # The object as a string: older writers, and ours before Java's readers were known.
        pairs = [(fastjson.parse(key), other) for key, other in value.items()]
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


# --- routes -----------------------------------------------------------------------


class QueueData(Body, kw_only=True):
    """How many queues a topic has on a broker."""

    broker_name: str
    perm: int
    read_queue_nums: int
    topic_sys_flag: int = 0
    write_queue_nums: int


class BrokerData(Body, kw_only=True):
    """Where a broker's master and slaves are."""

    broker_addrs: dict[int, str]
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

    counter: int = msgspec.field(default_factory=int)  # always written, as the timestamp
    state_version: int = 0  # 5.x
    timestamp: int = msgspec.field(default_factory=int)
    """Always written: Java's default is the time of reading."""


class TopicConfigData(Body, kw_only=True):
    """A topic as brokers tell it to each other."""

    attributes: dict[str, str] | None = None  # 5.x
    order: bool
    perm: int
    read_queue_nums: int
    topic_filter_type: str
    topic_name: str
    topic_sys_flag: int
    write_queue_nums: int


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
    code_set: list[int] = []
    expression_type: str | None = "TAG"
    sub_string: str | None = None
    sub_version: int
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


class HeartbeatData(Body, kw_only=True):
    """34. The C++ client leaves out what it has not; Java writes all of it, and so do we."""

    client_id: str = msgspec.field(name="clientID")
    consumer_data_set: list[ConsumerData] = msgspec.field(default_factory=lambda: [])
    producer_data_set: list[ProducerData] = msgspec.field(default_factory=lambda: [])


class CheckClientBody(Body, kw_only=True):
    """46."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


class ConsumerList(Body, kw_only=True):
    """To 38."""

    consumer_id_list: list[str]


class LockBody(Body, kw_only=True):
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
    version: int


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
    last_update_timestamp: int
    remote_ip: str = msgspec.field(name="remoteIP")
    version: int


class ProducerTable(Body, kw_only=True):
    """To 328."""

    data: dict[str, list[ProducerInfo]]


# --- statistics -------------------------------------------------------------------


class TopicOffset(Body, kw_only=True):
    """A queue in ``TopicStats``."""

    last_update_timestamp: int
    max_offset: int
    min_offset: int


class TopicOffsets(QueueMap[TopicOffset]):
    """Message queue to where it begins and ends."""

    value_type = TopicOffset


class TopicStats(Body, kw_only=True):
    """To 202."""

    offset_table: TopicOffsets


class OffsetWrapper(Body, kw_only=True):
    """A queue in ``ConsumeStats``."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    pull_offset: int = 0
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
    total_diff: int


class HaRuntimeInfo(msgspec.Struct, rename="camel", kw_only=True):
    """To 907, of a master."""

    ha_connection_info: tuple[()] = ()
    """Its slaves."""
    in_sync_slave_nums: int = 0
    master: bool = True
    master_commit_log_max_offset: int


class StatsItem(Body, kw_only=True):
    """A sum over a time, in ``BrokerStats``."""

    avgpt: float
    sum: int
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

    consume_time_stamp: int
    delay_time: int
    max_time_stamp: int
    message_queue: MessageQueue
    min_time_stamp: int


class TimeSpans(Body, kw_only=True):
    """To 303."""

    consume_time_span_set: list[QueueTimeSpan]


class ConsumeQueueUnit(Body, kw_only=True):
    """A unit in ``ConsumeQueueUnits``."""

    bit_map: str | None = None
    eval: bool = False
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: int
    physic_size: int
    tags_code: int


class ConsumeQueueUnits(Body, kw_only=True):
    """To 321."""

    filter_data: str | None = None
    max_queue_index: int
    min_queue_index: int
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
    offset_new: int
    offset_request: int


class ConsumeDirectlyResult(Body, kw_only=True):
    """To 309."""

    auto_commit: bool
    consume_result: str
    order: bool
    remark: str | None = None
    spent_time_mills: int


# --- the compressed body of 103 ---------------------------------------------------

REGISTRATION_BYTES_MAX = 256 * 1024 * 1024
"""Of a body when it is no longer compressed: some millions of topics."""

_REGISTRATION_INT = struct.Struct(">i")


def decompress_registration(data: bytes) -> RegisterBrokerBody:
    """Return a registration from its compressed form.

    zlib of: length and data version as JSON, count of topics, of each its length and
    ``name read write perm filterType``, length and filter servers as JSON. Order and system flag
    of a topic get lost on this way. Source: rocketmq 4.9.8 ``RegisterBrokerBody.encode``.

    5.x has a topic's attributes behind its words, and the mapping of static topics at the end: the
    first are taken, the second is left alone.

    Raises:
        InvalidBody: It is damaged, or larger than ``REGISTRATION_BYTES_MAX``.
    """
    reader = _RegistrationReader(_inflated(data))
    version = decode(DataVersion, reader.sized())
    topics = {}
    for _ in range(reader.count()):
        topic = _topic_of_words(reader.sized())
        topics[topic.topic_name] = topic
    servers = reader.sized()
    table = TopicConfigTable(data_version=version, topic_config_table=topics)
    return RegisterBrokerBody(
        filter_server_list=[] if servers == b"null" else decode(list[str], servers),
        topic_config_serialize_wrapper=table,
    )


def _inflated(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, REGISTRATION_BYTES_MAX)
    except zlib.error as error:
        raise InvalidBody(f"compressed registration of {len(data)} bytes: {error}") from error
    if inflater.unconsumed_tail:
        raise InvalidBody(f"registration of more than {REGISTRATION_BYTES_MAX} bytes")
    if not inflater.eof:
        raise InvalidBody(f"compressed registration of {len(data)} bytes is cut")
    return found


class _RegistrationReader:
    """Walks over ints and what has its length before it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def count(self) -> int:
        end = self._position + _REGISTRATION_INT.size
        if end > len(self._data):
            raise InvalidBody(f"registration of {len(self._data)} bytes is cut at {self._position}")
        (found,) = _REGISTRATION_INT.unpack_from(self._data, self._position)
        self._position = end
        return int(found)

    def sized(self) -> bytes:
        length = self.count()
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise InvalidBody(
                f"registration of {len(self._data)} bytes has {length} at {self._position}"
            )
        found = self._data[self._position : end]
        self._position = end
        return found


def _topic_of_words(data: bytes) -> TopicConfigData:
    words = data.decode(errors="replace").split(" ", 5)
    try:
        name, read_count, write_count, perm, filter_type = words[:5]
        attributes = words[5] if len(words) > 5 else ""
        return TopicConfigData(
            attributes=decode(dict[str, str], attributes.encode()) if attributes else None,
            order=False,
            perm=int(perm),
            read_queue_nums=int(read_count),
            topic_filter_type=filter_type,
            topic_name=name,
            topic_sys_flag=0,
            write_queue_nums=int(write_count),
        )
    except ValueError as error:
        raise InvalidBody(f"topic {data[:300]!r} in a registration: {error}") from error


# --- what a consumer says of itself ------------------------------------------------


class ProcessQueueInfo(Body, kw_only=True):
    """A queue in ``ConsumerRunningInfo``; ``transaction`` is what an orderly listener has."""

    cached_msg_count: int
    cached_msg_max_offset: int
    cached_msg_min_offset: int
    cached_msg_size_in_mi_b: int
    commit_offset: int
    droped: bool
    last_consume_timestamp: int
    last_lock_timestamp: int
    last_pull_timestamp: int
    locked: bool
    transaction_msg_count: int
    transaction_msg_max_offset: int
    transaction_msg_min_offset: int
    try_unlock_times: int


class ProcessQueueInfos(QueueMap[ProcessQueueInfo]):
    """Message queue to what of it is in a consumer."""

    value_type = ProcessQueueInfo


class PopQueueInfo(Body, kw_only=True):
    """What is popped from in ``ConsumerRunningInfo``."""

    droped: bool
    last_pop_timestamp: int
    wait_ack_count: int


class PopQueueInfos(QueueMap[PopQueueInfo]):
    """Message queue, whose id may be -1, to what of it is in a consumer."""

    value_type = PopQueueInfo


class ConsumeStatus(Body, kw_only=True):
    """A topic in ``ConsumerRunningInfo``; times in ms, rates a second."""

    consume_failed_msgs: int
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


class SubscriptionGroupConfig(Body, kw_only=True):
    """200; a group in ``SubscriptionGroupTable``. Defaults are Java's."""

    attributes: dict[str, str] | None = None  # 5.x
    broker_id: int = 0
    """Where members read from."""
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False  # 5.x
    consume_timeout_minute: int = 15  # 5.x
    group_name: str
    group_retry_policy: dict[str, Any] | None = None  # 5.x
    group_sys_flag: int = 0  # 5.x
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    subscription_data_set: list[dict[str, Any]] | None = None  # 5.x
    which_broker_when_consume_slowly: int = 1


class SubscriptionGroupTable(Body, kw_only=True):
    """To 201."""

    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, int]] | None = None  # 5.x
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


class SubscriptionGroupList(Body, kw_only=True):
    """225."""

    group_config_list: list[SubscriptionGroupConfig]


# --- what admin tools send and get besides ------------------------------------------


class TopicConfigList(Body, kw_only=True):
    """18."""

    topic_config_list: list[TopicConfigData]


class OffsetTable(Body, kw_only=True):
    """To 45: delay level to queue offset."""

    offset_table: dict[int, int]


class CorrectionOffsets(Body, kw_only=True):
    """To 308: queue id to the least consumer offset of a topic's groups."""

    correction_offsets: dict[int, int]


class ConsumerOffsetTable(Body, kw_only=True):
    """To 43: ``topic@group`` to queue id to consumer offset."""

    offset_table: dict[str, dict[int, int]]


class QueueOffset(Body, kw_only=True):
    """A queue in ``ResetOffsetList``."""

    broker_name: str
    offset: int
    queue_id: int
    topic: str


class ResetOffsetList(Body, kw_only=True):
    """220 to a client in C++, which reads no objects as keys."""

    offset_table: list[QueueOffset]


# --- who pops, and from where -----------------------------------------------------


class QueryAssignmentBody(Body, kw_only=True, omit_defaults=False):
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


class RequestModeBody(msgspec.Struct, rename="camel", kw_only=True):
    """401: how a group reads a topic."""

    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: int = 0
    topic: str


class RequestModesBody(Body, kw_only=True):
    """To 402: topic to group to mode."""

    message_request_mode_map: dict[str, dict[str, RequestModeBody]] = {}
