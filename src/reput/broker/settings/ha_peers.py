"""The networks whose hosts may connect to the port for slaves."""

from collections.abc import Sequence

from reput.errors import InvalidOption
from reput.format.ip_address import Network, parse_address, parse_network


def networks(text: str) -> tuple[Network, ...]:
    """Return the networks of ``reputHaPeers``.

    Raises:
        InvalidOption: A part is no network.
    """
    try:
        words = [word for word in text.split(",") if word.strip()]
        return tuple(parse_network(word, is_strict=True) for word in words)
    except ValueError as error:
        allowed = f"networks separated by commas, as in 10.0.0.0/24,10.1.0.7 ({error})"
        raise InvalidOption("reputHaPeers", text, allowed) from None


def contain(allowed: Sequence[Network], host: str) -> bool:
    """Return whether a host is in one of the networks; without networks all are.

    Args:
        allowed: The networks.
        host: The address of the host.
    """
    address = parse_address(host)
    return not allowed or any(address in network for network in allowed)


def is_same_machine(host: str, own: str) -> bool:
    """Return whether a connection comes from the machine that it leads to.

    Args:
        host: The address that it comes from.
        own: The address that it leads to.
    """
    address = parse_address(host)
    return address.is_loopback or address == parse_address(own)
