"""Traces: who sent a message and who consumed it, as their clients have written down."""

from dataclasses import dataclass

from reput.client.admin.cluster_calls import AdminConnection
from reput.client.admin.messages import END_OF_TIME_MS, KEY_QUERY_COUNT_MAX, messages_by_key
from reput.client.core import trace_codec
from reput.client.core.trace_codec import Trace
from reput.errors import CorruptRecord
from reput.format import names


@dataclass(frozen=True, slots=True)
class FoundTrace:
    """A trace, and what its message says of it."""

    trace: Trace
    client_address: str
    """Of the client that wrote it: address and port."""
    store_timestamp_ms: int
    """When a broker stored it."""

    @property
    def time_ms(self) -> int:
        """When it happened; when it was stored where that is not told."""
        return self.trace.time_ms or self.store_timestamp_ms


async def message_trace(
    admin: AdminConnection,
    message_id: str,
    *,
    topic: str = names.TRACE_TOPIC,
    count_max: int = KEY_QUERY_COUNT_MAX,
    begin_ms: int = 0,
    end_ms: int = END_OF_TIME_MS,
) -> list[FoundTrace]:
    """Return the traces of a message, in the order in which things happened.

    Args:
        admin: Asks.
        message_id: The id that its producer was told, the unique key.
        topic: Where traces are.
        count_max: Trace messages of each broker, which gives the newest; 4.9 gives no more than 64.
        begin_ms: The earliest store time of a trace.
        end_ms: The latest store time of a trace.

    Raises:
        CorruptRecord: A trace message cannot be read.
        NoRoute: There is no such topic: no broker has ``traceTopicEnable``.
    """
    written = await messages_by_key(
        admin, topic, message_id, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
    )
    found = []
    for one in written:
        try:
            traces = trace_codec.decode(one.body.decode("utf-8", "replace"))
        except ValueError as error:
            raise CorruptRecord(str(error), physical_offset=one.physical_offset) from error
        address = str(one.born_host)
        found += [
            FoundTrace(trace, address, one.store_timestamp_ms)
            for trace in traces
            if trace.message_id == message_id
        ]
    return sorted(found, key=lambda one: one.time_ms)
