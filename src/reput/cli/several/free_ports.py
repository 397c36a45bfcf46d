"""Chooses ports for brokers that must come back at them.

A port of the ephemeral range, as port 0 gives, is free for any connection of the machine while its
broker is down: the broker could not listen on it again. Ports below that range are taken by servers
alone.
"""

import random
import socket
from collections.abc import Iterator
from pathlib import Path

FIRST = 10_000
"""First port that is chosen: those of usual servers are below."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL = 32_768
"""First ephemeral port where the system does not report it: that of Linux."""
_BROKER_PORTS = (-2, -1, 0, 1)
"""Ports of a broker beside its own: the fast one, one for 5.x clients, one for slaves."""
_TRIES_MAX = 1_000


def choose(host: str) -> int | None:
    """Return a port P for a broker; P-2, P-1 and P+1 are free, too. None if none is found.

    Args:
        host: Address on which the broker listens.
    """
    last = _first_ephemeral() - 2
    if last - FIRST < len(_BROKER_PORTS):
        return None
    for port in _candidates(FIRST + 2, last):
        if all(_is_free(host, port + distance) for distance in _BROKER_PORTS):
            return port
    return None


def _candidates(first: int, last: int) -> Iterator[int]:
    """Yield random ports: several parents at once choose different ones."""
    for _ in range(_TRIES_MAX):
        yield random.randint(first, last)


def _first_ephemeral() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL


def _is_free(host: str, port: int) -> bool:
    try:
        kind, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
