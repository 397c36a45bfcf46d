"""Users of requests: sessions, passwords, a proxy; and whether a form is of the console."""

import asyncio
import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from reput.console import access, rendering, users
from reput.console.access import LOCAL_USER, User
from reput.console.audit import AuditEntry
from reput.console.page import Page, RequestFailed
from reput.console.pages import login
from reput.console.parts import ConsoleParts
from reput.console.sessions import LIFETIME_MS, Sessions, Throttle

COOKIE = "reput_session"
THEME_S = 365 * 24 * 3600
VERIFIED_MS = 60_000
"""Time for which the password of a request is not hashed again."""
VERIFIED_COUNT_MAX = 100
HASHING_COUNT_MAX = 2
"""Maximum number of passwords hashed at once: each takes 16 MiB and a core."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Sender of a request."""

    user: User | None
    """The user; None before a login."""
    session_id: str
    """Empty without a session."""


def address_of(request: Request) -> str:
    """Return the address of the client, or of the proxy."""
    return request.client.host if request.client is not None else ""


class AccessGate:
    """Identifies users, logs them in and out.

    Args:
        parts: What the console consists of.
        root_path: Path under which a proxy serves the console.
    """

    def __init__(self, parts: ConsoleParts, root_path: str) -> None:
        self._parts = parts
        self._root_path = root_path
        self._sessions = Sessions()
        self._throttle = Throttle()
        self._verified: dict[bytes, int] = {}
        """Hash of a header ``Authorization`` to the time when it was verified."""
        self._hashing = asyncio.Semaphore(HASHING_COUNT_MAX)

    def check_host(self, request: Request) -> None:
        """Check that a request without users names an address. Raises ``RequestFailed``."""
        if self._parts.accounts or access.is_address(request.headers.get("host", "")):
            return
        raise RequestFailed(
            421, "without users the console answers to its address or localhost, to no other name"
        )

    async def visitor(self, request: Request) -> Visitor:
        """Return who sends a request. Raises ``RequestFailed``."""
        accounts = self._parts.accounts
        if not accounts:
            return Visitor(LOCAL_USER, "")
        proxy = self._parts.proxy
        if proxy is not None and address_of(request) in proxy.addresses:
            values = request.headers.getlist(proxy.header)
            if len(values) > 1:  # of a browser, which the proxy has not replaced
                raise RequestFailed(403, f"the header {proxy.header} is there {len(values)} times")
            name = values[0] if values else ""
            account = accounts.get(name)
            if account is None:
                raise RequestFailed(403, f"the proxy's user {name[:80]!r} is not in the users file")
            return Visitor(account.user, f"proxy:{name}")
        now_ms = self._parts.clock.now_ms()
        if authorization := request.headers.get("authorization"):
            return Visitor(await self._basic(authorization, request, now_ms), "")
        session_id = request.cookies.get(COOKIE, "")
        account = accounts.get(self._sessions.user_name(session_id, now_ms) or "")
        return Visitor(None, "") if account is None else Visitor(account.user, session_id)

    def form_token(self, visitor: Visitor) -> str:
        """Return the token of the forms of a visitor."""
        return self._sessions.form_token(visitor.session_id)

    def check_origin(
        self, request: Request, visitor: Visitor, form: Mapping[str, str], action: str
    ) -> None:
        """Check that a page of the console sends a form. Raises ``RequestFailed``."""
        own = f"{request.url.scheme}://{request.headers.get('host', '')}"
        reason = access.foreign_origin(request.headers, own)
        if reason is None and not self._sessions.is_form_token(
            visitor.session_id, form.get("csrf", "")
        ):
            reason = "the form has not the token of this session"
        if reason is not None:
            if visitor.user is not None:
                self.refuse(request, visitor.user.name, action, reason)
            raise RequestFailed(403, f"the form was not sent by a page of this console: {reason}")

    def refuse(self, request: Request, user_name: str, action: str, reason: str) -> None:
        """Write to the audit log that something was refused."""
        self._parts.audit.add(
            AuditEntry(
                time_ms=self._parts.clock.now_ms(),
                user=user_name,
                address=address_of(request),
                action=action,
                arguments={},
                outcome="refused",
                detail=reason,
            )
        )

    async def post(
        self, path: str, form: Mapping[str, str], request: Request, visitor: Visitor
    ) -> Page | Response:
        """Log in or out, or choose the theme."""
        self.check_origin(request, visitor, form, path)
        if path == "/theme":
            return self._choose_theme(form)
        if path == "/logout":
            self._sessions.end(visitor.session_id)
            response = RedirectResponse(f"{self._root_path}/login", 303)
            response.delete_cookie(COOKIE, path=f"{self._root_path}/")
            return response
        return await self._log_in(form, request)

    def _choose_theme(self, form: Mapping[str, str]) -> Response:
        theme = form.get("theme", "")
        if theme not in rendering.THEMES:
            raise RequestFailed(400, f"theme: allowed are {', '.join(rendering.THEMES)}")
        response = RedirectResponse(self._local(form.get("to", "")), 303)
        response.set_cookie(
            "theme", theme, max_age=THEME_S, path=f"{self._root_path}/", samesite="lax"
        )
        return response

    async def _log_in(self, form: Mapping[str, str], request: Request) -> Page | Response:
        now_ms = self._parts.clock.now_ms()
        name, target = form.get("name", ""), form.get("to", "")
        wait_ms = self._throttle.wait_ms(address_of(request), now_ms)
        if wait_ms:
            text = f"too many wrong passwords; wait {-(-wait_ms // 1000)} s"
            return login.page(target, text, status=429)
        if not await self._is_password(name, form.get("password", ""), request):
            return login.page(target, "the name or the password is wrong", status=401)
        session_id = self._sessions.begin(name, now_ms)
        response = RedirectResponse(self._local(target), 303)
        response.set_cookie(
            COOKIE,
            session_id,
            max_age=LIFETIME_MS // 1000,
            path=f"{self._root_path}/",
            httponly=True,
            samesite="lax",
            secure=self._parts.is_https or request.url.scheme == "https",
        )
        return response

    async def _basic(self, authorization: str, request: Request, now_ms: int) -> User | None:
        """Return the user of a header ``Authorization``; None if it is wrong."""
        kind, _, encoded = authorization.partition(" ")
        try:
            text = base64.b64decode(encoded, validate=True).decode()
        except ValueError:
            text = ""
        name, colon, password = text.partition(":")
        if kind.lower() != "basic" or not colon:
            raise RequestFailed(401, "Authorization: allowed is Basic")
        digest = hashlib.sha256(authorization.encode(errors="replace")).digest()
        verified_ms = self._verified.get(digest)
        account = self._parts.accounts.get(name)
        if account is not None and verified_ms is not None and now_ms < verified_ms + VERIFIED_MS:
            return account.user
        if self._throttle.wait_ms(address_of(request), now_ms):
            raise RequestFailed(429, "too many wrong passwords; wait a minute")
        if not await self._is_password(name, password, request):
            return None
        while len(self._verified) >= VERIFIED_COUNT_MAX:
            del self._verified[next(iter(self._verified))]
        self._verified[digest] = now_ms
        return self._parts.accounts[name].user

    async def _is_password(self, name: str, password: str, request: Request) -> bool:
        """Return whether a password is that of a user; count and log a wrong one."""
        account = self._parts.accounts.get(name)
        has_hash = account is not None and account.password_hash != users.NO_PASSWORD
        expected = account.password_hash if account and has_hash else users.unknown_user_hash()
        # Counted first: attempts at the same time must not pass the limit together.
        self._throttle.add_attempt(address_of(request), self._parts.clock.now_ms())
        async with self._hashing:
            is_right = await asyncio.to_thread(users.has_password, expected, password)
        if is_right and has_hash:
            self._throttle.clear(address_of(request))
            return True
        self.refuse(request, name[:80], "login", "the name or the password is wrong")
        return False

    def _local(self, target: str) -> str:
        """Return a path within the console, so that a form cannot lead to another site."""
        is_path = target.startswith("/") and not target.startswith(("//", "/\\"))
        return f"{self._root_path}{target if is_path else '/'}"
