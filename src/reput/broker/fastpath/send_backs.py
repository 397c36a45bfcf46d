"""Fast path of code 36: messages sent back in one read of a connection are copied in one put.

A kernel reads the requests as numbers (``fastpath.request_table``), and copies each record to the
retry topic (``Copier.put_for_retry``). Dead letters fall back to the processor, and so does
everything if puts wait for the disk or for slaves.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reput.broker.fastpath.request_table import (
    FIELDS_OF_5,
    Field,
    Kind,
    RequestList,
    Row,
    empty_replies,
)
from reput.broker.kernels import scan_args as rules
from reput.broker.parts import Parts
from reput.errors import RequestRefused
from reput.format import java, properties as props
from reput.format.codes import PERM_WRITE, RequestCode
from reput.remoting.channel import Channel
from reput.store.kernels import hot

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
_RETRY_QUEUE = f"{props.REAL_TOPIC}\1%s\2{props.REAL_QUEUE_ID}\1%d\2"


class FastSendBacks:
    """Serves messages that consumers send back to get them again later.

    Args:
        parts: The parts of the broker.
        buffer: The buffer that connections are read into; it must not move.
    """

    def __init__(self, parts: Parts, buffer: bytearray) -> None:
        self._parts = parts
        self._requests = RequestList(RequestCode.CONSUMER_SEND_MSG_BACK, _FIELDS, buffer)
        value = self._requests.value
        self._group = value("group")
        self._offset = value("offset")
        self._level = value("delayLevel")
        self._times_max = value("maxReconsumeTimes")
        self._unit_mode = value("unitMode")

    def serve(self, channel: Channel, view: memoryview, position: int, end: int) -> int:
        """Serve consecutive requests; see ``RequestList.serve``."""
        return self._requests.serve(channel, view, position, end, self._put)

    def _put(self, channel: Channel, rows: Sequence[Row]) -> int:
        """Store the leading messages that need no processor; return their number."""
        parts = self._parts
        is_writable = parts.settings.broker.broker_permission & PERM_WRITE
        if not parts.identity.is_master or not parts.put_stalls.is_over or not is_writable:
            return 0
        if parts.store.puts_wait:
            return 0  # the processor holds the replies until the copies are safe
        begun_ms = parts.clock.monotonic_ms()
        copies, groups, properties = self._copies(rows)
        if not copies:
            return 0
        count, origins = parts.store.copier.put_for_retry(np.array(copies, np.int64), properties)
        if count:
            parts.fast_counts.send_backs += count
            parts.pending_replies.count_puts(begun_ms, count)
            sent_back = Counter(zip(origins, groups[:count], strict=False))
            for (origin, group), times in sent_back.items():
                topic = parts.retries.origin(java.decode_utf8(origin), group)
                parts.deliveries.stats.sent_back(topic, group, times)
            channel.write(empty_replies(rows[:count]))
        return count

    def _copies(self, rows: Sequence[Row]) -> tuple[list[tuple[int, ...]], list[str], bytes]:
        """Return the leading requests as arguments of ``Copier.put_for_retry``, and their groups.

        It ends before the first request whose group has no retry topic.
        """
        known: dict[tuple[int, int], _Group | None] = {}
        spans: dict[tuple[str, int], tuple[int, int]] = {}  # of properties, by retry queue
        copies: list[tuple[int, ...]] = []
        groups, properties = [], b""
        name_column, offset_column, level_column = self._group, self._offset, self._level
        times_column, unit_mode_column = self._times_max, self._unit_mode
        for row in rows:
            key = row[name_column], row[unit_mode_column]
            if key not in known:
                name = hot.bytes_at(row[name_column], row[name_column + 1]).decode()
                known[key] = self._group_of(name, is_unit=bool(row[unit_mode_column]))
            group = known[key]
            if group is None:
                break
            count = group.queue_count
            queue = group.topic, random.randrange(count) if count > 1 else 0
            if queue not in spans:
                text = _RETRY_QUEUE % queue
                spans[queue] = len(properties), len(text)
                properties += text.encode()
            # Old clients may not set the number of attempts: here a group's own number is the most.
            times_max = group.retry_max
            if row[times_column + 1] != rules.ABSENT:
                times_max = min(times_max, row[times_column])
            copies.append((-1, row[offset_column], 0, *spans[queue], row[level_column], times_max))
            groups.append(group.name)
        return copies, groups, properties

    def _group_of(self, name: str, *, is_unit: bool) -> "_Group | None":
        """Return a group; None if its messages are refused, or not stored."""
        retries = self._parts.retries
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
    """The name of its retry topic."""
    queue_count: int
    """The number of queues of that topic."""
    retry_max: int
