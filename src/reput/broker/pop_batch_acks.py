"""Batches of acknowledgements (200151), without a command and a processor for each.

Their headers are the same but for the opaque: what they say is looked at once. Whatever is not
plain goes through the processor; both ways have the same effects and the same replies.
"""

from typing import TYPE_CHECKING

from reput.broker.pop_requests import read_plain
from reput.broker.processors import pop_ack
from reput.errors import ReputError
from reput.format.codes import RequestCode
from reput.format.pop_codec import ORDERED_REVIVE_QUEUE
from reput.remoting.channel import Channel
from reput.remoting.requests import empty_json_reply

if TYPE_CHECKING:
    from reput.broker.server import Broker

_BEGINNING = b'{"code":%d,' % RequestCode.BATCH_ACK_MESSAGE
_KNOWN_MAX = 64


class PopBatchAcks:
    """Takes batches of acknowledgements.

    Args:
        broker: Whose messages they are of.
    """

    def __init__(self, broker: "Broker") -> None:
        self.common_count = 0
        """Batches that went through no processor."""
        self._broker = broker
        self._known: set[bytes] = set()
        """Words of headers that say no more than what they are."""

    def take(self, channel: Channel, view: memoryview, at: int, end: int) -> int:
        """Take the batch that stands at ``at``, if it is plain.

        Returns:
            Where it ends; ``at`` if it is the processor's.
        """
        plain = read_plain(view, at, end, _BEGINNING)
        if plain is None:
            return at
        try:
            if plain.words not in self._known:
                plain.decoded(view, RequestCode.BATCH_ACK_MESSAGE)
                self._remember(plain.words)
            named = pop_ack.named(bytes(view[plain.body_at : plain.behind]))
        except ReputError:
            return at  # nothing was done: the processor comes to the same, and says so
        if any(one.ack.revive_queue_id == ORDERED_REVIVE_QUEUE for one in named):
            return at  # they may be refused when others are done
        for one in named:
            pop_ack.take(self._broker, one)
        self.common_count += 1
        channel.write(empty_json_reply(plain.opaque))
        return plain.behind

    def _remember(self, words: bytes) -> None:
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known.add(words)
