"""Fast path of pops: a header seen before is looked up, not decoded.

A member pops with the same header again and again, except for the opaque and the time. The request
in the header, and the group's permission to pop the topic, are cached until anything changes that
they depend on.
"""

from reput.broker.fastpath.json_request import find_request
from reput.broker.parts import Parts
from reput.broker.pop.pops import PopParameters
from reput.broker.processors import pop
from reput.errors import ReputError
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.remoting.channel import Channel

_TIME = b'"bornTime":"'
_TIME_DIGITS_MAX = 18
_SIGNATURE = b'"Signature":"'
"""Field that differs in each request without changing the meaning."""
_KNOWN_MAX = 4096
_KNOWN_BYTES_MAX = 2048
"""Maximum size of a cached key, bytes: longer ones would take a gigabyte."""


class FastPops:
    """Serves pops.

    Args:
        parts: The parts of the broker.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._known: dict[bytes, tuple[PopParameters, int]] = {}
        """Key of a header, without time and signature -> the request, and how long it waits, ms."""

    def forget(self) -> None:
        """Forget all headers: permissions or topics have changed."""
        self._known.clear()

    def serve(self, channel: Channel, view: memoryview, position: int, end: int) -> int:
        """Serve the pop at a position of the buffer.

        Returns:
            The end of its frame; ``position`` if it falls back to the processor.
        """
        request = find_request(view, position, end)
        if request is None:
            return position
        key, born_ms = _without_varying(request.key)
        if key is None:
            return position
        parts = self._parts
        try:
            known = self._known.get(key)
            if known is None:
                known = self._learn(channel, request.decode(view, RequestCode.POP_MESSAGE), key)
                if known is None:
                    return position
            wanted, poll_ms = known
            left_ms = pop.time_left(parts, born_ms, poll_ms)
            if parts.identity.is_stopping:  # the other checks were made when the header was learned
                return position
            popped = pop.pop(parts, wanted)
        except ReputError:
            return position  # nothing was popped: the processor raises the same error
        if pop.is_plain(wanted, popped):
            pop.send_plain(parts, channel, request.opaque, wanted, popped)
            return request.end
        if parts.access is not None:
            # Notes the sender: if the pop is held, it is checked again when rules change.
            parts.access.admit(request.decode(view, RequestCode.POP_MESSAGE), channel.address)
        command = Command(RequestCode.POP_MESSAGE, request.opaque)
        reply = pop.answer_popped(parts, channel, command, wanted, left_ms, popped)
        if reply is not None:
            channel.answer(command, reply)
        return request.end

    def _learn(
        self, channel: Channel, request: Command, key: bytes
    ) -> tuple[PopParameters, int] | None:
        """Return the request in a header, and cache it. Raises ``ReputError``.

        None if it has an expression that takes time to compile: the processor pauses meanwhile.
        """
        fields = request.ext_fields or {}
        if self._parts.filters.compile_in_steps(fields.get("expType"), fields.get("exp")):
            return None
        wanted, _, poll_ms = pop.wanted(self._parts, request, channel.address)
        known = wanted, poll_ms
        if len(key) > _KNOWN_BYTES_MAX:
            return known
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[key] = known
        return known


def _without_varying(key: bytes) -> tuple[bytes | None, int]:
    """Return a key without time and signature of the request, and that time, ms.

    The time is 0 if the key has none. The key is None if one is not written as clients do.
    """
    key, value = _without(key, _TIME)
    if not (len(value) <= _TIME_DIGITS_MAX and (value.isdigit() or not value)):
        return None, 0
    key, signature = _without(key, _SIGNATURE)
    return None if b"\\" in signature else key, int(value or 0)


def _without(key: bytes, name: bytes) -> tuple[bytes, bytes]:
    """Split the value after a name off a key; return the rest and the value, which may be empty."""
    start = key.find(name) + len(name)
    if start < len(name):
        return key, b""
    end = max(key.find(b'"', start), start)
    return key[:start] + key[end:], key[start:end]
