"""The metrics and the health of a proxy, served on ``metricsPort``."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from reput import __version__
from reput.remoting import metrics_server
from reput.remoting.health import Health
from reput.remoting.metrics_server import Family, HistogramFamily, Turns, single

if TYPE_CHECKING:
    from reput.grpc.proxy.server import Proxy


def check(proxy: "Proxy") -> Health:
    """Return the health of a proxy.

    It is not healthy if the name servers do not answer, or none of the brokers can be reached: a
    load balancer should use another proxy.
    """
    cluster, unreachable = proxy.cluster, proxy.backend.unreachable
    brokers = cluster.broker_names
    problems = []
    if cluster.name_server_failure:
        problems.append(f"the name servers do not answer: {cluster.name_server_failure}")
    if brokers and len(unreachable) == len(brokers):
        problems.append("no broker can be reached")
    return Health(
        tuple(problems),
        tuple(f"{name}: {why}" for name, why in unreachable.items()),
        {
            "brokers": len(brokers),
            "clients": len(proxy.front.clients),
            "refusals": dict(sorted(proxy.serving.refusals.counts.items())),
        },
    )


class ProxyMeter:
    """Measures a proxy. To be used only on the event loop.

    Args:
        proxy: The proxy.
    """

    def __init__(self, proxy: "Proxy") -> None:
        self._proxy = proxy

    async def check_health(self) -> Health:
        """Return the health of the proxy."""
        return check(self._proxy)

    async def measure(self) -> list[Family | HistogramFamily]:
        """Return all metrics."""
        return await metrics_server.gather(self._brokers, self._serving)

    async def _brokers(self, turns: Turns) -> AsyncIterator[Family]:
        proxy = self._proxy
        yield Family("reput_info", "What runs.", ("version",), values={(__version__,): 1.0})
        yield single("reput_healthy", "1 if /health reports no problem.", check(proxy).is_well)
        backend, cluster = proxy.backend, proxy.cluster
        yield single("reput_proxy_brokers", "Brokers that are known.", len(cluster.broker_names))
        yield single(
            "reput_proxy_unreachable_brokers",
            "Brokers that could not be reached at the latest attempt.",
            len(backend.unreachable),
        )
        yield single("reput_proxy_topics", "Topics that are known.", len(cluster.topics))
        yield single("reput_proxy_groups", "Groups that are known.", len(cluster.groups))
        yield single(
            "reput_proxy_broker_connections_total",
            "Connections to brokers that were opened for clients.",
            backend.connection_count,
            is_counter=True,
        )
        yield single(
            "reput_proxy_broker_connection_failures_total",
            "Connections to brokers that could not be opened.",
            backend.failure_count,
            is_counter=True,
        )

    async def _serving(self, turns: Turns) -> AsyncIterator[Family]:
        serving = self._proxy.serving
        yield single("reput_proxy_clients", "5.x clients.", len(self._proxy.front.clients))
        accounts = self._proxy.accounts
        if accounts is not None:
            counts: dict[tuple[str, ...], float] = {
                ("unauthenticated",): accounts.refusals.unauthenticated_count,
                ("unauthorized",): accounts.refusals.unauthorized_count,
            }
            yield Family(
                "reput_proxy_refused_calls_total",
                "Calls of senders who are not known, or may not make them.",
                ("reason",),
                is_counter=True,
                values=counts,
            )
        yield single("reput_connections", "Open connections.", serving.connection_count)
        yield metrics_server.refusals_by_limit(serving.refusals)
        yield metrics_server.tls_handshakes(serving.tls)
        yield metrics_server.proxy_headers(serving.proxies)
