"""What a handler gets, and what it returns: a ``View`` in, a ``Page`` out."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from reput.console.access import Right, User
from reput.console.parts import ConsoleParts
from reput.console.query import (
    Query as Query,
    RequestFailed as RequestFailed,
    RequestRefused as RequestRefused,
)
from reput.console.unknown import Unknown as Unknown


@dataclass(frozen=True, slots=True)
class View:
    """A request for a page, after access was checked."""

    names: Mapping[str, str]
    """Values of the parts in braces of the path, as ``topic``."""
    query: Query
    user: User
    parts: ConsoleParts
    """The components of the console."""
    now_ms: int
    form: Mapping[str, str] = field(default_factory=dict)
    """Fields of the form of a change."""
    is_json: bool = False
    """True if the reply is JSON, whose rows a browser does not follow."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page before it is rendered: its template, its title, and the same data as JSON."""

    template: str
    """Name in ``console/templates``."""
    title: str
    data: Mapping[str, object]
    """Data of the template: dataclasses, builtins and ``Unknown``; times are whole ms."""
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
    """Interval at which the page is computed again with ``live=1``; 0: never."""
    version: Callable[[View], int] | None = None
    """Function that returns another number when the page has moved; None: it moves with the
    snapshot. A page with such a function moves at any moment, so its stream begins with all of it.
    """
