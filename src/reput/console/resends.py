"""What has been sent again: a file of receipts, so that a second resend is asked for twice.

A line of JSON for each dead letter that was sent again. Reads keep the newest ones.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from reput.errors import ReputError

RECEIPTS_MAX = 100_000
"""Receipts that are remembered, the newest ones."""
_log = logging.getLogger(__name__)


class ReceiptNotKept(ReputError):
    """The file of receipts cannot be written."""


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

    @property
    def place(self) -> tuple[str, str, int, int]:
        """Place of the dead letter: group, broker, queue, queue offset."""
        return self.group, self.broker, self.queue_id, self.queue_offset


class Resends:
    """The receipts.

    Args:
        path: Their file; None: they are forgotten at the end.

    Raises:
        ReceiptNotKept: The file cannot be read.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._newest: dict[tuple[str, str, int, int], ResendReceipt] = {}
        if path is None:
            return
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            lines = []
        except OSError as error:
            raise ReceiptNotKept(f"{path} cannot be read: {error.strerror}") from error
        for line in lines[-RECEIPTS_MAX:]:
            try:
                self._remember(msgspec.json.decode(line, type=ResendReceipt))
            except msgspec.MsgspecError:  # the last line, after a crash amid its write
                _log.warning("%s has a line that is no receipt: %.100r", path, line)

    def last(self, place: tuple[str, str, int, int]) -> ResendReceipt | None:
        """Return the last receipt of a dead letter; None if there is none."""
        return self._newest.get(place)

    def add(self, receipt: ResendReceipt) -> None:
        """Add a receipt, also to the file. Raises ``ReceiptNotKept``."""
        self._remember(receipt)
        if self.path is None:
            return
        values: Mapping[str, object] = asdict(receipt)
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise ReceiptNotKept(f"{self.path} cannot be written: {error.strerror}") from error

    def _remember(self, receipt: ResendReceipt) -> None:
        self._newest.pop(receipt.place, None)
        self._newest[receipt.place] = receipt
        while len(self._newest) > RECEIPTS_MAX:
            del self._newest[next(iter(self._newest))]
