"""Fast path of code 37: transactions that end in one read of a connection are decided in one put.

A kernel reads the requests as numbers (``fastpath.request_table``); ``Transactions.decide_all``
makes the messages.
"""

from collections.abc import Sequence

from reput.broker.fastpath.request_table import (
    FIELDS_OF_5,
    Field,
    Kind,
    RequestList,
    Row,
    empty_replies,
)
from reput.broker.parts import Parts
from reput.broker.processors import transactions as processor
from reput.broker.transaction.transactions import End
from reput.format import sys_flag as flags
from reput.format.codes import RequestCode
from reput.remoting.channel import Channel
from reput.store.kernels import hot

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


class FastTransactionEnds:
    """Serves ends of transactions.

    Args:
        parts: The parts of the broker.
        buffer: The buffer that connections are read into; it must not move.
    """

    def __init__(self, parts: Parts, buffer: bytearray) -> None:
        self._parts = parts
        self._requests = RequestList(RequestCode.END_TRANSACTION, _FIELDS, buffer)
        value = self._requests.value
        self._group = value("producerGroup")
        self._queue_offset = value("tranStateTableOffset")
        self._physical_offset = value("commitLogOffset")
        self._decision = value("commitOrRollback")

    def serve(self, channel: Channel, view: memoryview, position: int, end: int) -> int:
        """Serve consecutive ends; see ``RequestList.serve``."""
        return self._requests.serve(channel, view, position, end, self._decide)

    def _decide(self, channel: Channel, rows: Sequence[Row]) -> int:
        """Decide the leading transactions that need no processor; return their number."""
        parts = self._parts
        if not parts.identity.is_master:
            return 0
        ends = []
        groups: dict[int, bytes] = {}
        group_column, queue_column = self._group, self._queue_offset
        physical_column, decision_column = self._physical_offset, self._decision
        for row in rows:
            decision = row[decision_column]
            if decision not in processor.DECISIONS:
                break
            address = row[group_column]
            if address not in groups:
                groups[address] = hot.bytes_at(address, row[group_column + 1])
            is_commit = decision == flags.TRANSACTION_COMMIT
            ends.append(End(row[queue_column], row[physical_column], groups[address], is_commit))
        count = parts.transactions.decide_all(ends, parts.clock.now_ms())
        if count:
            parts.fast_counts.transaction_ends += count
            channel.write(empty_replies(rows[:count]))
            processor.notify_readers(parts)
        return count
