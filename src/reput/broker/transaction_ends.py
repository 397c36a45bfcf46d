"""37 in a row: transactions that end in one read of a connection are decided together.

What they say is read as numbers (``remoting.requests``), and decided in one put
(``Transactions.decide_all``). What is not common goes through the processor, in its place; both
ways have the same effects and the same replies.
"""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from reput.broker.processors import transactions as one_by_one
from reput.broker.transactions import End
from reput.format import sys_flag as flags
from reput.format.codes import RequestCode
from reput.format.kernels import hot
from reput.remoting.channel import Channel
from reput.remoting.requests import (
    FIELDS_OF_5,
    Field,
    Kind,
    RequestList,
    Row,
    empty_replies,
    take_rows,
)

if TYPE_CHECKING:
    from reput.broker.server import Broker

_FIELDS = (
    Field("producerGroup", Kind.TEXT, is_required=True),
    Field("tranStateTableOffset", Kind.LONG, is_required=True),
    Field("commitLogOffset", Kind.LONG, is_required=True),
    Field("commitOrRollback", Kind.INT, is_required=True),
    Field("fromTransactionCheck", Kind.BOOL),
    Field("msgId", Kind.TEXT),
    Field("transactionId", Kind.TEXT),
    Field("topic", Kind.TEXT),
    *FIELDS_OF_5,
)


class TransactionEnds:
    """Takes ends of transactions.

    Args:
        broker: Whose transactions they are.
        buffer: What connections are read into; it stays where it is.
    """

    def __init__(self, broker: "Broker", buffer: bytearray) -> None:
        self.common_count = 0
        """Ends that went through no processor."""
        self._broker = broker
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self._requests = RequestList(RequestCode.END_TRANSACTION, _FIELDS)
        value = self._requests.value
        self._group = value("producerGroup")
        self._queue_offset = value("tranStateTableOffset")
        self._physical_offset = value("commitLogOffset")
        self._decision = value("commitOrRollback")

    def take(self, channel: Channel, view: memoryview, at: int, end: int) -> int:
        """Take the ends that follow each other at ``at`` in the buffer, the common and the others.

        Returns:
            Where the first other frame begins: ``at`` if there are none.
        """
        rows = self._requests.collect(self._address, at, end)
        return take_rows(rows, channel, view, at, end, self._decide)

    def _decide(self, channel: Channel, rows: Sequence[Row]) -> int:
        """Decide those that are common, up to the first other; return how many."""
        broker = self._broker
        if not broker.is_master:
            return 0
        ends = []
        groups: dict[int, bytes] = {}
        group_at, queue_at, place_at = self._group, self._queue_offset, self._physical_offset
        for row in rows:
            decision = row[self._decision]
            if decision not in one_by_one.DECISIONS:
                break
            place = row[group_at]
            if place not in groups:
                groups[place] = hot.bytes_at(place, row[group_at + 1])
            is_commit = decision == flags.TRANSACTION_COMMIT
            ends.append(End(row[queue_at], row[place_at], groups[place], is_commit))
        count = broker.transactions.decide_all(ends, broker.clock.now_ms())
        if count:
            self.common_count += count
            channel.write(empty_replies(rows[:count]))
            one_by_one.tell_readers(broker)
        return count
