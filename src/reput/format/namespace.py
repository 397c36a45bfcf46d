"""Namespaces: a prefix that separates the topics and groups of tenants.

``tenant%Orders``, and ``%RETRY%tenant%group`` for topics of a group. System topics have none.
Source: rocketmq 4.9.7 ``NamespaceUtil``, ``NameServerAddressUtils``.
"""

import re

from reput.format import names

SEPARATOR = "%"
_GROUP_PREFIXES = (names.RETRY_PREFIX, names.DLQ_PREFIX)
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
_ENDPOINT_SCHEME = "http://"
_INSTANCE_ENDPOINT = re.compile(rf"{_ENDPOINT_SCHEME}(MQ_INST_\w+_\w+)\.")


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


def topic_pattern(namespace: str) -> str:
    """Return a regular expression for the full names of the topics of a namespace."""
    prefixes = "|".join(map(re.escape, _GROUP_PREFIXES))
    return f"({prefixes})?{re.escape(namespace + SEPARATOR)}.*"


def of_endpoint(name_servers: str) -> tuple[str, str]:
    """Return the namespace in the address of an instance, and the address without its scheme.

    ``http://MQ_INST_1_b.host:8080`` has the namespace ``MQ_INST_1_b``; other addresses have none
    and are returned unchanged.
    """
    endpoint = _INSTANCE_ENDPOINT.match(name_servers)
    if endpoint is None:
        return "", name_servers
    return endpoint[1], name_servers.removeprefix(_ENDPOINT_SCHEME)


def _split(name: str) -> tuple[str, str]:
    prefix = next((candidate for candidate in _GROUP_PREFIXES if name.startswith(candidate)), "")
    return prefix, name[len(prefix) :]
