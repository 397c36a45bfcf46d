"""Lists of networks in settings: ``10.0.0.0/24,10.1.0.7``."""

import ipaddress
from collections.abc import Iterable

from reput.errors import InvalidOption
from reput.format.ip_address import Network, parse_address, parse_network


def parse(text: str, key: str) -> tuple[Network, ...]:
    """Return the networks of a setting.

    Args:
        text: Networks and addresses, separated by commas.
        key: Key of the setting, for the error message.

    Raises:
        InvalidOption: A part is no network.
    """
    try:
        words = [word for word in text.split(",") if word.strip()]
        return tuple(parse_network(word, is_strict=True) for word in words)
    except ValueError as error:
        allowed = f"networks separated by commas, as in 10.0.0.0/24,10.1.0.7 ({error})"
        raise InvalidOption(key, text, allowed) from None


def contain(networks: Iterable[Network], host: str | bytes) -> bool:
    """Return whether a host is in one of the networks.

    Args:
        networks: The networks.
        host: The address of the host, as text or as in records.
    """
    address = ipaddress.ip_address(host) if isinstance(host, bytes) else parse_address(host)
    return any(address in network for network in networks)
