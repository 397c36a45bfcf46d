"""Settings that clients can change while a server runs: requests 25 (broker), 318 (name server).

Neither server authenticates clients, so by default protected settings can be changed only in the
file: ``reputRemoteSettings=safe``.

    none   nothing
    safe   all but names, addresses, name servers, ports, paths, file formats and security
    java   all but the keys of ``configBlackList``, as in RocketMQ

No mode lets a client change the mode.
"""

import enum
import re
from collections.abc import Iterable

from reput.errors import RequestRefused

KEY = "reputRemoteSettings"

_NO_PERMISSION = 16

_PROTECTED = re.compile(
    r"reput[A-Z].*"  # limits, and protection of log files against deletion
    r"|pullHoldMax|rebalanceLockMaxLiveTime"  # limits that RocketMQ's file does not have
    r"|.*(Path|Paths|PathRootDir|PathCommitLog|PathEpochFile|PathBrokerIdentity|Dir|Folder|Home)"
    r"|controllerAddr|enableControllerMode"  # another controller could name any master
    r"|notifyMinBrokerIdChanged"  # requests to all brokers
    r"|namesrvAddr"  # a wrong one could redirect a topic's traffic
    r"|(bindAddress|(listen|haListen|grpcServer|metrics)Port|metricsExporterType|metricsPromExporter(Host|Port))"
    r"|(brokerIP[12]|brokerName|brokerClusterName|brokerId|brokerRole|haMasterAddress)"
    r"|(haForceMaster|haDivergedPolicy)"  # a second master; the end of a log that is cut
    r"|(fastPortEnable|inBrokerContainer|messageStorePlugIn|configBlackList)"
    r"|(acl|auth|authentication|authorization|tls|ssl)([A-Z.].*)?"
    r"|(useTLS|haTlsEnable|initAuthenticationUser|innerClientAuthenticationCredentials)"
    r"|(migrateAuthFromV1Enabled|.*CacheMaxNum|.*CacheExpiredSecond|.*CacheRefreshSecond)"
    # File formats of a store: with another size it cannot be opened again.
    r"|(mappedFileSize|mapperFileSize).*|maxHashSlotNum|maxIndexNum|transientStorePool.*"
)

_FIXED = re.compile(
    r"(tls|ssl|acl|rocketmq\.acl|reputAcl)[A-Z.].*|useTLS"
    r"|reputProxyProtocolFrom"  # who decides about the addresses of clients
)
"""Keys that no mode lets clients change: they protect the connections and rights of all clients."""

_SECRET = re.compile(
    r"pass(word|wd|phrase)|secret|credential|token|accesskey|authenticationuser|exporterheader",
    re.IGNORECASE,
)
_REDACTED = "(not shown)"


class RemoteSettings(enum.StrEnum):
    """The settings that clients can change."""

    SAFE = "safe"
    JAVA = "java"
    NONE = "none"


def is_protected(key: str) -> bool:
    """Return True if ``safe`` protects a key."""
    return _PROTECTED.fullmatch(key) is not None


def check(keys: Iterable[str], mode: RemoteSettings, *, file: str) -> None:
    """Refuse changes that the mode does not allow.

    Args:
        keys: The keys, in the form of fields' keys.
        mode: The current mode.
        file: File in which an operator can change them: ``broker.conf``.

    Raises:
        RequestRefused: A key cannot be changed; NO_PERMISSION.
    """
    for key in sorted(keys):
        if key == KEY or _FIXED.fullmatch(key):
            way = f"no mode allows that; change it in {file}, and restart"
        elif mode == RemoteSettings.NONE:
            way = f"change it in {file}, and restart"
        elif mode == RemoteSettings.SAFE and is_protected(key):
            way = f"change it in {file}, and restart, or set {KEY}=java there"
        else:
            continue
        raise RequestRefused(
            _NO_PERMISSION, f"{key[:300]} cannot be changed over the network ({KEY}={mode}): {way}"
        )


def shown(key: str, value: str) -> str:
    """Return a value for logs and replies: passwords and the like are hidden."""
    return _REDACTED if value and _SECRET.search(key) else value
