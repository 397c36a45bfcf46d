"""``/metrics`` of a cluster and nothing else, as an ASGI application."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from reput.clock import Clock
from reput.console import exposition
from reput.console.cluster import WatchedCluster


class Exporter:
    """The application.

    Args:
        cluster: The cluster.
        clock: The clock.
    """

    def __init__(self, cluster: WatchedCluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of HTTP."""
        if scope["type"] == "http":
            response = self._response(Request(scope, receive))
            await response(scope, receive, send)

    def _response(self, request: Request) -> Response:
        if request.url.path != "/metrics" or request.method not in ("GET", "HEAD"):
            return PlainTextResponse("allowed is GET /metrics\n", 404)
        return metrics(self._cluster, self._clock.now_ms())


def metrics(cluster: WatchedCluster, now_ms: int) -> Response:
    """Return the metrics of a cluster."""
    text = exposition.render(cluster.snapshot, cluster.rows, now_ms)
    return PlainTextResponse(text, media_type=exposition.CONTENT_TYPE)
