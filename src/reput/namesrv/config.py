"""The name server's settings in namesrv.conf, with RocketMQ's names and defaults.

They are loaded by ``reput.config``. Field names are RocketMQ's keys in snake_case. Java has them in
several classes (4.9 ``NamesrvConfig``, ``NettyServerConfig``; 5.x ``NettyClientConfig`` as well);
here they are in one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from reput import config
from reput.config import Range
from reput.errors import InvalidOption
from reput.format.ip_address import Network
from reput.namesrv import limits
from reput.remote_settings import RemoteSettings
from reput.remoting import current_config, limits as of_connections, networks

DEFAULT_PORT = 9876
_ALWAYS_FIXED = frozenset(
    {
        "configBlackList",
        "configStorePath",
        "enableControllerInNamesrv",
        "kvConfigPath",
        "rocketmqHome",
    }
)

Count = Annotated[int, Range(1)]
Port = Annotated[int, Range(0, 65535)]


def _keys_by_reason(reasons: Mapping[str, str]) -> dict[str, str]:
    return {key: reason for reason, keys in reasons.items() for key in keys.split()}


ACCEPTED_WITHOUT_EFFECT: Mapping[str, str] = _keys_by_reason(
    {
        "only clusterTest uses it": "productEnvName",
        "one thread serves all connections, without queues": """
            serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads
            serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverNettyWorkerGroupEnable
            clientRequestThreadPoolNums defaultThreadPoolNums clientRequestThreadPoolQueueCapacity
            defaultThreadPoolQueueCapacity unRegisterBrokerQueueCapacity""",
        "buffers and sockets use the system's defaults": """
            serverSocketSndBufSize serverSocketRcvBufSize serverSocketBacklog
            writeBufferHighWaterMark writeBufferLowWaterMark serverPooledByteBufAllocatorEnable
            useEpollNativeSelector""",
        "a stop answers pending requests and waits for nothing else": """
            enableShutdownGracefully shutdownWaitTimeSeconds""",
        "a name server sends only notices without an answer": """
            clientWorkerThreads clientCallbackExecutorThreads clientOnewaySemaphoreValue
            clientAsyncSemaphoreValue connectTimeoutMillis channelNotActiveInterval
            isScanAvailableNameSrv clientChannelMaxIdleTimeSeconds clientSocketSndBufSize
            clientSocketRcvBufSize clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout
            socksProxyConfig disableCallbackExecutor disableNettyWorkerGroup
            maxReconnectIntervalTimeSeconds enableReconnectForGoAway scanAvailableNameSrv useTLS""",
    }
)
"""Keys of RocketMQ that have no effect here, each with the reason."""

_NO_ACCESS_CONTROL = (
    "name servers trust their network, as RocketMQ's: set it in broker.conf, and protect this port "
    "by tls.server.mode=enforcing with certificates of clients"
)
ONLY: Mapping[str, tuple[str, str]] = {
    "clusterTest": ("false", "routes of another environment are not requested"),
    "supportActingMaster": ("false", "a slave never replaces its master"),
    "authenticationEnabled": ("false", _NO_ACCESS_CONTROL),
    "authorizationEnabled": ("false", _NO_ACCESS_CONTROL),
    "aclEnable": ("false", _NO_ACCESS_CONTROL),
    "deleteTopicWithBrokerRegistration": (
        "false",
        "a broker that registers one topic would lose the others; delete topics with mqadmin",
    ),
}
"""Keys with a single allowed value: this name server does not support others."""


def _in_home(name: str) -> str:
    return str((config.home_folder() or Path.cwd()) / "namesrv" / name)


@dataclass(frozen=True, kw_only=True, slots=True)
class NamesrvConfig:
    """Addresses, files and limits of a name server.

    Raises:
        InvalidOption: A value is outside its range.
    """

    keys: ClassVar[config.Keys] = config.Keys(
        without_effect=ACCEPTED_WITHOUT_EFFECT,
        only=ONLY,
    )

    # --- files -----------------------------------------------------------

    rocketmq_home: str | None = field(default_factory=lambda: os.environ.get("ROCKETMQ_HOME"))
    """Folder that is only shown with the settings; no file is read from it."""
    kv_config_path: str = field(default_factory=lambda: _in_home("kvConfig.json"))
    """File of the settings that clients share (``mqadmin updateKvConfig``)."""
    config_store_path: str = field(default_factory=lambda: _in_home("namesrv.properties"))
    """File for changed settings; by default the file that they were read from."""

    # --- listening -------------------------------------------------------

    bind_address: str = "0.0.0.0"
    """Address to listen on."""
    listen_port: Port = DEFAULT_PORT
    """Port to listen on; 0 takes any free port."""
    server_channel_max_idle_time_seconds: Annotated[int, Range(1)] = 120
    """Seconds after which an idle connection is closed."""
    reput_proxy_protocol_from: str = ""
    """Networks of proxies, separated by commas: connections from there begin with a PROXY header
    (version 1 or 2), and its source is the client's address. If empty, no header is read."""
    metrics_port: Port = 0
    """HTTP port of /metrics and /health; 0: none."""
    reput_metrics_address: str = "127.0.0.1"
    """Address of that port; 0.0.0.0 gives other machines access."""

    # --- members of a broker name ----------------------------------------

    notify_min_broker_id_changed: bool = False
    """Notify the brokers of a name when another one has the smallest id (905). Slaves of RocketMQ
    with ``enableSlaveActingMaster`` want that."""

    # --- controller ------------------------------------------------------

    enable_controller_in_namesrv: bool = False
    """Run a controller in the same process. Its options are in this file too; it listens on the
    port of ``controllerDLegerPeers``, else on 9878."""

    # --- resources of connections ----------------------------------------

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

    # --- brokers ---------------------------------------------------------

    scan_not_active_broker_interval: Annotated[int, Range(1, 3_600_000)] = 5_000
    """Milliseconds between two checks for brokers that have been silent for two minutes."""
    return_order_topic_config_to_broker: bool = True
    """Return the ordered topics to brokers when they register."""
    reput_brokers_max: Count = limits.NAMESRV_BROKERS.maximum
    """Maximum number of broker names, and of addresses; further brokers are refused."""
    reput_routed_topics_max: Count = limits.NAMESRV_TOPICS.maximum
    """Maximum number of topics; further ones are left out of registrations until there is room."""
    reput_routed_queues_max: Count = limits.NAMESRV_QUEUES.maximum
    """Maximum number of topics, each counted once per broker name that has it."""
    reput_kv_bytes_max: Count = limits.KV_TABLE_BYTES.maximum
    """Bytes of all settings that clients share: names and values. The file is rewritten completely
    on each change."""

    # --- clients ---------------------------------------------------------

    order_message_enable: bool = False
    """Include the distribution of an ordered topic's queues in its route."""
    need_wait_for_service: bool = False
    """Refuse routes after the start, until all brokers had time to register."""
    wait_seconds_for_service: Annotated[int, Range(0, 86_400)] = 45
    """Time in which brokers can register after the start, in seconds."""
    enable_all_topic_list: bool = True
    """Answer requests for all topics."""
    enable_topic_list: bool = True
    """Answer requests for topics by cluster or unit, and for system topics."""

    # --- changes at run time ---------------------------------------------

    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys, separated by ``;``, that cannot be changed over the network; nor can rocketmqHome."""
    reput_remote_settings: RemoteSettings = RemoteSettings.SAFE
    """Other settings that can be changed over the network: ``java``: all; ``none``: none; ``safe``:
    all except addresses, ports and paths, and keys that begin with ``reput``."""

    def __post_init__(self) -> None:
        config.check_ranges(self)
        if not self.reput_metrics_address:
            allowed = "an address: 127.0.0.1, or 0.0.0.0 to let other machines in"
            raise InvalidOption("reputMetricsAddress", "", allowed)
        _ = self.proxies  # refuses wrong networks

    @property
    def proxies(self) -> tuple[Network, ...]:
        """Networks of the proxies."""
        return networks.parse(self.reput_proxy_protocol_from, "reputProxyProtocolFrom")

    @property
    def fixed_keys(self) -> frozenset[str]:
        """The keys of the black list."""
        listed = {word.strip() for word in self.config_black_list.split(";")}
        return _ALWAYS_FIXED | listed


class CurrentConfig(current_config.RemoteConfig[NamesrvConfig]):
    """The current settings of a name server."""

    file = "namesrv.conf"


def load(
    path: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    explicit: Mapping[str, object] | None = None,
) -> tuple[CurrentConfig, tuple[config.Unknown, ...]]:
    """Return the settings of a name server, and the unknown keys.

    Args:
        path: Path of namesrv.conf. Changed settings are written to it, as in Java.
        environment: ``os.environ``.
        explicit: snake_case field -> value, with the highest precedence.

    Raises:
        InvalidOption: The file cannot be read, or a value is not allowed.
    """
    value, others, tls, unknown = current_config.load(
        NamesrvConfig, path, environment=environment, explicit=explicit
    )
    return CurrentConfig(value, others, tls), unknown
