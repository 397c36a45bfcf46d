"""Which settings a client may change while a server runs: requests 25 (broker), 318 (name server).

Neither server knows who asks, so by default what an operator with the machine should decide is left
to the operator: ``reputRemoteSettings=safe`` in the file.

    none   nothing
    safe   what does not say where the server is, who it is and whom it tells so, where its files
           are, and how it is protected
    java   all but the keys of ``configBlackList``, as RocketMQ

No mode lets a client change the mode.
"""

import enum
import re
from collections.abc import Iterable

from reput.errors import RequestRefused

KEY = "reputRemoteSettings"

_NO_PERMISSION = 16

_PROTECTED = re.compile(
    r"reput[A-Z].*"  # limits, and what keeps log files from being deleted
    r"|pullHoldMax|rebalanceLockMaxLiveTime"  # limits that RocketMQ's file does not have
    r"|.*(Path|Paths|PathRootDir|PathCommitLog|Dir|Folder|Home)"
    r"|namesrvAddr"  # whoever it names may lead a topic's traffic away
    r"|(bindAddress|listenPort|haListenPort|metricsPort|metricsPromExporter(Host|Port))"
    r"|(brokerIP[12]|brokerName|brokerClusterName|brokerId|brokerRole|haMasterAddress)"
    r"|(fastPortEnable|inBrokerContainer|messageStorePlugIn|configBlackList)"
    r"|(acl|auth|authentication|authorization|tls|ssl)([A-Z.].*)?"
    r"|(useTLS|initAuthenticationUser|innerClientAuthenticationCredentials)"
    r"|(migrateAuthFromV1Enabled|.*CacheMaxNum|.*CacheExpiredSecond|.*CacheRefreshSecond)"
    # What files of a store look like: with another size the store cannot be opened again.
    r"|(mappedFileSize|mapperFileSize).*|maxHashSlotNum|maxIndexNum|transientStorePool.*"
)

_SECRET = re.compile(
    r"pass(word|wd|phrase)|secret|credential|token|accesskey|authenticationuser|exporterheader",
    re.IGNORECASE,
)
_REDACTED = "(not shown)"


class RemoteSettings(enum.StrEnum):
    """What may be changed."""

    SAFE = "safe"
    JAVA = "java"
    NONE = "none"


def is_protected(key: str) -> bool:
    """Whether a key is left to the operator by ``safe``."""
    return _PROTECTED.fullmatch(key) is not None


def check(keys: Iterable[str], mode: RemoteSettings, *, file: str) -> None:
    """Refuse changes that the mode does not allow.

    Args:
        keys: What is to be changed, under the names that fields have.
        mode: What is in force.
        file: Where an operator changes it: ``broker.conf``.

    Raises:
        RequestRefused: One of them may not be changed; NO_PERMISSION.
    """
    for key in sorted(keys):
        if key == KEY:
            way = f"no mode of it allows that; change it in {file}, and restart"
        elif mode == RemoteSettings.NONE:
            way = f"change it in {file}, and restart"
        elif mode == RemoteSettings.SAFE and is_protected(key):
            way = f"change it in {file}, and restart, or set {KEY}=java there"
        else:
            continue
        raise RequestRefused(
            _NO_PERMISSION, f"{key[:300]} may not be changed over the network ({KEY}={mode}): {way}"
        )


def shown(key: str, value: str) -> str:
    """Return a value as logs and replies may have it: passwords and such are left out."""
    return _REDACTED if value and _SECRET.search(key) else value
