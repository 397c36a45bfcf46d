"""What a handler gets, and what it returns: a ``View`` in, a ``Page`` out."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reput.console.access import Right, User
from reput.console.parts import ConsoleParts
from reput.console.unknown import Unknown as Unknown
from reput.errors import ReputError


class RequestFailed(ReputError):
    """A request that gets a page about its failure instead of what it asked for.

    Args:
        status: Status of HTTP.
        text: The problem, and the allowed values.
    """

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class RequestRefused(RequestFailed):
    """A request for what no page leads to; the audit log has it."""


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters in the URL of a page; an empty one is an absent one."""

    values: Mapping[str, Sequence[str]]

    def text(self, name: str, default: str = "") -> str:
        """Return the last value of a parameter."""
        values = self.values.get(name)
        return values[-1] if values and values[-1] else default

    def number(self, name: str, default: int, smallest: int = 0, largest: int = 2**63 - 1) -> int:
        """Return a whole number. Raises ``RequestFailed`` outside of smallest to largest."""
        text = self.text(name)
        if not text:
            return default
        try:
            value = int(text) if text.isascii() and len(text) <= 20 else None
        except ValueError:
            value = None
        if value is None or not smallest <= value <= largest:
            raise RequestFailed(
                400, f"{name}={text[:40]!r}: allowed is a number from {smallest} to {largest}"
            )
        return value

    def choice(self, name: str, allowed: Sequence[str], default: str) -> str:
        """Return one of the allowed values. Raises ``RequestFailed`` for any other."""
        text = self.text(name, default)
        if text not in allowed:
            raise RequestFailed(400, f"{name}={text[:40]!r}: allowed are {', '.join(allowed)}")
        return text


@dataclass(frozen=True, slots=True)
class View:
    """A request for a page, after access was checked."""

    names: Mapping[str, str]
    """Values of the parts in braces of the path, as ``topic``."""
    query: Query
    user: User
    parts: ConsoleParts
    """What the console consists of."""
    now_ms: int
    form: Mapping[str, str] = field(default_factory=dict)
    """Fields of the form of a change."""
    is_json: bool = False
    """Whether the answer is JSON, of which a browser continues nothing."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page before it is rendered: its template, its title, and the same data as JSON."""

    template: str
    """Name in ``console/templates``."""
    title: str
    data: Mapping[str, object]
    """What the template shows: dataclasses, builtins and ``Unknown``; times are whole ms."""
    status: int = 200


Handler = Callable[[View], Awaitable[Page]]


@dataclass(frozen=True, slots=True)
class Fragment:
    """HTML that a stream sends as an event: a template with its data."""

    event: str
    template: str
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PageStream:
    """A response in parts: events, or a file."""

    media_type: str
    chunks: AsyncGenerator[bytes | Fragment, None]
    filename: str = ""
    """Name of the file; empty for events."""


Streamer = Callable[[View], Awaitable[PageStream | None]]


class Route(NamedTuple):
    """A page, and the right that it needs.

    The right is needed for the ``topic`` or ``group`` in the path, where there is one.
    """

    handler: Handler
    right: Right
    stream: Streamer | None = None
    """Function that returns a stream instead of the page, for some parameters."""
    live_s: float = 0
    """Time in which the page, asked with ``live=1``, is computed again; 0: it does not follow."""
