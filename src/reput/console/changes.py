"""Changes: a preview, which the user confirms, then a receipt.

A change has two functions. ``preview`` reads the state and computes the change; ``run`` makes it,
and reads the new state. The confirmation carries the state that was shown, signed together with the
user, the path and the arguments: it is refused if the state has moved since, or if the token is
foreign, too old, or used before.
"""

import hashlib
import hmac
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from reput.console.access import Right
from reput.console.page import View

TOKEN_MS = 10 * 60 * 1000
"""Time for which a preview can be confirmed."""
USED_COUNT_MAX = 10_000

State = Mapping[str, int | str]
Cell = int | str | None
Outcome = Literal["done", "partly", "failed"]


@dataclass(frozen=True, slots=True)
class Preview:
    """A change before it is confirmed."""

    title: str
    """Text such as ``Reset group Billing on topic Orders``."""
    button: str
    """Text of the button that confirms it."""
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    state: State
    """State that the rows show, by name: if it has changed, a confirmation is refused."""
    tolerance: int = 0
    """Amount by which a number of the state may change."""
    warnings: Sequence[str] = ()
    typed_name: str = ""
    """The name that the user must type; empty if no confirmation is needed."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Arguments of the confirmation that replace those of the form, which must not change."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The outcome of a change."""

    outcome: Outcome
    text: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    link: Sequence[str] = ()
    """Parts of the path of the page that shows the outcome; empty without such a page."""


class Change(NamedTuple):
    """A change: its name in the audit log, the right that it needs, and its two functions."""

    name: str
    right: Right
    preview: Callable[[View], Awaitable[Preview]]
    run: Callable[[View, Preview], Awaitable[Receipt]]
    unrecorded: Sequence[str] = ()
    """Arguments such as bodies, of which the audit log contains only size and SHA-256."""
    is_immediate: bool = False
    """True if the change needs no confirmation, such as the stop of a job."""

    def recorded(self, arguments: Mapping[str, str]) -> Mapping[str, str]:
        """Return arguments as the audit log has them."""
        return {
            name: _digest_text(value) if name in self.unrecorded else value
            for name, value in arguments.items()
        }


def _digest_text(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}"


class Tokens:
    """Signs previews, and checks their confirmations."""

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._used: dict[str, int] = {}
        """Token -> time when it expires."""

    def sign(self, user: str, path: str, form: Mapping[str, str], shown: str, now_ms: int) -> str:
        """Return the token of a preview.

        Args:
            user: Name of the user.
            path: Path of the change.
            form: Its arguments.
            shown: The state that the preview shows, from ``state_text``.
            now_ms: The time.
        """
        return f"{now_ms}.{self._digest(user, path, form, shown, now_ms)}"

    def refusal(
        self,
        token: str,
        user: str,
        path: str,
        form: Mapping[str, str],
        shown: str,
        now_ms: int,
    ) -> str | None:
        """Return why a token does not confirm a preview; None if it does, which it can do once."""
        time_text, _, digest = token.partition(".")
        if not (time_text.isascii() and time_text.isdigit() and len(time_text) <= 19):
            return "the token is none of this console"
        expected = self._digest(user, path, form, shown, int(time_text))
        if not hmac.compare_digest(expected.encode(), digest.encode(errors="replace")):
            return "the token is not that of this preview"
        if not 0 <= now_ms - int(time_text) <= TOKEN_MS:
            return "the preview is older than ten minutes"
        if token in self._used:
            return "this preview was confirmed before"
        for old in [used for used, end_ms in self._used.items() if end_ms < now_ms]:
            del self._used[old]
        while len(self._used) >= USED_COUNT_MAX:
            del self._used[next(iter(self._used))]
        self._used[token] = int(time_text) + TOKEN_MS
        return None

    def _digest(
        self, user: str, path: str, form: Mapping[str, str], shown: str, time_ms: int
    ) -> str:
        text = json.dumps([user, path, sorted(form.items()), shown, time_ms])
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


def state_text(state: State) -> str:
    """Return a state as text, for the form of a confirmation."""
    return json.dumps(state, sort_keys=True)


def moved(preview: Preview, shown: str) -> str | None:
    """Return the part of a state that has changed since it was shown; None if none has.

    Args:
        preview: The preview of now.
        shown: The text of the state that was shown.
    """
    before: dict[str, int | str] = json.loads(shown)
    for name in sorted({*before, *preview.state}):
        was, now = before.get(name), preview.state.get(name)
        if isinstance(was, int) and isinstance(now, int):
            if abs(was - now) > preview.tolerance:
                return f"{name} was {was:,} and is {now:,}"
        elif was != now:
            return f"{name} was {was!r} and is {now!r}"
    return None


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The form that confirms a preview."""

    path: str
    """Path of the change."""
    fields: Mapping[str, str]
    """The arguments, the state that was shown and the token."""
    preview: Preview
    refusal: str = field(default="")
    """Why the last confirmation was refused."""
