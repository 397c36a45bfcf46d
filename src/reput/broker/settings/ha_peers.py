"""The networks whose hosts may connect to the port for slaves."""

import ipaddress
from collections.abc import Sequence

from reput.errors import InvalidOption

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(text: str) -> tuple[Network, ...]:
    """Return the networks of ``reputHaPeers``.

    Raises:
        InvalidOption: A part is no network.
    """
    try:
        words = [word.strip() for word in text.split(",") if word.strip()]
        return tuple(map(ipaddress.ip_network, words))
    except ValueError as error:
        allowed = f"networks separated by commas, as in 10.0.0.0/24,10.1.0.7 ({error})"
        raise InvalidOption("reputHaPeers", text, allowed) from None


def contain(allowed: Sequence[Network], host: str) -> bool:
    """Return whether a host is in one of the networks; without networks all are.

    Args:
        allowed: The networks.
        host: The address of the host.
    """
    address = _address(host)
    return not allowed or any(address in network for network in allowed)


def is_same_machine(host: str, own: str) -> bool:
    """Return whether a connection comes from the machine that it leads to.

    Args:
        host: The address that it comes from.
        own: The address that it leads to.
    """
    address = _address(host)
    return address.is_loopback or address == _address(own)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address; IPv4 in the form of IPv6 is IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
