"""Thousands of connections that act at the same moment, and slaves that follow no protocol.

By default with fewer connections: both ends of 10,000 are more descriptors than many systems allow.
"""

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

import seeds
from hostile import attack, requests
from hostile.servers import TESTS, Scene, memory_of, pause
from hostile.wire import Connection, Draft
from reput.format.codes import RequestCode as Code

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.slow,
    pytest.mark.xdist_group("hostile"),
    pytest.mark.skipif(
        sys.platform != "linux", reason="127.0.0.2 is an address of this machine on Linux only"
    ),
]

IS_LONG = "REPUT_HOSTILE_SECONDS" in os.environ
ADDRESSES = ("127.0.0.2", "127.0.0.3")
GROWTH_MAX = 200 << 20
"""Allowed memory of a crowd at any moment, in bytes; that of its parts that are counted is less."""
FRAMES = 9_000 if IS_LONG else 2_000
READERS = 300 if IS_LONG else 100
TOPICS = 40_000 if IS_LONG else 5_000
SAMPLES = 200


@contextlib.contextmanager
def crowd(port: int, count: int, kind: str, seed: int) -> Iterator[subprocess.Popen[bytes]]:
    """Open connections in another process, which acts when a line is written to it."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "hostile.crowds", str(port), str(count), kind, str(seed)),
            *ADDRESSES,
        ],
        cwd=TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"open\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def attack_with(scene: Scene, server: str, count: int, kind: str, seed: int = 1) -> None:
    """Let a crowd act; fail if others wait, or the server grows, at any moment."""
    port, pid = scene.port, scene.broker_pid
    if server == "namesrv":
        port, pid = scene.namesrv_port, scene.namesrv_pid
    with crowd(port, count, kind, seed) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before, most = memory_of(pid), 0
        with scene.watching(f"{count} connections: {kind}") as watch:
            process.stdin.write(b"\n")
            process.stdin.flush()
            for _ in range(SAMPLES):
                most = max(most, memory_of(pid))
                pause(0.01)
            assert process.stdout.readline() == b"written\n"
        watch.check()
        assert most - before < GROWTH_MAX, f"{kind}: {(most - before) >> 20} MiB"


@pytest.mark.parametrize("server", ["broker", "namesrv"])
@pytest.mark.parametrize("kind", ["two_kilobytes", "first_bytes", "hellos"])
def test_first_bytes_of_thousands(scene: Scene, server: str, kind: str) -> None:
    """A buffer of half a megabyte for each: 1.5 GB and 3 s; and 50 kB for each handshake."""
    attack_with(scene, server, FRAMES, kind)


def test_hundreds_that_never_read_a_long_reply(scene: Scene) -> None:
    """Each had its own list in the making: more than a gigabyte and a second."""
    with Connection(scene.port) as connection:
        for first in range(0, TOPICS, 5_000):
            topics = [requests.topic_document(f"HostileCrowd{first + n:06}") for n in range(5_000)]
            draft = Draft(Code.UPDATE_AND_CREATE_TOPIC_LIST, document={"topicConfigList": topics})
            assert connection.ask(draft).code == 0
    attack_with(scene, "broker", READERS, "all_topics")
    attack_with(scene, "broker", READERS, "listings")
    attack_with(scene, "namesrv", READERS, "namesrv_listings")


@pytest.mark.parametrize("seed", range(3))
def test_no_crowd_keeps_out_a_real_slave(scene: Scene, seed: int) -> None:
    """Sixty-four that reported offset 0 did."""
    rng = seeds.random("crowds", seed)
    with contextlib.ExitStack() as stack:
        for number in range(rng.choice([64, 100, 200])):
            source = (f"127.0.0.{2 + number % rng.choice([1, 3, 6])}", 0)
            hostile = stack.enter_context(
                socket.create_connection(("127.0.0.1", scene.ha_port), source_address=source)
            )
            report = struct.pack(">q", rng.choice([0, 0, 0, 1, -1]))[: rng.choice([4, 8])]
            with contextlib.suppress(OSError):
                hostile.sendall(report)
        with scene.watching("slaves") as watch:
            assert attack.serves_a_real_slave(scene.ha_port)
        watch.check()
