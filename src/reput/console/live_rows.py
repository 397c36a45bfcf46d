"""Rows that follow the cluster: a page, asked with ``live=1``, sends elements that have moved.

Every few seconds the page is computed and rendered again, if what it shows has moved. The elements
with an id are sent whose text differs from the last one: as events of ``EventSource``.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from reput.console.page import RequestFailed, Route, View
from reput.console.rendering import Renderer
from reput.errors import ReputError

STREAM_S = 3_600
"""Length of a stream; the browser then connects again."""
HEARTBEAT_S = 15
"""Time without an event after which a comment is sent, so that proxies keep the connection."""
STREAM_COUNT_MAX = 200
_ELEMENT = re.compile(r'<(tr|section) id="([^"]+)".*?</\1>', re.DOTALL)


def response(renderer: Renderer, route: Route, view: View) -> Response:
    """Return a stream of the elements of a page that change. Raises ``RequestFailed``."""
    if view.parts.stream_count >= STREAM_COUNT_MAX:
        raise RequestFailed(503, f"{STREAM_COUNT_MAX} pages follow the cluster already")
    return _Stream(renderer, route, view)


class _Stream(StreamingResponse):
    """A stream of rows, which is counted from its creation to its end."""

    def __init__(self, renderer: Renderer, route: Route, view: View) -> None:
        super().__init__(
            _events(renderer, route, view),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"},
        )
        self._parts = view.parts
        self._parts.stream_count += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._parts.stream_count -= 1


async def _events(renderer: Renderer, route: Route, view: View) -> AsyncIterator[str]:
    sent: dict[str, str] = {}
    version, quiet_s = -1, 0.0
    yield "retry: 5000\n\n"
    for _ in range(round(STREAM_S / route.live_s)):
        moved: dict[str, str] = {}
        now = replace(view, now_ms=view.parts.clock.now_ms())
        try:
            last, version = version, _version(route, now)
            page = await route.handler(now) if version != last else None
        except ReputError:  # its topic is gone: the browser asks again, and gets the reason
            return
        if page is not None:
            elements = _elements(renderer.fragment(page, now.now_ms))
            if sent or route.version is not None:
                moved = {key: html for key, html in elements.items() if sent.get(key) != html}
            sent = elements
        quiet_s += route.live_s
        if moved:
            yield f"data: {json.dumps(moved)}\n\n"
        elif quiet_s >= HEARTBEAT_S:
            yield ": still here\n\n"
        if moved or quiet_s >= HEARTBEAT_S:
            quiet_s = 0.0
        await asyncio.sleep(route.live_s)


def _version(route: Route, view: View) -> int:
    if route.version is not None:
        return route.version(view)
    return view.parts.cluster.snapshot.version


def _elements(html: str) -> dict[str, str]:
    return {match[2]: match[0] for match in _ELEMENT.finditer(html)}
