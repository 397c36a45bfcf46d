"""``reput bench``: send and pull rates of a broker, reput's or Java's."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import messages
from reput.cli.exit_codes import EXIT_DAMAGE
from reput.cli.histogram import Histogram
from reput.cli.options import CLUSTER, CountOption, Session, StartOption, command
from reput.cli.printing import Document, Fields, View
from reput.format.names import TOOLS_CONSUMER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reput.cli.load import PullLoad, SendLoad
    from reput.client.config import ClientConfig

GROUP = "reput-bench"
_DEFAULT_DURATION_S = 10.0
_PERCENTILES = (50, 90, 99, 99.9)

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic; use one that nothing else uses.")
]
DurationOption = Annotated[
    float | None,
    typer.Option(min=0.1, metavar="SECONDS", help="End after this time; 10 s without --count."),
]


@command(*CLUSTER)
def produce(
    session: Session,
    topic: TopicArgument,
    size: Annotated[int, typer.Option(min=1, metavar="BYTES", help="Size of a body.")] = 128,
    window: Annotated[int, typer.Option(min=1, help="Requests in flight on each connection.")] = 64,
    connections: Annotated[
        int, typer.Option(min=1, help="Connections to each broker of the topic.")
    ] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Messages in a request.")] = 1,
    rate: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="N", help="Messages a second, answered or not (open loop)."),
    ] = None,
    one_way: Annotated[
        bool, typer.Option("--one-way", help="Await no replies: count the messages written.")
    ] = False,
    count: CountOption = None,
    duration: DurationOption = None,
) -> View:
    """Send messages as fast as the broker takes them, or at a rate.

    The first message creates the topic if it does not exist and the broker allows it. Prints the
    rate each second, and totals at the end. Latency is the time from sending a request to its
    reply; with --rate, from the time when it was due, so that a stall shows in full.

    Messages that the broker did not store are counted, and make the exit code 1.
    """

    async def work(client: "ClientConfig") -> Document:
        from reput.cli import load
        from reput.client.admin import Admin
        from reput.client.message import Message
        from reput.client.producer import Producer

        body = b"x" * size
        # The first message creates the topic, or fails with a readable error.
        async with Producer(GROUP, client=client) as producer:
            await producer.send(Message(topic, body))
        async with Admin(client=client) as admin:
            route = await _route(admin, topic, session.timeout_s)
        queue_ids: dict[str, list[int]] = {}
        for queue in route.publish_queues:
            queue_ids.setdefault(route.master(queue.broker_name), []).append(queue.queue_id)
        plan = load.SendPlan(
            topic=topic,
            body=body,
            group=GROUP,
            batch_count=batch,
            window_count=window,
            connection_count=connections,
            count=count,
            rate=rate,
            is_oneway=one_way,
            is_stamped=True,
            is_exact=True,
            signer=client.signer(),
            tls=client.tls_context(),
        )
        failures: dict[str, int] = {}

        def fail(error: Exception, failed_count: int) -> None:
            failures[str(error)] = failures.get(str(error), 0) + failed_count

        sender = load.SendLoad(plan, queue_ids, fail)
        measuring = _Measuring(sender, failures, session)
        measuring.run(_limit(count, duration))
        sender.finish(session.timeout_s)
        settings = {
            "size_bytes": size,
            "window_count": window,
            "connection_count": connections,
            "batch_count": batch,
            "rate": rate,
            "is_oneway": one_way,
        }
        return measuring.document("produce", topic, settings)

    return _view(session.run(work))


@command(*CLUSTER)
def consume(
    session: Session,
    topic: TopicArgument,
    begin: StartOption = "earliest",
    batch: Annotated[
        int, typer.Option(min=1, help="Messages of a pull; most brokers allow up to 32.")
    ] = 32,
    count: CountOption = None,
    duration: DurationOption = None,
) -> View:
    """Pull messages as fast as the broker returns them.

    Pulls all queues at the same time, without a consumer group. The clock starts with the first
    message. Latency is the age of a message on arrival, by the clocks of its sender and of this
    machine; it is meaningful with --from latest while messages are sent.
    """

    async def work(client: "ClientConfig") -> Document:
        from reput.cli import load
        from reput.client.admin import Admin

        async with Admin(client=client) as admin:
            route = await admin.topic_route(topic)
            async with messages.reader_of(client) as reader:
                starts = {
                    queue: await messages.begin_of(reader, queue, begin, session.clock)
                    for queue in route.subscribe_queues
                }
        puller = load.PullLoad(
            starts,
            {queue.broker_name: route.any_address(queue.broker_name) for queue in starts},
            TOOLS_CONSUMER,
            batch_count=batch,
            count=count,
            timeout_s=session.timeout_s,
            signer=client.signer(),
            tls=client.tls_context(),
        )
        measuring = _Measuring(puller, {}, session)
        limit_s = _limit(count, duration)
        measuring.wait_for_first(puller, limit_s)
        measuring.run(limit_s)
        puller.finish()
        return measuring.document("consume", topic, {"batch_count": batch, "from": begin})

    return _view(session.run(work))


def _limit(count: int | None, duration_s: float | None) -> float | None:
    return _DEFAULT_DURATION_S if count is None and duration_s is None else duration_s


async def _route(admin: Any, topic: str, timeout_s: float) -> Any:
    """Return the route of a topic that its first message may have created just now."""
    import asyncio

    from reput.client.core.route_cache import NoRoute

    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            return await admin.topic_route(topic)
        except NoRoute:
            if asyncio.get_running_loop().time() > deadline_s:
                raise
            await asyncio.sleep(0.05)


# --- measuring ----------------------------------------------------------------------------------


class _Measuring:
    """Runs a load, prints a line each second, and sums up."""

    def __init__(
        self, load: "SendLoad | PullLoad", failures: "Mapping[str, int]", session: Session
    ) -> None:
        self._load = load
        self._failures = failures
        self._timeout_s = session.timeout_s
        self._as_json = session.as_json
        self._latency_us = Histogram()
        self._seconds = 0.0

    def wait_for_first(self, puller: "PullLoad", limit_s: float | None) -> None:
        """Pull until the first messages arrive."""
        import time

        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        while not puller.message_count and (deadline_s is None or time.monotonic() < deadline_s):
            puller.step(_SHORT_S)

    def run(self, limit_s: float | None) -> None:
        """Run the load until it is finished, stalls or reaches its time limit."""
        import time

        load, started_s = self._load, time.perf_counter()
        last_s = progress_s = started_s
        last_count = done_count = 0
        with _LiveLine(self._as_json) as line:
            while not load.is_finished:
                until_s = last_s + 1 if limit_s is None else min(last_s + 1, started_s + limit_s)
                load.run(int(until_s * 1e9))
                now_s, recent = time.perf_counter(), self._take_latencies()
                if now_s - last_s > _SHORT_S or load.is_finished:
                    rate = (load.message_count - last_count) / max(now_s - last_s, 1e-9)
                    line.show(self._live_text(now_s - started_s, rate, recent))
                last_done_count, done_count = done_count, load.message_count + self._failed_count
                if done_count > last_done_count or not load.in_flight:
                    progress_s = now_s
                last_s, last_count = now_s, load.message_count
                if limit_s is not None and now_s >= started_s + limit_s:
                    break
                if now_s - progress_s > self._timeout_s:
                    break
        self._seconds = last_s - started_s

    @property
    def _failed_count(self) -> int:
        return sum(self._failures.values())

    def _take_latencies(self) -> Histogram:
        """Return the latencies since the last call, and add them to the total."""
        recent = Histogram()
        for latency_ns in self._load.take_latencies():
            recent.record(latency_ns // 1000)
        self._latency_us.add(recent)
        return recent

    def _live_text(self, elapsed_s: float, rate: float, recent: Histogram) -> str:
        count = self._load.message_count
        parts = [f"{elapsed_s:6.1f} s", f"{rate:>9,.0f}/s", f"{count:>11,} messages"]
        p50, p99 = recent.percentile(50), recent.percentile(99)
        if p50 is not None and p99 is not None:
            highest = recent.max / 1000
            parts.append(f"p50 {p50 / 1000:.2f} ms  p99 {p99 / 1000:.2f} ms  max {highest:.2f} ms")
        if self._failures:
            parts.append(f"{self._failed_count:,} failed")
        return "   ".join(parts)

    def document(self, kind: str, topic: str, settings: Document) -> Document:
        """Return the totals, after the load has ended."""
        self._take_latencies()
        latency, load, seconds = self._latency_us, self._load, self._seconds
        milliseconds = {
            f"p{percent:g}": _ms(latency.percentile(percent)) for percent in _PERCENTILES
        }
        milliseconds["max"] = _ms(latency.max if latency.count else None)
        milliseconds["mean"] = _ms(latency.mean)
        return {
            "bench": kind,
            "topic": topic,
            "seconds": round(seconds, 3),
            "message_count": load.message_count,
            "failed_count": self._failed_count,
            "failures": self._failures,
            "bytes": load.body_bytes,
            "messages_per_second": round(load.message_count / seconds, 1) if seconds else 0.0,
            "megabytes_per_second": round(load.body_bytes / seconds / 1e6, 3) if seconds else 0.0,
            "latency_ms": milliseconds,
            "settings": settings,
        }


_SHORT_S = 0.5


def _ms(value_us: float | None) -> float | None:
    return None if value_us is None else round(value_us / 1000, 3)


class _LiveLine:
    """One line that is rewritten at a terminal, one line a second in a pipe.

    With JSON on stdout the lines go to stderr.
    """

    def __init__(self, as_json: bool) -> None:
        import sys

        self._stream = sys.stderr if as_json else sys.stdout
        self._live: Any = None

    def __enter__(self) -> "_LiveLine":
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live("", console=Console(file=self._stream), transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, text: str) -> None:
        """Show the progress."""
        if self._live is not None:
            self._live.update(text)
        else:
            print(text, file=self._stream, flush=True)


def _view(document: Document) -> View:
    latencies = document["latency_ms"].items()
    shown = "  ".join(f"{name} {value}" for name, value in latencies if value is not None)
    fields = {
        "messages": f"{document['message_count']:,} in {document['seconds']} s",
        "rate": f"{document['messages_per_second']:,.0f} messages/s, "
        f"{document['megabytes_per_second']:,.1f} MB/s",
        "latency ms": shown or "not measured",
    }
    failures = {
        f"failed {number}": f"{count:,}: {reason}"
        for number, (reason, count) in enumerate(document["failures"].items(), 1)
    }
    exit_code = EXIT_DAMAGE if document["failed_count"] else 0
    return View(document, Fields(fields | failures), exit_code=exit_code)


COMMANDS = {"produce": produce, "consume": consume}
