"""The metrics of a name server, served on ``metricsPort`` as /metrics.

The HTTP part is ``reput.remoting.metrics_server``.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from reput import __version__
from reput.namesrv import health
from reput.remoting import metrics_server
from reput.remoting.health import Health
from reput.remoting.metrics_server import Family, HistogramFamily, Turns, single

if TYPE_CHECKING:
    from reput.namesrv.server import NameServer


class NameServerMeter:
    """Measures a name server. To be used only on the event loop.

    Args:
        server: The name server.
    """

    def __init__(self, server: "NameServer") -> None:
        self._server = server

    async def check_health(self) -> Health:
        """Return the health of the name server."""
        return health.check(self._server)

    async def measure(self) -> list[Family | HistogramFamily]:
        """Return all metrics."""
        return await metrics_server.gather(self._routes, self._shared_settings, self._serving)

    async def _routes(self, turns: Turns) -> AsyncIterator[Family]:
        info = Family("reput_info", "What runs.", ("version",), values={(__version__,): 1.0})
        yield info
        is_well = health.check(self._server).is_well
        yield single("reput_healthy", "1 if /health reports no problem.", is_well)
        routes = self._server.routes
        yield single("reput_namesrv_brokers", "Broker names.", routes.broker_count)
        yield single("reput_namesrv_addresses", "Addresses of brokers.", routes.address_count)
        yield single("reput_namesrv_topics", "Topics of all brokers.", routes.topic_count)
        yield single(
            "reput_namesrv_takeovers_total",
            "Registrations with the name and id of another live broker.",
            routes.takeover_count,
            is_counter=True,
        )

    async def _shared_settings(self, turns: Turns) -> AsyncIterator[Family]:
        kv = self._server.parts.kv
        yield single(
            "reput_namesrv_kv_keys", "Namespaces and keys of shared settings.", kv.key_count
        )
        yield single("reput_namesrv_kv_bytes", "Size of the file of shared settings.", kv.size)

    async def _serving(self, turns: Turns) -> AsyncIterator[Family]:
        serving = self._server.serving
        yield single("reput_connections", "Open connections.", serving.connection_count)
        yield metrics_server.refusals_by_limit(serving.refusals)
        yield metrics_server.tls_handshakes(serving.tls)
        yield metrics_server.proxy_headers(serving.proxies)
