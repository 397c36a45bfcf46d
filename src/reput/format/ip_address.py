"""IP addresses and networks as text. IPv4 in the form of IPv6 (``::ffff:10.0.3.7``) is IPv4."""

import functools
import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


@functools.lru_cache(maxsize=4096)
def parse_address(text: str) -> Address:
    """Return the address of a text; one of IPv6 may be in brackets, and have a zone.

    Raises:
        ValueError: It is none.
    """
    address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def parse_network(text: str, *, is_strict: bool) -> Network:
    """Return the network of an address or of a text such as ``10.0.0.0/8``.

    Args:
        text: The text.
        is_strict: Whether an address inside of the network is refused: ``10.0.0.1/8``.

    Raises:
        ValueError: It is none.
    """
    network = ipaddress.ip_network(text.strip(), strict=is_strict)
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
        first = network.network_address.ipv4_mapped
        return ipaddress.IPv4Network((int(first or 0), network.prefixlen - _MAPPED.prefixlen))
    return network
