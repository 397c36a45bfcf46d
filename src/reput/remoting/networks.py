"""Lists of networks in settings: ``10.0.0.0/24,10.1.0.7``. IPv4 in the form of IPv6 is IPv4."""

import ipaddress
from collections.abc import Iterable

from reput.errors import InvalidOption

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAPPED_BITS = 96
"""Length of the prefix of IPv4 in the form of IPv6, ``::ffff:0:0``."""


def parse(text: str, key: str) -> tuple[Network, ...]:
    """Return the networks of a setting.

    Args:
        text: Networks and addresses, separated by commas.
        key: Key of the setting, for the error message.

    Raises:
        InvalidOption: A part is no network.
    """
    try:
        words = [word.strip() for word in text.split(",") if word.strip()]
        return tuple(map(_network, words))
    except ValueError as error:
        allowed = f"networks separated by commas, as in 10.0.0.0/24,10.1.0.7 ({error})"
        raise InvalidOption(key, text, allowed) from None


def _network(word: str) -> Network:
    network = ipaddress.ip_network(word)
    mapped = address_of(str(network.network_address))
    if isinstance(mapped, ipaddress.IPv4Address) and network.prefixlen >= _MAPPED_BITS:
        return ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


def contain(networks: Iterable[Network], host: str | bytes) -> bool:
    """Return whether a host is in one of the networks.

    Args:
        networks: The networks.
        host: The address of the host, as text or as in records.
    """
    address = ipaddress.ip_address(host) if isinstance(host, bytes) else address_of(host)
    return any(address in network for network in networks)


def address_of(text: str) -> Address:
    """Return the address of a text, without its scope."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
