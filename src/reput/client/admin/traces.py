"""Queries of traces: sends and consumption of a message, as recorded by clients."""

from dataclasses import dataclass

from reput.client.admin.cluster_calls import AdminConnection
from reput.client.admin.messages import END_OF_TIME_MS, KEY_QUERY_COUNT_MAX, messages_by_key
from reput.client.core import trace_codec
from reput.client.core.trace_codec import Trace
from reput.errors import CorruptRecord
from reput.format import names


@dataclass(frozen=True, slots=True)
class FoundTrace:
    """A trace, with properties of its trace message."""

    trace: Trace
    client_address: str
    """Address and port of the client that wrote it."""
    store_timestamp_ms: int
    """Store time of the trace message, in ms since the epoch."""

    @property
    def time_ms(self) -> int:
        """Time of the event; the store time if it was not recorded."""
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
    """Return the traces of a message, in the order of events.

    Args:
        admin: The admin client.
        message_id: Unique key of the message.
        topic: Trace topic.
        count_max: Maximum number of trace messages per broker, of which the newest are returned.
        begin_ms: Earliest store time of a trace, in ms since the epoch.
        end_ms: Latest store time of a trace, in ms since the epoch.

    Raises:
        CorruptRecord: A trace message cannot be decoded.
        NoRoute: The topic does not exist: no broker has ``traceTopicEnable``.
    """
    written = await messages_by_key(
        admin, topic, message_id, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
    )
    events = []
    for trace_message in written:
        try:
            traces = trace_codec.decode(trace_message.body.decode("utf-8", "replace"))
        except ValueError as error:
            raise CorruptRecord(
                str(error), physical_offset=trace_message.physical_offset
            ) from error
        address = str(trace_message.born_host)
        events += [
            FoundTrace(trace, address, trace_message.store_timestamp_ms)
            for trace in traces
            if trace.message_id == message_id
        ]
    return sorted(events, key=lambda event: event.time_ms)
