"""The console as an ASGI application: paths of pages and changes, requests in, responses out.

``AccessGate`` identifies users; this module finds the page or the change, and checks the right
that it needs.
"""

import logging
from collections.abc import Mapping
from typing import Generic, TypeVar
from urllib.parse import parse_qs, unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from reput.console import changes, compression, live_rows, rendering, texts
from reput.console.access import Right, User
from reput.console.actions import (
    brokers as broker_actions,
    dead_letters as dead_letter_actions,
    messages as message_actions,
    offsets as offset_actions,
    replica_groups as replica_actions,
    topics as topic_actions,
)
from reput.console.audit import AuditEntry
from reput.console.changes import Change, Confirmation
from reput.console.exporter import metrics
from reput.console.gate import AccessGate, Visitor, address_of
from reput.console.page import Page, Query, RequestFailed, RequestRefused, Route, View
from reput.console.pages import (
    audit,
    broker,
    brokers,
    dead_letters,
    group,
    groups,
    login,
    member,
    message,
    messages,
    overview,
    replica_groups,
    resend_job,
    stores,
    topic,
    topics,
)
from reput.console.parts import ConsoleParts
from reput.console.rendering import Frame, Renderer
from reput.errors import InvalidOption, ReputError

FORM_BYTES_MAX = 5 * 1024 * 1024
"""Size of a form: a message of 4 MiB and its fields."""
FIELD_COUNT_MAX = 2_000
_PROTOCOL_FIELDS = ("csrf", "token", "shown", "typed")
"""Fields of a form that are no arguments of the change."""
_log = logging.getLogger(__name__)
_R = TypeVar("_R")

ROUTES: Mapping[str, Route] = {
    "/": Route(overview.page, Right.VIEW, live_s=2),
    "/topics": Route(topics.page, Right.VIEW, live_s=2),
    "/topics/{topic}": Route(topic.page, Right.VIEW, live_s=5),
    "/groups": Route(groups.page, Right.VIEW, live_s=2),
    "/groups/{group}": Route(group.page, Right.VIEW, live_s=5),
    "/groups/{group}/members/{client}": Route(member.page, Right.READ),
    "/brokers": Route(brokers.page, Right.VIEW, live_s=2),
    "/brokers/{broker}": Route(broker.page, Right.VIEW),
    "/replicas": Route(replica_groups.page, Right.VIEW),
    "/messages": Route(messages.page, Right.READ, stream=messages.stream),
    "/messages/{id}": Route(message.page, Right.READ, stream=message.stream),
    "/dlq": Route(dead_letters.groups_page, Right.VIEW),
    "/dlq/{group}": Route(dead_letters.page, Right.READ, stream=dead_letters.export),
    "/dlq/{group}/jobs/{job}": Route(
        resend_job.page, Right.READ, live_s=1, version=resend_job.version
    ),
    "/stores": Route(stores.list_page, Right.VIEW),
    "/s/{store}": Route(stores.page, Right.VIEW),
    "/s/{store}/messages": Route(messages.page, Right.READ, stream=messages.stream),
    "/s/{store}/messages/{id}": Route(message.page, Right.READ, stream=message.stream),
    "/audit": Route(audit.page, Right.ADMIN),
}
"""Pages by path. A part in braces is one part of the path, with any characters."""

CHANGES: Mapping[str, Change] = {
    "/topics": topic_actions.CREATE,
    "/topics/{topic}/delete": topic_actions.DELETE,
    "/topics/{topic}/send": message_actions.SEND,
    "/brokers/{broker}/writing": broker_actions.WRITE,
    "/replicas/{broker}/elect": replica_actions.ELECT,
    "/groups/{group}/reset": offset_actions.RESET,
    "/groups/{group}/clone": offset_actions.CLONE,
    "/dlq/{group}/resend": Change(
        "resend dead letters", Right.OPERATE, dead_letters.preview_resend, dead_letters.resend
    ),
    "/dlq/{group}/resend-all": dead_letter_actions.RESEND_ALL,
    "/dlq/{group}/jobs/{job}/stop": dead_letter_actions.STOP,
}
"""Changes by the path of their POST, which exist only with ``--allow operate``."""
WORK: Mapping[str, Change] = {
    "/s/{store}/verify": Change(
        "verify store", Right.READ, stores.preview_verification, stores.start_verification
    ),
}
"""Long work that changes nothing: confirmed like changes, and always available."""


class Console:
    """The console as an ASGI application.

    Args:
        parts: What the console consists of.
        root_path: Path under which a proxy serves the console; empty for none.
        routes: The pages; tests pass their own.
        actions: The changes; tests pass their own.
    """

    def __init__(
        self,
        parts: ConsoleParts,
        *,
        root_path: str = "",
        routes: Mapping[str, Route] = ROUTES,
        actions: Mapping[str, Change] = CHANGES,
    ) -> None:
        self._parts = parts
        self._root_path = root_path
        self._renderer = Renderer(root_path)
        self._gate = AccessGate(parts, root_path)
        self._pages = _Paths(routes)
        self._changes = _Paths({**WORK, **(actions if parts.may_operate else {})})
        self._tokens = changes.Tokens()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of HTTP."""
        if scope["type"] == "http":
            request = Request(scope, receive)
            response = await self._respond(request)
            compression.compress(response, request.headers)
            await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        path = self._path(request)
        visitor = Visitor(None, "")
        try:
            self._gate.check_host(request)
            visitor = await self._gate.visitor(request)
            response = await self._answer(request, path, visitor)
            if isinstance(response, Response):
                self._renderer.guard(response)
                return response
            page = response
        except RequestFailed as failure:
            if isinstance(failure, RequestRefused) and visitor.user is not None:
                self._gate.refuse(request, visitor.user.name, path[:200], str(failure))
            page = _failure(failure.status, str(failure))
        except InvalidOption as error:
            page = _failure(400, str(error))
        except ReputError as error:
            page = _failure(503, str(error))
        except Exception:  # noqa: BLE001 - the outermost edge: a page, and a line of the log
            _log.exception("%s failed", path)
            page = _failure(500, "the log of the console has the details")
        frame = self._frame(request, path, visitor)
        return self._renderer.response(page, frame, as_json=_is_json(request))

    async def _answer(self, request: Request, path: str, visitor: Visitor) -> Page | Response:
        """Return the answer of the gate, of a change or of a page."""
        is_get = request.method in ("GET", "HEAD")
        if path == "/login" and is_get:
            return login.page(request.query_params.get("to", "/"))
        if path in ("/login", "/logout", "/theme") and request.method == "POST":
            return await self._gate.post(path, await _form(request), request, visitor)
        if visitor.user is None:
            if is_get and not _is_json(request):
                target = _with_query(path, request)
                return RedirectResponse(self._renderer.url("login", to=target), 303)
            raise RequestFailed(401, "log in, or send the name and password of a user (Basic)")
        if is_get and path == "/metrics":
            return self._metrics(visitor.user)
        if is_get:
            route, names = self._pages.find(path)
            self._check(visitor.user, route.right, path, names, request)
            view = self._view(request, names, visitor.user)
            if route.stream is not None and (stream := await route.stream(view)) is not None:
                return self._renderer.stream(stream)
            if route.live_s and view.query.text("live"):
                return live_rows.response(self._renderer, route, view)
            return await route.handler(view)
        if request.method == "POST":
            change, names = self._changes.find(path)
            form = await _form(request)
            self._gate.check_origin(request, visitor, form, change.name)
            self._check(visitor.user, change.right, path, names, request)
            return await self._change(request, path, change, names, form, visitor.user)
        raise RequestFailed(405, "allowed are GET and POST")

    def _metrics(self, user: User) -> Response:
        """Return the metrics of all topics and groups. Raises ``RequestFailed``."""
        if not user.sees_everything:
            raise RequestFailed(403, "metrics need a user who sees all topics and groups")
        return metrics(self._parts.cluster, self._parts.clock.now_ms())

    def _path(self, request: Request) -> str:
        """Return the path below the root, still quoted."""
        raw = request.scope.get("raw_path") or request.url.path.encode()
        path: str = raw.decode("latin-1").partition("?")[0]
        return path.removeprefix(self._root_path) or "/"

    def _view(
        self,
        request: Request,
        names: Mapping[str, str],
        user: User,
        form: Mapping[str, str] | None = None,
    ) -> View:
        try:
            values = parse_qs(
                request.url.query, keep_blank_values=True, max_num_fields=FIELD_COUNT_MAX
            )
        except ValueError as error:
            raise RequestFailed(400, f"the query: {error}") from error
        now_ms = self._parts.clock.now_ms()
        return View(names, Query(values), user, self._parts, now_ms, form or {}, _is_json(request))

    def _check(
        self, user: User, right: Right, path: str, names: Mapping[str, str], request: Request
    ) -> None:
        """Check the right of a user. Raises ``RequestFailed``."""
        topic, group = names.get("topic"), names.get("group")
        if (topic is not None and not user.sees_topic(topic)) or (
            group is not None and not user.sees_group(group)
        ):
            raise RequestFailed(404, f"there is no page {path[:200]}")
        if not user.may(right):
            text = f"this needs the role {texts.ROLE_OF[right]}, and {user.name} has another"
            self._gate.refuse(request, user.name, path[:200], text)
            raise RequestFailed(403, text)

    # --- changes --------------------------------------------------------------------------------

    async def _change(
        self,
        request: Request,
        path: str,
        change: Change,
        names: Mapping[str, str],
        form: Mapping[str, str],
        user: User,
    ) -> Page:
        arguments = {key: value for key, value in form.items() if key not in _PROTOCOL_FIELDS}
        view = self._view(request, names, user, arguments)
        preview = await change.preview(view)
        token, shown = form.get("token"), form.get("shown", "")
        if change.is_immediate:
            return await self._made(request, change, view, preview, "")
        if token is None:
            return self._confirmation(path, arguments, preview, view)
        refusal = self._tokens.refusal(token, user.name, path, arguments, shown, view.now_ms)
        if refusal is None:
            refusal = changes.moved(preview, shown)
        if refusal is None and form.get("typed", "") != preview.typed_name:
            refusal = f"the name that was typed is not {preview.typed_name!r}"
        if refusal is not None:
            self._record(request, change, view, token, "refused", refusal)
            return self._confirmation(path, arguments, preview, view, refusal)
        return await self._made(request, change, view, preview, token)

    async def _made(
        self,
        request: Request,
        change: Change,
        view: View,
        preview: changes.Preview,
        token: str,
    ) -> Page:
        """Make a change, and return its receipt."""
        self._parts.audit.check_writable()
        try:
            receipt = await change.run(view, preview)
        except ReputError as error:
            self._record(request, change, view, token, "failed", str(error))
            raise
        self._record(request, change, view, token, receipt.outcome, receipt.text)
        return Page("receipt.html.j2", preview.title, {"receipt": receipt})

    def _confirmation(
        self,
        path: str,
        arguments: Mapping[str, str],
        preview: changes.Preview,
        view: View,
        refusal: str = "",
    ) -> Page:
        arguments = {**arguments, **preview.fixed}
        shown = changes.state_text(preview.state)
        token = self._tokens.sign(view.user.name, path, arguments, shown, view.now_ms)
        fields = {**arguments, "shown": shown, "token": token}
        confirmation = Confirmation(path, fields, preview, refusal)
        data = {"confirmation": confirmation}
        return Page("confirmation.html.j2", preview.title, data, 409 if refusal else 200)

    def _record(
        self, request: Request, change: Change, view: View, token: str, outcome: str, detail: str
    ) -> None:
        self._parts.audit.add(
            AuditEntry(
                time_ms=view.now_ms,
                user=view.user.name,
                address=address_of(request),
                action=change.name,
                arguments=change.recorded({**view.names, **view.form}),
                outcome=outcome,
                detail=detail,
                preview=token.partition(".")[2][:16],
            )
        )

    def _is_live(self, path: str) -> bool:
        try:
            return self._pages.find(path)[0].live_s > 0
        except RequestFailed:
            return False

    # --- the frame ------------------------------------------------------------------------------

    def _frame(self, request: Request, path: str, visitor: Visitor) -> Frame:
        return Frame(
            root=self._root_path,
            path=_with_query(path, request),
            user=visitor.user,
            has_login=bool(self._parts.accounts),
            may_operate=self._parts.may_operate,
            csrf=self._gate.form_token(visitor),
            theme=_theme(request),
            now_ms=self._parts.clock.now_ms(),
            is_live=self._is_live(path) and visitor.user is not None,
            silent=self._parts.cluster.snapshot.silent(),
        )


def _with_query(path: str, request: Request) -> str:
    return f"{path}?{request.url.query}" if request.url.query else path


class _Paths(Generic[_R]):
    """Finds a route by path. Parts are compared before they are unquoted: a name may have a /."""

    def __init__(self, routes: Mapping[str, _R]) -> None:
        self._routes = [(pattern.split("/"), route) for pattern, route in routes.items()]

    def find(self, path: str) -> tuple[_R, dict[str, str]]:
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


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises ``RequestFailed``."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise RequestFailed(400, "allowed is a form: application/x-www-form-urlencoded")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            raise RequestFailed(413, f"a form has at most {FORM_BYTES_MAX} bytes")
    try:
        values = parse_qs(
            body.decode("latin-1"),
            keep_blank_values=True,
            errors="replace",
            max_num_fields=FIELD_COUNT_MAX,
        )
    except ValueError as error:
        raise RequestFailed(400, f"the form: {error}") from error
    # Browsers send line ends as CRLF, and show them as LF: a confirmation must be the same text.
    return {name: texts_[-1].replace("\r\n", "\n") for name, texts_ in values.items()}


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
