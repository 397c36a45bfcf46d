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
    if not allowed:
        return True
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in allowed)
