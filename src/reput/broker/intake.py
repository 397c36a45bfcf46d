"""From the bytes of producers into the store.

One read of a connection is one pass: a kernel handles all common send frames that stand in the
buffer, and their replies leave in one write. What is not common goes, in its place, through the
processors (architecture: hot path). Both ways give the same records and the same replies.

Where a put must wait for the disk, its reply waits here.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.store.flush import PendingPut
from reput.store.incoming import IncomingMessage, PutResult

if TYPE_CHECKING:
    from reput.broker.server import Broker

Answer = Callable[[PutResult], Command]
"""What becomes of a put -> the reply."""


@dataclass(slots=True)
class _Waiting:
    """A reply that waits for the disk."""

    put: PendingPut
    channel: Channel
    answer: Answer


class Intake:
    """Puts messages, and sends the replies when they are due.

    Args:
        broker: Whose messages they are.
    """

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._waiting: deque[_Waiting] = deque()
        self._has_put = False  # during a read

    def __len__(self) -> int:
        """How many replies wait."""
        return len(self._waiting)

    def on_bytes(self, channel: Channel, view: memoryview, end: int) -> int:
        """Handle what a connection sent; see ``remoting.channel.Owner``."""
        try:
            return channel.take_frames(view, 0, end)
        finally:
            if self._has_put:
                self._has_put = False
                # Those who wait for messages shall not wait for the next step as well.
                if len(self._broker.held_pulls):
                    self._broker.store.notify()

    def put(
        self,
        channel: Channel,
        request: Command,
        message: IncomingMessage,
        answer: Answer,
        *,
        is_batch: bool = False,
    ) -> Command | None:
        """Store a message or batch; return the reply, or None if it comes when the disk has it."""
        self._has_put = True
        put = self._broker.store.begin_put(message, is_batch=is_batch)
        if put.result is not None:
            return answer(put.result)
        if not request.is_oneway:
            self._waiting.append(_Waiting(put, channel, answer))
        self._broker.loops.sync_soon()
        return None

    def settle(self) -> None:
        """Send the replies that need not wait any longer."""
        waiting = self._waiting
        while waiting and (result := waiting[0].put.result) is not None:
            one = waiting.popleft()
            one.channel.send(one.answer(result))
