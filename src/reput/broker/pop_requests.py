"""Pops that are asked again: what does not change between two of them is looked at once.

A member asks with the same words again and again, but for the opaque and the time. What they mean,
and whether the group may pop the topic at all, is remembered by the words, until anything changes
that it depends on. Whatever is not plain goes through the processor, as all requests.
"""

from typing import TYPE_CHECKING

from reput.broker.pop import Wanted
from reput.broker.processors import pop
from reput.errors import NotAFrame, ReputError
from reput.format import command as commands
from reput.format.codes import RequestCode
from reput.format.command import MARK, Command
from reput.remoting.channel import Channel
from reput.remoting.connection import find_frame

if TYPE_CHECKING:
    from reput.broker.server import Broker

HEADER_AT = commands.LENGTH.size + MARK.size
"""Where a frame's header begins."""
_BEGINNING = b'{"code":%d,' % RequestCode.POP_MESSAGE
_OPAQUE = b'"opaque":'
_OPAQUE_MAX = (1 << 31) - 1
_TIME = b'"bornTime":"'
_TIME_DIGITS_MAX = 18
_KNOWN_MAX = 4096


class PopRequests:
    """Takes pops.

    Args:
        broker: Whose messages they pop.
    """

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._known: dict[bytes, tuple[Wanted, int]] = {}
        """Words of a header -> what it wants, and how long it waits, ms."""

    def clear(self) -> None:
        """Look at all of it again: who may pop what has changed."""
        self._known.clear()

    def take(self, channel: Channel, view: memoryview, at: int, end: int) -> int:
        """Answer the pop that stands at ``at``, if it is plain.

        Returns:
            Where it ends; ``at`` if it is the processor's.
        """
        beginning = at + HEADER_AT
        if view[beginning : beginning + len(_BEGINNING)] != _BEGINNING:
            return at
        place = find_frame(view, at, end)
        if place is None or place[1] > end:
            return at
        content, behind = place
        (size,) = MARK.unpack_from(view, content)  # the serialization above it is 0
        if not 0 < size <= behind - beginning:
            return at
        opaque, words = _parts(bytes(view[beginning : beginning + size]))
        if words is None:
            return at
        request = Command(RequestCode.POP_MESSAGE, opaque)
        try:
            known = self._known.get(words)
            if known is None:
                known = self._learn(bytes(view[content:behind]), opaque, words)
            pop.check_broker(self._broker)
            reply = pop.answer(self._broker, channel, request, *known)
        except ReputError:
            return at  # nothing was taken: the processor comes to the same, and says so
        if reply is not None:
            channel.answer(request, reply)
        return behind

    def _learn(self, frame: bytes, opaque: int, words: bytes) -> tuple[Wanted, int]:
        """Return what a pop wants, and remember it. Raises ``ReputError``."""
        request = commands.decode(frame)
        if request.flag or request.opaque != opaque:
            raise NotAFrame("its words mean something else than they seem to")
        known = pop.wanted(self._broker, request)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[words] = known
        return known


def _parts(header: bytes) -> tuple[int, bytes | None]:
    """Return the opaque of a header, and its other words; None: it is not written plainly."""
    start = header.find(_OPAQUE)
    end = header.find(b",", start)
    digits = header[start + len(_OPAQUE) : end]
    # Words inside of texts have a backslash in front of their quotes.
    if start < 0 or end < 0 or not digits.isdigit() or header.find(_OPAQUE, end) >= 0:
        return 0, None
    opaque = int(digits)
    if opaque > _OPAQUE_MAX or (digits[:1] == b"0" and opaque):
        return 0, None
    words = header[:start] + header[end:]
    start = words.find(_TIME) + len(_TIME)
    if start >= len(_TIME):
        end = words.find(b'"', start)
        if end - start <= _TIME_DIGITS_MAX and words[start:end].isdigit():
            words = words[:start] + words[end:]
    return opaque, words
