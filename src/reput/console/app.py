"""The console as an ASGI application: paths of pages and changes, requests in, responses out."""

import logging
from collections.abc import Mapping
from urllib.parse import parse_qs, unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from reput.console import access, rendering, texts
from reput.console.access import LOCAL_USER, Right, User
from reput.console.page import Page, Query, RequestFailed, Route, View
from reput.console.pages import overview
from reput.console.parts import ConsoleParts
from reput.console.rendering import Frame, Renderer
from reput.errors import ReputError

_log = logging.getLogger(__name__)

ROUTES: Mapping[str, Route] = {
    "/": Route(overview.page, Right.VIEW),
}
"""Pages by path. A part in braces is one part of the path, with any characters."""

CHANGES: Mapping[str, Route] = {}
"""What changes something, by the path of its POST: only there with ``--allow operate``."""


class Console:
    """The application.

    Args:
        parts: What the console consists of.
        root_path: Path under which a proxy serves the console; empty for none.
    """

    def __init__(self, parts: ConsoleParts, *, root_path: str = "") -> None:
        self._parts = parts
        self._root_path = root_path
        self._renderer = Renderer(root_path)
        self._pages = _Paths(ROUTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        response = await self._respond(request)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        path = self._path(request)
        user = LOCAL_USER
        try:
            if not access.is_address(request.headers.get("host", "")):
                raise RequestFailed(421, "use an address or localhost")
            page = await self._page(request, path, user)
        except RequestFailed as failure:
            page = _failure(failure.status, str(failure))
        except ReputError as error:
            page = _failure(503, str(error))
        except Exception:  # noqa: BLE001 - the outermost edge: a page, and a line of the log
            _log.exception("%s failed", path)
            page = _failure(500, "the log of the console has the details")
        return self._renderer.response(
            page, self._frame(request, path, user), as_json=_is_json(request)
        )

    def _path(self, request: Request) -> str:
        """Return the path below the root, still quoted."""
        raw = request.scope.get("raw_path") or request.url.path.encode()
        path = raw.decode("latin-1").partition("?")[0]
        return path.removeprefix(self._root_path) or "/"

    async def _page(self, request: Request, path: str, user: User) -> Page:
        route, names = self._pages.find(path)
        if request.method not in ("GET", "HEAD"):
            raise RequestFailed(405, "a page is a GET")
        if not user.may(route.right):
            raise RequestFailed(403, f"this needs the role {route.right.name.lower()}")
        query = Query(parse_qs(request.url.query, keep_blank_values=True, max_num_fields=100))
        return await route.handler(
            View(names, query, user, self._parts, self._parts.clock.now_ms())
        )

    def _frame(self, request: Request, path: str, user: User) -> Frame:
        query = request.url.query
        return Frame(
            path=f"{path}?{query}" if query else path,
            user=user,
            has_login=False,
            may_operate=self._parts.may_operate,
            csrf="",
            theme=_theme(request),
            now_ms=self._parts.clock.now_ms(),
            silent={},
        )


class _Paths:
    """Finds a route by path. Parts are compared before they are unquoted: a name may have a /."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = [(pattern.split("/"), route) for pattern, route in routes.items()]

    def find(self, path: str) -> tuple[Route, dict[str, str]]:
        """Return a route and its names. Raises ``RequestFailed``."""
        parts = path.split("/")
        for pattern, route in self._routes:
            if len(pattern) != len(parts):
                continue
            names: dict[str, str] = {}
            for expected, part in zip(pattern, parts, strict=True):
                if expected.startswith("{"):
                    names[expected.strip("{}")] = unquote(part)
                elif expected != part:
                    break
            else:
                return route, names
        raise RequestFailed(404, f"there is no page {path[:200]}")


def _is_json(request: Request) -> bool:
    if request.query_params.get("format") == "json":
        return True
    return rendering.JSON in request.headers.get("accept", "")


def _theme(request: Request) -> str:
    theme = request.cookies.get("theme", "system")
    return theme if theme in rendering.THEMES else "system"


def _failure(status: int, text: str) -> Page:
    title = texts.ERRORS.get(status, "Failed")
    return Page("failure.html.j2", title, {"error": text, "status": status}, status)
