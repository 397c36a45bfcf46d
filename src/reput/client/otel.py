"""Spans and metrics of OpenTelemetry for producers and consumers.

    pip install '.[otel]'       # in a clone of reput

    from reput.client import otel
    otel.instrument()           # once, before or after clients are made

Or without a line of code: ``opentelemetry-instrument python program.py``. All clients of the
process are measured, also those of ``reput.client.blocking``. The context travels in the message
properties ``traceparent`` and ``tracestate`` (W3C), as that of RocketMQ's clients under the agent
for Java. Baggage is never sent: properties are stored, and read by others.

* ``send Orders``: a send until a broker has stored the message, with its retries. The span of a
  batch has links to a span ``create Orders`` for each of its messages.
* ``process Orders``: a call of a listener: child of its message's send; of several messages, a span
  with links. It is the current span in the listener, in a thread as well.
* ``receive Orders``: messages returned by ``poll`` or ``pop``, with links. ``ack Orders`` and
  ``nack Orders``: with links. ``commit Orders`` and ``rollback Orders``: the end of a transaction.

Names and attributes are those of OpenTelemetry's conventions for messaging. Those of RocketMQ begin
with ``messaging.rocketmq.``, or with ``rocketmq.`` as in newer drafts of the conventions, if
``OTEL_SEMCONV_STABILITY_OPT_IN`` has ``messaging``; with ``messaging/dup`` both are there.
"""

import dataclasses
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reput import __version__
from reput.client import hooks
from reput.client.hooks import (
    ClientFacts,
    ConsumeCall,
    ConsumeOperation,
    SendCall,
    SendOperation,
)
from reput.client.message import Message, ReceivedMessage, SendStatus
from reput.client.trace import keys_text
from reput.errors import CorruptRecord
from reput.extras import extra_missing
from reput.format import properties as props

try:
    from opentelemetry import context as contexts, metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise extra_missing("reput.client.otel", error) or error from error

SCOPE = "reput.client"
OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
CONTEXT_BYTES_MAX = 700
"""Room for the context in the properties of a message; without it, the context is not sent."""
DURATION_BOUNDS_S = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
)
"""Bounds of durations, which the conventions recommend."""
UTF8_BYTES_MAX = 3
"""Most bytes of a UTF-16 unit in UTF-8."""

_TYPES = {
    SendOperation.SEND: "send",
    SendOperation.ONEWAY: "send",
    SendOperation.HALF: "send",
    SendOperation.COMMIT: "settle",
    SendOperation.ROLLBACK: "settle",
    ConsumeOperation.PROCESS: "process",
    ConsumeOperation.RECEIVE: "receive",
    ConsumeOperation.ACK: "settle",
    ConsumeOperation.NACK: "settle",
}
"""Values of messaging.operation.type."""
_SENDS = frozenset({SendOperation.SEND, SendOperation.ONEWAY, SendOperation.HALF})
_PROPAGATOR = TraceContextTextMapPropagator()

Attributes = dict[str, Any]


@dataclass(slots=True)
class _Begun:
    """A span in progress, and the begin of the operation in ns of ``time.perf_counter_ns``."""

    span: Span
    attributes: Attributes
    begun_ns: int
    token: Any = None


def instrument(
    *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Begin to measure all clients of this process.

    Args:
        tracer_provider: Provider of spans; None: the global one.
        meter_provider: Provider of metrics; None: the global one.
    """
    hooks.install(OtelHook(tracer_provider, meter_provider))


def uninstrument() -> None:
    """Stop measuring; operations in progress are finished."""
    if isinstance(hooks.installed, OtelHook):
        hooks.install(None)


class ReputInstrumentor:
    """Entry point of ``opentelemetry-instrument``."""

    def instrument(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        **_: object,
    ) -> None:
        """Measure all clients; further arguments of the caller are for other libraries."""
        instrument(tracer_provider=tracer_provider, meter_provider=meter_provider)

    def uninstrument(self, **_: object) -> None:
        """Stop measuring."""
        uninstrument()


class OtelHook:
    """The hook that makes spans and metrics. Arguments are those of ``instrument``."""

    def __init__(
        self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
    ) -> None:
        self._tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(SCOPE, __version__, meter_provider)
        self._operation_durations = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of sending, receiving and settling.",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS_S,
        )
        self._process_durations = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of a listener's call.",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS_S,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages sent, or tried to send."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages delivered to the program."
        )
        self._prefixes = _prefixes(os.environ.get(OPT_IN, ""))

    # --- producers --------------------------------------------------------------

    def sending(self, call: SendCall) -> None:
        """Begin a span, and put its context into the message."""
        begun_ns = time.perf_counter_ns()
        attributes = _common(call.operation, call.topic)
        is_send = call.operation in _SENDS
        more = self._of_client(call.client) | self._of_messages(call.messages)
        if call.is_batch:
            more["messaging.batch.message_count"] = len(call.messages)
        links = []
        if call.is_batch:
            links = [self._create(call, position) for position in range(len(call.messages))]
        kind = SpanKind.PRODUCER if is_send and not call.is_batch else SpanKind.CLIENT
        span = self._tracer.start_span(
            f"{attributes['messaging.operation.name']} {call.topic}",
            kind=kind,
            attributes=attributes | more,
            links=links,
        )
        call.state = _Begun(span, attributes, begun_ns)
        if is_send and not call.is_batch:
            call.messages[0] = _with_context(call.messages[0], span)

    def _create(self, call: SendCall, position: int) -> Link:
        """Create the span of a batch's message, add its context to the message; return a link."""
        message = call.messages[position]
        attributes = _common(call.operation, call.topic) | self._of_messages([message])
        attributes["messaging.operation.name"] = attributes["messaging.operation.type"] = "create"
        span = self._tracer.start_span(
            f"create {call.topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        call.messages[position] = _with_context(message, span)
        span.end()
        return Link(span.get_span_context())

    def sent(self, call: SendCall) -> None:
        """End the span of ``sending``, and count the messages."""
        begun = call.state
        if not isinstance(begun, _Begun):
            return
        attributes = begun.attributes | _of_address(call.broker_address)
        result = call.result
        if result is not None and begun.span.is_recording():
            begun.span.set_attributes(_of_address(call.broker_address))
            if not call.is_batch:
                begun.span.set_attribute("messaging.message.id", result.message_id)
            begun.span.set_attribute(
                "messaging.destination.partition.id", str(result.queue.queue_id)
            )
        problem = _error_type(call.error)
        is_send = call.operation in _SENDS
        if is_send and result is not None and result.status != SendStatus.SEND_OK:
            problem = str(result.status)
        self._end(begun, problem, call.error)
        if problem:
            attributes["error.type"] = problem
        self._operation_durations.record(_seconds_since(begun.begun_ns), attributes)
        if is_send:
            self._sent.add(len(call.messages), attributes)

    # --- consumers --------------------------------------------------------------

    def consuming(self, call: ConsumeCall) -> None:
        """Begin a span; that of a listener's call becomes the current one."""
        begun_ns = time.perf_counter_ns()
        is_process = call.operation is ConsumeOperation.PROCESS
        topic = _topic(call.messages)
        attributes = _common(call.operation, topic)
        attributes["messaging.consumer.group.name"] = call.client.group
        more = self._of_client(call.client, is_consumer=True) | self._of_received(call.messages)
        origins = list(_origins(call.messages))
        context: Context | None = None
        if is_process:
            # Not the span in which the consumer was started.
            is_single = len(call.messages) == 1 and bool(origins)
            context = origins.pop() if is_single else Context()
        begun_at_ns = None
        if call.operation is ConsumeOperation.RECEIVE:  # it is over
            begun_at_ns = call.begun_ms * 1_000_000
            begun_ns -= max(0, time.time_ns() - begun_at_ns)
        span_contexts = (trace.get_current_span(origin).get_span_context() for origin in origins)
        span = self._tracer.start_span(
            f"{call.operation.value} {topic}",
            context,
            kind=SpanKind.CONSUMER if is_process else SpanKind.CLIENT,
            attributes=attributes | more,
            links=[Link(span_context) for span_context in span_contexts],
            start_time=begun_at_ns,
        )
        begun = _Begun(span, attributes, begun_ns)
        if is_process:
            begun.token = contexts.attach(trace.set_span_in_context(span, context))
        call.state = begun

    def consumed(self, call: ConsumeCall) -> None:
        """End the span of ``consuming``, and count the messages."""
        begun = call.state
        if not isinstance(begun, _Begun):
            return
        if begun.token is not None:
            contexts.detach(begun.token)
        problem = _error_type(call.error) or ("later" if call.is_failure else "")
        self._end(begun, problem, call.error)
        attributes = begun.attributes | ({"error.type": problem} if problem else {})
        is_process = call.operation is ConsumeOperation.PROCESS
        durations = self._process_durations if is_process else self._operation_durations
        durations.record(_seconds_since(begun.begun_ns), attributes)
        if is_process or call.operation is ConsumeOperation.RECEIVE:
            self._consumed.add(len(call.messages), attributes)

    # --- spans ------------------------------------------------------------------

    def _end(self, begun: _Begun, problem: str, error: BaseException | None) -> None:
        span = begun.span
        if problem:
            span.set_attribute("error.type", problem)
            span.set_status(Status(StatusCode.ERROR, None if error is None else str(error)))
        span.end()

    def _of_client(self, client: ClientFacts, *, is_consumer: bool = False) -> Attributes:
        attributes: Attributes = {"messaging.client.id": client.client_id}
        own: Attributes = {"namespace": client.namespace} if client.namespace else {}
        if is_consumer:
            own["consumption_model"] = "broadcasting" if client.is_broadcasting else "clustering"
        return attributes | self._prefixed(own)

    def _of_messages(self, messages: Sequence[Message]) -> Attributes:
        """Return the attributes of a message to send; those of a batch are on its spans."""
        if len(messages) != 1:
            return {}
        (message,) = messages
        keys = keys_text(message)
        return {"messaging.message.body.size": len(message.body)} | self._of_message(
            message.tags, keys, message.properties, message.delay_level, message.deliver_at_ms,
            is_delayed=bool(message.delay_ms),
        )  # fmt: skip

    def _of_received(self, messages: Sequence[ReceivedMessage]) -> Attributes:
        if len(messages) != 1:
            return {"messaging.batch.message_count": len(messages)}
        (message,) = messages
        try:
            properties = message.properties
            own = self._of_message(message.tags, properties.get(props.KEYS), properties)
            return own | {
                "messaging.message.id": message.message_id,
                "messaging.message.body.size": len(message.body),
                "messaging.destination.partition.id": str(message.queue.queue_id),
            }
        except CorruptRecord:  # the consumer notices the damage
            return {}

    def _of_message(
        self,
        tag: str | None,
        keys: str | None,
        properties: Mapping[str, str],
        delay_level: int = 0,
        deliver_at_ms: int = 0,
        *,
        is_delayed: bool = False,
    ) -> Attributes:
        key = properties.get(props.SHARDING_KEY)
        own: Attributes = {
            "message.tag": tag,
            "message.keys": keys.split(props.KEY_SEPARATOR) if keys else None,
            "message.group": key,
            "message.delay_time_level": delay_level or None,
            "message.delivery_timestamp": deliver_at_ms or None,
        }
        if properties.get(props.TRANSACTION_PREPARED) == "true":
            own["message.type"] = "transaction"
        elif delay_level or deliver_at_ms or is_delayed:
            own["message.type"] = "delay"
        else:
            own["message.type"] = "fifo" if key else "normal"
        return self._prefixed({name: value for name, value in own.items() if value})

    def _prefixed(self, own: Attributes) -> Attributes:
        return {prefix + name: value for prefix in self._prefixes for name, value in own.items()}


def _prefixes(opt_in: str) -> tuple[str, ...]:
    """Return the prefixes of RocketMQ's own attributes by ``OTEL_SEMCONV_STABILITY_OPT_IN``."""
    chosen = {word.strip() for word in opt_in.split(",")}
    if "messaging/dup" in chosen:
        return "messaging.rocketmq.", "rocketmq."
    return ("rocketmq.",) if "messaging" in chosen else ("messaging.rocketmq.",)


def _common(operation: SendOperation | ConsumeOperation, topic: str) -> Attributes:
    """Return the attributes of spans and metrics; a sampler sees them."""
    return {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send" if operation in _SENDS else operation.value,
        "messaging.operation.type": _TYPES[operation],
        "messaging.destination.name": topic,
    }


def _of_address(address: str | None) -> Attributes:
    if address is None:
        return {}
    host, _, port = address.rpartition(":")
    return {"server.address": host.strip("[]"), "server.port": int(port)}


def _topic(messages: Iterable[ReceivedMessage]) -> str:
    for message in messages:
        try:
            return message.topic
        except CorruptRecord:
            continue
    return ""


def _origins(messages: Iterable[ReceivedMessage]) -> Iterator[Context]:
    """Yield the contexts of messages that have one."""
    for message in messages:
        try:
            context = _PROPAGATOR.extract(message.properties, Context())
        except CorruptRecord:
            continue
        if trace.get_current_span(context).get_span_context().is_valid:
            yield context


def _with_context(message: Message, span: Span) -> Message:
    """Return a message with the context of a span, if the span exists and the context fits."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    size = sum(len(name) + len(text) + 2 for name, text in message.properties.items())
    size += len(message.tags or "") + sum(map(len, message.keys))
    if not carrier or size * UTF8_BYTES_MAX > props.LENGTH_MAX - CONTEXT_BYTES_MAX:
        return message
    properties = {
        name: text for name, text in message.properties.items() if name not in _PROPAGATOR.fields
    }
    return dataclasses.replace(message, properties=properties | carrier)


def _error_type(error: BaseException | None) -> str:
    return "" if error is None else type(error).__qualname__


def _seconds_since(begun_ns: int) -> float:
    return (time.perf_counter_ns() - begun_ns) / 1e9
