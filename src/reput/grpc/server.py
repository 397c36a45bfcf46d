"""The port of the front of a broker in the same process."""

from reput.broker.server import Broker
from reput.grpc.front import Front
from reput.grpc.local import LocalBackend
from reput.remoting.http2.server import GrpcServer

GRACE_S = 1.0
"""Time that running calls have when the server stops, in seconds."""


class FrontServer:
    """Serves 5.x clients on a port, plain and with TLS.

    Args:
        broker: The broker, which has started.
        port: The port; 0: any.
    """

    def __init__(self, broker: Broker, port: int) -> None:
        self.front = Front(LocalBackend(broker), broker.clock)
        self._server = GrpcServer(
            self.front.service,
            host=broker.settings.broker.bind_address,
            port=port,
            idle_ms=broker.settings.broker.server_channel_max_idle_time_seconds * 1000,
            state=broker.serving,
        )

    @property
    def port(self) -> int:
        """The port it listens on, after ``start``."""
        return self._server.port

    async def start(self) -> None:
        """Start listening.

        Raises:
            OSError: The port is in use.
        """
        await self._server.start()
        self.front.start()

    async def stop(self) -> None:
        """Stop: before the broker, so that its clients' messages become visible."""
        await self._server.stop(GRACE_S)
        await self.front.stop()
