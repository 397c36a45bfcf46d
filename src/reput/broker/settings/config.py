"""The broker's settings in broker.conf, with RocketMQ's names and defaults.

The settings of its store are in ``reput.store.config``; one file has both, and ``load`` reads both.
Java has them in ``BrokerConfig``, ``NettyServerConfig`` and ``NettyClientConfig``. Reference:
docs/reference/broker-options.md.
"""

import dataclasses
import enum
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from reput import config
from reput.broker import limits
from reput.broker.settings import exporter
from reput.broker.settings.access import AccessSettings
from reput.broker.settings.exporter import MetricsExporter
from reput.broker.settings.keys import ACCEPTED_WITHOUT_EFFECT, ONLY
from reput.config import JAVA_INT_MAX, JAVA_LONG_MAX, Range
from reput.errors import InvalidOption, InvalidOptions
from reput.format.codes import MASTER_ID, PERM_READ, PERM_WRITE
from reput.format.ip_address import Network
from reput.remote_settings import RemoteSettings
from reput.remoting import limits as of_connections, networks, tls_settings
from reput.remoting.tls_settings import TlsSettings
from reput.store.config import BrokerRole, StoreConfig

Milliseconds = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]
Port = Annotated[int, Range(0, 65535)]

HA_PORT_DISTANCE = 1
"""Distance of the port for slaves from the port for requests, by default."""
FAST_PORT_DISTANCE = 2
"""Distance of the fast port below the port for requests."""


class MessageRequestMode(enum.StrEnum):
    """How a group reads a topic."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig:
    """Names, addresses and limits of a broker.

    Raises:
        InvalidOption: A value is outside its range, or two contradict each other.
    """

    keys: ClassVar[config.Keys] = config.Keys(
        renamed={
            "rocketmq.broker.rebalance.lockMaxLiveTime": "rebalanceLockMaxLiveTime",
            "rocketmq.acl.plain.file": "reputAclFile",
        },
        without_effect=ACCEPTED_WITHOUT_EFFECT,
        only=ONLY,
    )

    # --- identity ----------------------------------------------------------

    broker_cluster_name: str = "DefaultCluster"
    """Name of the cluster; its brokers share the names of their topics."""
    broker_name: str = field(default_factory=socket.gethostname)
    """Name of the broker; master and slaves with the same name have the same messages."""
    broker_id: Annotated[int, Range(-1, JAVA_LONG_MAX)] = MASTER_ID
    """Id of the broker; 0 is the master, whose other ids have no effect. Slaves have 1 or more;
    -1 with enableControllerMode, where the controller gives ids."""

    # --- addresses ---------------------------------------------------------

    namesrv_addr: str = ""
    """Name servers, ``host:port`` separated by semicolons; if empty, the broker does not register.
    """
    broker_ip1: str = field(default_factory=lambda: own_address())
    """Address in routes; clients must be able to reach it."""
    broker_ip2: str = field(default_factory=lambda: own_address())
    """Address that slaves connect to, with haListenPort."""
    reput_ha_peers: str = ""
    """Networks of the slaves, separated by commas: ``10.0.0.0/24,10.1.0.7``. The port for slaves
    closes connections from others. If empty, it closes none; with access control, all from other
    machines."""
    bind_address: str = "0.0.0.0"
    """Address to listen on."""
    listen_port: Port = 10911
    """Port to listen on; 0 takes any free port."""
    fast_port_enable: bool = True
    """Also listen on ``listenPort - 2``, for all requests except pulls: the VIP channel of clients.
    """
    server_channel_max_idle_time_seconds: Annotated[int, Range(1)] = 120
    """Idle time after which a connection is closed."""
    reput_proxy_protocol_from: str = ""
    """Networks of proxies, separated by commas: connections from there begin with a PROXY header
    (version 1 or 2), and its source is the client's address. If empty, no header is read."""
    register_name_server_period: Annotated[int, Range(1)] = 30_000
    """Interval of registrations, limited to 10 to 60 s; a change is registered at once."""
    register_broker_timeout_mills: Annotated[int, Range(1)] = 24_000
    """Timeout of a registration with a name server (4.x: 6000)."""
    reput_fast_path: bool = True
    """Serve frequent requests in batches, by kernels; false: each by its processor."""
    grpc_server_port: Port = 0
    """Port of 5.x clients, which speak gRPC, plain and with TLS; 0: none. In Java it is a setting
    of the proxy, which this broker needs not."""
    metrics_port: Port = 0
    """HTTP port of /metrics and /health; 0: none."""
    reput_metrics_address: str = "127.0.0.1"
    """Address of that port; 0.0.0.0 gives other machines access."""
    reput_metrics_names: Count = 500
    """Topics, and pairs of topic and group, with separate series; all others share ``_other``."""
    metrics_exporter_type: MetricsExporter = MetricsExporter.DISABLE
    """``PROM``: also serve /metrics under RocketMQ's names, at a separate port."""
    metrics_prom_exporter_port: Port = exporter.PORT
    """HTTP port of those metrics."""
    metrics_prom_exporter_host: str = ""
    """Address of that port; if empty, that of ``bindAddress``: other machines have access."""
    metrics_label: str = ""
    """Further labels of those metrics: ``instance_id:a,uid:b``."""

    # --- controllers ---------------------------------------------------------

    enable_controller_mode: bool = False
    """Let a controller decide which broker of the name is master, whatever brokerRole is."""
    controller_addr: str = ""
    """Controllers, ``host:port`` separated by semicolons."""
    controller_heart_beat_timeout_mills: Annotated[int, Range(1_000, 60_000)] = 3_000
    """Silence in ms after which the controller elects another master (RocketMQ: 10000)."""
    broker_heartbeat_interval: Annotated[int, Range(100, 10_000)] = 1_000
    """Interval of heartbeats to controllers, in ms."""
    broker_election_priority: Annotated[int, Range(0, JAVA_INT_MAX)] = JAVA_INT_MAX
    """Rank: of equal replicas, the one with the smallest value becomes master."""

    # --- access control 1.0 -------------------------------------------------

    acl_enable: bool = False
    """Serve only signed requests of the accounts in conf/plain_acl.yml and conf/acl/*.yml, with
    their permissions."""
    rocketmq_home: str = field(default_factory=lambda: os.environ.get("ROCKETMQ_HOME", ""))
    """Folder with the folder conf of those files; without it ``aclEnable`` is refused."""
    reput_acl_file: str = "conf/plain_acl.yml"
    """Path of the main file in that folder; also under the name ``rocketmq.acl.plain.file``."""
    reput_acl_white_list_skips_signature: bool = True
    """Serve requests from white addresses unchecked, as RocketMQ, except changes of settings and
    accounts; false: a white address is needed besides the signature, if there are any."""

    # --- resources of connections ---------------------------------------------

    reput_connections_max: Count = of_connections.CONNECTIONS.maximum
    """Maximum number of connections; further ones are closed at once."""
    reput_connections_per_address_max: Count = of_connections.CONNECTIONS_PER_ADDRESS.maximum
    """Maximum number of connections from one address."""
    reput_unfinished_bytes_max: Count = of_connections.UNFINISHED_BYTES.maximum
    """Maximum bytes of incomplete frames and handshakes; above it one of the largest is closed."""
    reput_unfinished_bytes_per_address_max: Count = (
        of_connections.UNFINISHED_BYTES_PER_ADDRESS.maximum
    )
    """Maximum bytes of incomplete frames and handshakes on the connections from one address."""
    reput_unread_bytes_max: Count = of_connections.UNREAD_BYTES.maximum
    """Maximum bytes of unread and half-made replies; above it one of the largest is closed."""
    reput_unread_bytes_per_address_max: Count = of_connections.UNREAD_BYTES_PER_ADDRESS.maximum
    """Maximum bytes of unread and half-made replies on the connections from one address."""

    # --- topics and groups ---------------------------------------------------

    broker_permission: Annotated[int, Range(0, 7)] = PERM_READ | PERM_WRITE
    """Permissions of the whole broker: 4 to read, 2 to write."""
    slave_read_enable: bool = False
    """Let consumers that lag far read from a slave."""
    auto_create_topic_enable: bool = True
    """Create a topic when a client sends to it."""
    default_topic_queue_nums: Count = 8
    """Maximum number of queues of such a topic; clients request 4."""
    auto_create_subscription_group: bool = True
    """Create a group when a client consumes with it."""
    cluster_topic_enable: bool = True
    """Create a topic with the name of the cluster."""
    broker_topic_enable: bool = True
    """Create a topic with the name of the broker."""
    trace_topic_enable: bool = False
    """Create the topic for the traces of clients."""
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    """Name of that topic."""
    reput_topics_max: Count = limits.TOPICS.maximum
    """Maximum number of topics."""
    reput_auto_created_topics_max: Count = limits.AUTO_CREATED_TOPICS.maximum
    """Topics above which none is created automatically."""
    reput_auto_created_topics_per_address_max: Count = (
        limits.AUTO_CREATED_TOPICS_PER_ADDRESS.maximum
    )
    """Maximum number of topics that are created automatically for one address, until the next
    start."""
    reput_queues_max: Count = limits.QUEUES.maximum
    """Maximum number of queues of all topics: the read or write queues of each, whichever are more.
    """
    reput_groups_max: Count = limits.GROUPS.maximum
    """Maximum number of groups."""
    reput_auto_created_groups_max: Count = limits.AUTO_CREATED_GROUPS.maximum
    """Groups above which none is created automatically."""
    reput_auto_created_groups_per_address_max: Count = (
        limits.AUTO_CREATED_GROUPS_PER_ADDRESS.maximum
    )
    """Maximum number of groups that one address creates automatically, until the next start."""
    reput_consumer_offsets_max: Count = limits.CONSUMER_OFFSETS.maximum
    """Consumer offsets at most: one per group and queue."""
    reput_consumer_offsets_per_address_max: Count = limits.CONSUMER_OFFSETS_PER_ADDRESS.maximum
    """Consumer offsets that one address adds at most, until the next start."""
    reput_stats_series_max: Count = limits.STATS_SERIES.maximum
    """Counters of topics, groups and queues at most; further ones are only in the totals."""
    clear_retry_topic_when_delete_topic: bool = True
    """Delete the retry topics of a topic's groups along with it."""
    validate_system_topic_when_update_topic: bool = True
    """Refuse changes of system topics."""
    enable_mixed_message_type: bool = False
    """Allow topics with messages of every kind: ``message.type=MIXED``."""

    # --- sending -------------------------------------------------------------

    region_id: str = "DefaultRegion"
    """Region that replies to sends contain, for traces."""
    trace_on: bool = True
    """Ask producers in replies to write traces."""
    recall_message_enable: bool = False
    """Allow producers to recall messages that wait for the timer."""
    allow_recall_when_broker_not_writeable: bool = True
    """Allow that even while ``brokerPermission`` forbids writing."""
    broker_fast_failure_enable: bool = True
    """Refuse sends that have waited too long for a put that stalled: code 2, SYSTEM_BUSY."""
    wait_time_mills_in_send_queue: Milliseconds = 200
    """Duration of a put after which other sends that had been received before are refused. After
    `osPageCacheBusyTimeOutMills` sends that came during the put are refused, too."""
    store_reply_message_enable: bool = True
    """Also store replies to request messages, in the reply topic of the cluster."""

    # --- transactions --------------------------------------------------------

    reject_transaction_message: bool = False
    """Refuse messages of transactions."""
    transaction_time_out: Milliseconds = 6_000
    """Age of a half message before its producer is asked for a decision."""
    transaction_check_interval: Annotated[int, Range(1, JAVA_LONG_MAX)] = 30_000
    """Interval of checks (4.x: 60000)."""
    transaction_check_max: Count = 15
    """Checks of a half message; afterwards it is moved to ``TRANS_CHECK_MAX_TIME_TOPIC``."""

    # --- pulling -------------------------------------------------------------

    long_polling_enable: bool = True
    """Hold a pull without messages until a message arrives."""
    short_polling_time_mills: Milliseconds = 1_000
    """Time for which it is held without long polling."""
    pull_hold_max: Annotated[int, Range(0)] = 100_000
    """Held pulls at most; further ones are answered at once."""
    enable_property_filter: bool = False
    """Allow subscriptions by SQL92."""
    expect_consumer_num_use_filter: Count = 32
    """Expected number of groups with SQL filters on a topic, which determines the number of filter
    bits of a message (``enableCalcFilterBitMap``)."""
    max_error_rate_of_bloom_filter: Annotated[int, Range(1, 99)] = 20
    """False positives of the filter bits in percent, for that number of groups."""
    filter_data_clean_time_span: Milliseconds = 24 * 3_600_000
    """Time for which an SQL filter is kept after its group has left."""
    notify_consumer_ids_changed_enable: bool = True
    """Notify the members of a group when one joins or leaves."""
    reput_connection_groups_max: Count = limits.CONNECTION_GROUPS.maximum
    """Maximum number of groups per connection, of producers and consumers."""
    reput_memberships_max: Count = limits.MEMBERSHIPS.maximum
    """Maximum number of memberships of connections in groups."""
    reput_memberships_per_address_max: Count = limits.MEMBERSHIPS_PER_ADDRESS.maximum
    """Maximum number of memberships of the connections from one address."""
    reput_group_members_max: Count = limits.GROUP_MEMBERS.maximum
    """Maximum number of members of a group."""
    reput_subscription_bytes_max: Count = limits.ALL_SUBSCRIPTION_BYTES.maximum
    """Maximum bytes of the subscriptions of all groups with members."""
    reput_held_per_connection_max: Count = limits.HELD_PER_CONNECTION.maximum
    """Maximum held pulls, and held pops, per connection; further ones are answered at once."""
    reput_held_per_address_max: Count = limits.HELD_PER_ADDRESS.maximum
    """Maximum held pulls, and held pops, of the connections from one address."""
    reput_locks_max: Count = limits.LOCKS.maximum
    """Maximum number of queues locked by groups."""
    channel_expired_timeout: Annotated[int, Range(1, JAVA_LONG_MAX)] = 120_000
    """Time without a heartbeat after which a client is removed."""
    rebalance_lock_max_live_time: Annotated[int, Range(1, JAVA_LONG_MAX)] = 60_000
    """Lifetime of a lock of a queue that is not renewed."""

    # --- lite topics ---------------------------------------------------------

    max_lite_subscription_count: Annotated[int, Range(0)] = limits.LITE_SUBSCRIPTIONS.maximum
    """Maximum number of subscriptions of all clients to lite topics."""
    lite_subscription_check_timeout_mills: Annotated[int, Range(1, JAVA_LONG_MAX)] = 180_000
    """Time after which a client that does not repeat its subscriptions is removed."""
    lite_ttl_check_interval: Annotated[int, Range(1, JAVA_LONG_MAX)] = 120_000
    """Interval of searches for expired lite topics."""

    # --- popping -------------------------------------------------------------

    default_message_request_mode: MessageRequestMode = MessageRequestMode.PULL
    """How groups read a topic, unless ``mqadmin setConsumeMode`` has set it."""
    default_pop_share_queue_num: int = -1
    """Members whose queues a member pops besides its own; 0 or less: those of all."""
    server_load_balancer_enable: bool = True
    """Divide queues among the members that query their assignment; otherwise each gets all."""
    revive_queue_num: Annotated[int, Range(1, 999)] = 8
    """Queues of the topic with the checkpoints of pops."""
    pop_from_retry_probability: Annotated[int, Range(0, 100)] = 20
    """Percentage of pops that read retry topics first; the others read them last."""
    pop_from_retry_probability_for_priority: Annotated[int, Range(0, 100)] = 0
    """Percentage of pops by priority (`message.type=PRIORITY`) that read retry topics first."""
    priority_order_asc: bool = True
    """Higher queues have higher priority: such pops begin with the last queue."""
    enable_retry_topic_v2: bool = False
    """Retry topics of pops are `%RETRY%group+topic`, not `%RETRY%group_topic`."""
    retrieve_message_from_pop_retry_topic_v1: bool = True
    """Also pop from the retry topics with the old names, if the new ones are enabled."""
    max_pop_polling_size: Annotated[int, Range(0)] = 100_000
    """Held pops at most; further ones are answered at once."""

    # --- tables --------------------------------------------------------------

    flush_consumer_offset_interval: Annotated[int, Range(1)] = 5_000
    """Interval of saving consumer offsets."""
    use_server_side_reset_offset: bool = True
    """Apply a reset of offsets with queues (from 5.x admin tools) at the next pull, with or without
    members; else notify the members, as for a reset of 4.9. Pops follow either at once."""
    flush_delay_offset_interval: Annotated[int, Range(1)] = 10_000
    """Interval of saving the positions of delay levels and of the timer."""
    default_query_max_num: Count = 32
    """Maximum number of messages that a query by unique key returns."""
    config_black_list: str = "configBlackList;brokerConfigPath"
    """Keys, separated by semicolons, that cannot be changed over the network."""
    reput_remote_settings: RemoteSettings = RemoteSettings.SAFE
    """Other settings that can be changed over the network: ``java``: all; ``none``: none; ``safe``:
    all except names, name servers, addresses, ports and paths, keys that begin with ``reput``,
    ``pullHoldMax`` and ``rebalanceLockMaxLiveTime``. With ``safe``, clients on the broker's machine
    and super users may also change its role."""

    def __post_init__(self) -> None:
        config.check_ranges(self)
        if self.listen_port and self.fast_port_enable and self.listen_port <= 2:
            raise InvalidOption("listenPort", self.listen_port, "0, or 3 to 65535: one is 2 below")
        if not self.broker_name:
            raise InvalidOption("brokerName", "", "a name")
        if not self.reput_metrics_address:
            allowed = "an address: 127.0.0.1, or 0.0.0.0 to let other machines in"
            raise InvalidOption("reputMetricsAddress", "", allowed)
        exporter.check_exporter(self.metrics_exporter_type)
        _ = self.metric_labels  # refuses wrong ones
        exporter_port = self.metrics_prom_exporter_port
        if self.exports_metrics and not 0 < exporter_port != self.metrics_port:
            allowed = "1 to 65535, and not metricsPort, as metricsExporterType is PROM"
            raise InvalidOption("metricsPromExporterPort", exporter_port, allowed)
        if self.acl_enable and not self.rocketmq_home:
            allowed = "false, or true with rocketmqHome: the folder that has conf/plain_acl.yml"
            raise InvalidOption("aclEnable", True, allowed)
        _ = self.ha_peers, self.proxies  # refuses wrong networks
        limits.NAME_SERVERS.check(len(self.name_servers), "namesrvAddr")
        for server in self.name_servers:
            host, _, port = server.rpartition(":")
            if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
                allowed = "host:port of each name server, separated by semicolons"
                raise InvalidOption("namesrvAddr", server, allowed)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Address ``host:port`` of each name server."""
        words = self.namesrv_addr.replace(",", ";").split(";")
        return tuple(word.strip() for word in words if word.strip())

    @property
    def exports_metrics(self) -> bool:
        """Whether metrics are served under RocketMQ's names."""
        return self.metrics_exporter_type is MetricsExporter.PROM

    @property
    def metric_labels(self) -> dict[str, str]:
        """Further labels of those metrics."""
        return exporter.parse_labels(self.metrics_label)

    @property
    def ha_peers(self) -> tuple[Network, ...]:
        """Networks of the slaves."""
        return networks.parse(self.reput_ha_peers, "reputHaPeers")

    @property
    def proxies(self) -> tuple[Network, ...]:
        """Networks of the proxies."""
        return networks.parse(self.reput_proxy_protocol_from, "reputProxyProtocolFrom")

    @property
    def fixed_keys(self) -> frozenset[str]:
        """The keys of the black list."""
        return frozenset(word.strip() for word in self.config_black_list.split(";"))


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """All settings of a broker.conf."""

    broker: BrokerConfig
    store: StoreConfig
    warnings: tuple[str, ...]
    """A sentence for each key that is unknown or has no effect."""
    tls: TlsSettings
    access: AccessSettings


def load(
    source: Mapping[str, object] | str | Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    explicit: Mapping[str, object] | None = None,
) -> BrokerSettings:
    """Return the settings of a broker and its store; arguments as of ``config.Settings``.

    Raises:
        InvalidOption: The file cannot be read, a value is not allowed, or two contradict each
            other; also ``InvalidOptions``, for several values.
    """
    settings = config.Settings(source, environment=environment, explicit=explicit)
    try:
        given, store = settings.make(BrokerConfig), settings.make(StoreConfig)
        access = settings.make(AccessSettings)
    except InvalidOption as error:
        problems = settings.problems((BrokerConfig, StoreConfig, AccessSettings))
        raise InvalidOptions(problems) if len(problems) > 1 else error from None
    tls = tls_settings.load(settings)
    broker = for_role(given, store)
    honoured = pairs(broker, store).keys()
    warnings = [str(unknown) for unknown in settings.unknown()]
    warnings += [
        f"{key} has no effect: {reason}"
        for key, reason in settings.without_effect.items()
        if key not in honoured  # a key without effect on the store may affect the broker
    ]
    if broker.broker_id != given.broker_id:
        warnings.append(
            f"brokerId={given.broker_id} has no effect: brokerRole is {store.broker_role}, and a "
            f"master has id {MASTER_ID}"
        )
    warnings += [*_role_warnings(broker, store), *access.warnings]
    return BrokerSettings(broker, store, tuple(warnings), tls, access)


def for_role(broker: BrokerConfig, store: StoreConfig) -> BrokerConfig:
    """Return a broker's settings with the id of its role, as RocketMQ's brokers start.

    Raises:
        InvalidOption: A slave has the master's id, or two ports are equal.
    """
    if broker.enable_controller_mode:
        _check_controlled(broker, store)
    elif store.broker_role is not BrokerRole.SLAVE:
        broker = dataclasses.replace(broker, broker_id=MASTER_ID)
    elif broker.broker_id <= MASTER_ID:
        allowed = "1 or more, because brokerRole is SLAVE: 0 is the id of the master"
        raise InvalidOption("brokerId", broker.broker_id, allowed)
    port, ha_port = broker.listen_port, store.ha_listen_port
    if port and ha_port < 0 and port + HA_PORT_DISTANCE > 65535:
        allowed = "at most 65534, or haListenPort set: slaves connect to the next port"
        raise InvalidOption("listenPort", port, allowed)
    used = {port, port - FAST_PORT_DISTANCE} if broker.fast_port_enable else {port}
    if port and ha_port in used:
        allowed = f"another port: clients use {' and '.join(map(str, sorted(used)))}"
        raise InvalidOption("haListenPort", ha_port, allowed)
    return broker


def _check_controlled(broker: BrokerConfig, store: StoreConfig) -> None:
    """Check the settings of a broker under a controller. Raises ``InvalidOption``."""
    if not broker.controller_addr.strip("; "):
        allowed = "the controllers, host:port separated by semicolons: enableControllerMode is true"
        raise InvalidOption("controllerAddr", broker.controller_addr, allowed)
    for key, name in (
        ("brokerName", broker.broker_name),
        ("brokerClusterName", broker.broker_cluster_name),
    ):
        if "#" in name:  # the files of the identity have it between their words
            raise InvalidOption(key, name, "a name without #: enableControllerMode is true")
    if store.ha_master_address:
        allowed = "nothing: enableControllerMode is true, and the controller names the master"
        raise InvalidOption("haMasterAddress", store.ha_master_address, allowed)
    least_ms = 2 * broker.broker_heartbeat_interval
    if broker.controller_heart_beat_timeout_mills < least_ms:
        allowed = f"at least {least_ms}, two intervals of brokerHeartbeatInterval"
        value = broker.controller_heart_beat_timeout_mills
        raise InvalidOption("controllerHeartBeatTimeoutMills", value, allowed)


def _role_warnings(broker: BrokerConfig, store: StoreConfig) -> list[str]:
    """Return a sentence for each setting that does not do what its name suggests in this role."""
    role, needed = store.broker_role, store.in_sync_replicas
    if broker.enable_controller_mode:
        if role is BrokerRole.SLAVE:
            return []
        return [
            f"brokerRole={role} has no effect: enableControllerMode is true, and the controller "
            "decides"
        ]
    if role is BrokerRole.SYNC_MASTER and needed == 1:
        return ["brokerRole=SYNC_MASTER with inSyncReplicas=1 waits for no slave, as in 5.x"]
    if role is not BrokerRole.SYNC_MASTER and needed > 1:
        return [
            f"inSyncReplicas={needed} has no effect: brokerRole is {role}; only SYNC_MASTER waits "
            "for slaves"
        ]
    return []


def pairs(*parts: BrokerConfig | StoreConfig) -> dict[str, str]:
    """Return the settings of parts in the form of broker.conf; unset ones are empty."""
    return {key: text or "" for part in parts for key, text in config.texts(part).items()}


def own_address() -> str:
    """Return the address by which other machines reach this one, according to the routes.

    The system is queried for the source address of a packet; nothing is sent.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address, which uses the default route
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address
