"""Every limit of requests, connections and clients, in one table.

    LIMITS   name -> Limit: the limited quantity, the default maximum, the option that changes it

A limit is checked as soon as the value is available, before any work is done. A value over the
limit is refused with ``LimitExceeded``: the text contains the limit, the value and the maximum.
Servers count refusals by limit; ``/metrics`` shows them as ``reput_limit_refusals_total``.
Reference: docs/reference/limits.md, compared with this table by a test.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace

from reput.errors import LimitExceeded

SYSTEM_ERROR = 1
SYSTEM_BUSY = 2
MESSAGE_ILLEGAL = 13
QUERY_NOT_FOUND = 22
SUBSCRIPTION_PARSE_FAILED = 23
INVALID_PARAMETER = 29
LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 2018

KIB = 1024
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limit:
    """A maximum, with the error message of its refusals."""

    name: str
    """Label of its metric, and key of its row in the reference."""
    subject: str
    """The limited quantity, as a noun phrase: ``groups in a heartbeat``."""
    maximum: int
    """Largest allowed value; the default if there is an option."""
    unit: str = ""
    """Unit such as ``bytes``; empty for a count."""
    option: str = ""
    """Key of broker.conf and namesrv.conf that changes the limit; empty if it is fixed."""
    scope: str = "request"
    """Scope of the maximum: ``request``, ``connection``, ``address`` or ``server``."""
    response_code: int = SYSTEM_ERROR
    """Response code of a refusal."""

    def check(self, value: int, place: str = "") -> None:
        """Refuse a value over the maximum.

        Args:
            value: The counted or measured value.
            place: Name or address of the object, for the error message.

        Raises:
            LimitExceeded: The value is over the maximum.
        """
        if value > self.maximum:
            raise self.exceeded(value, place)

    def check_count(self, value: int, place: str = "") -> None:
        """Refuse a count over the maximum, or below 0. Raises ``LimitExceeded``."""
        if not 0 <= value <= self.maximum:
            raise self.exceeded(value, place)

    def exceeded(self, value: int | None = None, place: str = "") -> LimitExceeded:
        """Return the error that refuses a value; None if only the excess is known."""
        unit = f" {self.unit}" if self.unit else ""
        amount = f"more than {self.maximum}{unit}" if value is None else f"{value}{unit}"
        location = f" ({place})" if place else ""
        change = f"; {self.option} changes it" if self.option else ""
        return LimitExceeded(
            self.name,
            f"{self.subject}{location}: {amount}; allowed: at most {self.maximum}{unit}, "
            f"limit {self.name}{change}",
            self.response_code,
        )

    def at(self, maximum: int) -> "Limit":
        """Return the limit with a configured maximum."""
        return replace(self, maximum=maximum)

    def configured(self, settings: object) -> "Limit":
        """Return the limit with the maximum of its option in settings."""
        field = re.sub(r"([A-Z])", r"_\1", self.option).lower()
        return self.at(getattr(settings, field))


class Refusals:
    """Counts of refusals, by name of the limit."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Count refusals of a limit."""
        self.counts[name] += count


# --- text and JSON -----------------------------------------------------------------------------

BODY_BYTES = Limit("body_bytes", "JSON body of a request", 4 * MIB, "bytes")
LENIENT_JSON_BYTES = Limit(
    "lenient_json_bytes",
    "body of a request in fastjson's dialect, which is not standard JSON",
    128 * KIB,
    "bytes",
)
LENIENT_REPLY_BYTES = Limit(
    "lenient_reply_bytes",
    "body of a reply in fastjson's dialect, which is not standard JSON",
    32 * MIB,
    "bytes",
)
LENIENT_CLIENT_BYTES = Limit(
    "lenient_client_bytes",
    "the same, of a reply that producers, consumers and the proxy wait for",
    512 * KIB,
    "bytes",
)
HEADER_FIELDS = Limit("header_fields", "fields in a header", 1_000)
HEADER_BYTES = Limit("header_bytes", "header of a request", 256 * KIB, "bytes")
PROTOBUF_FIELDS = Limit("protobuf_fields", "fields in a message of a gRPC call", 30_000)

# --- connections -------------------------------------------------------------------------------

CONNECTIONS = Limit(
    "connections", "connections", 10_000, option="reputConnectionsMax", scope="server"
)
CONNECTIONS_PER_ADDRESS = Limit(
    "connections_per_address",
    "connections from one address",
    5_000,
    option="reputConnectionsPerAddressMax",
    scope="address",
)
UNFINISHED_FRAME_MS = Limit(
    "unfinished_frame_ms",
    "time from the first to the last byte of a frame",
    120_000,
    "ms",
    scope="connection",
)
UNFINISHED_BYTES = Limit(
    "unfinished_bytes",
    "bytes of incomplete frames and TLS handshakes, of all connections",
    128 * MIB,
    "bytes",
    option="reputUnfinishedBytesMax",
    scope="server",
)
UNFINISHED_BYTES_PER_ADDRESS = Limit(
    "unfinished_bytes_per_address",
    "bytes of incomplete frames and TLS handshakes, of one address",
    64 * MIB,
    "bytes",
    option="reputUnfinishedBytesPerAddressMax",
    scope="address",
)
UNREAD_BYTES = Limit(
    "unread_bytes",
    "unread and half-made replies, of all connections",
    128 * MIB,
    "bytes",
    option="reputUnreadBytesMax",
    scope="server",
    response_code=SYSTEM_BUSY,
)
UNREAD_BYTES_PER_ADDRESS = Limit(
    "unread_bytes_per_address",
    "unread and half-made replies, of one address",
    64 * MIB,
    "bytes",
    option="reputUnreadBytesPerAddressMax",
    scope="address",
    response_code=SYSTEM_BUSY,
)
UNREAD_BYTES_PER_CONNECTION = Limit(
    "unread_bytes_per_connection",
    "unread replies of a connection, before another one",
    8 * MIB,
    "bytes",
    scope="connection",
)
UNREAD_NOTICE_BYTES = Limit(
    "unread_notice_bytes",
    "unread bytes of a connection, before a request or notice is sent to the client",
    MIB,
    "bytes",
    scope="connection",
    response_code=SYSTEM_BUSY,
)

TLS_HANDSHAKE_MS = Limit(
    "tls_handshake_ms",
    "time from the first byte to the end of a TLS handshake",
    10_000,
    "ms",
    scope="connection",
)
TLS_HANDSHAKE_BYTES = Limit(
    "tls_handshake_bytes", "bytes of a TLS handshake", 64 * KIB, "bytes", scope="connection"
)
PROXY_HEADER_MS = Limit(
    "proxy_header_ms",
    "time from the first byte to the end of a PROXY header",
    10_000,
    "ms",
    scope="connection",
)
PROXY_HEADER_BYTES = Limit(
    "proxy_header_bytes", "bytes of a PROXY header", 536, "bytes", scope="connection"
)

WAITING_PUTS = Limit(
    "waiting_puts",
    "messages that wait for the disk before they are acknowledged",
    20_000,
    scope="server",
    response_code=SYSTEM_BUSY,
)
PUSHED_BYTES = Limit(
    "pushed_bytes",
    "messages and replies sent to clients that have not responded yet",
    64 * MIB,
    "bytes",
    scope="server",
    response_code=SYSTEM_BUSY,
)

# --- names -------------------------------------------------------------------------------------

TOPIC_NAME_LETTERS = Limit("topic_name_letters", "name of a topic", 127, "characters")
GROUP_NAME_LETTERS = Limit(
    "group_name_letters", "name of a group", 255, "characters", response_code=INVALID_PARAMETER
)
SUBSCRIBED_TOPIC_LETTERS = Limit(
    "subscribed_topic_letters", "name of a topic that is consumed", 263, "characters"
)
BROKER_NAME_LETTERS = Limit("broker_name_letters", "name of a broker", 255, "characters")
CLIENT_ID_BYTES = Limit("client_id_bytes", "client id", KIB, "bytes")

# --- topics and groups -------------------------------------------------------------------------

TOPICS = Limit("topics", "topics of a broker", 200_000, option="reputTopicsMax", scope="server")
AUTO_CREATED_TOPICS = Limit(
    "auto_created_topics",
    "topics of a broker, before another one is created automatically",
    100_000,
    option="reputAutoCreatedTopicsMax",
    scope="server",
)
AUTO_CREATED_TOPICS_PER_ADDRESS = Limit(
    "auto_created_topics_per_address",
    "topics created automatically for one address since the start",
    10_000,
    option="reputAutoCreatedTopicsPerAddressMax",
    scope="address",
)
TOPIC_QUEUES = Limit("topic_queues", "queues of a topic", 65_535)
QUEUES = Limit(
    "queues",
    "queues of all topics of a broker",
    2_000_000,
    option="reputQueuesMax",
    scope="server",
)
LISTED_TOPICS = Limit("listed_topics", "topics in a list to create", 20_000)
ATTRIBUTES = Limit("attributes", "attributes of a topic or group that a request changes", 64)
ATTRIBUTE_BYTES = Limit("attribute_bytes", "value of an attribute", KIB, "bytes")
GROUPS = Limit("groups", "groups of a broker", 200_000, option="reputGroupsMax", scope="server")
AUTO_CREATED_GROUPS = Limit(
    "auto_created_groups",
    "groups of a broker, before another one is created automatically",
    100_000,
    option="reputAutoCreatedGroupsMax",
    scope="server",
)
AUTO_CREATED_GROUPS_PER_ADDRESS = Limit(
    "auto_created_groups_per_address",
    "groups created automatically for one address since the start",
    10_000,
    option="reputAutoCreatedGroupsPerAddressMax",
    scope="address",
)
GROUP_RETRY_QUEUES = Limit("group_retry_queues", "retryQueueNums of a group", 1_024)
LISTED_GROUPS = Limit("listed_groups", "groups in a list to create", 20_000)
GROUP_SETTINGS_BYTES = Limit(
    "group_settings_bytes",
    "retry policy, subscriptions and attributes of a group's settings",
    64 * KIB,
    "bytes",
)
ALL_GROUP_SETTINGS_BYTES = Limit(
    "all_group_settings_bytes",
    "retry policies, subscriptions and attributes of the settings of all groups",
    16 * MIB,
    "bytes",
    scope="server",
)
FORBIDDEN_TOPICS = Limit(
    "forbidden_topics", "topics that groups are forbidden to read", 5_000, scope="server"
)
STATS_SERIES = Limit(
    "stats_series",
    "counters of topics, groups and queues; further ones are only in the totals",
    100_000,
    option="reputStatsSeriesMax",
    scope="server",
)
ORDERED_QUEUES = Limit(
    "ordered_queues", "queues whose messages groups hold in order", 100_000, scope="server"
)
REQUEST_MODES = Limit("request_modes", "consume modes of groups for topics", 10_000, scope="server")
RESET_OFFSETS = Limit(
    "reset_offsets",
    "queues with a reset offset that were not pulled since",
    200_000,
    scope="server",
)
CONSUMER_OFFSETS = Limit(
    "consumer_offsets",
    "consumer offsets of a broker",
    1_000_000,
    option="reputConsumerOffsetsMax",
    scope="server",
)
CONSUMER_OFFSETS_PER_ADDRESS = Limit(
    "consumer_offsets_per_address",
    "consumer offsets added by one address since the start",
    250_000,
    option="reputConsumerOffsetsPerAddressMax",
    scope="address",
)

# --- heartbeats and subscriptions --------------------------------------------------------------

HEARTBEAT_GROUPS = Limit("heartbeat_groups", "groups in a heartbeat", 1_000)
HEARTBEAT_SUBSCRIPTIONS = Limit("heartbeat_subscriptions", "subscriptions in a heartbeat", 10_000)
CONNECTION_GROUPS = Limit(
    "connection_groups",
    "producer and consumer groups of a connection",
    2_000,
    option="reputConnectionGroupsMax",
    scope="connection",
)
MEMBERSHIPS = Limit(
    "memberships",
    "memberships of connections in groups",
    200_000,
    option="reputMembershipsMax",
    scope="server",
)
MEMBERSHIPS_PER_ADDRESS = Limit(
    "memberships_per_address",
    "memberships of connections in groups, of one address",
    100_000,
    option="reputMembershipsPerAddressMax",
    scope="address",
)
GROUP_MEMBERS = Limit(
    "group_members", "members of a group", 20_000, option="reputGroupMembersMax", scope="server"
)
ALL_SUBSCRIPTION_BYTES = Limit(
    "all_subscription_bytes",
    "subscriptions of all groups with members",
    64 * MIB,
    "bytes",
    option="reputSubscriptionBytesMax",
    scope="server",
)
CONSUMER_FILTERS = Limit(
    "consumer_filters",
    "SQL92 filters of all groups, including groups that left in the last day",
    10_000,
    scope="server",
)
CONSUMER_FILTER_BYTES = Limit(
    "consumer_filter_bytes", "SQL92 filters of all groups", 4 * MIB, "bytes", scope="server"
)
LOCK_QUEUES = Limit("lock_queues", "queues in a request to lock or unlock", 20_000)
LOCKS_PER_GROUP = Limit(
    "locks_per_group", "queues that a group has locked", 100_000, scope="server"
)
LOCKS = Limit(
    "locks",
    "queues that groups have locked",
    200_000,
    option="reputLocksMax",
    scope="server",
)
LOCKS_PER_ADDRESS = Limit(
    "locks_per_address", "queues that one address has locked", 100_000, scope="address"
)
HELD_PER_CONNECTION = Limit(
    "held_per_connection",
    "held pulls, or pops, of a connection",
    20_000,
    option="reputHeldPerConnectionMax",
    scope="connection",
)
HELD_PER_ADDRESS = Limit(
    "held_per_address",
    "held pulls, or pops, of an address",
    50_000,
    option="reputHeldPerAddressMax",
    scope="address",
)
HELD_BYTES = Limit(
    "held_bytes",
    "tags and filters of held pulls, or pops; further ones are answered at once",
    128 * MIB,
    "bytes",
    scope="server",
)
ASSIGNMENTS_ASKED = Limit(
    "assignments_asked",
    "requests for the queues of members that wait for a name server",
    10_000,
    scope="server",
    response_code=SYSTEM_BUSY,
)
SUBSCRIPTION_BYTES = Limit(
    "subscription_bytes",
    "subscription by tags",
    64 * KIB,
    "bytes",
    response_code=SUBSCRIPTION_PARSE_FAILED,
)
SUBSCRIPTION_TAGS = Limit(
    "subscription_tags",
    "tags of a subscription",
    2_000,
    response_code=SUBSCRIPTION_PARSE_FAILED,
)
FILTER_BYTES = Limit(
    "filter_bytes",
    "SQL92 filter",
    16 * KIB,
    "bytes",
    response_code=SUBSCRIPTION_PARSE_FAILED,
)
FILTER_NODES = Limit(
    "filter_nodes",
    "tokens of an SQL92 filter, without the values of lists",
    1_200,
    response_code=SUBSCRIPTION_PARSE_FAILED,
)

# --- replies -----------------------------------------------------------------------------------

REPLY_BYTES = Limit("reply_bytes", "body of a reply", 16 * MIB - 64 * KIB, "bytes")
WAITING_DELETIONS = Limit(
    "waiting_deletions",
    "deletions of topics that wait for earlier ones",
    1_000,
    scope="server",
)
WAITING_SETTINGS = Limit(
    "waiting_settings",
    "changes of settings that wait for earlier ones",
    100,
    scope="server",
)
ASKED_MEMBERS = Limit(
    "asked_members", "members of a group that one request is sent to; clientAddr selects one", 1_000
)

# --- name servers ------------------------------------------------------------------------------

NAME_SERVERS = Limit("name_servers", "name servers that a broker registers with", 32)
SETTINGS_BYTES = Limit("settings_bytes", "text of changed settings", 64 * KIB, "bytes")
NAMESRV_NAME_LETTERS = Limit(
    "namesrv_name_letters",
    "name of a topic, broker, cluster, address or key at a name server",
    512,
    "characters",
)
NAMESRV_BROKERS = Limit(
    "namesrv_brokers",
    "broker names, or addresses of brokers, at a name server",
    10_000,
    option="reputBrokersMax",
    scope="server",
)
NAMESRV_BROKERS_PER_CONNECTION = Limit(
    "namesrv_brokers_per_connection",
    "brokers registered over one connection",
    256,
    scope="connection",
)
NAMESRV_BROKER_IDS = Limit("namesrv_broker_ids", "addresses of one broker name", 256)
NAMESRV_BROKER_CLUSTERS = Limit("namesrv_broker_clusters", "clusters of one broker name", 4)
NAMESRV_ADDRESS_BROKERS = Limit(
    "namesrv_address_brokers", "broker names registered at one address", 16
)
NAMESRV_FILTER_SERVERS = Limit("namesrv_filter_servers", "filter servers of a broker", 16)
REGISTRATION_BYTES = Limit(
    "registration_bytes", "registration after decompression", 64 * MIB, "bytes"
)
REGISTRATION_PART_BYTES = Limit(
    "registration_part_bytes",
    "one topic, the filter servers or the version in a registration",
    16 * KIB,
    "bytes",
)
REGISTRATION_TOPICS = Limit("registration_topics", "topics in a registration", 250_000)
NAMESRV_TOPICS = Limit(
    "namesrv_topics",
    "topics at a name server",
    300_000,
    option="reputRoutedTopicsMax",
    scope="server",
)
NAMESRV_QUEUES = Limit(
    "namesrv_queues",
    "topics of all brokers at a name server, each counted once per broker",
    1_000_000,
    option="reputRoutedQueuesMax",
    scope="server",
)
NAMESRV_TOPIC_BYTES = Limit(
    "namesrv_topic_bytes",
    "names of all topics at a name server",
    32 * MIB,
    "bytes",
    scope="server",
)
ROUTE_BROKERS = Limit("route_brokers", "brokers in the registration of one topic", 1_000)
KV_TABLE_BYTES = Limit(
    "kv_table_bytes",
    "shared settings of a name server",
    MIB,
    "bytes",
    option="reputKvBytesMax",
    scope="server",
)
KV_KEYS = Limit("kv_keys", "keys of a name server's shared settings", 20_000, scope="server")
KV_CHANGES_WAITING = Limit(
    "kv_changes_waiting",
    "changes of a name server's shared settings that wait for the disk",
    1_000,
    scope="server",
    response_code=SYSTEM_BUSY,
)

# --- clients -----------------------------------------------------------------------------------

ROUTE_QUEUES = Limit(
    "route_queues", "queues of a topic on all its brokers, in the reply of a name server", 200_000
)
LIVE_PARTITIONS = Limit(
    "live_partitions", "partitions of a read from brokers, by the ends that these report", 200_000
)

# --- replication -------------------------------------------------------------------------------

HA_UNREPORTED = Limit(
    "ha_unreported", "connections to the port for slaves without a report", 64, scope="server"
)
HA_UNREPORTED_PER_ADDRESS = Limit(
    "ha_unreported_per_address",
    "connections from one address to the port for slaves, without a report",
    16,
    scope="address",
)
HA_SLAVES = Limit("ha_slaves", "slaves of a master", 64, scope="server")
HA_SLAVES_PER_ADDRESS = Limit(
    "ha_slaves_per_address", "slaves of a master with one address", 16, scope="address"
)

# --- metrics over HTTP -------------------------------------------------------------------------

HTTP_CONNECTIONS = Limit(
    "http_connections",
    "connections to the port of /metrics and /health",
    64,
    scope="server",
)
HTTP_REQUEST_BYTES = Limit("http_request_bytes", "request over HTTP", 8 * KIB, "bytes")
HTTP_REQUEST_MS = Limit("http_request_ms", "time for a request over HTTP to arrive", 5_000, "ms")

# --- HTTP/2 and gRPC ---------------------------------------------------------------------------

HTTP2_PREFACE_MS = Limit(
    "http2_preface_ms",
    "time for the first frames of an HTTP/2 connection to arrive",
    10_000,
    "ms",
    scope="connection",
)
HTTP2_STREAMS = Limit("http2_streams", "open calls of a connection", 20_000, scope="connection")
HTTP2_HEADER_BYTES = Limit(
    "http2_header_bytes",
    "headers of a call, and their header block, which is compressed",
    16 * KIB,
    "bytes",
)
HTTP2_HEADER_FIELDS = Limit("http2_header_fields", "headers of a call", 128)
HTTP2_CONTINUATIONS = Limit("http2_continuations", "CONTINUATION frames of a header block", 8)
HTTP2_CONTROL_FRAMES = Limit(
    "http2_control_frames",
    "PING and GOAWAY frames in a second, without a call or data in between",
    100,
    scope="connection",
)
HTTP2_SETTINGS = Limit("http2_settings", "SETTINGS frames in a second", 20, scope="connection")
HTTP2_EMPTY_FRAMES = Limit(
    "http2_empty_frames",
    "frames without data in a second, such as WINDOW_UPDATE, without a call or data in between",
    10_000,
    scope="connection",
)
HTTP2_RESETS = Limit(
    "http2_resets",
    "calls that are reset within a second of their begin, in a second",
    500,
    scope="connection",
)
HTTP2_KEPT_BYTES = Limit(
    "http2_kept_bytes",
    "bytes of open calls and incomplete messages of a connection",
    64 * MIB,
    "bytes",
    scope="connection",
)
HTTP2_UNSENT_BYTES = Limit(
    "http2_unsent_bytes",
    "replies of a connection that its windows do not allow to send, before another call",
    8 * MIB,
    "bytes",
    scope="connection",
)
HTTP2_STALLED_MS = Limit(
    "http2_stalled_ms", "time in which a call reads nothing of its reply", 60_000, "ms"
)
GRPC_MESSAGE_BYTES = Limit("grpc_message_bytes", "message of a gRPC call", 16 * MIB, "bytes")
GRPC_INFLATED_BYTES = Limit(
    "grpc_inflated_bytes",
    "compressed message of a gRPC call, after decompression",
    8 * MIB,
    "bytes",
)
GRPC_WORKED_ON_BYTES = Limit(
    "grpc_worked_on_bytes",
    "messages of unanswered gRPC calls; further ones wait",
    64 * MIB,
    "bytes",
    scope="server",
)
GRPC_WORKED_ON_BYTES_PER_ADDRESS = Limit(
    "grpc_worked_on_bytes_per_address",
    "messages of unanswered gRPC calls of one address; further ones wait",
    32 * MIB,
    "bytes",
    scope="address",
)
GRPC_WORKED_ON_BYTES_PER_CONNECTION = Limit(
    "grpc_worked_on_bytes_per_connection",
    "messages of unanswered gRPC calls of a connection; further ones wait",
    16 * MIB,
    "bytes",
    scope="connection",
)
GRPC_WAITING = Limit(
    "grpc_waiting",
    "calls of a connection that wait for their turn, before more of it is read",
    128,
    scope="connection",
)
GRPC_WAITING_BYTES = Limit(
    "grpc_waiting_bytes",
    "calls of a connection that wait for their turn, before more of it is read",
    4 * MIB,
    "bytes",
    scope="connection",
)
GRPC_SETTINGS_TOPICS = Limit(
    "grpc_settings_topics", "topics, or subscriptions, in the settings of a gRPC client", 1_000
)
GRPC_SETTINGS_BYTES = Limit(
    "grpc_settings_bytes", "texts in the settings of a gRPC client", 256 * KIB, "bytes"
)
GRPC_CLIENTS = Limit("grpc_clients", "clients of gRPC, by their ids", 20_000, scope="server")
GRPC_RENEWED = Limit(
    "grpc_renewed",
    "messages of a client whose invisible time is renewed; further ones are not",
    20_000,
    scope="connection",
)
GRPC_TRANSACTIONS = Limit(
    "grpc_transactions",
    "open transactions whose half messages are remembered; the oldest make room, and are searched",
    20_000,
    scope="server",
)
PROXY_KNOWN = Limit(
    "proxy_known",
    "topics, and groups, that a proxy knows at once; the oldest make room",
    20_000,
    scope="server",
)
GRPC_STREAM_MESSAGES = Limit(
    "grpc_stream_messages", "messages of a gRPC call in a second, to methods that take many", 1_000
)
GRPC_REQUEST_MS = Limit(
    "grpc_request_ms", "time from the first to the last byte of a gRPC request", 120_000, "ms"
)

# --- batches -----------------------------------------------------------------------------------

BATCH_MESSAGES = Limit(
    "batch_messages",
    "messages of a batch",
    64 * KIB,
    response_code=MESSAGE_ILLEGAL,
)

BATCH_KEYS = Limit(
    "batch_keys",
    "words in the properties of a batch, which may be keys",
    250_000,
    response_code=MESSAGE_ILLEGAL,
)

# --- queries by key ----------------------------------------------------------------------------

QUERY_KEY_LETTERS = Limit(
    "query_key_letters",
    "key of a query",
    32_767,
    "characters",
    response_code=QUERY_NOT_FOUND,
)
INDEX_STEPS = Limit(
    "index_steps",
    "index entries that a query examines",
    1_000_000,
    response_code=QUERY_NOT_FOUND,
)

# --- acknowledgements --------------------------------------------------------------------------

ACK_BODY_BYTES = Limit("ack_body_bytes", "body of a batch of acknowledgements", MIB, "bytes")
ACK_SPAN = Limit(
    "ack_span",
    "distance from the start of a checkpoint to its last acknowledged message",
    64 * KIB,
    "messages",
)
ACK_MESSAGES = Limit("ack_messages", "acknowledged messages of a checkpoint", 64)

# --- users and rules ---------------------------------------------------------------------------

USERS = Limit("users", "users of a broker", 10_000, scope="server")
USER_NAME_LETTERS = Limit(
    "user_name_letters",
    "name of a user",
    255,
    "characters",
    response_code=INVALID_PARAMETER,
)
PASSWORD_LETTERS = Limit(
    "password_letters",
    "password of a user",
    KIB,
    "characters",
    response_code=INVALID_PARAMETER,
)
USER_RULES = Limit("user_rules", "rules of a user", 1_000, scope="server")
RESOURCE_LETTERS = Limit(
    "resource_letters",
    "resource of a rule",
    512,
    "characters",
    response_code=INVALID_PARAMETER,
)

# --- the timer ---------------------------------------------------------------------------------

RECALLS = Limit(
    "recalls",
    "recalls that wait for the delivery time of their messages",
    200_000,
    scope="server",
)
RECALLED_KEY_BYTES = Limit(
    "recalled_key_bytes",
    "unique key of a recalled message",
    512,
    "bytes",
    response_code=MESSAGE_ILLEGAL,
)

# --- pops ---------------------------------------------------------------------------------------

POP_INVISIBLE_MS = Limit(
    "pop_invisible_ms",
    "invisibleTime of a pop, or of its change; a start reads checkpoints from the first open one",
    3 * 24 * 3_600_000,
    "ms",
    response_code=INVALID_PARAMETER,
)
LITE_SUBSCRIPTIONS = Limit(
    "lite_subscriptions",
    "subscriptions of clients to lite topics",
    100_000,
    option="maxLiteSubscriptionCount",
    scope="server",
    response_code=LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
)
LITE_CLIENTS = Limit(
    "lite_clients", "clients with subscriptions to lite topics", 20_000, scope="server"
)
LITE_TOPIC_LETTERS = Limit(
    "lite_topic_letters",
    "name of a lite topic",
    64,
    "letters",
    response_code=MESSAGE_ILLEGAL,
)
POP_RETRY_TOPIC_LETTERS = Limit(
    "pop_retry_topic_letters",
    "retry topic of a group and a topic: both names, and nine characters",
    255,
    "characters",
    response_code=INVALID_PARAMETER,
)
POP_ATTEMPT_LETTERS = Limit(
    "pop_attempt_letters",
    "attemptId of an ordered pop",
    255,
    "characters",
    response_code=INVALID_PARAMETER,
)

LIMITS: tuple[Limit, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Limit)
)
"""All limits, in the order of this file."""

_names = [limit.name for limit in LIMITS]
assert len(set(_names)) == len(_names), "two limits share a name"
