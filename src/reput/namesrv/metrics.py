"""What /metrics and /health of a name server say, on ``metricsPort``.

How they are served: ``reput.remoting.metrics_server``.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from reput import __version__
from reput.namesrv import health
from reput.remoting import metrics_server
from reput.remoting.health import Health
from reput.remoting.metrics_server import Family, Histogram, Turns, single

if TYPE_CHECKING:
    from reput.namesrv.server import NameServer


class Meter:
    """Measures a name server; everything on the loop's thread.

    Args:
        server: Which.
    """

    def __init__(self, server: "NameServer") -> None:
        self._server = server

    async def look(self) -> Health:
        """Return how the name server is."""
        return health.look(self._server)

    async def measure(self) -> list[Family | Histogram]:
        """Return all metrics."""
        return await metrics_server.gather(self._routes, self._shared_settings, self._serving)

    async def _routes(self, turns: Turns) -> AsyncIterator[Family]:
        info = Family("reput_info", "What runs.", ("version",), values={(__version__,): 1.0})
        yield info
        is_well = health.look(self._server).is_well
        yield single("reput_healthy", "1 if /health is green.", is_well)
        routes = self._server.routes
        yield single("reput_namesrv_brokers", "Broker names.", routes.broker_count)
        yield single("reput_namesrv_addresses", "Addresses of brokers.", routes.address_count)
        yield single("reput_namesrv_topics", "Topics of all brokers.", routes.topic_count)
        yield single(
            "reput_namesrv_takeovers_total",
            "Registrations of the name and id of another broker that was alive.",
            routes.takeover_count,
            is_counter=True,
        )

    async def _shared_settings(self, turns: Turns) -> AsyncIterator[Family]:
        kv = self._server.parts.kv
        yield single("reput_namesrv_kv_keys", "Namespaces and keys that are shared.", kv.key_count)
        yield single("reput_namesrv_kv_bytes", "Bytes of them in their file.", kv.size)

    async def _serving(self, turns: Turns) -> AsyncIterator[Family]:
        serving = self._server.serving
        yield single("reput_connections", "Open connections.", serving.connection_count)
        yield metrics_server.refusals_by_limit(serving.refusals)
