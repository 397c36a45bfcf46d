"""The networks whose hosts may connect to the port for slaves."""

from collections.abc import Sequence

from reput.format.ip_address import Network, parse_address
from reput.remoting import networks


def contain(allowed: Sequence[Network], host: str) -> bool:
    """Return whether a host is in one of the networks; without networks all are.

    Args:
        allowed: The networks.
        host: The address of the host.
    """
    return not allowed or networks.contain(allowed, host)


def is_same_machine(host: str, own: str) -> bool:
    """Return whether a connection comes from the machine that it leads to.

    Args:
        host: The address that it comes from.
        own: The address that it leads to.
    """
    address = parse_address(host)
    return address.is_loopback or address == parse_address(own)
