"""36 in a row: messages that are sent back in one read of a connection are put together.

What is asked for is read as numbers (``remoting.requests``), and what waits for the next attempt is
made from record to record by a kernel (``Copier.put_later``). What is not common, and so each dead
letter, goes through the processor, in its place; both ways have the same effects and the same
replies.
"""

import ctypes
import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from reput.broker.config import PERM_WRITE
from reput.errors import RequestRefused
from reput.format import java, properties as props
from reput.format.codes import RequestCode
from reput.format.kernels import collect_rules as rules, hot
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
    Field("offset", Kind.LONG, is_required=True),
    Field("group", Kind.TEXT, is_required=True),
    Field("delayLevel", Kind.INT, is_required=True),
    Field("maxReconsumeTimes", Kind.INT),
    Field("unitMode", Kind.BOOL),
    Field("originMsgId", Kind.TEXT),
    Field("originTopic", Kind.TEXT),
    *FIELDS_OF_5,
)
_NEXT_PLACE = f"{props.REAL_TOPIC}\1%s\2{props.REAL_QUEUE_ID}\1%d\2"


class SendBacks:
    """Takes messages that consumers want to see later again.

    Args:
        broker: Whose messages they are.
        buffer: What connections are read into; it stays where it is.
    """

    def __init__(self, broker: "Broker", buffer: bytearray) -> None:
        self.common_count = 0
        """Messages that went through no processor."""
        self._broker = broker
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self._requests = RequestList(RequestCode.CONSUMER_SEND_MSG_BACK, _FIELDS)
        value = self._requests.value
        self._group = value("group")
        self._offset = value("offset")
        self._level = value("delayLevel")
        self._times_max = value("maxReconsumeTimes")
        self._unit_mode = value("unitMode")

    def take(self, channel: Channel, view: memoryview, at: int, end: int) -> int:
        """Take those that follow each other at ``at`` in the buffer, the common and the others.

        Returns:
            Where the first other frame begins: ``at`` if there are none.
        """
        rows = self._requests.collect(self._address, at, end)
        return take_rows(rows, channel, view, at, end, self._put)

    def _put(self, channel: Channel, rows: Sequence[Row]) -> int:
        """Put what is common, up to the first other; return how many were."""
        broker = self._broker
        if broker.store.is_page_cache_busy() or not broker.config.broker_permission & PERM_WRITE:
            return 0
        begun_ms = broker.clock.monotonic_ms()
        places, groups, more = self._places(rows)
        if not places:
            return 0
        count, origins = broker.store.copier.put_later(np.array(places, np.int64), more)
        if count:
            self.common_count += count
            broker.intake.count_puts(begun_ms, count)
            told = Counter(zip(origins, groups[:count], strict=False))
            for (origin, group), times in told.items():
                broker.stats.sent_back(java.decode_utf8(origin), group, times)
            channel.write(empty_replies(rows[:count]))
        return count

    def _places(self, rows: Sequence[Row]) -> tuple[list[tuple[int, ...]], list[str], bytes]:
        """Return what ``Copier.put_later`` needs of the first requests, and their groups."""
        known: dict[tuple[int, int], _Group | None] = {}
        cuts: dict[tuple[str, int], tuple[int, int]] = {}
        places: list[tuple[int, ...]] = []
        groups, more = [], b""
        name_at, offset_at, level_at = self._group, self._offset, self._level
        times_at, unit_mode_at = self._times_max, self._unit_mode
        for row in rows:
            key = row[name_at], row[unit_mode_at]
            if key not in known:
                name = hot.bytes_at(row[name_at], row[name_at + 1]).decode()
                known[key] = self._group_of(name, is_unit=bool(row[unit_mode_at]))
            group = known[key]
            if group is None:
                break
            count = group.queue_count
            queue = group.topic, random.randrange(count) if count > 1 else 0
            if queue not in cuts:
                pairs = _NEXT_PLACE % queue
                cuts[queue] = len(more), len(pairs)
                more += pairs.encode()
            # Whether what a client says counts depends on how old it is; here it must not matter.
            times_max = group.retry_max
            if row[times_at + 1] != rules.ABSENT:
                times_max = min(times_max, row[times_at])
            places.append((-1, row[offset_at], 0, *cuts[queue], row[level_at], times_max))
            groups.append(group.name)
        return places, groups, more

    def _group_of(self, name: str, *, is_unit: bool) -> "_Group | None":
        """Return what is known of a group; None if its messages are not put, or refused."""
        retries = self._broker.retries
        try:
            group = retries.group(name)
            if group.retry_queue_count <= 0:
                return None
            topic = retries.topic_of(group, is_unit=is_unit).name
        except RequestRefused:
            return None
        return _Group(group.name, topic, group.retry_queue_count, group.retry_max)


class _Group(NamedTuple):
    name: str
    topic: str
    """Its retry topic."""
    queue_count: int
    """Of that topic."""
    retry_max: int
