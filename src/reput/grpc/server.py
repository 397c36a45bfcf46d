"""The port of the front of a broker in the same process."""

import json
import logging
from pathlib import Path

from reput import small_file
from reput.broker.server import Broker
from reput.errors import WriteFailed
from reput.grpc.fast_calls import FastCalls
from reput.grpc.front import Front
from reput.grpc.http2.server import GrpcServer
from reput.grpc.kernels import native
from reput.grpc.local import LocalBackend, gate_of

GRACE_S = 1.0
"""Time that running calls have when the server stops, in seconds."""
KEPT = "config/grpcReceipts.json"
"""File of the messages that clients keep over a restart; in the folder of the store."""

_log = logging.getLogger(__name__)


class FrontServer:
    """Serves 5.x clients on a port, plain and with TLS.

    Args:
        broker: The broker, which has started.
        port: The port; 0: any.
    """

    def __init__(self, broker: Broker, port: int) -> None:
        gate = gate_of(broker)
        self.front = Front(LocalBackend(broker), broker.clock, gate)
        self._path = Path(broker.settings.store.store_path_root_dir) / KEPT
        settings = broker.settings.broker
        has_fast_path = settings.reput_fast_path and gate is None and native.is_compiled()
        if has_fast_path:
            self.front.use_fast_path(FastCalls(broker, self.front.clients))
        self._server = GrpcServer(
            self.front.service,
            host=settings.bind_address,
            port=port,
            idle_ms=settings.server_channel_max_idle_time_seconds * 1000,
            state=broker.serving,
            has_fast_path=has_fast_path,
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
        self._resume()
        await self._server.start()
        self.front.start()

    async def stop(self) -> None:
        """Stop, before the broker: save the state of the clients' messages for the restart."""
        await self.front.clients.stop_looking()
        await self._server.stop(GRACE_S)
        kept = await self.front.suspend()
        if not kept:
            return
        try:
            small_file.replace_file(self._path, json.dumps(kept).encode())
        except WriteFailed as error:
            _log.error("messages of clients come again when their time is over: %s", error)

    def _resume(self) -> None:
        """Give clients the messages that they had when the broker stopped."""
        try:
            data = self._path.read_bytes()
            self._path.unlink()
            self.front.clients.resume(json.loads(data))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError) as error:
            _log.error("%s: its messages come again when their time is over: %s", self._path, error)
