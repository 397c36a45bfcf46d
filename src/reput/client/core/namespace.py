"""Namespaces: a prefix that separates the topics and groups of tenants.

``tenant%Orders``, and ``%RETRY%tenant%group`` for topics of a group. System topics have none.
Source: rocketmq 4.9.7 ``NamespaceUtil``.
"""

from reput.format import names

SEPARATOR = "%"
_GROUP_PREFIXES = (names.RETRY_PREFIX, names.DLQ_PREFIX)
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


def wrap(namespace: str, name: str) -> str:
    """Return the full name of a topic or group; unchanged if it already has the namespace."""
    if not namespace or names.is_system_topic(name) or name.startswith(_SYSTEM_GROUP_PREFIX):
        return name
    prefix, plain = _split(name)
    if plain.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{plain}"


def unwrap(namespace: str, name: str) -> str:
    """Return the name without the namespace."""
    prefix, plain = _split(name)
    return prefix + plain.removeprefix(namespace + SEPARATOR) if namespace else name


def _split(name: str) -> tuple[str, str]:
    prefix = next((candidate for candidate in _GROUP_PREFIXES if name.startswith(candidate)), "")
    return prefix, name[len(prefix) :]
