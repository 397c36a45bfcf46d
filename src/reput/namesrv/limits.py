"""Limits of a name server: brokers, topics, shared settings."""

from reput.format.codes import ResponseCode
from reput.limits import MIB, declare

# --- name servers ----------------------------------------------------------------------------

NAMESRV_NAME_LETTERS = declare(
    "namesrv_name_letters",
    "name of a topic, broker, cluster, address or key at a name server",
    512,
    "characters",
)
NAMESRV_BROKERS = declare(
    "namesrv_brokers",
    "broker names, or addresses of brokers, at a name server",
    10_000,
    option="reputBrokersMax",
    scope="server",
)
NAMESRV_NOTICES = declare(
    "namesrv_notices", "notices of a name server that wait for brokers", 1_000, scope="server"
)
NAMESRV_BROKERS_PER_CONNECTION = declare(
    "namesrv_brokers_per_connection",
    "brokers registered over one connection",
    256,
    scope="connection",
)
NAMESRV_BROKER_IDS = declare("namesrv_broker_ids", "addresses of one broker name", 256)
NAMESRV_BROKER_CLUSTERS = declare("namesrv_broker_clusters", "clusters of one broker name", 4)
NAMESRV_ADDRESS_BROKERS = declare(
    "namesrv_address_brokers", "broker names registered at one address", 16
)
NAMESRV_FILTER_SERVERS = declare("namesrv_filter_servers", "filter servers of a broker", 16)
NAMESRV_TOPICS = declare(
    "namesrv_topics",
    "topics at a name server",
    300_000,
    option="reputRoutedTopicsMax",
    scope="server",
)
NAMESRV_QUEUES = declare(
    "namesrv_queues",
    "topics of all brokers at a name server, each counted once per broker",
    1_000_000,
    option="reputRoutedQueuesMax",
    scope="server",
)
NAMESRV_TOPIC_BYTES = declare(
    "namesrv_topic_bytes",
    "names of all topics at a name server",
    32 * MIB,
    "bytes",
    scope="server",
)
ROUTE_BROKERS = declare("route_brokers", "brokers in the registration of one topic", 1_000)
KV_TABLE_BYTES = declare(
    "kv_table_bytes",
    "shared settings of a name server",
    MIB,
    "bytes",
    option="reputKvBytesMax",
    scope="server",
)
KV_KEYS = declare("kv_keys", "keys of a name server's shared settings", 20_000, scope="server")
KV_CHANGES_WAITING = declare(
    "kv_changes_waiting",
    "changes of a name server's shared settings that wait for the disk",
    1_000,
    scope="server",
    response_code=ResponseCode.SYSTEM_BUSY,
)
