"""JSON bodies of requests and replies.

Fields are in Java's alphabetical order. A field is omitted if it is None, as by Java, or if only
requests have it and it has the default of Java's bean; a reply has all other fields, since clients
in typed languages require them (``_written``). Maps keyed by a message queue are ``QueueMap``: they
are written with the object as key, as by Java, the only form that readers of 5.4 and later accept
(checked with 5.5.0).
Unknown fields are ignored. Source: rocketmq 4.9.8 ``org.apache.rocketmq.common.protocol.body``,
``.heartbeat``, ``.route``.
"""

import copy
import math
import struct
import zlib
from collections import UserDict
from collections.abc import Generator, Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import msgspec

from reput.errors import InvalidBody, LimitExceeded, excerpt
from reput.format import fastjson, limits
from reput.format.java import Int, Long
from reput.limits import Limit

_LONG_MIN = -(1 << 63)
_LONG_MAX = (1 << 63) - 1

_COUNT_DIGITS = 9
"""Digits of a number of queues that are read."""

_T = TypeVar("_T")
_V = TypeVar("_V")


class Body(msgspec.Struct, rename="camel", omit_defaults=True):
    """Base of all bodies; wire names are the field names in camelCase."""


class ClientBody(Body):
    """Base of the bodies that producers, consumers and the proxy decode on their event loop."""

    lenient_limit: ClassVar[Limit] = limits.LENIENT_CLIENT_BYTES


def _written(default: Any) -> Any:
    """Return a field with a default that is encoded, unlike those of ``omit_defaults``."""
    return msgspec.field(default_factory=lambda: copy.copy(default))


class RequestBody(Body):
    """Base of the bodies that servers receive from any client; their size is limited."""

    size_limit: ClassVar[Limit] = limits.BODY_BYTES
    lenient_limit: ClassVar[Limit] = limits.LENIENT_JSON_BYTES
    """Size limit, in bytes, of a body that is not standard JSON of the struct's types."""


class MessageQueue(msgspec.Struct, rename="camel", frozen=True, order=True):
    """Topic, broker and number of a queue."""

    topic: str
    broker_name: str
    queue_id: Int

    def __str__(self) -> str:
        which = f"queue {self.queue_id}" if self.queue_id >= 0 else "any queue"  # of a pop
        return f"{which} of {self.topic} on {self.broker_name}"


class QueueMap(UserDict[MessageQueue, _V]):
    """Base of maps from message queue to value."""

    value_type: ClassVar[Any] = Any


class QueueOffsets(QueueMap[Long]):
    """Message queue to queue offset."""

    value_type = Long


def encode(value: object) -> bytes:
    """Return the JSON of a body."""
    return msgspec.json.encode(value, enc_hook=_encode_map)


def encode_pair(key: object, value: object) -> bytes:
    """Return the JSON of a map entry; the key may be a message queue."""
    name = _alphabetical(key) if isinstance(key, MessageQueue) else key
    return encode(name) + b":" + encode(value)


def decode(
    kind: type[_T],
    data: bytes,
    *,
    size_limit: Limit | None = None,
    lenient_limit: Limit | None = None,
) -> _T:
    """Decode a body from JSON, or from the dialect that fastjson accepts.

    Args:
        kind: Type of the body.
        data: The body.
        size_limit: Size limit of the body; None: that of the type, if any.
        lenient_limit: Size limit of a body that is not standard JSON of the type, which takes much
            longer to decode; None: that of the type, or the size of a frame.

    Raises:
        InvalidBody: The body is not JSON, lacks a field, has a number out of the range of Java, or
            one that its ``check`` refuses.
        LimitExceeded: The body is too large.
    """
    body = _decode(kind, data, size_limit, lenient_limit)
    check = getattr(body, "check", None)
    if check is not None:
        try:
            check()
        except LimitExceeded as error:
            raise InvalidBody(f"body is no {kind.__name__}: {error}") from None
    return body


def _decode(
    kind: type[_T], data: bytes, size_limit: Limit | None, lenient_limit: Limit | None
) -> _T:
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
    if lenient_limit is limits.LENIENT_CLIENT_BYTES and len(data) > lenient_limit.maximum:
        raise InvalidBody(str(lenient_limit.exceeded(len(data), kind.__name__)))
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
"""Names of Java's enum values by ordinal, by field."""


def _name_ordinals(value: Any) -> None:
    """Replace enum ordinals by names, in place; the C++ client sends ordinals."""
    if isinstance(value, list):
        for item in value:
            _name_ordinals(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            names = _ORDINALS.get(key)
            if names is None:
                _name_ordinals(item)
            elif type(item) is int and 0 <= item < len(names):
                value[key] = names[item]


def _encode_map(value: Any) -> Any:
    if not isinstance(value, QueueMap):
        raise NotImplementedError(f"{type(value).__name__} is in no body")
    pairs = (encode_pair(key, item) for key, item in value.items())
    return msgspec.Raw(b"{" + b",".join(pairs) + b"}")


def _alphabetical(queue: MessageQueue) -> dict[str, object]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def _decode_map(kind: type, value: Any) -> Any:
    if not issubclass(kind, QueueMap):
        raise NotImplementedError(f"{kind.__name__} is in no body")
    if isinstance(value, dict):
        # The key object as a string: older writers.
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
    """Parse a key object that was written as a string."""
    key = fastjson.parse(text)
    fastjson.check_text(text, key)
    return key


def _check_numbers(value: Any) -> None:
    """Reject numbers out of the range of Java's ``long`` and ``double``. Raises ``ValueError``."""
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
    """Queues and permissions of a topic on a broker."""

    broker_name: str
    perm: Int
    read_queue_nums: Int
    topic_sys_flag: Int = _written(0)
    write_queue_nums: Int


def ordered_queue_counts(text: str) -> Iterator[tuple[str, int]]:
    """Yield brokers and numbers of queues in ``orderTopicConf``: ``broker-a:4;broker-b:4``."""
    for part in text.split(";"):
        name, _, count = part.partition(":")
        digits = count.strip()
        if name and digits.isdecimal():
            # More digits than the limit has: their number does not matter.
            yield name, int(digits[:_COUNT_DIGITS])


def _check_queues(counts: Iterable[tuple[str, int, int]]) -> int:
    """Return the sum of the numbers of queues. Raises ``LimitExceeded``.

    Args:
        counts: Broker or topic, and its numbers of readable and writable queues.
    """
    total = 0
    for place, read_count, write_count in counts:
        for count in (read_count, write_count):
            limits.TOPIC_QUEUES.check_count(count, excerpt(place))
        total += max(read_count, write_count)
    return total


class BrokerData(Body, kw_only=True):
    """Addresses of a broker's master and slaves."""

    broker_addrs: dict[Long, str]
    """Broker id to ``ip:port``; 0 is the master."""
    broker_name: str
    cluster: str
    enable_acting_master: bool = _written(False)
    """Whether the least slave serves requests while there is no master (5.x)."""


class TopicRouteData(ClientBody, kw_only=True):
    """Reply to 105."""

    broker_datas: list[BrokerData]
    filter_server_table: dict[str, list[str]] | None = None
    order_topic_conf: str | None = None
    queue_datas: list[QueueData]

    def check(self) -> None:
        """Refuse impossible numbers of queues. Raises ``LimitExceeded``."""
        counts = ordered_queue_counts(self.order_topic_conf or "")
        total = _check_queues((name, count, count) for name, count in counts)
        total += _check_queues(
            (queue.broker_name, queue.read_queue_nums, queue.write_queue_nums)
            for queue in self.queue_datas
        )
        limits.ROUTE_QUEUES.check(total)


class ClusterInfo(ClientBody, kw_only=True):
    """Reply to 106."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, list[str]]


class BrokerMembers(Body, kw_only=True):
    """Brokers of a name, in ``BrokerMemberGroup`` (5.x)."""

    broker_addrs: dict[Long, str]
    broker_name: str
    cluster: str | None = None


class BrokerMemberGroup(Body, kw_only=True):
    """Reply to 901."""

    broker_member_group: BrokerMembers


class SyncStateSet(RequestBody, kw_only=True):
    """In-sync replicas of a broker name: requests 1001 and 1008, replies to 1001, 1003, 1004."""

    sync_state_set: list[Long] = _written([])
    """Broker ids."""
    sync_state_set_epoch: Int = _written(0)


class ElectMasterReply(Body, kw_only=True):
    """Reply to 1002."""

    broker_member_group: BrokerMembers | None = None
    sync_state_set: list[Long] = _written([])


class ReplicaIdentity(Body, kw_only=True):
    """A replica, in ``ReplicasInfo``."""

    alive: bool
    broker_address: str
    broker_id: Long
    broker_name: str


class ReplicasInfo(Body, kw_only=True):
    """The replicas of a broker name, in ``BrokerReplicasInfo``."""

    in_sync_replicas: list[ReplicaIdentity]
    master_address: str | None = None
    master_broker_id: Long | None = None
    master_epoch: Int
    not_in_sync_replicas: list[ReplicaIdentity]
    sync_state_set_epoch: Int


class BrokerReplicasInfo(Body, kw_only=True):
    """Reply to 1006."""

    replicas_info_table: dict[str, ReplicasInfo]


class EpochEntry(Body, kw_only=True):
    """A range of a log that one master has written, in ``EpochEntryCache``."""

    end_offset: Long
    """End of the range, a physical offset; the largest Long if the master still writes to it."""
    epoch: Int
    start_offset: Long


class EpochEntryCache(Body, kw_only=True):
    """Reply to 1007."""

    broker_id: Long
    """0 for the master, whatever id its controller has given it."""
    broker_name: str
    cluster_name: str
    epoch_list: list[EpochEntry]
    """The epochs of the log, oldest first."""
    max_offset: Long
    """End of the log, a physical offset."""


class DataVersion(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """Version of a table: its number of changes and the time of the last one."""

    counter: Long = _written(0)
    state_version: Long = _written(0)  # 5.x
    timestamp: Long = _written(0)
    """Time of the last change, in ms. Java's default is the time of decoding."""


class TopicConfigData(Body, kw_only=True):
    """Settings of a topic, as exchanged between brokers."""

    attributes: dict[str, str] | None = None  # 5.x
    order: bool
    perm: Int
    read_queue_nums: Int
    topic_filter_type: str
    topic_name: str
    topic_sys_flag: Int
    write_queue_nums: Int


class TopicConfigTable(Body, kw_only=True):
    """Part of the body of 103."""

    data_version: DataVersion
    topic_config_table: dict[str, TopicConfigData]

    def check(self) -> None:
        """Refuse impossible numbers of queues. Raises ``LimitExceeded``."""
        _check_queues(
            (topic.topic_name, topic.read_queue_nums, topic.write_queue_nums)
            for topic in self.topic_config_table.values()
        )


class TopicConfigReply(TopicConfigTable, kw_only=True):
    """Reply to 21. There are no static topics, so their mappings are empty (5.x)."""

    mapping_data_version: DataVersion = _written(DataVersion())
    topic_queue_mapping_detail_map: dict[str, Any] = _written({})
    topic_queue_mapping_info_map: dict[str, Any] = _written({})


class RegisterBrokerBody(Body, kw_only=True):
    """Body of 103, uncompressed."""

    filter_server_list: list[str] = _written([])
    topic_config_serialize_wrapper: TopicConfigTable


class KvTable(Body, kw_only=True):
    """Reply to 103, 219, 28."""

    table: dict[str, str]


class TopicList(Body, kw_only=True):
    """Reply to 206, 224, 304, 305, 311 to 313, 343."""

    broker_addr: str | None = None
    topic_list: list[str]


# --- heartbeats and members -------------------------------------------------------


class SubscriptionData(Body, kw_only=True):
    """Subscription of a group to a topic."""

    class_filter_mode: bool = _written(False)
    code_set: list[Int] = _written([])
    expression_type: str | None = _written("TAG")
    sub_string: str | None = None
    sub_version: Long
    tags_set: list[str] = _written([])
    topic: str


class ConsumerData(Body, kw_only=True):
    """A member of a consumer group."""

    consume_from_where: str
    consume_type: str
    group_name: str
    message_model: str
    subscription_data_set: list[SubscriptionData] = _written([])
    unit_mode: bool = _written(False)


class ProducerData(Body, kw_only=True):
    """A member of a producer group."""

    group_name: str


class HeartbeatData(RequestBody, kw_only=True):
    """Body of 34. Java and reput write all fields; the C++ client omits empty ones."""

    client_id: str = msgspec.field(name="clientID")
    consumer_data_set: list[ConsumerData] = _written([])
    producer_data_set: list[ProducerData] = _written([])


class CheckClientBody(RequestBody, kw_only=True):
    """Body of 46."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


class ConsumerList(ClientBody, kw_only=True):
    """Reply to 38."""

    consumer_id_list: list[str]


class LockBody(RequestBody, kw_only=True):
    """Body of 41, 42."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue]


class LockReply(ClientBody, kw_only=True):
    """Reply to 41."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(name="lockOKMQSet")


class Connection(Body, kw_only=True):
    """Client in the replies to 203 and 204."""

    client_addr: str
    client_id: str
    language: str
    version: Int


class ConsumerConnection(Body, kw_only=True):
    """Reply to 203."""

    connection_set: list[Connection]
    consume_from_where: str
    consume_type: str
    message_model: str
    subscription_table: dict[str, SubscriptionData]


class ProducerConnection(Body, kw_only=True):
    """Reply to 204."""

    connection_set: list[Connection]


class ProducerInfo(Body, kw_only=True):
    """Producer in the reply to 328."""

    client_id: str
    language: str
    last_update_timestamp: Long
    remote_ip: str = msgspec.field(name="remoteIP")
    version: Int


class ProducerTable(Body, kw_only=True):
    """Reply to 328."""

    data: dict[str, list[ProducerInfo]]


# --- statistics -------------------------------------------------------------------


class TopicOffset(Body, kw_only=True):
    """A queue in ``TopicStats``."""

    last_update_timestamp: Long
    max_offset: Long
    min_offset: Long


class TopicOffsets(QueueMap[TopicOffset]):
    """Message queue to its first and last queue offset."""

    value_type = TopicOffset


class TopicStats(Body, kw_only=True):
    """Reply to 202."""

    offset_table: TopicOffsets
    topic_put_tps: float = _written(0.0)  # 5.x


class OffsetWrapper(Body, kw_only=True):
    """A queue in ``ConsumeStats``."""

    broker_offset: Long
    consumer_offset: Long
    last_timestamp: Long
    pull_offset: Long = _written(0)
    """Queue offset after the last pulled message (5.x); up to it messages are in flight."""


class OffsetWrappers(QueueMap[OffsetWrapper]):
    """Message queue to the offsets of a group."""

    value_type = OffsetWrapper


class ConsumeStats(Body, kw_only=True):
    """Reply to 208."""

    consume_tps: float
    offset_table: OffsetWrappers


class ConsumeStatsInBroker(Body, kw_only=True):
    """Reply to 317."""

    broker_addr: str
    consume_stats_list: list[dict[str, list[ConsumeStats]]]
    total_diff: Long
    total_inflight_diff: Long = _written(0)
    """Messages that were pulled and not committed (5.x)."""


class HaClientInfo(msgspec.Struct, rename="camel", kw_only=True):
    """Connection of a slave to its master, in ``HaRuntimeInfo``."""

    last_read_timestamp: Long = 0
    last_write_timestamp: Long = 0
    master_addr: str | msgspec.UnsetType = msgspec.UNSET
    """Address of the master's port for slaves; Java omits null."""
    master_flush_offset: Long = 0
    max_offset: Long = 0
    transferred_byte_in_second: Long = 0


class HaConnectionInfo(msgspec.Struct, rename="camel", kw_only=True):
    """Connection of a master to a slave, in ``HaRuntimeInfo``."""

    addr: str
    diff: Long
    in_sync: bool
    slave_ack_offset: Long
    transfer_from_where: Long
    transferred_byte_in_second: Long


class HaRuntimeInfo(msgspec.Struct, rename="camel", kw_only=True):
    """Reply to 907."""

    ha_client_runtime_info: HaClientInfo = msgspec.field(default_factory=HaClientInfo)
    """Connection to the master, of a slave."""
    ha_connection_info: tuple[HaConnectionInfo, ...] = ()
    """Connections of slaves, of a master."""
    in_sync_slave_nums: Int = 0
    master: bool = True
    master_commit_log_max_offset: Long


class StatsItem(Body, kw_only=True):
    """Sum over an interval, in ``BrokerStats``."""

    avgpt: float
    sum: Long
    tps: float


class BrokerStats(Body, kw_only=True):
    """Reply to 315."""

    stats_day: StatsItem
    stats_hour: StatsItem
    stats_minute: StatsItem


class GroupList(Body, kw_only=True):
    """Reply to 300."""

    group_list: list[str]


class QueueTimeSpan(Body, kw_only=True):
    """A queue in ``TimeSpans``."""

    consume_time_stamp: Long
    consume_time_stamp_str: str = _written("")
    """The time before in the broker's time zone, as ``2026-01-31#23:59:59:999``."""
    delay_time: Long
    max_time_stamp: Long
    max_time_stamp_str: str = _written("")
    message_queue: MessageQueue
    min_time_stamp: Long
    min_time_stamp_str: str = _written("")


class TimeSpans(Body, kw_only=True):
    """Reply to 303."""

    consume_time_span_set: list[QueueTimeSpan]


class ConsumeQueueUnit(Body, kw_only=True):
    """A unit in ``ConsumeQueueUnits``."""

    bit_map: str | None = None
    eval: bool = _written(False)
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: Long
    physic_size: Int
    tags_code: Long


class ConsumeQueueUnits(Body, kw_only=True):
    """Reply to 321."""

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
    """Reply to 223, 221."""

    consumer_table: dict[str, QueueOffsets] = _written({})
    message_queue_table: QueueOffsets


class OffsetMovedEvent(Body, kw_only=True):
    """The body of an ``OFFSET_MOVED_EVENT`` message."""

    consumer_group: str
    message_queue: MessageQueue
    offset_new: Long
    offset_request: Long


class ConsumeDirectlyResult(Body, kw_only=True):
    """Reply to 309."""

    auto_commit: bool
    consume_result: str
    order: bool
    remark: str | None = None
    spent_time_mills: Long


# --- the compressed body of 103 ---------------------------------------------------

_REGISTRATION_INT = struct.Struct(">i")


_INFLATED_PART_BYTES = 1 << 20
_PART_TOPICS = 100
"""Topics to decode per time slice."""


def decompress_registration(data: bytes) -> Generator[None, None, RegisterBrokerBody]:
    """Decode a compressed registration; yield between time slices.

    Layout, deflated: length and data version as JSON, number of topics, per topic the length and
    ``name read write perm filterType``, length and filter servers as JSON. A topic's order and
    system flag are not part of it. Source: rocketmq 4.9.8 ``RegisterBrokerBody.encode``.

    5.x appends the attributes to a topic's words, which are decoded, and the mapping of static
    topics at the end, which is ignored.

    Raises:
        InvalidBody: The data is damaged.
        LimitExceeded: The registration is too large.
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
    """Inflates a registration step by step and reads its ints and length-prefixed parts.

    Only one part and one inflated piece are in memory: joining 64 MiB would take 30 ms at once.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._inflater = zlib.decompressobj()
        self._consumed = 0  # bytes of the compressed data
        self._inflated = b""
        self._position = 0  # of the next read, in the inflated data
        self._size = 0  # of all inflated data

    def count(self) -> Generator[None, None, int]:
        """Read an int. Raises ``InvalidBody``."""
        (count,) = _REGISTRATION_INT.unpack((yield from self._read(_REGISTRATION_INT.size)))
        return int(count)

    def sized(self) -> Generator[None, None, bytes]:
        """Read a length-prefixed part. Raises ``InvalidBody``, ``LimitExceeded``."""
        length = yield from self.count()
        if length < 0:
            raise InvalidBody(f"registration of {len(self._data)} bytes has a length of {length}")
        limits.REGISTRATION_PART_BYTES.check(length)
        return (yield from self._read(length))

    def skip_rest(self) -> Generator[None, None, None]:
        """Inflate and discard the rest. Raises ``InvalidBody``, ``LimitExceeded``."""
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
        """Inflate a piece, possibly to zero bytes; return False at the end of the stream."""
        if self._inflater.eof:
            return False
        # The input is fed in small pieces too: zlib copies the unread rest on each call.
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
    """Queue in ``ConsumerRunningInfo``; ``transaction``: messages in an orderly listener."""

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
    """Message queue to its messages in a consumer."""

    value_type = ProcessQueueInfo


class PopQueueInfo(Body, kw_only=True):
    """Popped queue in ``ConsumerRunningInfo``."""

    droped: bool
    last_pop_timestamp: Long
    wait_ack_count: Int


class PopQueueInfos(QueueMap[PopQueueInfo]):
    """Message queue (its id may be -1) to its popped messages in a consumer."""

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
    """Reply to 307."""

    jstack: str | None = None
    mq_pop_table: PopQueueInfos = msgspec.field(default_factory=PopQueueInfos)  # 5.x
    mq_table: ProcessQueueInfos
    properties: dict[str, str]
    status_table: dict[str, ConsumeStatus]
    subscription_set: list[SubscriptionData]


# --- consumer groups' settings ----------------------------------------------------


class SubscriptionGroupConfig(RequestBody, kw_only=True):
    """Body of 200, and group in ``SubscriptionGroupTable``. Defaults are Java's."""

    attributes: dict[str, str] | None = None  # 5.x
    broker_id: Long = 0
    """Id of the broker that members read from."""
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
        """Reject values that the saved table cannot hold."""
        if self.group_retry_policy or self.subscription_data_set:
            _check_numbers((self.group_retry_policy, self.subscription_data_set))


class SubscriptionGroupTable(Body, kw_only=True):
    """Reply to 201."""

    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, Int]] | None = None  # 5.x
    subscription_group_table: dict[str, SubscriptionGroupConfig]


class GroupSubscription(Body, kw_only=True):
    """Reply to 345."""

    group: str
    subscription_data: SubscriptionData | None = None
    topic: str


class GroupForbidden(Body, kw_only=True):
    """Reply to 353."""

    group: str
    readable: bool
    topic: str


class SubscriptionGroupList(RequestBody, kw_only=True):
    """Body of 225."""

    group_config_list: list[SubscriptionGroupConfig]


# --- what admin tools send and get besides ------------------------------------------


class TopicConfigList(RequestBody, kw_only=True):
    """Body of 18."""

    topic_config_list: list[TopicConfigData]


class OffsetTable(Body, kw_only=True):
    """Reply to 45: delay level to queue offset."""

    data_version: DataVersion | None = None  # 5.x
    offset_table: dict[Int, Long]


class CorrectionOffsets(Body, kw_only=True):
    """Reply to 308: queue id to the least consumer offset of a topic's groups."""

    correction_offsets: dict[Int, Long]


class ConsumerOffsetTable(Body, kw_only=True):
    """Reply to 43: ``topic@group`` to queue id to consumer offset."""

    data_version: DataVersion | None = None  # 5.x
    group_topic_map: dict[str, list[str]] = _written({})
    """Left empty: the keys of ``offset_table`` have the same names."""
    offset_table: dict[str, dict[Int, Long]]
    pull_offset_table: dict[str, dict[Int, Long]] = _written({})
    """Left empty: positions of pulls are not stored."""


class QueueOffset(Body, kw_only=True):
    """A queue in ``ResetOffsetList``."""

    broker_name: str
    offset: Long
    queue_id: Int
    topic: str


class ResetOffsetList(Body, kw_only=True):
    """220 to a C++ client, which cannot read objects as keys."""

    offset_table: list[QueueOffset]


# --- who pops, and from where -----------------------------------------------------


class LiteOffset(msgspec.Struct, rename="camel", kw_only=True):
    """Position at which a group begins to read a lite topic (5.5)."""

    type: str
    """POLICY, OFFSET, TAIL_N or TIMESTAMP."""
    value: Long
    """Number; for POLICY 0 keeps the position, 1 is the first message, 2 the end."""


class LiteSubscription(RequestBody, kw_only=True):
    """A change of a client's subscriptions to lite topics (5.5)."""

    action: str
    """PARTIAL_ADD, PARTIAL_REMOVE, COMPLETE_ADD or COMPLETE_REMOVE."""
    client_id: str = ""
    group: str = ""
    topic: str = ""
    """Parent of the lite topics."""
    lite_topic_set: list[str] | None = None
    offset_option: LiteOffset | None = None
    version: Long = 0


class LiteSubscriptionsBody(RequestBody, kw_only=True):
    """Body of 200071 (5.5)."""

    subscription_set: list[LiteSubscription] | None = None


class QueryAssignmentBody(RequestBody, kw_only=True, omit_defaults=False):
    """Body of 400. Java's broker requires all fields."""

    client_id: str
    consumer_group: str
    message_model: str = "CLUSTERING"
    strategy_name: str = "AVG"
    topic: str


class QueueAssignment(Body, kw_only=True):
    """Queue and the mode in which to read it."""

    attachments: dict[str, str] | None = None
    message_queue: MessageQueue
    mode: str


class Assignments(ClientBody, kw_only=True):
    """Reply to 400."""

    message_queue_assignments: list[QueueAssignment] | None = None
    """Queues of the member; None: they are unchanged."""


class RequestModeBody(RequestBody, kw_only=True, omit_defaults=False):
    """Body of 401: mode in which a group reads a topic."""

    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: Int = 0
    topic: str


class RequestModesBody(Body, kw_only=True):
    """Reply to 402: topic to group to mode."""

    message_request_mode_map: dict[str, dict[str, RequestModeBody]] = _written({})


# --- users and rules (5.3) --------------------------------------------------------


class UserInfo(RequestBody, kw_only=True):
    """Body of 3001 and 3002, reply to 3004; a list of them is the reply to 3005."""

    password: str | None = None
    user_status: str | None = None
    user_type: str | None = None
    username: str | None = None

    def __repr__(self) -> str:
        """Return the name alone: a password is never shown."""
        return f"UserInfo(username={self.username!r})"


class PolicyEntryInfo(Body, kw_only=True):
    """A rule: a resource, and the actions that are allowed or denied."""

    actions: list[str] | None = None
    decision: str | None = None
    resource: str | None = None
    source_ips: list[str] | None = None


class PolicyInfo(Body, kw_only=True):
    """Rules of a policy."""

    entries: list[PolicyEntryInfo] | None = None
    policy_type: str | None = None


class AclInfo(RequestBody, kw_only=True):
    """Body of 3006 and 3007, reply to 3009; a list of them is the reply to 3010."""

    policies: list[PolicyInfo] | None = None
    subject: str | None = None
