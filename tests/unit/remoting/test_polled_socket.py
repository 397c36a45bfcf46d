"""Polled sockets with TLS, against a scripted server of the standard library."""

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from certificates import Authority, Pair
from reput.errors import Unreachable
from reput.remoting import polled_socket, tls_settings
from reput.remoting.polled_socket import PolledSocket
from reput.remoting.tls_settings import TlsSettings

WAIT_S = 20.0
ANYBODY = tls_settings.client_context(TlsSettings())
TLS_1_3 = ssl.TLSVersion.TLSv1_3


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(WAIT_S)
        yield listening


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def address(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def serving(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def serve(
    pool: ThreadPoolExecutor,
    listener: socket.socket,
    context: ssl.SSLContext,
    action: Callable[[ssl.SSLSocket], Any],
) -> "Future[Any]":
    def run() -> Any:
        plain, _ = listener.accept()
        plain.settimeout(WAIT_S)
        with context.wrap_socket(plain, server_side=True) as encrypted:
            return action(encrypted)

    return pool.submit(run)


def connected(listener: socket.socket) -> "contextlib.closing[PolledSocket]":
    return contextlib.closing(polled_socket.connect(address(listener), 3000, ANYBODY))


def wait(line: PolledSocket, *, to_write: bool = False) -> None:
    poll = select.poll()
    poll.register(line.fileno(), select.POLLOUT if to_write else select.POLLIN)
    assert poll.poll(WAIT_S * 1000)


def read(line: PolledSocket, room: memoryview) -> int:
    while True:
        try:
            return line.recv_into(room)
        except BlockingIOError:
            wait(line)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, TLS_1_3])
def test_more_bytes_than_sockets_hold_both_ways(
    pair: Pair, listener: socket.socket, pool: ThreadPoolExecutor, version: ssl.TLSVersion
) -> None:
    data = bytes(range(256)) * (6 << 12)  # 6 MiB

    is_blocked = threading.Event()

    def echo(encrypted: ssl.SSLSocket) -> None:
        assert is_blocked.wait(WAIT_S)
        got = bytearray()
        while len(got) < len(data):
            got += encrypted.recv(1 << 16)
        encrypted.sendall(got)

    context = serving(pair)
    context.maximum_version = version
    done = serve(pool, listener, context, echo)
    with connected(listener) as line:
        with pytest.raises(BlockingIOError):
            line.recv_into(memoryview(bytearray(10)))
        waiting = bytearray(data)
        while waiting:
            try:
                del waiting[: line.send(waiting)]
            except BlockingIOError:
                is_blocked.set()
                wait(line, to_write=True)
        got, room = bytearray(), memoryview(bytearray(100_000))
        while len(got) < len(data):
            got += room[: read(line, room)]
        assert got == data
        done.result(WAIT_S)
        assert read(line, room) == 0


def test_all_records_of_a_read_come_at_once(
    pair: Pair, listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    def send(encrypted: ssl.SSLSocket) -> None:
        for _ in range(10):
            encrypted.send(b"x" * 100)

    done = serve(pool, listener, serving(pair), send)
    with connected(listener) as line:
        done.result(WAIT_S)
        room = memoryview(bytearray(990))
        assert read(line, room) == 990
        assert read(line, room) == 10  # a poll would not see them


def test_a_client_without_the_required_certificate(
    pair: Pair, authority: Authority, listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    context = serving(pair)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.path)
    done = serve(pool, listener, context, lambda encrypted: encrypted.recv(1))
    with connected(listener) as line, pytest.raises(ConnectionError, match="certificate required"):
        read(line, memoryview(bytearray(10)))  # in TLS 1.3, after the handshake
    with pytest.raises(ssl.SSLError):
        done.result(WAIT_S)


def test_a_server_of_another_authority(
    pair: Pair,
    listener: socket.socket,
    pool: ThreadPoolExecutor,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    other = Authority(tmp_path_factory.mktemp("other"), "stranger")
    verifying = tls_settings.client_context(TlsSettings(tls_client_trust_cert_path=other.path))
    done = serve(pool, listener, serving(pair), lambda encrypted: encrypted.recv(1))
    with pytest.raises(Unreachable, match="no TLS handshake: certificate verify failed"):
        polled_socket.connect(address(listener), 3000, verifying)
    with pytest.raises(ssl.SSLError):
        done.result(WAIT_S)


def test_servers_without_tls(listener: socket.socket, pool: ThreadPoolExecutor) -> None:
    with pytest.raises(Unreachable, match="no TLS handshake: no answer in 50 ms"):
        polled_socket.connect(address(listener), 50, ANYBODY)  # silent
    listener.accept()[0].close()

    def close() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(10_000)

    done = pool.submit(close)
    with pytest.raises(Unreachable, match="no TLS handshake"):
        polled_socket.connect(address(listener), 3000, ANYBODY)
    done.result(WAIT_S)
    listener.close()
    with pytest.raises(Unreachable, match="refused"):
        polled_socket.connect("127.0.0.1:1", 3000, ANYBODY)
