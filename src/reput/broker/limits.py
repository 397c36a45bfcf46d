"""Limits of a broker: topics, groups, clients, held requests, replication."""

from reput.format.codes import ResponseCode
from reput.limits import KIB, MIB, declare

# --- sends -----------------------------------------------------------------------------------

WAITING_PUTS = declare(
    "waiting_puts",
    "messages that wait for the disk before they are acknowledged",
    20_000,
    scope="server",
    response_code=ResponseCode.SYSTEM_BUSY,
)

# --- names -----------------------------------------------------------------------------------

TOPIC_NAME_LETTERS = declare("topic_name_letters", "name of a topic", 127, "characters")
GROUP_NAME_LETTERS = declare(
    "group_name_letters",
    "name of a group",
    255,
    "characters",
    response_code=ResponseCode.INVALID_PARAMETER,
)
SUBSCRIBED_TOPIC_LETTERS = declare(
    "subscribed_topic_letters", "name of a topic that is consumed", 263, "characters"
)
BROKER_NAME_LETTERS = declare("broker_name_letters", "name of a broker", 255, "characters")
CLIENT_ID_BYTES = declare("client_id_bytes", "client id", KIB, "bytes")

# --- topics and groups -----------------------------------------------------------------------

TOPICS = declare("topics", "topics of a broker", 200_000, option="reputTopicsMax", scope="server")
AUTO_CREATED_TOPICS = declare(
    "auto_created_topics",
    "topics of a broker, before another one is created automatically",
    100_000,
    option="reputAutoCreatedTopicsMax",
    scope="server",
)
AUTO_CREATED_TOPICS_PER_ADDRESS = declare(
    "auto_created_topics_per_address",
    "topics created automatically for one address since the start",
    10_000,
    option="reputAutoCreatedTopicsPerAddressMax",
    scope="address",
)
QUEUES = declare(
    "queues",
    "queues of all topics of a broker",
    2_000_000,
    option="reputQueuesMax",
    scope="server",
)
LISTED_TOPICS = declare("listed_topics", "topics in a list to create", 20_000)
ATTRIBUTES = declare("attributes", "attributes of a topic or group that a request changes", 64)
ATTRIBUTE_BYTES = declare("attribute_bytes", "value of an attribute", KIB, "bytes")
GROUPS = declare("groups", "groups of a broker", 200_000, option="reputGroupsMax", scope="server")
AUTO_CREATED_GROUPS = declare(
    "auto_created_groups",
    "groups of a broker, before another one is created automatically",
    100_000,
    option="reputAutoCreatedGroupsMax",
    scope="server",
)
AUTO_CREATED_GROUPS_PER_ADDRESS = declare(
    "auto_created_groups_per_address",
    "groups created automatically for one address since the start",
    10_000,
    option="reputAutoCreatedGroupsPerAddressMax",
    scope="address",
)
GROUP_RETRY_QUEUES = declare("group_retry_queues", "retryQueueNums of a group", 1_024)
LISTED_GROUPS = declare("listed_groups", "groups in a list to create", 20_000)
GROUP_SETTINGS_BYTES = declare(
    "group_settings_bytes",
    "retry policy, subscriptions and attributes of a group's settings",
    64 * KIB,
    "bytes",
)
ALL_GROUP_SETTINGS_BYTES = declare(
    "all_group_settings_bytes",
    "retry policies, subscriptions and attributes of the settings of all groups",
    16 * MIB,
    "bytes",
    scope="server",
)
FORBIDDEN_TOPICS = declare(
    "forbidden_topics", "topics that groups are forbidden to read", 5_000, scope="server"
)
STATS_SERIES = declare(
    "stats_series",
    "counters of topics, groups and queues; further ones are only in the totals",
    100_000,
    option="reputStatsSeriesMax",
    scope="server",
)
ORDERED_QUEUES = declare(
    "ordered_queues", "queues whose messages groups hold in order", 100_000, scope="server"
)
REQUEST_MODES = declare(
    "request_modes", "consume modes of groups for topics", 10_000, scope="server"
)
RESET_OFFSETS = declare(
    "reset_offsets",
    "queues with a reset offset that were not pulled since",
    200_000,
    scope="server",
)
CONSUMER_OFFSETS = declare(
    "consumer_offsets",
    "consumer offsets of a broker",
    1_000_000,
    option="reputConsumerOffsetsMax",
    scope="server",
)
CONSUMER_OFFSETS_PER_ADDRESS = declare(
    "consumer_offsets_per_address",
    "consumer offsets added by one address since the start",
    250_000,
    option="reputConsumerOffsetsPerAddressMax",
    scope="address",
)

# --- heartbeats and subscriptions ------------------------------------------------------------

HEARTBEAT_GROUPS = declare("heartbeat_groups", "groups in a heartbeat", 1_000)
HEARTBEAT_SUBSCRIPTIONS = declare("heartbeat_subscriptions", "subscriptions in a heartbeat", 10_000)
CONNECTION_GROUPS = declare(
    "connection_groups",
    "producer and consumer groups of a connection",
    2_000,
    option="reputConnectionGroupsMax",
    scope="connection",
)
MEMBERSHIPS = declare(
    "memberships",
    "memberships of connections in groups",
    200_000,
    option="reputMembershipsMax",
    scope="server",
)
MEMBERSHIPS_PER_ADDRESS = declare(
    "memberships_per_address",
    "memberships of connections in groups, of one address",
    100_000,
    option="reputMembershipsPerAddressMax",
    scope="address",
)
GROUP_MEMBERS = declare(
    "group_members", "members of a group", 20_000, option="reputGroupMembersMax", scope="server"
)
ALL_SUBSCRIPTION_BYTES = declare(
    "all_subscription_bytes",
    "subscriptions of all groups with members",
    64 * MIB,
    "bytes",
    option="reputSubscriptionBytesMax",
    scope="server",
)
CONSUMER_FILTERS = declare(
    "consumer_filters",
    "SQL92 filters of all groups, including groups that left in the last day",
    10_000,
    scope="server",
)
CONSUMER_FILTER_BYTES = declare(
    "consumer_filter_bytes", "SQL92 filters of all groups", 4 * MIB, "bytes", scope="server"
)
LOCK_QUEUES = declare("lock_queues", "queues in a request to lock or unlock", 20_000)
LOCKS_PER_GROUP = declare(
    "locks_per_group", "queues that a group has locked", 100_000, scope="server"
)
LOCKS = declare(
    "locks",
    "queues that groups have locked",
    200_000,
    option="reputLocksMax",
    scope="server",
)
LOCKS_PER_ADDRESS = declare(
    "locks_per_address", "queues that one address has locked", 100_000, scope="address"
)
HELD_PER_CONNECTION = declare(
    "held_per_connection",
    "held pulls, or pops, of a connection",
    20_000,
    option="reputHeldPerConnectionMax",
    scope="connection",
)
HELD_PER_ADDRESS = declare(
    "held_per_address",
    "held pulls, or pops, of an address",
    50_000,
    option="reputHeldPerAddressMax",
    scope="address",
)
HELD_BYTES = declare(
    "held_bytes",
    "tags and filters of held pulls, or pops; further ones are answered at once",
    128 * MIB,
    "bytes",
    scope="server",
)
ASSIGNMENTS_ASKED = declare(
    "assignments_asked",
    "requests for the queues of members that wait for a name server",
    10_000,
    scope="server",
    response_code=ResponseCode.SYSTEM_BUSY,
)
SUBSCRIPTION_BYTES = declare(
    "subscription_bytes",
    "subscription by tags",
    64 * KIB,
    "bytes",
    response_code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
)
SUBSCRIPTION_TAGS = declare(
    "subscription_tags",
    "tags of a subscription",
    2_000,
    response_code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
)

# --- deletions and members -------------------------------------------------------------------

WAITING_DELETIONS = declare(
    "waiting_deletions",
    "deletions of topics that wait for earlier ones",
    1_000,
    scope="server",
)
ASKED_MEMBERS = declare(
    "asked_members", "members of a group that one request is sent to; clientAddr selects one", 1_000
)

# --- name servers ----------------------------------------------------------------------------

NAME_SERVERS = declare("name_servers", "name servers that a broker registers with", 32)

# --- replication -----------------------------------------------------------------------------

HA_UNREPORTED = declare(
    "ha_unreported", "connections to the port for slaves without a report", 64, scope="server"
)
HA_UNREPORTED_PER_ADDRESS = declare(
    "ha_unreported_per_address",
    "connections from one address to the port for slaves, without a report",
    16,
    scope="address",
)
HA_SLAVES = declare("ha_slaves", "slaves of a master", 64, scope="server")
HA_SLAVES_PER_ADDRESS = declare(
    "ha_slaves_per_address", "slaves of a master with one address", 16, scope="address"
)

# --- queries by key --------------------------------------------------------------------------

QUERY_KEY_LETTERS = declare(
    "query_key_letters",
    "key of a query",
    32_767,
    "characters",
    response_code=ResponseCode.QUERY_NOT_FOUND,
)

# --- acknowledgements ------------------------------------------------------------------------

ACK_BODY_BYTES = declare("ack_body_bytes", "body of a batch of acknowledgements", MIB, "bytes")

# --- users and rules -------------------------------------------------------------------------

USERS = declare("users", "users of a broker", 10_000, scope="server")
USER_NAME_LETTERS = declare(
    "user_name_letters",
    "name of a user",
    255,
    "characters",
    response_code=ResponseCode.INVALID_PARAMETER,
)
PASSWORD_LETTERS = declare(
    "password_letters",
    "password of a user",
    KIB,
    "characters",
    response_code=ResponseCode.INVALID_PARAMETER,
)
USER_RULES = declare("user_rules", "rules of a user", 1_000, scope="server")
RESOURCE_LETTERS = declare(
    "resource_letters",
    "resource of a rule",
    512,
    "characters",
    response_code=ResponseCode.INVALID_PARAMETER,
)

# --- the timer -------------------------------------------------------------------------------

RECALLS = declare(
    "recalls",
    "recalls that wait for the delivery time of their messages",
    200_000,
    scope="server",
)
RECALLED_KEY_BYTES = declare(
    "recalled_key_bytes",
    "unique key of a recalled message",
    512,
    "bytes",
    response_code=ResponseCode.MESSAGE_ILLEGAL,
)

# --- pops ------------------------------------------------------------------------------------

POP_INVISIBLE_MS = declare(
    "pop_invisible_ms",
    "invisibleTime of a pop, or of its change; a start reads checkpoints from the first open one",
    3 * 24 * 3_600_000,
    "ms",
    response_code=ResponseCode.INVALID_PARAMETER,
)
LITE_SUBSCRIPTIONS = declare(
    "lite_subscriptions",
    "subscriptions of clients to lite topics",
    100_000,
    option="maxLiteSubscriptionCount",
    scope="server",
    response_code=ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
)
LITE_CLIENTS = declare(
    "lite_clients", "clients with subscriptions to lite topics", 20_000, scope="server"
)
LITE_TOPIC_LETTERS = declare(
    "lite_topic_letters",
    "name of a lite topic",
    64,
    "letters",
    response_code=ResponseCode.MESSAGE_ILLEGAL,
)
POP_RETRY_TOPIC_LETTERS = declare(
    "pop_retry_topic_letters",
    "retry topic of a group and a topic: both names, and nine characters",
    255,
    "characters",
    response_code=ResponseCode.INVALID_PARAMETER,
)
POP_ATTEMPT_LETTERS = declare(
    "pop_attempt_letters",
    "attemptId of an ordered pop",
    255,
    "characters",
    response_code=ResponseCode.INVALID_PARAMETER,
)
