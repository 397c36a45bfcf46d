"""Lists of topics or groups that one request creates or changes: checked first, then put.

    check, in slices    each entry; if one is refused, nothing is put
    one step            room for all of them is reserved
    put, in slices      to the end, even if the client disconnects

Other requests are served between two slices. If one of them has changed an entry, the list's values
are merged with it again when it is put; if that is refused, the entry is unchanged, the others are
put, and the reply is the refusal.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from reput.broker.parts import Parts
from reput.broker.quotas import Reservation
from reput.errors import RequestRefused
from reput.format import names
from reput.remoting.channel import Channel
from reput.remoting.long_replies import chunks
from reput.remoting.time_slices import Steps, to_the_end

LOGGED_MAX = 10
"""Entries of a list that are logged individually."""

_log = logging.getLogger(__name__)


class Named(Protocol):
    """The settings of a topic or group."""

    @property
    def name(self) -> str:
        """Name of the topic or group."""


_N = TypeVar("_N", bound=Named)
_W = TypeVar("_W")


class Entries(Protocol[_N]):
    """The topics or groups of a broker."""

    def get(self, name: str) -> _N | None:
        """Return an entry, or None."""

    def check_room(self, entries: Iterable[_N]) -> None:
        """Refuse entries that exceed a limit. Raises ``LimitExceeded``."""

    def reserve(self, entries: Iterable[_N]) -> Reservation:
        """Reserve room for entries. Raises ``LimitExceeded``."""

    def release(self, reservation: Reservation) -> None:
        """Release the rest of a reservation."""

    def put(self, entry: _N, now_ms: int, reservation: Reservation | None = None) -> None:
        """Add or replace an entry."""


def put(
    parts: Parts,
    channel: Channel,
    entries: Entries[_N],
    wanted: list[_W],
    settings_of: Callable[[Parts, _W], _N],
) -> Steps[None]:
    """Check and put a list.

    Args:
        parts: The parts of the broker.
        channel: Connection of the client.
        entries: The table.
        wanted: The list.
        settings_of: Checks an entry of the list, and merges it with the existing one. Raises
            ``RequestRefused``.

    Raises:
        RequestRefused: Nothing has changed, except entries that other requests changed meanwhile.
    """
    merged: dict[str, tuple[_W, _N | None, _N]] = {}
    for chunk in chunks(wanted):
        for item in chunk:
            settings = settings_of(parts, item)
            if parts.settings.store.enable_lmq and names.is_light(settings.name):
                _log.info("%s exists implicitly, and is not changed", settings.name)
            else:
                merged[settings.name] = item, entries.get(settings.name), settings
        yield
    work = _put(parts, channel, entries, merged, settings_of)
    yield from to_the_end(work, parts.serving.slices.run)


def _put(
    parts: Parts,
    channel: Channel,
    entries: Entries[_N],
    merged: dict[str, tuple[_W, _N | None, _N]],
    settings_of: Callable[[Parts, _W], _N],
) -> Steps[None]:
    reservation = entries.reserve(settings for _, _, settings in merged.values())
    now_ms = parts.clock.now_ms()
    refusal: RequestRefused | None = None
    try:
        for chunk in chunks(merged.items()):
            for name, (item, known, settings) in chunk:
                if entries.get(name) is not known:  # changed by another request
                    try:
                        settings = settings_of(parts, item)
                        entries.check_room([settings])
                    except RequestRefused as error:
                        _log.info(
                            "%s of a list set by %s is refused: %s", name, channel.peer, error
                        )
                        refusal = error
                        continue
                entries.put(settings, now_ms, reservation)
                if len(merged) <= LOGGED_MAX:
                    _log.info("%r set by %s: %s", name, channel.peer, _shown(settings))
            yield
    finally:
        entries.release(reservation)
    if len(merged) > LOGGED_MAX:
        _log.info("%d topics or groups set by %s", len(merged), channel.peer)
    if refusal is not None:
        raise refusal


def _shown(settings: Any) -> str:
    """Return settings as ``key=value`` for the log."""
    return " ".join(
        f"{field.name}={getattr(settings, field.name)}"
        for field in dataclasses.fields(settings)
        if field.name != "name"
    )
