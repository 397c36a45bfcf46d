"""Pops that are asked again: what does not change between two of them is looked at once.

A member asks with the same words again and again, but for the opaque and the time. What they mean,
and whether the group may pop the topic at all, is remembered by the words, until anything changes
that it depends on. Whatever is not plain goes through the processor, as all requests.
"""

from typing import TYPE_CHECKING, NamedTuple

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
        """Words of a header -> what it wants, and its time, ms."""

    def clear(self) -> None:
        """Look at all of it again: who may pop what has changed."""
        self._known.clear()

    def take(self, channel: Channel, view: memoryview, at: int, end: int) -> int:
        """Answer the pop that stands at ``at``, if it is plain.

        Returns:
            Where it ends; ``at`` if it is the processor's.
        """
        plain = read_plain(view, at, end, _BEGINNING)
        if plain is None:
            return at
        words, born_ms = _without_time(plain.words)
        if words is None:
            return at
        broker = self._broker
        try:
            known = self._known.get(words)
            if known is None:
                known = self._learn(plain.decoded(view, RequestCode.POP_MESSAGE), words)
            wanted, poll_ms = known
            left_ms = pop.time_left(broker, born_ms, poll_ms)
            if broker.is_stopping:  # what else is checked is among what is known
                return at
            found = pop.pop(broker, wanted)
        except ReputError:
            return at  # nothing was taken: the processor comes to the same, and says so
        if pop.is_common(wanted, found):
            pop.send_found(broker, channel, plain.opaque, wanted, found)
            return plain.behind
        request = Command(RequestCode.POP_MESSAGE, plain.opaque)
        reply = pop.answer_found(broker, channel, request, wanted, left_ms, found)
        if reply is not None:
            channel.answer(request, reply)
        return plain.behind

    def _learn(self, request: Command, words: bytes) -> tuple[Wanted, int]:
        """Return what a pop wants, and remember it. Raises ``ReputError``."""
        found, _, poll_ms = pop.wanted(self._broker, request)
        known = found, poll_ms
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[words] = known
        return known


class PlainRequest(NamedTuple):
    """A request whose header is JSON as clients write it; positions are those of the buffer."""

    opaque: int
    words: bytes
    """Its header without the opaque."""
    header_at: int
    body_at: int
    behind: int

    def decoded(self, view: memoryview, code: int) -> Command:
        """Return the request. Raises ``NotAFrame`` if it is another one than it seems to be."""
        request = commands.decode(view[self.header_at - MARK.size : self.behind])
        if (request.code, request.flag, request.opaque) != (code, 0, self.opaque):
            raise NotAFrame("its words mean something else than they seem to")
        return request


def read_plain(view: memoryview, at: int, end: int, beginning: bytes) -> PlainRequest | None:
    """Return the request that stands whole at ``at``; None if its header does not begin so."""
    header_at = at + HEADER_AT
    if view[header_at : header_at + len(beginning)] != beginning:
        return None
    place = find_frame(view, at, end)
    if place is None or place[1] > end:
        return None
    content, behind = place
    (size,) = MARK.unpack_from(view, content)  # the serialization above it is 0
    if not 0 < size <= behind - header_at:
        return None
    header = bytes(view[header_at : header_at + size])
    start = header.find(_OPAQUE)
    stop = header.find(b",", start)
    digits = header[start + len(_OPAQUE) : stop]
    # Words inside of texts have a backslash in front of their quotes.
    if start < 0 or stop < 0 or not digits.isdigit() or header.find(_OPAQUE, stop) >= 0:
        return None
    opaque = int(digits)
    if opaque > _OPAQUE_MAX or (digits[:1] == b"0" and opaque):
        return None
    return PlainRequest(opaque, header[:start] + header[stop:], header_at, header_at + size, behind)


def _without_time(words: bytes) -> tuple[bytes | None, int]:
    """Return words without the time when they were made, and that, ms; 0: they do not say.

    None for the words: it is not written plainly.
    """
    born_ms = 0
    start = words.find(_TIME) + len(_TIME)
    if start >= len(_TIME):
        end = words.find(b'"', start)
        if not (end - start <= _TIME_DIGITS_MAX and words[start:end].isdigit()):
            return None, 0
        born_ms = int(words[start:end])
        words = words[:start] + words[end:]
    return words, born_ms
