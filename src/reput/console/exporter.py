"""``/metrics`` of a cluster and nothing else, as an ASGI application."""

import asyncio

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from reput.clock import Clock
from reput.console import compression, exposition
from reput.console.cluster import WatchedCluster
from reput.console.survey import Survey, SurveyFacts


class Exporter:
    """The exporter as an ASGI application.

    Args:
        cluster: The cluster.
        clock: The clock.
        survey: Rates, members and clients.
    """

    def __init__(self, cluster: WatchedCluster, clock: Clock, survey: SurveyFacts) -> None:
        self._cluster = cluster
        self._clock = clock
        self._survey = survey

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of HTTP."""
        if scope["type"] == "http":
            request = Request(scope, receive)
            response = self._response(request)
            compression.compress(response, request.headers)
            await response(scope, receive, send)

    def _response(self, request: Request) -> Response:
        if request.url.path != "/metrics" or request.method not in ("GET", "HEAD"):
            return PlainTextResponse("allowed is GET /metrics\n", 404)
        return metrics(self._cluster, self._clock.now_ms(), self._survey)


def metrics(cluster: WatchedCluster, now_ms: int, survey: SurveyFacts | None = None) -> Response:
    """Return the metrics of a cluster; without a survey only those of the snapshot."""
    text = exposition.render(cluster.snapshot, cluster.rows, now_ms, survey)
    return PlainTextResponse(text, media_type=exposition.CONTENT_TYPE)


async def collect(cluster: WatchedCluster, survey: Survey) -> None:
    """Fill the snapshot and the survey until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cluster.collector.run())
        tasks.create_task(survey.run())
