"""Namespaces: a prefix that keeps the topics and groups of tenants apart.

``tenant%Orders``, and ``%RETRY%tenant%group`` for what belongs to a group. System topics have none.
Source: rocketmq 4.9.7 ``NamespaceUtil``.
"""

from reput.format import names

SEPARATOR = "%"
_GROUP_PREFIXES = (names.RETRY_PREFIX, names.DLQ_PREFIX)
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


def wrap(namespace: str, name: str) -> str:
    """Return the full name of a topic or group; unchanged if it has the namespace already."""
    if not namespace or names.is_system_topic(name) or name.startswith(_SYSTEM_GROUP_PREFIX):
        return name
    prefix, plain = _split(name)
    if plain.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{plain}"


def unwrap(namespace: str, name: str) -> str:
    """Return the name as its user knows it."""
    prefix, plain = _split(name)
    return prefix + plain.removeprefix(namespace + SEPARATOR) if namespace else name


def _split(name: str) -> tuple[str, str]:
    prefix = next((one for one in _GROUP_PREFIXES if name.startswith(one)), "")
    return prefix, name[len(prefix) :]
