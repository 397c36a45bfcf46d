"""Thousands of connections that act at the same moment, and slaves that follow no protocol.

By default with fewer connections: both ends of 10,000 are more descriptors than many systems allow.
"""

import contextlib
import os
import random
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

import seeds
from hostile import attack, requests
from hostile.local_scene import LocalScene, attacked
from hostile.wire import Connection, Draft
from reput import descriptors
from reput.format.codes import RequestCode as Code
from reput.format.command import FRAME_BYTES_MAX, LENGTH

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.slow,
    pytest.mark.xdist_group("hostile crowds"),
    pytest.mark.skipif(
        sys.platform != "linux", reason="127.0.0.2 is an address of this machine on Linux only"
    ),
]

IS_LONG = "REPUT_HOSTILE_SECONDS" in os.environ
ADDRESSES = ("127.0.0.2", "127.0.0.3")
FRAMES = 9_000 if IS_LONG else 1_400
READERS = 300 if IS_LONG else 100
TOPICS = 40_000 if IS_LONG else 5_000

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


@contextlib.contextmanager
def crowd(port: int, count: int, addresses: Sequence[str]) -> Iterator[list[socket.socket]]:
    """Open connections that write at once, and read nothing."""
    descriptors.raise_limit()
    if descriptors.connections_max() < 2 * count:
        pytest.skip(f"the system allows a process less than {2 * count} connections (ulimit -Hn)")
    with contextlib.ExitStack() as stack:
        connections = []
        for number in range(count):
            source = (addresses[number % len(addresses)], 0)
            connection = socket.create_connection(("127.0.0.1", port), source_address=source)
            connection.setblocking(False)
            connections.append(stack.enter_context(connection))
        yield connections


def act(scene: LocalScene, server: str, count: int, kind: str) -> None:
    """Let a crowd act, until the server reads or writes nothing more for it."""
    rng = random.Random(kind)
    with crowd(scene.port_of(server), count, ADDRESSES) as connections:
        for connection in connections:
            # The server may close it, or accept no more bytes.
            with contextlib.suppress(OSError):
                connection.send(KINDS[kind](rng))
        scene.rest()


@pytest.mark.parametrize("server", ["broker", "namesrv"])
@pytest.mark.parametrize("kind", ["two_kilobytes", "first_bytes", "hellos"])
@pytest.mark.sampled(2)
@attacked()
def test_first_bytes_of_thousands(scene: LocalScene, server: str, kind: str) -> None:
    """A buffer of half a megabyte for each: 1.5 GB and 3 s; and 50 kB for each handshake."""
    act(scene, server, FRAMES, kind)


@attacked()
def test_hundreds_that_never_read_a_long_reply(scene: LocalScene) -> None:
    """Each had its own list in the making: more than a gigabyte and a second."""
    with Connection(scene.port) as connection:
        for first in range(0, TOPICS, 5_000):
            assert connection.ask(requests.creation_of_topics(first, 5_000)).code == 0
    act(scene, "broker", READERS, "all_topics")
    act(scene, "broker", READERS, "listings")
    act(scene, "namesrv", READERS, "namesrv_listings")


@pytest.mark.parametrize("seed", range(3))
@attacked()
def test_no_crowd_keeps_out_a_real_slave(scene: LocalScene, seed: int) -> None:
    """Sixty-four that reported offset 0 did."""
    rng = seeds.random("crowds", seed)
    addresses = [f"127.0.0.{2 + number}" for number in range(rng.choice([1, 3, 6]))]
    with crowd(scene.ha_port, rng.choice([64, 100, 200]), addresses) as connections:
        for connection in connections:
            report = struct.pack(">q", rng.choice([0, 0, 0, 1, -1]))[: rng.choice([4, 8])]
            with contextlib.suppress(OSError):
                connection.send(report)
        assert attack.serves_a_real_slave(scene.ha_port)
