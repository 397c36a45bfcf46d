"""Runs the console: its socket, uvicorn and signals."""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator

import uvicorn
from starlette.types import ASGIApp

from reput.errors import ReputError
from reput.remoting.client_faults import ClientFaults

BACKLOG = 128
"""Connections that wait to be accepted."""
STOP_S = 3
"""Time that running requests may take at the end; then streams of live rows are closed."""

_log = logging.getLogger(__name__)


class CannotListen(ReputError):
    """The console cannot listen on its address."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ``CannotListen``.

    Args:
        host: Address or name of this machine.
        port: The port; 0: any.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise CannotListen(
            f"cannot listen on {host}:{port}: {error.strerror}; --listen names another address"
        ) from error
    # Accepted connections inherit it. Without it the body of a response, which follows its head in
    # a second write, waits for the delayed acknowledgement of the client: 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket, root_path: str) -> str:
    """Return the URL of the console."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{root_path}/"


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    background: Coroutine[None, None, None],
    ready: Callable[[], None],
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        app: The application.
        listener: A listening socket, which is closed at the end.
        background: Runs meanwhile, as a collector; its failure ends the console.
        ready: Called once connections are accepted.
    """
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        log_level=logging.WARNING,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_S,
        h11_max_incomplete_event_size=64 * 1024,
        ws="none",
    )
    server = _Server(config, ready)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(ClientFaults(_log, time.monotonic).handle_loop_error)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    task = asyncio.create_task(background)
    task.add_done_callback(lambda _: server.stop())
    try:
        await server.serve(sockets=[listener])
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class _Server(uvicorn.Server):
    """A server that leaves signals to the event loop, so that a stop ends with exit code 0."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and report it."""
        await super().startup(sockets)
        self._ready()

    def stop(self) -> None:
        """End after the running requests; a second call ends at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
