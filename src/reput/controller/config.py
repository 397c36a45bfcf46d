"""The controller's settings in controller.conf, with RocketMQ's names and defaults.

They are loaded by ``reput.config``. Field names are RocketMQ's keys in snake_case, those of 5.5.0
``ControllerConfig`` and ``NettyServerConfig``.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

from reput import config
from reput.config import Range
from reput.controller import etcd_address, limits
from reput.controller.etcd_address import EtcdAddress
from reput.controller.quorum import Peer
from reput.errors import InvalidOption, ReputError
from reput.format.ip_address import Network
from reput.remote_settings import RemoteSettings
from reput.remoting import current_config, limits as of_connections, networks
from reput.remoting.client import split_address

DEFAULT_PORT = 9878
_PORT_MAX = 65_535
_ALWAYS_FIXED = frozenset(
    {"configBlackList", "configStorePath", "controllerStorePath", "reputQuorum", "rocketmqHome"}
)

Count = Annotated[int, Range(1)]
Port = Annotated[int, Range(0, _PORT_MAX)]

_REASONS = {
    "the state is in a small file or in etcd, not in a log of Raft": """
        controllerType mappedFileSize jRaftElectionTimeoutMs jRaftScanWaitTimeoutMs
        jRaftSnapshotIntervalSecs jRaftGroupId jRaftServerId jRaftInitConf jRaftControllerRPCAddr
        isProcessReadEvent""",
    "silence is noticed when the timeout of the heartbeats is over": """
        scanNotActiveBrokerInterval scanInactiveMasterInterval""",
    "an election is tried until there is a master": "electMasterMaxRetryCount",
    "one thread serves all connections, without queues": """
        controllerThreadPoolNums controllerRequestThreadPoolQueueCapacity serverWorkerThreads
        serverCallbackExecutorThreads serverSelectorThreads serverOnewaySemaphoreValue
        serverAsyncSemaphoreValue serverNettyWorkerGroupEnable""",
    "buffers and sockets use the system's defaults": """
        serverSocketSndBufSize serverSocketRcvBufSize serverSocketBacklog writeBufferHighWaterMark
        writeBufferLowWaterMark serverPooledByteBufAllocatorEnable useEpollNativeSelector""",
    "a stop answers pending requests and waits for nothing else": """
        enableShutdownGracefully shutdownWaitTimeSeconds""",
    "metricsPort serves the metrics": """
        metricsExporterType metricsGrpcExporterTarget metricsGrpcExporterHeader
        metricGrpcExporterTimeOutInMills metricGrpcExporterIntervalInMills
        metricLoggingExporterIntervalInMills metricsPromExporterPort metricsPromExporterHost
        metricsLabel metricsInDelta""",
}
ACCEPTED_WITHOUT_EFFECT: Mapping[str, str] = {
    key: reason for reason, keys in _REASONS.items() for key in keys.split()
}
"""Keys of RocketMQ that have no effect here, each with the reason."""

_NO_ACCESS_CONTROL = (
    "controllers trust their network, as RocketMQ's of 5.3: protect this port by "
    "tls.server.mode=enforcing with certificates of clients"
)
ONLY: Mapping[str, tuple[str, str]] = {
    "authenticationEnabled": ("false", _NO_ACCESS_CONTROL),
    "authorizationEnabled": ("false", _NO_ACCESS_CONTROL),
}
"""Keys with a single allowed value: this controller does not support others."""


def _in_home(name: str) -> str:
    return str((config.home_folder() or Path.cwd()) / "controller" / name)


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerConfig:
    """Addresses, files and rules of a controller.

    Raises:
        InvalidOption: A value is outside its range.
    """

    keys: ClassVar[config.Keys] = config.Keys(without_effect=ACCEPTED_WITHOUT_EFFECT, only=ONLY)

    # --- files -----------------------------------------------------------

    rocketmq_home: str | None = field(default_factory=lambda: os.environ.get("ROCKETMQ_HOME"))
    """Folder that is only shown with the settings; no file is read from it."""
    controller_store_path: str = ""
    """Folder of the state: masters, epochs and in-sync sets of all groups. If empty, it is
    ``controller/state`` in the home folder."""
    config_store_path: str = field(default_factory=lambda: _in_home("controller.properties"))
    """File for changed settings; by default the file that they were read from."""

    # --- listening -------------------------------------------------------

    bind_address: str = "0.0.0.0"
    """Address to listen on."""
    listen_port: int | None = None
    """Port to listen on; 0 takes any free port. By default that of ``controllerDLegerPeers``, else
    9878."""
    controller_d_leger_group: str = "reput"
    """Name of the controllers, which ``mqadmin getControllerMetaData`` shows."""
    controller_d_leger_self_id: str = "n0"
    """Name of this controller."""
    controller_d_leger_peers: str = ""
    """Addresses of the controllers, as brokers and mqadmin reach them: ``n0-host:port``, with
    ``reputQuorum`` also ``n0-host:port;n1-host:port``. If empty, that of this controller is the one
    with which each has connected."""
    server_channel_max_idle_time_seconds: Annotated[int, Range(1)] = 120
    """Seconds after which an idle connection is closed."""
    reput_proxy_protocol_from: str = ""
    """Networks of proxies, separated by commas: connections from there begin with a PROXY header
    (version 1 or 2), and its source is the client's address. If empty, no header is read."""
    metrics_port: Port = 0
    """HTTP port of /metrics and /health; 0: none."""
    reput_metrics_address: str = "127.0.0.1"
    """Address of that port; 0.0.0.0 gives other machines access."""

    # --- several controllers ---------------------------------------------

    reput_quorum: str = ""
    """Store that several controllers share: an etcd of version 3.4 or later, with all its members,
    as ``etcd:http://10.0.0.1:2379,http://10.0.0.2:2379/reput``. If empty, it is the file in
    ``controllerStorePath``, for a single controller."""
    reput_quorum_lease_seconds: Annotated[int, Range(2, 60)] = 5
    """Seconds after which another controller leads if the leader is gone."""
    reput_quorum_ca_file: str = ""
    """Certificates of the authorities that etcd's certificates are from, as PEM; by default those
    of the system."""
    reput_quorum_cert_file: str = ""
    """Certificate of this controller for etcd, as PEM, if etcd wants one."""
    reput_quorum_key_file: str = ""
    """Private key of that certificate."""

    # --- elections -------------------------------------------------------

    enable_elect_unclean_master: bool = False
    """Elect a replica that is not in sync if none that is in sync is alive. Messages that were
    acknowledged are lost."""
    notify_broker_role_changed: bool = True
    """Notify brokers of a new master at once; without it they notice it within 5 s."""

    # --- resources -------------------------------------------------------

    reput_replica_groups_max: Count = limits.CONTROLLER_GROUPS.maximum
    """Maximum number of broker names; further ones are refused."""
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

    # --- changes at run time ---------------------------------------------

    config_black_list: str = "configBlackList;configStorePath"
    """Keys, separated by ``;``, that cannot be changed over the network; nor can rocketmqHome and
    controllerStorePath."""
    reput_remote_settings: RemoteSettings = RemoteSettings.SAFE
    """Other settings that can be changed over the network: ``java``: all; ``none``: none; ``safe``:
    all except addresses, ports and paths, and keys that begin with ``reput``."""

    def __post_init__(self) -> None:
        config.check_ranges(self)
        if self.listen_port is not None and not 0 <= self.listen_port <= _PORT_MAX:
            raise InvalidOption("listenPort", self.listen_port, "a whole number from 0 to 65535")
        if not self.reput_metrics_address:
            allowed = "an address: 127.0.0.1, or 0.0.0.0 to let other machines in"
            raise InvalidOption("reputMetricsAddress", "", allowed)
        _ = self.proxies, self.peers  # refuses wrong ones
        if self.etcd is None and len(self.peers) > 1:
            allowed = "one controller: several need a store that they share, set with reputQuorum"
            raise InvalidOption("controllerDLegerPeers", self.controller_d_leger_peers, allowed)
        if self.etcd is not None and self.peer is None:
            name = self.controller_d_leger_self_id
            allowed = f"{name}-host:port: the other controllers pass this address to brokers"
            raise InvalidOption("controllerDLegerPeers", self.controller_d_leger_peers, allowed)
        if bool(self.reput_quorum_cert_file) != bool(self.reput_quorum_key_file):
            allowed = "set if, and only if, reputQuorumCertFile is"
            raise InvalidOption("reputQuorumKeyFile", self.reput_quorum_key_file, allowed)

    @property
    def folder(self) -> str:
        """Folder of the state."""
        return self.controller_store_path or _in_home("state")

    @property
    def etcd(self) -> EtcdAddress | None:
        """The etcd that keeps the state; None: a file does. Raises ``InvalidOption``."""
        return etcd_address.parse(self.reput_quorum) if self.reput_quorum else None

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The controllers in ``controllerDLegerPeers``. Raises ``InvalidOption``."""
        key, text = "controllerDLegerPeers", self.controller_d_leger_peers.strip().rstrip(";")
        peers = []
        for part in text.split(";") if text else ():
            name, _, address = part.strip().partition("-")
            try:
                split_address(address)
            except ReputError as error:
                allowed = f"NAME-host:port, for example n0-127.0.0.1:{DEFAULT_PORT}"
                raise InvalidOption(key, text, allowed) from error
            peers.append(Peer(name, address))
        own = self.controller_d_leger_self_id
        if peers and [peer.name for peer in peers].count(own) != 1:
            allowed = f"{own}-host:port, once, as controllerDLegerSelfId is {own}"
            raise InvalidOption(key, text, allowed)
        return tuple(peers)

    @property
    def peer(self) -> Peer | None:
        """This controller, if ``controllerDLegerPeers`` has its address."""
        own = self.controller_d_leger_self_id
        return next((peer for peer in self.peers if peer.name == own), None)

    @property
    def port(self) -> int:
        """Port to listen on; 0: any."""
        if self.listen_port is not None:
            return self.listen_port
        return DEFAULT_PORT if self.peer is None else split_address(self.peer.address)[1]

    @property
    def proxies(self) -> tuple[Network, ...]:
        """Networks of the proxies."""
        return networks.parse(self.reput_proxy_protocol_from, "reputProxyProtocolFrom")

    @property
    def fixed_keys(self) -> frozenset[str]:
        """The keys of the black list."""
        listed = {word.strip() for word in self.config_black_list.split(";")}
        return _ALWAYS_FIXED | listed


class CurrentSettings(current_config.RemoteConfig[ControllerConfig]):
    """The current settings of a controller."""

    file = "controller.conf"


def load(
    path: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    explicit: Mapping[str, object] | None = None,
) -> tuple[CurrentSettings, tuple[config.Unknown, ...]]:
    """Return the settings of a controller, and the unknown keys.

    Args:
        path: Path of controller.conf. Changed settings are written to it, as in Java.
        environment: ``os.environ``.
        explicit: snake_case field -> value, with the highest precedence.

    Raises:
        InvalidOption: The file cannot be read, or a value is not allowed.
    """
    value, others, tls, unknown = current_config.load(
        ControllerConfig, path, environment=environment, explicit=explicit
    )
    return CurrentSettings(replace(value, listen_port=value.port), others, tls), unknown
