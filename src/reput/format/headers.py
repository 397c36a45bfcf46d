"""Headers: the fields of requests and replies, by request code.

On the wire a header is a map from name to text (``Command.ext_fields``); here it is a struct.
Fields that Java requires have no default. Unknown fields are ignored: newer clients send more.
Source: rocketmq 4.9.8 ``org.apache.rocketmq.common.protocol.header``.
"""

import functools
import typing
from typing import TypeVar

import msgspec

from reput.errors import InvalidHeader, excerpt
from reput.format.java import Int, Long

_H = TypeVar("_H", bound="Header")


class Header(msgspec.Struct, rename="camel"):
    """Base of all headers; wire names are the field names in camelCase."""


def decode(kind: type[_H], ext_fields: dict[str, str] | None) -> _H:
    """Return a header from its fields.

    Raises:
        InvalidHeader: A field is missing, has the wrong type, or exceeds the range of Java's type.
    """
    try:
        return msgspec.convert(ext_fields or {}, kind, strict=False)
    except msgspec.ValidationError as error:
        name = kind.__name__.removesuffix("Header")
        text = excerpt(str(error))
        for field, allowed in _ranges(kind):
            if text.endswith(f"`$.{field}`"):
                text += f"; allowed: {allowed}"
        raise InvalidHeader(f"{name}: {text}") from error


def encode(header: Header) -> dict[str, str]:
    """Return the fields of a header that are not None."""
    fields = {}
    for field, name in _names(type(header)):
        value = getattr(header, field)
        if value is None:
            continue
        if type(value) is bool:
            value = "true" if value else "false"
        fields[name] = value if type(value) is str else str(value)
    return fields


@functools.cache
def _names(kind: type[Header]) -> tuple[tuple[str, str], ...]:
    """Return (field, wire name) of each field."""
    return tuple(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))


@functools.cache
def _ranges(kind: type[Header]) -> tuple[tuple[str, str], ...]:
    """Return (wire name, range) of each field that is a number."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(
        (name, f"{limits.ge} to {limits.le}")
        for field, name in _names(kind)
        for hint in (hints[field], *typing.get_args(hints[field]))
        for limits in getattr(hint, "__metadata__", ())
    )


# --- sending ----------------------------------------------------------------------


class SendMessageHeader(Header, kw_only=True):
    """Request 10, 324. The body is that of the message."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int | None = None


_V2_LETTERS = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "brokerName": "n",
}
_V2_NAMES = {letter: name for name, letter in _V2_LETTERS.items()}


def decode_v2(ext_fields: dict[str, str] | None) -> SendMessageHeader:
    """Return the header of 310, 320, 325: the same fields with names of one letter.

    Raises:
        InvalidHeader: As ``decode``.
    """
    fields = {_V2_NAMES.get(name, name): value for name, value in (ext_fields or {}).items()}
    return decode(SendMessageHeader, fields)


def encode_v2(header: SendMessageHeader) -> dict[str, str]:
    """Return the fields of 310, 320, 325."""
    return {_V2_LETTERS[name]: value for name, value in encode(header).items()}


class SendMessageReplyHeader(Header, kw_only=True):
    """Reply to 10, 310, 320; the ids of a batch are separated by commas."""

    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None
    recall_handle: str | None = None
    """Handle that recalls a message of the timer."""


class SendBackHeader(Header, kw_only=True):
    """36: a consumer returns a message for a later delivery."""

    offset: Long
    """Physical offset of the message."""
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int | None = None


class PushReplyHeader(Header, kw_only=True):
    """326, to the client that sent the request; the body is that of the reply message."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_timestamp: Long


class RecallMessageHeader(Header, kw_only=True):
    """370: cancels the delivery of a message of the timer."""

    producer_group: str | None = None
    topic: str
    recall_handle: str


class EndTransactionHeader(Header, kw_only=True):
    """Request 37."""

    producer_group: str
    tran_state_table_offset: Long
    """Queue offset of the half message."""
    commit_log_offset: Long
    """Physical offset of the half message."""
    commit_or_rollback: Int
    """8 commit, 12 rollback, 0 unknown."""
    from_transaction_check: bool | None = None
    msg_id: str = ""
    transaction_id: str | None = None


class CheckTransactionStateHeader(Header, kw_only=True):
    """39, to a producer; the body is the half message's record."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None  # 5.x


class ResumeCheckHeader(Header, kw_only=True):
    """323: resumes the checks of a half message that was given up."""

    msg_id: str
    """Offset id of the half message."""


# --- pulling ----------------------------------------------------------------------


class PullMessageHeader(Header, kw_only=True):
    """Request 11, 361."""

    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    """1 commit offset, 2 suspend, 4 subscription in request, 8 class filter, 16 lite."""
    commit_offset: Long
    suspend_timeout_millis: Long
    subscription: str | None = None
    sub_version: Long
    expression_type: str | None = None


class PullMessageReplyHeader(Header, kw_only=True):
    """Reply to 11, 361; the body is concatenated records."""

    topic_sys_flag: Int | None = None  # 5.x
    group_sys_flag: Int | None = None  # 5.x
    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long


# --- offsets ----------------------------------------------------------------------


class QueryConsumerOffsetHeader(Header, kw_only=True):
    """Request 14."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None  # 5.x


class UpdateConsumerOffsetHeader(Header, kw_only=True):
    """Request 15."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


class QueryCorrectionOffsetHeader(Header, kw_only=True):
    """Request 308."""

    filter_groups: str | None = None
    """Groups to ignore, separated by commas."""
    compare_group: str | None = None
    topic: str


class SearchOffsetHeader(Header, kw_only=True):
    """Request 29."""

    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: str | None = None
    """5.x: LOWER, UPPER."""


class QueueHeader(Header, kw_only=True):
    """Request 30, 31, 32."""

    topic: str
    queue_id: Int


class OffsetReplyHeader(Header, kw_only=True):
    """Reply to 14, 29, 30, 31."""

    offset: Long


class TimestampReplyHeader(Header, kw_only=True):
    """Reply to 32."""

    timestamp: Long


# --- finding messages -------------------------------------------------------------


class ViewMessageHeader(Header, kw_only=True):
    """Request 33."""

    offset: Long
    """Physical offset."""
    topic: str | None = None
    """Topic that the record must have (5.x)."""


class QueryMessageHeader(Header, kw_only=True):
    """Request 12."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    is_unique_key: bool | None = msgspec.field(name="_UNIQUE_KEY_QUERY", default=None)
    index_type: str | None = None
    """5.4: ``K`` key, ``U`` unique key, ``T`` tags. Not used with ``is_unique_key``."""
    last_key: str | None = None
    """Key at which a RocksDB index continues (5.4)."""


class QueryMessageReplyHeader(Header, kw_only=True):
    """Reply to 12."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


class QueryConsumeQueueHeader(Header, kw_only=True):
    """Request 321."""

    topic: str
    queue_id: Int
    index: Long
    """Queue offset of the first unit."""
    count: Int
    consumer_group: str | None = None


# --- groups -----------------------------------------------------------------------


class UnregisterClientHeader(Header, kw_only=True):
    """Request 35."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupHeader(Header, kw_only=True):
    """Request 38, 40, 203."""

    consumer_group: str


class ProducerGroupHeader(Header, kw_only=True):
    """Request 204."""

    producer_group: str


class GroupNameHeader(Header, kw_only=True):
    """Request 207."""

    group_name: str
    remove_offset: bool | None = msgspec.field(name="removeOffset", default=None)
    clean_offset: bool | None = None  # its name in 5.x


class ConsumeStatsHeader(Header, kw_only=True):
    """Request 208."""

    consumer_group: str
    topic: str | None = None


class ResetOffsetHeader(Header, kw_only=True):
    """222 to a broker; 220 to a client."""

    topic: str
    group: str
    timestamp: Long
    """-1: the end of each queue."""
    is_force: bool = msgspec.field(name="isForce", default=True)
    queue_id: Int | None = None  # 5.x
    """Queue to reset; negative: all queues."""
    queue_offset: Long | None = msgspec.field(name="offset", default=None)  # 5.x
    """New consumer offset if ``queue_id`` is set, in place of the time; -1: use the time."""


class ConsumerStatusHeader(Header, kw_only=True):
    """223 to a broker; 221 to a client."""

    topic: str
    group: str
    client_addr: str | None = None


class ConsumerRunningInfoHeader(Header, kw_only=True):
    """307, to a broker and from it to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectlyHeader(Header, kw_only=True):
    """309, to a broker and from it to the client."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class CloneGroupOffsetHeader(Header, kw_only=True):
    """Request 314."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class TimeSpanHeader(Header, kw_only=True):
    """Request 303."""

    topic: str
    group: str


# --- topics -----------------------------------------------------------------------


class TopicHeader(Header, kw_only=True):
    """Request 105, 202, 215, 216, 300."""

    topic: str


class CreateTopicHeader(Header, kw_only=True):
    """Request 17."""

    topic: str
    default_topic: str | None = None
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int | None = None
    order: bool = False
    attributes: str | None = None  # 5.x


class StatsHeader(Header, kw_only=True):
    """Request 315."""

    stats_name: str
    stats_key: str


class ConsumeStatsInBrokerHeader(Header, kw_only=True):
    """Request 317."""

    is_order: bool = msgspec.field(name="isOrder", default=False)


class GroupHeader(Header, kw_only=True):
    """Request 343, 352."""

    group: str


class GroupAndTopicHeader(Header, kw_only=True):
    """Request 345."""

    group: str
    topic: str


class GroupForbiddenHeader(Header, kw_only=True):
    """Request 353."""

    group: str
    topic: str
    readable: bool | None = None
    """True if the group may read the topic; None: only query."""


# --- name server ------------------------------------------------------------------


class RegisterBrokerHeader(Header, kw_only=True):
    """Request 103."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str = ""
    broker_id: Long
    compressed: bool = False
    body_crc32: Int = 0
    heartbeat_timeout_millis: Long | None = None  # 5.x
    enable_acting_master: bool | None = None  # 5.x


class RegisterBrokerReplyHeader(Header, kw_only=True):
    """Reply to 103."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBrokerHeader(Header, kw_only=True):
    """Request 104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


class BrokerMemberGroupHeader(Header, kw_only=True):
    """Request 901."""

    broker_name: str
    cluster_name: str | None = None


class BrokerHeartbeatHeader(Header, kw_only=True):
    """Request 904."""

    broker_addr: str


class MinBrokerIdChangeHeader(Header, kw_only=True):
    """Request 905 to brokers."""

    min_broker_id: Long
    min_broker_addr: str
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class QueryDataVersionHeader(Header, kw_only=True):
    """Request 322."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


class QueryDataVersionReplyHeader(Header, kw_only=True):
    """Reply to 322."""

    changed: bool


class RouteHeader(Header, kw_only=True):
    """Request 105."""

    topic: str
    accept_standard_json_only: bool | None = None


class KvHeader(Header, kw_only=True):
    """Request 100, 101, 102."""

    namespace: str
    key: str
    value: str | None = None


class KvReplyHeader(Header, kw_only=True):
    """Reply to 101."""

    value: str | None = None


class NamespaceHeader(Header, kw_only=True):
    """Request 219."""

    namespace: str


class ClusterHeader(Header, kw_only=True):
    """Request 224."""

    cluster: str


class BrokerNameHeader(Header, kw_only=True):
    """Request 205, 327."""

    broker_name: str


class WipeWritePermReplyHeader(Header, kw_only=True):
    """Reply to 205."""

    wipe_topic_count: Int


class AddWritePermReplyHeader(Header, kw_only=True):
    """Reply to 327."""

    add_topic_count: Int


class DeleteTopicInNameServerHeader(Header, kw_only=True):
    """Request 216."""

    topic: str
    cluster_name: str | None = None


class BrokerConfigReplyHeader(Header, kw_only=True):
    """Reply to 26."""

    version: str


# --- access control 1.0 -----------------------------------------------------------


class UpdateAclAccountHeader(Header, kw_only=True):
    """Request 50. Fields without a value stay as they are, except ``admin``."""

    access_key: str | None = None
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAclAccountHeader(Header, kw_only=True):
    """Request 51."""

    access_key: str


class AclVersionReplyHeader(Header, kw_only=True):
    """Reply to 52."""

    version: str
    all_acl_file_version: str
    broker_name: str
    broker_addr: str
    cluster_name: str


class UpdateWhiteAddressesHeader(Header, kw_only=True):
    """Request 53."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


# --- pop consumption --------------------------------------------------------------


class PopMessageHeader(Header, kw_only=True):
    """Request 200050."""

    consumer_group: str
    topic: str
    queue_id: Int
    """Queue id; -1 for any queue."""
    max_msg_nums: Int
    invisible_time: Long
    """Time for which the messages are hidden from other consumers, in ms."""
    poll_time: Long
    """Time to wait for messages, in ms."""
    born_time: Long = 0
    init_mode: Int
    """Start of a group without a consumer offset: 0 first message, 1 near the end."""
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


class PopMessageReplyHeader(Header, kw_only=True):
    """Reply to 200050; the body is concatenated records."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    rest_num: Long
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageHeader(Header, kw_only=True):
    """Request 200051."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    """Handle of the message."""
    offset: Long
    """Queue offset of the message."""
    lite_topic: str | None = None
    """Lite topic of the message (5.5)."""


class ChangeInvisibleTimeHeader(Header, kw_only=True):
    """Request 200053."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    """Queue offset of the message."""
    invisible_time: Long
    """New invisible time, counted from now, in ms."""
    suspend: bool | None = None
    """True if the next delivery is not counted as an attempt (5.5)."""
    lite_topic: str | None = None
    """Lite topic of the message (5.5)."""
    keeps_handle: bool | None = None
    """The handle stays valid, and the messages popped together with it stay invisible as long (only
    this broker; others give it another handle)."""


class ChangeInvisibleTimeReplyHeader(Header, kw_only=True):
    """Reply to 200053: parts of the new handle."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int


class PeekMessageHeader(Header, kw_only=True):
    """Request 200052."""

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int


class NotificationHeader(Header, kw_only=True):
    """200054: asks, or waits, for messages to pop."""

    consumer_group: str
    topic: str
    queue_id: Int
    poll_time: Long
    born_time: Long = 0
    order: bool | None = None
    attempt_id: str | None = None
    exp_type: str | None = None  # 5.4
    exp: str | None = None  # 5.4


class NotificationReplyHeader(Header, kw_only=True):
    """Reply to 200054."""

    has_msg: bool
    polling_full: bool = False


class PollingInfoHeader(Header, kw_only=True):
    """Request 200055."""

    consumer_group: str
    topic: str
    queue_id: Int


class PollingInfoReplyHeader(Header, kw_only=True):
    """Reply to 200055."""

    polling_num: Int


class PopLiteMessageHeader(Header, kw_only=True):
    """Request 200070 (5.5): messages of the lite topics that a client has subscribed to."""

    client_id: str
    consumer_group: str
    topic: str
    """Parent of the lite topics."""
    max_msg_num: Int
    invisible_time: Long
    """Time for which the messages are hidden from other consumers, in ms."""
    poll_time: Long
    """Time to wait for messages, in ms."""
    born_time: Long = 0
    attempt_id: str | None = None


class PopLiteMessageReplyHeader(Header, kw_only=True):
    """Reply to 200070; the body is concatenated records."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    order_count_info: str | None = None
    """Number of earlier deliveries of each message, separated by ``;``."""


class NotifyUnsubscribeLiteHeader(Header, kw_only=True):
    """Request 200073 to a client (5.5): another client has taken over its lite topic."""

    lite_topic: str
    consumer_group: str
    client_id: str


class ParentTopicHeader(Header, kw_only=True):
    """Request 200075."""

    topic: str


class LiteTopicHeader(Header, kw_only=True):
    """Request 200076."""

    parent_topic: str
    lite_topic: str


class LiteClientHeader(Header, kw_only=True):
    """Request 200077."""

    parent_topic: str
    group: str
    client_id: str
    max_count: Int = 1000
    """Lite topics to return at most."""


class LiteGroupHeader(Header, kw_only=True):
    """Request 200078."""

    group: str
    lite_topic: str | None = None
    """The lite topic; all if empty."""
    top_k: Int = 20
    """Lite topics to return at most."""


class LiteDispatchHeader(Header, kw_only=True):
    """Request 200079."""

    group: str
    client_id: str | None = None
    """The client; all of the group if empty."""


class ResetMasterFlushOffsetHeader(Header, kw_only=True):
    """Request 908."""

    master_flush_offset: Long


class ExchangeHaInfoHeader(Header, kw_only=True):
    """Request 906; without fields it asks a master."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


class ExchangeHaInfoReplyHeader(ExchangeHaInfoHeader, kw_only=True):
    """Reply to 906."""


# --- users and rules (5.3) --------------------------------------------------------


class UserHeader(Header, kw_only=True):
    """Request 3001 to 3004."""

    username: str | None = None


class UserFilterHeader(Header, kw_only=True):
    """Request 3005."""

    filter: str | None = None
    """Part of the names of users; all if empty."""


class SubjectHeader(Header, kw_only=True):
    """Request 3006, 3007, 3009."""

    subject: str | None = None


class DeleteAclHeader(Header, kw_only=True):
    """Request 3008."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None
    """Resource whose rule is removed; all rules if empty."""


class AclFilterHeader(Header, kw_only=True):
    """Request 3010."""

    subject_filter: str | None = None
    resource_filter: str | None = None
