"""The name server's settings: what namesrv.conf says, under the same names and defaults.

Read with ``reput.config``. Field names are RocketMQ's keys in snake_case. Java has them in three
classes (4.9 ``NamesrvConfig``, ``NettyServerConfig``; 5.x ``NettyClientConfig`` as well); here they
are one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from reput import config, small_file
from reput.config import Range
from reput.errors import InvalidOption, ReputError
from reput.format.codes import ResponseCode

DEFAULT_PORT = 9876


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
    listen_port: Annotated[int, Range(0, 65535)] = DEFAULT_PORT
    """Port to listen on; 0 takes any that is free."""
    server_channel_max_idle_time_seconds: Annotated[int, Range(1)] = 120
    """Seconds after which a connection without traffic is closed."""

    # --- brokers ---------------------------------------------------------

    scan_not_active_broker_interval: Annotated[int, Range(1)] = 5_000
    """Milliseconds between two looks for brokers that nothing was heard of for two minutes."""
    return_order_topic_config_to_broker: bool = True
    """Tell brokers which topics are ordered when they register."""

    # --- clients ---------------------------------------------------------

    order_message_enable: bool = False
    """Tell clients with a route how the queues of an ordered topic are spread."""
    need_wait_for_service: bool = False
    """Give no routes at first, until all brokers had time to register."""
    wait_seconds_for_service: Annotated[int, Range(0)] = 45
    """Seconds of that time."""
    enable_all_topic_list: bool = True
    """Answer who asks for all topics."""
    enable_topic_list: bool = True
    """Answer who asks for topics by cluster or unit, or for system topics."""

    # --- changing settings while running ---------------------------------

    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys, separated by ``;``, that nobody may change over the network, as rocketmqHome."""

    def __post_init__(self) -> None:
        config.check_ranges(self)

    @property
    def fixed_keys(self) -> frozenset[str]:
        """The keys that nobody may change over the network."""
        always = {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}
        return frozenset(always | {one.strip() for one in self.config_black_list.split(";")})


class FixedKey(ReputError):
    """A key that may not be changed over the network.

    Args:
        key: Which.
    """

    response_code = ResponseCode.NO_PERMISSION

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"Can not update config path or what configBlackList names: {key} "
            "is changed in the file and with a restart"
        )


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
        """Return all settings, one ``key=value`` a line."""
        return _text({**self._others, **_pairs(self.value)})

    def change(self, text: str) -> dict[str, str]:
        """Set what a properties text says, durably; return it.

        What is read at start alone (the port) has its effect at the next start.

        Raises:
            FixedKey: It may not be changed.
            InvalidOption: A key is unknown or a value not allowed; nothing is changed.
            WriteFailed: The file could not be written; nothing is changed.
        """
        changes = config.parse_properties(text)
        fixed = sorted(changes.keys() & self.value.fixed_keys)
        if fixed:
            raise FixedKey(fixed[0])
        settings = config.Settings({**_pairs(self.value), **changes})
        value = settings.make(NamesrvConfig)
        for unknown in settings.unknown():
            hint = f"did you mean {unknown.suggestion}?" if unknown.suggestion else "see getConfig"
            raise InvalidOption(unknown.key, changes[unknown.key], f"a key that exists; {hint}")
        others = {**self._others, **{key: changes[key] for key in settings.without_effect}}
        written = _text({**others, **_pairs(value)})
        small_file.replace_file(self.value.config_store_path, written.encode("ascii"))
        self.value, self._others = value, others
        return changes


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
