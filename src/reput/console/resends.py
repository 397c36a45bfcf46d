"""What has been sent again: a file of receipts, so that nothing is sent twice unnoticed.

A line of JSON for each dead letter that was sent again. Times and users of the newest receipts are
remembered; of all of them, a mark by queue and queue offset is.
"""

import json
import logging
from array import array
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from reput.client.message import ReceivedMessage
from reput.console.access import User
from reput.errors import NotInStore, ReputError
from reput.format import names, properties as props

RECEIPTS_MAX = 100_000
"""Maximum number of newest receipts whose times and users are remembered."""
MARKS_MAX = 5_000_000
"""Dead letters that are known to be sent again; more are not sent before the file is replaced."""
RESENT = "REPUT_RESENT"
"""Property of a copy: broker, queue and queue offset of its dead letter."""
TO = ("group", "origin")
"""Destinations of copies: the retry topic of the group, or the original topic."""
_BLOCK = 64
_ANY = 1
"""Mark of a receipt without the id of its letter."""
_log = logging.getLogger(__name__)

Place = tuple[str, str, int, int]
"""Group, broker, queue, queue offset of a dead letter."""


class ReceiptNotKept(ReputError):
    """The file of receipts cannot be read or written, or is full."""


@dataclass(frozen=True, slots=True)
class ResendReceipt:
    """A dead letter that was sent again."""

    group: str
    broker: str
    queue_id: int
    queue_offset: int
    time_ms: int
    user: str
    to: str
    """Topic of the copy."""
    offset_id: str
    """Offset id of the copy."""
    id: str = ""
    """Id of the letter; empty in receipts of earlier versions."""

    @property
    def place(self) -> Place:
        """Place of the dead letter."""
        return self.group, self.broker, self.queue_id, self.queue_offset


class Resends:
    """Receipts of letters that were sent again.

    Args:
        path: Their file; None: they are forgotten at the end.

    Raises:
        ReceiptNotKept: The file cannot be read.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        # A dict keeps a gap for each key that was removed: its first key is found slowly.
        self._newest: OrderedDict[Place, ResendReceipt] = OrderedDict()
        self._marks: dict[Place, array[int]] = {}
        """A mark of each of 64 offsets, by group, broker, queue and block; 0: not sent again."""
        self._mark_count = 0
        self._is_torn = False
        """Whether the last line of the file has no end, after a crash or a full disk."""
        if path is None:
            return
        try:
            with path.open("rb") as file:
                for line in file:
                    self._is_torn = not line.endswith(b"\n")
                    self._read(line)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ReceiptNotKept(f"{path} cannot be read: {error.strerror}") from error

    def _read(self, line: bytes) -> None:
        try:
            self._remember(msgspec.json.decode(line, type=ResendReceipt))
        except msgspec.MsgspecError:  # a line after whose start the console crashed
            if line.strip():
                _log.warning("%s has a line that is no receipt: %.100r", self.path, line)

    def last(self, place: Place, letter_id: str) -> ResendReceipt | None:
        """Return the last receipt of a letter; None without a receipt for this message."""
        receipt = self._newest.get(place)
        return receipt if receipt is not None and receipt.id in ("", letter_id) else None

    def has(self, place: Place, letter_id: str) -> bool:
        """Return whether a letter was sent again.

        Args:
            place: Its place.
            letter_id: Its id: a topic that was deleted and created again has other letters there.
        """
        key, index = _block_of(place)
        block = self._marks.get(key)
        return block is not None and block[index] in (_ANY, _mark(letter_id))

    def count(self, group: str, broker: str, queue_id: int, low: int, high: int) -> int:
        """Return how many offsets of a queue, ``low`` to ``high - 1``, have a receipt."""
        total = 0
        for number in range(low // _BLOCK, -(-high // _BLOCK)):
            block = self._marks.get((group, broker, queue_id, number))
            if block is not None:
                begin, end = max(0, low - number * _BLOCK), min(_BLOCK, high - number * _BLOCK)
                total += sum(mark != 0 for mark in block[begin:end])
        return total

    def check_room(self, count: int) -> None:
        """Check that a number of receipts can be added. Raises ``ReceiptNotKept``."""
        if self._mark_count + count > MARKS_MAX:
            raise ReceiptNotKept(
                f"{self.path or 'the memory'} has {self._mark_count:,} receipts, and at most "
                f"{MARKS_MAX:,} are kept: move the file away and start the console again"
            )

    def add(self, receipt: ResendReceipt) -> None:
        """Add a receipt, also to the file. Raises ``ReceiptNotKept``."""
        self._remember(receipt)
        if self.path is None:
            return
        values: Mapping[str, object] = asdict(receipt)
        start = "\n" if self._is_torn else ""
        try:
            self._is_torn = True
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{start}{json.dumps(values)}\n")
            self._is_torn = False
        except OSError as error:
            raise ReceiptNotKept(f"{self.path} cannot be written: {error.strerror}") from error

    def _remember(self, receipt: ResendReceipt) -> None:
        self._newest.pop(receipt.place, None)
        self._newest[receipt.place] = receipt
        while len(self._newest) > RECEIPTS_MAX:
            self._newest.popitem(last=False)
        key, index = _block_of(receipt.place)
        block = self._marks.get(key)
        if block is None:
            block = self._marks[key] = array("q", bytes(8 * _BLOCK))
        self._mark_count += block[index] == 0
        block[index] = _mark(receipt.id)


def _block_of(place: Place) -> tuple[Place, int]:
    """Return the block that contains a place, and the index of the place in it."""
    group, broker, queue_id, queue_offset = place
    return (group, broker, queue_id, queue_offset // _BLOCK), queue_offset % _BLOCK


def _mark(letter_id: str) -> int:
    """Return the mark of a letter: 64 bits of its id, never 0."""
    return (hash(letter_id) or 2) if letter_id else _ANY


def place_text(broker: str, queue_id: int, queue_offset: int) -> str:
    """Return a place as the property of a copy has it."""
    return f"{broker} {queue_id} {queue_offset}"


def target(message: ReceivedMessage, group: str, to: str, user: User) -> str:
    """Return the topic of a copy.

    Args:
        message: The dead letter.
        group: Its group.
        to: One of ``TO``.
        user: Who sends it.

    Raises:
        NotInStore: The letter names no original topic, or one that does not exist for the user.
    """
    if to == "group":
        return names.retry_topic(group)
    origin = message.stored.properties.get(props.RETRY_TOPIC)
    if not origin:
        raise NotInStore(f"{message.message_id} has no original topic: send to the group")
    if not user.sees_topic(origin):
        raise NotInStore(f"{message.message_id} is of a topic that {user.name} does not see")
    return origin
