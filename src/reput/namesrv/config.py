"""The name server's settings: what namesrv.conf says, under the same names and defaults.

Read with ``reput.config``. Field names are RocketMQ's keys in snake_case. Java has them in three
classes (4.9 ``NamesrvConfig``, ``NettyServerConfig``; 5.x ``NettyClientConfig`` as well); here they
are one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from reput import config, limits, remote_settings, small_file
from reput.config import Range
from reput.errors import InvalidOption, RequestRefused
from reput.format.codes import ResponseCode
from reput.remote_settings import RemoteSettings

DEFAULT_PORT = 9876
_ALWAYS_FIXED = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})

Count = Annotated[int, Range(1)]
Port = Annotated[int, Range(0, 65535)]


def _keys_by_reason(reasons: Mapping[str, str]) -> dict[str, str]:
    return {key: reason for reason, keys in reasons.items() for key in keys.split()}


ACCEPTED_WITHOUT_EFFECT: Mapping[str, str] = _keys_by_reason(
    {
        "it names the environment that clusterTest asks": "productEnvName",
        "one thread serves all connections and nothing waits in a queue": """
            serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads
            serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverNettyWorkerGroupEnable
            clientRequestThreadPoolNums defaultThreadPoolNums clientRequestThreadPoolQueueCapacity
            defaultThreadPoolQueueCapacity unRegisterBrokerQueueCapacity""",
        "buffers and sockets are as the system has them": """
            serverSocketSndBufSize serverSocketRcvBufSize serverSocketBacklog
            writeBufferHighWaterMark writeBufferLowWaterMark serverPooledByteBufAllocatorEnable
            useEpollNativeSelector""",
        "a stop answers what was asked before and waits for nothing else": """
            enableShutdownGracefully shutdownWaitTimeSeconds""",
        "only brokers with an acting master are told": "notifyMinBrokerIdChanged",
        "a name server asks nobody": """
            clientWorkerThreads clientCallbackExecutorThreads clientOnewaySemaphoreValue
            clientAsyncSemaphoreValue connectTimeoutMillis channelNotActiveInterval
            isScanAvailableNameSrv clientChannelMaxIdleTimeSeconds clientSocketSndBufSize
            clientSocketRcvBufSize clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout
            socksProxyConfig disableCallbackExecutor disableNettyWorkerGroup
            maxReconnectIntervalTimeSeconds enableReconnectForGoAway scanAvailableNameSrv useTLS""",
    }
)
"""Keys that RocketMQ has and that change nothing here, each with the reason."""

ONLY: Mapping[str, tuple[str, str]] = {
    "clusterTest": ("false", "routes of another environment are not asked for"),
    "supportActingMaster": ("false", "a slave never stands in for its master here"),
    "enableControllerInNamesrv": ("false", "there is no controller here"),
    "deleteTopicWithBrokerRegistration": (
        "false",
        "a broker that tells one topic would lose the others; delete topics with mqadmin",
    ),
}
"""Keys that must be left as they are: what else they can be, this name server does not do."""


def _in_home(name: str) -> str:
    return str(Path.home() / "namesrv" / name)


@dataclass(frozen=True, kw_only=True, slots=True)
class NamesrvConfig:
    """Where a name server listens, what it keeps, what it tells.

    Raises:
        InvalidOption: A value is outside its range.
    """

    keys: ClassVar[config.Keys] = config.Keys(
        without_effect=ACCEPTED_WITHOUT_EFFECT,
        only=ONLY,
    )

    # --- files -----------------------------------------------------------

    rocketmq_home: str | None = field(default_factory=lambda: os.environ.get("ROCKETMQ_HOME"))
    """Nothing is read from there; shown to whoever asks for the settings."""
    kv_config_path: str = field(default_factory=lambda: _in_home("kvConfig.json"))
    """File of the settings that clients share (``mqadmin updateKvConfig``)."""
    config_store_path: str = field(default_factory=lambda: _in_home("namesrv.properties"))
    """File that changed settings are written to; the file they were read from, if there is one."""

    # --- listening -------------------------------------------------------

    bind_address: str = "0.0.0.0"
    """Address to listen on."""
    listen_port: Port = DEFAULT_PORT
    """Port to listen on; 0 takes any that is free."""
    server_channel_max_idle_time_seconds: Annotated[int, Range(1)] = 120
    """Seconds after which a connection without traffic is closed."""
    metrics_port: Port = 0
    """Where /metrics and /health are served over HTTP; 0: nowhere."""
    reput_metrics_address: str = "127.0.0.1"
    """The address that they are served at; 0.0.0.0 lets other machines read them."""

    # --- what connections may cost ---------------------------------------

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

    # --- brokers ---------------------------------------------------------

    scan_not_active_broker_interval: Annotated[int, Range(1, 3_600_000)] = 5_000
    """Milliseconds between two looks for brokers that nothing was heard of for two minutes."""
    return_order_topic_config_to_broker: bool = True
    """Tell brokers which topics are ordered when they register."""
    reput_brokers_max: Count = limits.NAMESRV_BROKERS.maximum
    """Broker names at most, and addresses of brokers; another broker is refused."""
    reput_routed_topics_max: Count = limits.NAMESRV_TOPICS.maximum
    """Topics at most; others are left out of a registration, until there is room."""
    reput_routed_queues_max: Count = limits.NAMESRV_QUEUES.maximum
    """The same, where a topic counts once per broker name that has it."""
    reput_kv_bytes_max: Count = limits.KV_TABLE_BYTES.maximum
    """Bytes of all settings that clients share: names and values. They are written whole on a
    change."""

    # --- clients ---------------------------------------------------------

    order_message_enable: bool = False
    """Tell clients with a route how the queues of an ordered topic are spread."""
    need_wait_for_service: bool = False
    """Give no routes at first, until all brokers had time to register."""
    wait_seconds_for_service: Annotated[int, Range(0, 86_400)] = 45
    """Seconds of that time."""
    enable_all_topic_list: bool = True
    """Answer who asks for all topics."""
    enable_topic_list: bool = True
    """Answer who asks for topics by cluster or unit, or for system topics."""

    # --- changing settings while running ---------------------------------

    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys, separated by ``;``, that nobody may change over the network, as rocketmqHome."""
    reput_remote_settings: RemoteSettings = RemoteSettings.SAFE
    """What else may be changed over the network: ``java``: all; ``none``: nothing; ``safe``: what
    does not say where the name server listens and where its files are, and no key that begins with
    ``reput``."""

    def __post_init__(self) -> None:
        config.check_ranges(self)
        if not self.reput_metrics_address:
            allowed = "an address: 127.0.0.1, or 0.0.0.0 to let other machines in"
            raise InvalidOption("reputMetricsAddress", "", allowed)

    @property
    def fixed_keys(self) -> frozenset[str]:
        """The keys of the black list."""
        listed = {word.strip() for word in self.config_black_list.split(";")}
        return _ALWAYS_FIXED | listed


class Plan(NamedTuple):
    """A change of settings that was checked."""

    changes: dict[str, str]
    """Key -> text, as the client sent them."""
    value: NamesrvConfig
    """All settings after the change."""
    others: dict[str, str]
    """All keys without effect after the change."""


class CurrentConfig:
    """The settings that are in force; each change is written to their file first.

    Args:
        value: What was set at start.
        others: Keys that were set and mean nothing here; written back as they were.
    """

    def __init__(self, value: NamesrvConfig, others: Mapping[str, str] | None = None) -> None:
        self.value = value
        self._others = dict(others or {})

    def text(self) -> str:
        """Return all settings, one ``key=value`` a line, without passwords: anybody may ask."""
        pairs = {**self._others, **_pairs(self.value)}
        return _text({key: remote_settings.shown(key, text) for key, text in pairs.items()})

    def plan(self, text: str) -> Plan:
        """Check the settings that a client sends; ``write`` and ``apply`` them before the next.

        Args:
            text: Lines ``key=value``.

        Raises:
            RequestRefused: It may not be changed.
            InvalidOption: A key is unknown or a value not allowed.
        """
        changes = config.parse_properties(text)
        fixed = sorted(changes.keys() & self.value.fixed_keys)
        if fixed:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"Can not update config path or what configBlackList names: {fixed[0]} "
                "is changed in the file and with a restart",
            )
        remote_settings.check(changes, self.value.reput_remote_settings, file="namesrv.conf")
        settings = config.Settings({**_pairs(self.value), **changes})
        value = settings.make(NamesrvConfig)
        for unknown in settings.unknown():
            hint = f"did you mean {unknown.suggestion}?" if unknown.suggestion else "see getConfig"
            raise InvalidOption(unknown.key, changes[unknown.key], f"a key that exists; {hint}")
        others = {**self._others, **{key: changes[key] for key in settings.without_effect}}
        return Plan(changes, value, others)

    def write(self, plan: Plan) -> None:
        """Write settings to their file; for any thread. Raises ``WriteFailed``."""
        text = _text({**plan.others, **_pairs(plan.value)})
        small_file.replace_file(self.value.config_store_path, text.encode("ascii"))

    def apply(self, plan: Plan) -> None:
        """Put settings in force that ``write`` has written.

        Those that are read only at the start have their effect at the next start.
        """
        self.value, self._others = plan.value, plan.others


def load(
    path: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    explicit: Mapping[str, object] | None = None,
) -> tuple[CurrentConfig, tuple[config.Unknown, ...]]:
    """Return the settings of a name server, and what was given and is unknown.

    Args:
        path: A namesrv.conf. Changed settings are written to it, as Java does.
        environment: ``os.environ``.
        explicit: snake_case field -> value; wins over all.

    Raises:
        InvalidOption: The file cannot be read, or a value is not allowed.
    """
    given: dict[str, object] = {"config_store_path": path} if path is not None else {}
    settings = config.Settings(
        path, environment=environment, explicit={**given, **(explicit or {})}
    )
    value = settings.make(NamesrvConfig)
    others = {}
    if path is not None:
        pairs = config.parse_properties(Path(path).read_bytes().decode("latin-1"))
        known = _pairs(value)
        others = {key: one for key, one in pairs.items() if key not in known}
    return CurrentConfig(value, others), settings.unknown()


def _pairs(value: NamesrvConfig) -> dict[str, str]:
    """Return what is set, as a file has it."""
    return {key: text for key, text in config.texts(value).items() if text is not None}


def _text(pairs: Mapping[str, str]) -> str:
    return "".join(config.property_line(key, one) for key, one in sorted(pairs.items()))
