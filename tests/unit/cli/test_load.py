"""The load generator against servers that do not reply, refuse or close their connections."""

import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from reput.cli import load
from reput.errors import RemotingError, Unreachable
from reput.format import command

TIMEOUT_S = 0.05


class Failures(Counter[str]):
    """Counts of failed messages by the name of the error."""

    def add(self, error: RemotingError, count: int) -> None:
        self[type(error).__name__] += count


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def send_load(listener: socket.socket, failures: Failures, **plan: object) -> load.SendLoad:
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    settings = load.SendPlan(topic="T", body=b"x", **plan)  # type: ignore[arg-type]
    return load.SendLoad(settings, {address: [0, 1]}, failures.add)


def run(sends: load.SendLoad, seconds: float = 0.03) -> None:
    sends.run(time.perf_counter_ns() + int(seconds * 1e9))
    sends.finish(TIMEOUT_S)


def test_requests_without_a_reply_are_failures(listener: socket.socket) -> None:
    failures = Failures()
    run(send_load(listener, failures, window_count=5, batch_count=3))
    assert failures == {"RequestTimedOut": 15}


def test_due_requests_that_a_full_window_keeps_back_are_failures(listener: socket.socket) -> None:
    failures = Failures()
    sends = send_load(listener, failures, window_count=2, rate=1e6, count=100)
    run(sends)
    assert failures == {"RequestTimedOut": 2, "RemotingError": 98}
    assert sends.message_count == 0


def test_requests_in_flight_on_a_lost_connection_are_failures(listener: socket.socket) -> None:
    failures = Failures()
    sends = send_load(listener, failures, window_count=4)
    listener.accept()[0].close()
    run(sends, seconds=10)  # ends as soon as no connection is left
    assert failures == {"ConnectionLost": 4}
    assert sends.is_finished


def test_an_unreachable_broker_is_an_error(listener: socket.socket) -> None:
    listener.close()
    with pytest.raises(Unreachable):
        load.Connection("127.0.0.1:1")


@pytest.mark.parametrize(("code", "expected"), [(0, {}), (10, {}), (13, {"BrokerError": 7})])
def test_replies_are_counted_by_their_code(
    listener: socket.socket, code: int, expected: dict[str, int]
) -> None:
    failures = Failures()
    sends = send_load(listener, failures, window_count=3, count=7, is_exact=True)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            for _ in range(7):
                (length,) = command.LENGTH.unpack(stream.read(4))
                request = command.decode(stream.read(length))
                reply = command.reply(request, code)
                connection.sendall(command.encode(request) + command.encode(reply))

    with ThreadPoolExecutor() as pool:
        served = pool.submit(serve)
        run(sends, seconds=30)
        served.result()
    assert failures == expected
    assert sends.message_count == 7 - sum(expected.values())
    assert len(sends.take_latencies()) == sends.message_count
