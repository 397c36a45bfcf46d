"""36 in a row: messages that are sent back in one read of a connection are put together.

What is asked for is read as numbers (``remoting.requests``), and what waits for the next attempt is
made from record to record (``Retries.record``). What is not common, and so each dead letter, goes
through the processor, in its place; both ways have the same effects and the same replies.
"""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from reput.broker.again import common_record
from reput.broker.config import PERM_WRITE
from reput.errors import RequestRefused
from reput.format import java, properties as props
from reput.format.codes import RequestCode
from reput.format.kernels import collect_rules as rules
from reput.remoting.channel import Channel
from reput.remoting.requests import (
    FIELDS_OF_5,
    Field,
    Kind,
    RequestList,
    Row,
    empty_reply,
    take_rows,
)
from reput.store.config_tables import TopicConfig
from reput.store.table_files import SubscriptionGroup

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
        records, counted = [], []
        known: dict[tuple[bytes, int], _Group | None] = {}
        for row in rows:
            group = self._requests.text(row, "group") or b""
            unit_mode = row[self._unit_mode]
            if (group, unit_mode) not in known:
                known[group, unit_mode] = self._group(group.decode(), is_unit=bool(unit_mode))
            found = self._record(row, known[group, unit_mode])
            if found is None:
                break
            records.append(found[0])
            counted.append(found[1:])
        count = 0
        if records:
            count, _ = broker.store.put_encoded(b"".join(records), len(records))
        if count:
            self.common_count += count
            broker.intake.count_puts(begun_ms, count)
            for topic, name in counted[:count]:
                broker.stats.sent_back(topic, name)
            channel.write(b"".join(map(empty_reply, rows[:count])))
        return count

    def _group(self, name: str, *, is_unit: bool) -> "_Group | None":
        """Return a group, and its retry topic; None if its messages are not put, or refused."""
        retries = self._broker.retries
        try:
            group = retries.group(name)
            if group.retry_queue_count <= 0:
                return None
            return _Group(group, retries.topic_of(group, is_unit=is_unit))
        except RequestRefused:
            return None

    def _record(self, row: Row, of: "_Group | None") -> tuple[bytes, str, str] | None:
        """Return what is put for a request, the topic that it is of, and the group.

        None: it is not common, or will be refused.
        """
        log, physical_offset = self._broker.store.log, row[self._offset]
        data = log.bytes_of_record(physical_offset) if of is not None else None
        stored = common_record(data, physical_offset) if data is not None else None
        if of is None or stored is None:
            return None
        group = of.group
        times_max = self._times_max
        said = group.retry_max if row[times_max + 1] == rules.ABSENT else row[times_max]
        # Whether what a client says counts depends on how old it is; here it must not matter.
        if stored.reconsume_times >= min(group.retry_max, said):
            return None
        again = self._broker.retries.record(
            self._broker.store.config, stored, row[self._level], group, of.topic
        )
        if again is None:
            return None
        first = props.find(stored.properties, props.RETRY_TOPIC) or stored.topic
        return again, java.decode_utf8(first), group.name


class _Group(NamedTuple):
    group: SubscriptionGroup
    topic: TopicConfig
    """Its retry topic."""
