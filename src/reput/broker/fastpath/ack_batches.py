"""Fast path of batches of acknowledgements (200151): a header seen before is not decoded again."""

from reput.broker.fastpath.json_request import find_request
from reput.broker.fastpath.request_table import empty_json_reply
from reput.broker.parts import Parts
from reput.broker.processors import pop_ack
from reput.broker.processors.pop_ack import AckedMessages
from reput.errors import ReputError
from reput.format.codes import RequestCode
from reput.format.pop_codec import ORDERED_REVIVE_QUEUE
from reput.remoting.channel import Channel

_KNOWN_MAX = 64
_KNOWN_BYTES_MAX = 2048
_BODY_BYTES_MAX = 32 * 1024
"""The length of a body, bytes. The processor handles longer ones in time slices."""


class FastAckBatches:
    """Serves batches of acknowledgements.

    Args:
        parts: The parts of the broker.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._known: set[bytes] = set()
        """Keys of headers that have no fields."""

    def serve(self, channel: Channel, view: memoryview, position: int, end: int) -> int:
        """Serve the batch at a position of the buffer.

        Returns:
            The end of its frame; ``position`` if it falls back to the processor.
        """
        request = find_request(view, position, end)
        if request is None or request.end - request.body_position > _BODY_BYTES_MAX:
            return position
        try:
            if request.key not in self._known:
                request.decode(view, RequestCode.BATCH_ACK_MESSAGE)
                self._learn(request.key)
            acks = pop_ack.decode_batch(bytes(view[request.body_position : request.end]))
        except ReputError:
            return position  # nothing was acknowledged: the processor raises the same error
        if any(map(self._may_be_refused, acks)):
            return position  # after others were acknowledged
        for ack in acks:
            pop_ack.acknowledge(self._parts, ack)
        self._parts.fast_counts.ack_batches += 1
        channel.write(empty_json_reply(request.opaque))
        return request.end

    def _may_be_refused(self, acked: AckedMessages) -> bool:
        is_ordered = acked.ack.revive_queue_id == ORDERED_REVIVE_QUEUE
        return is_ordered or acked.ack.pop_ms < self._parts.pops.revive.loaded_ms

    def _learn(self, key: bytes) -> None:
        if len(key) > _KNOWN_BYTES_MAX:
            return
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known.add(key)
