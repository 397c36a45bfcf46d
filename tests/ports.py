"""Ports for servers of tests that keep their port over a restart, so that they cannot ask for 0.

They are below the ephemeral range: no connection takes them meanwhile. Each worker of a parallel
run has its own part of them, and goes through it in turn: a port that was returned and is not yet
bound is not returned again.
"""

import itertools
import os
import random
import socket
from collections.abc import Iterator

FIRST, LAST = 10_000, 31_999


def free_port() -> int:
    """Return a free port.

    Raises:
        OSError: there is none.
    """
    return free_ports(1)


def free_port_of_broker() -> int:
    """Return a free port P for a broker, which also needs P-2, P-1 and P+1.

    Raises:
        OSError: there are no four free ports in a row.
    """
    return free_ports(4) + 2


def free_ports(count: int) -> int:
    """Return the first of ``count`` free ports in a row.

    Raises:
        OSError: there are none in a row.
    """
    first, length = 0, 0
    for port in itertools.islice(_TURN, 2 * (LAST + 1 - FIRST)):
        if not _is_free(port):
            length = 0
        elif length and port == first + length:
            length += 1
        else:
            first, length = port, 1
        if length == count:
            return first
    raise OSError(f"no {count} free ports in a row between {FIRST} and {LAST}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def _turn() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    count = (LAST + 1 - FIRST) // workers
    ports = range(FIRST + worker * count, FIRST + (worker + 1) * count)
    # Several runs at once have the same ports: they begin at different ones.
    start = random.randrange(count)
    return itertools.cycle((*ports[start:], *ports[:start]))


_TURN = _turn()
