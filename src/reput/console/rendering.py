"""A page as HTML or JSON, and the headers that every response has.

HTML and JSON cannot differ: a template gets the data of the page, which is also its JSON, and the
frame around it.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

import msgspec
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, Response, StreamingResponse

from reput import __version__
from reput.console import sparkline, texts
from reput.console.access import Right, User
from reput.console.page import Fragment, Page, PageStream
from reput.console.unknown import Unknown
from reput.html import environment
from reput.html.texts import duration_text

JSON = "application/json"
THEMES = ("system", "light", "dark")


@dataclass(frozen=True, slots=True)
class Frame:
    """Frame around a page: the same in the HTML of all pages, and absent from JSON."""

    root: str
    """Path under which a proxy serves the console; empty without a path."""
    path: str
    """Path of the request below the root, with its query."""
    user: User | None
    """None: no user is logged in."""
    has_login: bool
    """Whether the console has users."""
    may_operate: bool
    csrf: str
    """Token that the forms of this session carry."""
    theme: str
    now_ms: int
    is_live: bool
    """True if rows of the page are updated as the cluster changes."""
    silent: Mapping[str, int]
    """Since when, in ms since the epoch, brokers and name servers have not answered, by name."""

    @property
    def section(self) -> str:
        """First part of the path of the section; a store belongs to the section of stores."""
        name = self.path.lstrip("/").partition("/")[0].partition("?")[0]
        return "stores" if name == "s" else name


class Renderer:
    """Renders pages.

    Args:
        root_path: Path under which a proxy serves the console, as ``/mq``; empty for none.
    """

    def __init__(self, root_path: str = "") -> None:
        self._root_path = root_path
        style = environment.read_text("reput.console", "console.css")
        script = environment.read_text("reput.console", "console.js")
        templates = environment.make_environment(environment.package_loader("reput.console"))
        templates.globals.update(
            console_style=Markup(style),
            console_script=Markup(script),
            url=self.url,
            rights=Right,
            sections=texts.SECTIONS,
            themes=THEMES,
            version=__version__,
        )
        templates.filters.update(
            age=texts.age_text,
            lines=_lines,
            rate=texts.rate_text,
            span=duration_text,
            sparkline=sparkline.paths,
        )
        templates.tests["unknown"] = lambda value: isinstance(value, Unknown)
        self._templates = templates
        shared = templates.globals
        # An event source and forms are of the console alone; nothing else is loaded or framed.
        self._policy = (
            "default-src 'none'; img-src data:; connect-src 'self'; form-action 'self'; "
            "base-uri 'none'; frame-ancestors 'none'; "
            f"style-src {shared['style_hash']} {environment.source_hash(style)}; "
            f"script-src {shared['script_hash']} {environment.source_hash(script)}"
        )

    def url(self, *names: str, **query: object) -> str:
        """Return the URL of a page.

        Args:
            *names: Parts of the path, not quoted: ``url("topics", topic)``.
            **query: Parameters; None and empty texts are left out.
        """
        path = "/".join(quote(name, safe="", errors="replace") for name in names)
        pairs = [(name, str(value)) for name, value in query.items() if value not in (None, "")]
        end = f"?{urlencode(pairs, errors='replace')}" if pairs else ""
        return f"{self._root_path}/{path}{end}"

    def response(self, page: Page, frame: Frame, *, as_json: bool) -> Response:
        """Return the response with a page."""
        if as_json:
            body = msgspec.json.encode(page.data, enc_hook=str)
            response = Response(body, page.status, media_type=JSON)
        else:
            response = HTMLResponse(self.html(page, frame), page.status)
        self.guard(response)
        return response

    def html(self, page: Page, frame: Frame) -> str:
        """Return a page as HTML."""
        template = self._templates.get_template(page.template)
        return template.render(data=page.data, page_title=page.title, frame=frame)

    def stream(self, stream: PageStream) -> Response:
        """Return the response with a stream."""

        async def parts() -> AsyncIterator[bytes]:
            async with contextlib.aclosing(stream.chunks) as chunks:
                async for chunk in chunks:
                    yield self._event(chunk) if isinstance(chunk, Fragment) else chunk

        response = StreamingResponse(parts(), media_type=stream.media_type)
        if stream.filename:
            name = quote(stream.filename, safe="")
            response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{name}"
        else:
            response.headers["X-Accel-Buffering"] = "no"
        return response

    def _event(self, fragment: Fragment) -> bytes:
        html = self._templates.get_template(fragment.template).render(data=fragment.data)
        return f"event: {fragment.event}\ndata: {json.dumps(html)}\n\n".encode()

    def fragment(self, page: Page, now_ms: int) -> str:
        """Return the part of a page that follows the cluster: the block ``rows``."""
        template = self._templates.get_template(page.template)
        # A block alone has not the imports of its template.
        macros = {
            name: self._templates.get_template(f"{file}.html.j2").module
            for name, file in (("draw", "macros"), ("parts", "parts"))
        }
        values = {"data": page.data, "frame": {"now_ms": now_ms}, "page_title": ""}
        context = template.new_context({**macros, **values})
        return "".join(template.blocks["rows"](context))

    def guard(self, response: Response) -> None:
        """Add the headers that every response has."""
        response.headers["Content-Security-Policy"] = self._policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["X-Frame-Options"] = "DENY"
        # With no-referrer, browsers send forms of our own pages with ``Origin: null``.
        response.headers["Referrer-Policy"] = "same-origin"
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        response.headers["Permissions-Policy"] = "camera=(), geolocation=(), microphone=()"
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers["Vary"] = "Accept, Cookie"


def _lines(text: str) -> Markup:
    """Escape a text and keep its lines and tabs; other control characters become U+FFFD."""
    return Markup("\n").join(
        Markup("\t").join(escape(environment.without_controls(part)) for part in line.split("\t"))
        for line in text.replace("\r\n", "\n").split("\n")
    )
