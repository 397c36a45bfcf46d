"""Thousands of connections that act at the same moment, as a process.

    python -m hostile.crowds PORT COUNT KIND SEED ADDRESS...    in ``tests/``

Connects from the addresses in turn, prints ``open`` and waits for a line of input. Then writes what
``KINDS`` returns for each connection, prints ``written``, and reads nothing until its input ends.
"""

import contextlib
import random
import resource
import socket
import sys
from collections.abc import Callable, Mapping

from hostile.wire import Draft
from reput.format.codes import RequestCode as Code
from reput.format.command import FRAME_BYTES_MAX, LENGTH

TLS_HELLO = b"\x16\x03\x01"
"""First bytes of a handshake."""

LISTINGS = {
    "broker": [
        Draft(Code.GET_ALL_TOPIC_CONFIG),
        Draft(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
        Draft(Code.GET_ALL_CONSUMER_OFFSET),
        Draft(Code.GET_ALL_PRODUCER_INFO),
    ],
    "namesrv": [
        Draft(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
        Draft(Code.GET_BROKER_CLUSTER_INFO),
    ],
}
"""Server -> requests whose replies grow with its contents."""


def two_kilobytes(rng: random.Random) -> bytes:
    """Return the first 2 kB of the largest frame."""
    return LENGTH.pack(FRAME_BYTES_MAX) + bytes(2_044)


def first_bytes(rng: random.Random) -> bytes:
    """Return the first bytes of a frame of any size."""
    size = rng.choice([4, 5_000, 200_000, 300_000, 1 << 20, FRAME_BYTES_MAX])
    count = rng.choice([0, 1, 100, 2_000, 4_200, 10_000, 40_000])
    return (LENGTH.pack(size) + bytes(min(size, count)))[: rng.choice([1, 3, 4, 1 << 20])]


def hellos(rng: random.Random) -> bytes:
    """Return the first bytes of a TLS handshake, or of a record of any size."""
    size = rng.choice([1, 512, 16_384, 16_640, 65_535])
    return TLS_HELLO + size.to_bytes(2, "big") + bytes(rng.choice([0, 1, 2_000, 60_000, 200_000]))


def all_topics(rng: random.Random) -> bytes:
    """Return a request for all topics."""
    return LISTINGS["broker"][0].encode()


def listings(rng: random.Random) -> bytes:
    """Return requests for any lists of a broker."""
    return b"".join(rng.choice(LISTINGS["broker"]).encode() for _ in range(rng.randint(1, 5)))


def namesrv_listings(rng: random.Random) -> bytes:
    """Return requests for any lists of a name server."""
    return b"".join(rng.choice(LISTINGS["namesrv"]).encode() for _ in range(rng.randint(1, 5)))


KINDS: Mapping[str, Callable[[random.Random], bytes]] = {
    kind.__name__: kind
    for kind in (two_kilobytes, first_bytes, hellos, all_topics, listings, namesrv_listings)
}
"""Name -> returns what a connection writes."""


def main() -> None:
    port, count, kind, seed, *addresses = sys.argv[1:]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rng = random.Random(f"{kind}/{seed}")
    connections = []
    for number in range(int(count)):
        source = (addresses[number % len(addresses)], 0)
        connection = socket.create_connection(("127.0.0.1", int(port)), source_address=source)
        connection.setblocking(False)
        connections.append(connection)
    print("open", flush=True)  # noqa: T201
    sys.stdin.readline()
    for connection in connections:
        # The server may close it, or accept no more bytes.
        with contextlib.suppress(OSError):
            connection.send(KINDS[kind](rng))
    print("written", flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main()
