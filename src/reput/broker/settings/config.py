"""The broker's settings: what broker.conf says of it, under the same names and defaults.

Those of its store are ``reput.store.config``; one file holds both, and ``load`` reads both. Java
has them in ``BrokerConfig``, ``NettyServerConfig`` and ``NettyClientConfig``. Reference:
docs/reference/broker-options.md.
"""

import enum
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from reput import config, limits
from reput.broker.settings.keys import ACCEPTED_WITHOUT_EFFECT, ONLY
from reput.config import JAVA_LONG_MAX, Range
from reput.errors import InvalidOption
from reput.format.codes import PERM_READ, PERM_WRITE
from reput.remote_settings import RemoteSettings
from reput.store.config import StoreConfig

Milliseconds = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]
Port = Annotated[int, Range(0, 65535)]


class MessageRequestMode(enum.StrEnum):
    """How a group reads a topic."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig:
    """Who the broker is, where it listens, and what it allows.

    Raises:
        InvalidOption: A value is outside its range, or two contradict each other.
    """

    keys: ClassVar[config.Keys] = config.Keys(
        renamed={"rocketmq.broker.rebalance.lockMaxLiveTime": "rebalanceLockMaxLiveTime"},
        without_effect=ACCEPTED_WITHOUT_EFFECT,
        only=ONLY,
    )

    # --- who ---------------------------------------------------------------

    broker_cluster_name: str = "DefaultCluster"
    """Brokers of one cluster share their topics' names."""
    broker_name: str = field(default_factory=socket.gethostname)
    """Master and slaves of one name have the same messages."""
    broker_id: Annotated[int, Range(0, JAVA_LONG_MAX)] = 0
    """0 is the master."""

    # --- where -------------------------------------------------------------

    namesrv_addr: str = ""
    """Name servers, ``host:port`` separated by semicolons; none: it does not register."""
    broker_ip1: str = field(default_factory=lambda: own_address())
    """The address that clients get in routes: they must be able to reach it."""
    bind_address: str = "0.0.0.0"
    """The address to listen on."""
    listen_port: Port = 10911
    """The port to listen on; 0 takes any that is free."""
    fast_port_enable: bool = True
    """Listen on ``listenPort - 2`` too, for all but pulls: the VIP channel of clients."""
    server_channel_max_idle_time_seconds: Annotated[int, Range(1)] = 120
    """A connection without traffic for so long is closed."""
    register_name_server_period: Annotated[int, Range(1)] = 30_000
    """Between two registrations, drawn into 10 to 60 s; a change is told at once."""
    register_broker_timeout_mills: Annotated[int, Range(1)] = 24_000
    """A name server that takes longer is not waited for (4.x: 6000)."""
    reput_fast_path: bool = True
    """Serve common requests together, by kernels; false: each goes through its processor."""
    metrics_port: Port = 0
    """Where /metrics and /health are served over HTTP; 0: nowhere."""
    reput_metrics_address: str = "127.0.0.1"
    """The address that they are served at; 0.0.0.0 lets other machines read them."""

    # --- what connections may cost --------------------------------------------

    reput_connections_max: Count = limits.CONNECTIONS.maximum
    """Connections at most; one more is closed at once."""
    reput_connections_per_address_max: Count = limits.CONNECTIONS_PER_ADDRESS.maximum
    """Connections from one address at most."""
    reput_unfinished_bytes_max: Count = limits.UNFINISHED_BYTES.maximum
    """Bytes of frames that have not come whole; above it the largest such connection is closed."""
    reput_unfinished_bytes_per_address_max: Count = limits.UNFINISHED_BYTES_PER_ADDRESS.maximum
    """The same, of the connections from one address."""
    reput_unread_bytes_max: Count = limits.UNREAD_BYTES.maximum
    """Bytes of replies that clients do not read; above it the largest such connection is closed."""
    reput_unread_bytes_per_address_max: Count = limits.UNREAD_BYTES_PER_ADDRESS.maximum
    """The same, of the connections from one address."""

    # --- topics and groups ---------------------------------------------------

    broker_permission: Annotated[int, Range(0, 7)] = PERM_READ | PERM_WRITE
    """What the broker as a whole allows: 4 to read, 2 to write."""
    auto_create_topic_enable: bool = True
    """Make a topic when somebody sends to it."""
    default_topic_queue_nums: Count = 8
    """Queues of such a topic at most; clients ask for 4."""
    auto_create_subscription_group: bool = True
    """Make a group when somebody consumes in it."""
    cluster_topic_enable: bool = True
    """Make a topic that is called like the cluster."""
    broker_topic_enable: bool = True
    """Make a topic that is called like the broker."""
    trace_topic_enable: bool = False
    """Make the topic that clients write their traces to."""
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    """What that topic is called."""
    reput_topics_max: Count = limits.TOPICS.maximum
    """Topics at most."""
    reput_auto_created_topics_max: Count = limits.AUTO_CREATED_TOPICS.maximum
    """With so many topics none is made any more by sending or consuming."""
    reput_auto_created_topics_per_address_max: Count = (
        limits.AUTO_CREATED_TOPICS_PER_ADDRESS.maximum
    )
    """Topics that one address makes by sending or consuming, from a start to the next."""
    reput_queues_max: Count = limits.QUEUES.maximum
    """Queues of all topics at most: read or write queues of each, whichever are more."""
    reput_groups_max: Count = limits.GROUPS.maximum
    """Groups at most."""
    reput_auto_created_groups_max: Count = limits.AUTO_CREATED_GROUPS.maximum
    """With so many groups none is made any more by consuming."""
    reput_auto_created_groups_per_address_max: Count = (
        limits.AUTO_CREATED_GROUPS_PER_ADDRESS.maximum
    )
    """Groups that one address makes by consuming, from a start to the next."""
    reput_consumer_offsets_max: Count = limits.CONSUMER_OFFSETS.maximum
    """Consumer offsets at most: one per group and queue."""
    reput_consumer_offsets_per_address_max: Count = limits.CONSUMER_OFFSETS_PER_ADDRESS.maximum
    """Consumer offsets of new queues or groups that one address tells, from a start to the next."""
    reput_stats_series_max: Count = limits.STATS_SERIES.maximum
    """Counters of topics, groups and queues; what would be more is counted in the totals alone."""
    clear_retry_topic_when_delete_topic: bool = True
    """Delete the retry topics of a topic's groups along with it."""
    validate_system_topic_when_update_topic: bool = True
    """Refuse to change a topic of RocketMQ's own."""
    enable_mixed_message_type: bool = False
    """Let a topic say that it takes messages of every kind: ``message.type=MIXED``."""

    # --- sending -------------------------------------------------------------

    region_id: str = "DefaultRegion"
    """What producers are told with each message, for their traces."""
    trace_on: bool = True
    """Likewise: whether to write traces."""
    recall_message_enable: bool = False
    """Let producers take back messages that wait for the timer."""
    allow_recall_when_broker_not_writeable: bool = True
    """Likewise while ``brokerPermission`` forbids to write."""
    store_reply_message_enable: bool = True
    """Keep replies to requests as well, in the reply topic of the cluster."""

    # --- transactions --------------------------------------------------------

    reject_transaction_message: bool = False
    """Refuse messages of transactions."""
    transaction_time_out: Milliseconds = 6_000
    """How old a half message must be before its producer is asked what became of it."""
    transaction_check_interval: Annotated[int, Range(1, JAVA_LONG_MAX)] = 30_000
    """Between two rounds of asking (4.x: 60000)."""
    transaction_check_max: Count = 15
    """How often a producer is asked; then the message goes to ``TRANS_CHECK_MAX_TIME_TOPIC``."""

    # --- pulling -------------------------------------------------------------

    long_polling_enable: bool = True
    """Hold a pull that finds nothing until something arrives."""
    short_polling_time_mills: Milliseconds = 1_000
    """How long it is held without long polling."""
    pull_hold_max: Annotated[int, Range(0)] = 100_000
    """Held pulls at most; more are answered at once."""
    enable_property_filter: bool = False
    """Allow subscriptions by SQL92."""
    expect_consumer_num_use_filter: Count = 32
    """With so many groups with SQL filters on a topic bits of messages are of use
    (``enableCalcFilterBitMap``)."""
    max_error_rate_of_bloom_filter: Annotated[int, Range(1, 99)] = 20
    """Of the messages that such a group does not want, how many of 100 may look wanted then."""
    filter_data_clean_time_span: Milliseconds = 24 * 3_600_000
    """An SQL filter is kept for so long after its group has left."""
    notify_consumer_ids_changed_enable: bool = True
    """Tell the members of a group when one comes or goes."""
    reput_connection_groups_max: Count = limits.CONNECTION_GROUPS.maximum
    """Groups that a connection is a member of at most, producers' and consumers'."""
    reput_memberships_max: Count = limits.MEMBERSHIPS.maximum
    """Memberships of connections in groups at most."""
    reput_memberships_per_address_max: Count = limits.MEMBERSHIPS_PER_ADDRESS.maximum
    """The same, of the connections from one address."""
    reput_group_members_max: Count = limits.GROUP_MEMBERS.maximum
    """Members of a group at most."""
    reput_subscription_bytes_max: Count = limits.ALL_SUBSCRIPTION_BYTES.maximum
    """Bytes of what all groups with members subscribe to."""
    reput_held_per_connection_max: Count = limits.HELD_PER_CONNECTION.maximum
    """Pulls that wait at most of one connection, and pops; more are answered at once."""
    reput_held_per_address_max: Count = limits.HELD_PER_ADDRESS.maximum
    """The same, of the connections from one address."""
    reput_locks_max: Count = limits.LOCKS.maximum
    """Queues that groups have locked at most."""
    channel_expired_timeout: Annotated[int, Range(1, JAVA_LONG_MAX)] = 120_000
    """A client that sent no heartbeat for so long is gone."""
    rebalance_lock_max_live_time: Annotated[int, Range(1, JAVA_LONG_MAX)] = 60_000
    """How long a lock of a queue lasts without being renewed."""

    # --- popping -------------------------------------------------------------

    default_message_request_mode: MessageRequestMode = MessageRequestMode.PULL
    """How groups read, unless ``mqadmin setConsumeMode`` has said; they ask if told to."""
    default_pop_share_queue_num: int = -1
    """Members whose queues a member pops beside its own; 0 or less: those of all."""
    server_load_balancer_enable: bool = True
    """Divide queues for members that ask; otherwise each gets all."""
    revive_queue_num: Annotated[int, Range(1, 999)] = 8
    """Queues of the topic that remembers what was popped."""
    pop_from_retry_probability: Annotated[int, Range(0, 100)] = 20
    """So many of a hundred pops look for retries first; the others afterwards."""
    pop_from_retry_probability_for_priority: Annotated[int, Range(0, 100)] = 0
    """The same, of pops that read a topic of `message.type=PRIORITY` by priority."""
    priority_order_asc: bool = True
    """The higher the queue, the higher the priority: such pops begin with the last queue."""
    enable_retry_topic_v2: bool = False
    """Retry topics of pops are `%RETRY%group+topic`, not `%RETRY%group_topic`."""
    retrieve_message_from_pop_retry_topic_v1: bool = True
    """With those, what waits in the others is popped as well."""
    max_pop_polling_size: Annotated[int, Range(0)] = 100_000
    """Pops that wait at most; more are answered at once."""

    # --- tables --------------------------------------------------------------

    flush_consumer_offset_interval: Annotated[int, Range(1)] = 5_000
    """Between two savings of the consumer offsets."""
    use_server_side_reset_offset: bool = True
    """Obey a reset of offsets that names queues (5.x admin tools do) at the next pull, with and
    without members; else tell the members, as for a reset of 4.9."""
    flush_delay_offset_interval: Annotated[int, Range(1)] = 10_000
    """Between two savings of how far each delay level, and the timer, have delivered."""
    default_query_max_num: Count = 32
    """Messages that a query by unique key returns at most."""
    config_black_list: str = "configBlackList;brokerConfigPath"
    """Keys, separated by semicolons, that nobody may change over the network."""
    reput_remote_settings: RemoteSettings = RemoteSettings.SAFE
    """What else may be changed over the network: ``java``: all; ``none``: nothing; ``safe``: what
    does not say who the broker is, where it registers, where it listens and where its files are;
    no key that begins with ``reput``, nor ``pullHoldMax`` and ``rebalanceLockMaxLiveTime``."""

    def __post_init__(self) -> None:
        config.check_ranges(self)
        if self.listen_port and self.fast_port_enable and self.listen_port <= 2:
            raise InvalidOption("listenPort", self.listen_port, "0, or 3 to 65535: one is 2 below")
        if not self.broker_name:
            raise InvalidOption("brokerName", "", "a name")
        if not self.reput_metrics_address:
            allowed = "an address: 127.0.0.1, or 0.0.0.0 to let other machines in"
            raise InvalidOption("reputMetricsAddress", "", allowed)
        limits.NAME_SERVERS.check(len(self.name_servers), "namesrvAddr")
        for server in self.name_servers:
            host, _, port = server.rpartition(":")
            if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
                allowed = "host:port of each name server, separated by semicolons"
                raise InvalidOption("namesrvAddr", server, allowed)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """``host:port`` of each name server."""
        words = self.namesrv_addr.replace(",", ";").split(";")
        return tuple(word.strip() for word in words if word.strip())

    @property
    def fixed_keys(self) -> frozenset[str]:
        """The keys of the black list."""
        return frozenset(word.strip() for word in self.config_black_list.split(";"))


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """All that a broker.conf says."""

    broker: BrokerConfig
    store: StoreConfig
    warnings: tuple[str, ...]
    """A sentence for each key that is unknown, or means nothing here."""


def load(
    source: Mapping[str, object] | str | Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    explicit: Mapping[str, object] | None = None,
) -> BrokerSettings:
    """Return the settings of a broker and its store; arguments as those of ``config.Settings``.

    Raises:
        InvalidOption: The file cannot be read, or a value is not allowed.
    """
    settings = config.Settings(source, environment=environment, explicit=explicit)
    broker, store = settings.make(BrokerConfig), settings.make(StoreConfig)
    honoured = pairs(broker, store).keys()
    warnings = [str(one) for one in settings.unknown()]
    warnings += [
        f"{key} has no effect: {reason}"
        for key, reason in settings.without_effect.items()
        if key not in honoured  # what means nothing to the store may mean something to the broker
    ]
    return BrokerSettings(broker, store, tuple(warnings))


def pairs(*parts: BrokerConfig | StoreConfig) -> dict[str, str]:
    """Return the settings of parts as a broker.conf has them; what is unset has an empty text."""
    return {key: text or "" for part in parts for key, text in config.texts(part).items()}


def own_address() -> str:
    """Return the address that others reach this machine by, as far as routes tell.

    Asks the system which address it would send from; nothing is sent.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: behind the default route
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address
