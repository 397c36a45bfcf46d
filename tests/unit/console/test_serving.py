"""The socket of the console."""

import socket

import pytest

from reput.console import serving


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_response_in_two_writes_does_not_wait_for_an_acknowledgement(host: str) -> None:
    with (
        serving.listen(host, 0) as listener,
        socket.create_connection(listener.getsockname()[:2]),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_named_with_the_option() -> None:
    with (
        serving.listen("127.0.0.1", 0) as listener,
        pytest.raises(serving.CannotListen, match="--listen names another address"),
    ):
        serving.listen("127.0.0.1", listener.getsockname()[1])
