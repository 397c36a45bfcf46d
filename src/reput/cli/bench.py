"""``reput bench``: how fast a broker takes and gives messages, ours or Java's."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import messages
from reput.cli.exit_codes import EXIT_DAMAGE
from reput.cli.options import CLUSTER, CountOption, Session, StartOption, command
from reput.cli.printing import Document, Fields, View
from reput.format.names import TOOLS_CONSUMER

if TYPE_CHECKING:
    from reput.cli.load import Meter, Puller, Sender
    from reput.client.config import ClientConfig

GROUP = "reput-bench"
_DEFAULT_DURATION_S = 10.0
_PERCENTILES = (50, 90, 99, 99.9)

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic; use one of its own.")
]
DurationOption = Annotated[
    float | None,
    typer.Option(min=0.1, metavar="SECONDS", help="End after so long; 10 s without --count."),
]


@command(*CLUSTER)
def produce(
    session: Session,
    topic: TopicArgument,
    size: Annotated[int, typer.Option(min=1, metavar="BYTES", help="Of a message's body.")] = 128,
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
        bool, typer.Option("--one-way", help="Want no answers: counts what was written.")
    ] = False,
    count: CountOption = None,
    duration: DurationOption = None,
) -> View:
    """Send messages as fast as the broker takes them, or at a rate.

    A topic that is not there is made by the first message, if the broker allows it. Prints the rate
    each second, and totals at the end. Latency is from sending to the answer. With --rate a message
    that is due while the window is full counts from then, so that a stall shows in full.

    Messages that were not taken are counted, and make the exit code 1.
    """

    async def work(client: "ClientConfig") -> Document:
        from reput.cli import load
        from reput.client.admin import Admin
        from reput.client.message import Message
        from reput.client.producer import Producer

        plan = load.SendPlan(
            topic=topic,
            body_bytes=size,
            batch_count=batch,
            window_count=window,
            connection_count=connections,
            count=count,
            rate=rate,
            is_oneway=one_way,
            timeout_s=session.timeout_s,
        )
        # The first message makes the topic, and says clearly what is wrong if anything is.
        async with Producer(GROUP, client=client) as producer:
            await producer.send(Message(topic, b"x" * size))
        async with Admin(client=client) as admin:
            route = await _route(admin, topic, session.timeout_s)
        meter = load.Meter()
        sender = load.Sender(plan, route, GROUP, meter)
        seconds = await _measure(sender, meter, _limit(count, duration), as_json=session.as_json)
        settings = {
            "size_bytes": size,
            "window_count": window,
            "connection_count": connections,
            "batch_count": batch,
            "rate": rate,
            "is_oneway": one_way,
        }
        return _result("produce", topic, seconds, meter, settings)

    return _view(session.run(work, is_fast=True))


@command(*CLUSTER)
def consume(
    session: Session,
    topic: TopicArgument,
    begin: StartOption = "earliest",
    batch: Annotated[
        int, typer.Option(min=1, help="Messages of a pull; brokers allow 32, usually.")
    ] = 32,
    count: CountOption = None,
    duration: DurationOption = None,
) -> View:
    """Pull messages as fast as the broker gives them.

    All queues are pulled at the same time, and no consumer notices. The clock begins with the first
    message. Latency is the age of a message when it comes, by the clocks of its sender and of this
    machine: it means something when --from is latest and somebody sends.
    """

    async def work(client: "ClientConfig") -> Document:
        import asyncio

        from reput.cli import load
        from reput.client.admin import Admin

        async with Admin(client=client) as admin:
            route = await admin.topic_route(topic)
            async with messages.reader_of(client) as reader:
                starts = {
                    queue: await messages.begin_of(reader, queue, begin, session.clock)
                    for queue in route.subscribe_queues
                }
        meter = load.Meter()
        has_begun = asyncio.Event()
        puller = load.Puller(
            route,
            starts,
            TOOLS_CONSUMER,
            batch_count=batch,
            count=count,
            timeout_s=session.timeout_s,
            meter=meter,
            on_first=has_begun.set,
        )
        limit_s = _limit(count, duration)
        seconds = await _measure(puller, meter, limit_s, as_json=session.as_json, begun=has_begun)
        return _result("consume", topic, seconds, meter, {"batch_count": batch, "from": begin})

    return _view(session.run(work, is_fast=True))


def _limit(count: int | None, duration_s: float | None) -> float | None:
    return _DEFAULT_DURATION_S if count is None and duration_s is None else duration_s


async def _route(admin: Any, topic: str, timeout_s: float) -> Any:
    """Return where the topic is; its first message may have made it only now."""
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


async def _measure(
    load: "Sender | Puller",
    meter: "Meter",
    limit_s: float | None,
    *,
    as_json: bool,
    begun: Any = None,
) -> float:
    """Run a load with a line each second; return the seconds that it took."""
    import asyncio
    import time

    running = asyncio.create_task(load.run())
    if begun is not None:
        first = asyncio.create_task(begun.wait())
        await asyncio.wait([running, first], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
    started_s = time.perf_counter()
    try:
        with _LiveLine(as_json) as line:
            last_s, last_count = started_s, 0
            while not running.done():
                left_s = None if limit_s is None else started_s + limit_s - time.perf_counter()
                if left_s is not None and left_s <= 0:
                    break
                await asyncio.wait([running], timeout=1 if left_s is None else min(1, left_s))
                now_s = time.perf_counter()
                recent = meter.take_recent()
                if now_s - last_s > _SHORT_S or not running.done():
                    rate = (meter.message_count - last_count) / max(now_s - last_s, 1e-9)
                    line.show(_live_text(now_s - started_s, rate, meter, recent))
                last_s, last_count = now_s, meter.message_count
        ended_s = time.perf_counter()
        load.stop()
        await running
        meter.take_recent()
        return ended_s - started_s
    finally:
        running.cancel()


_SHORT_S = 0.5


def _live_text(elapsed_s: float, rate: float, meter: "Meter", recent: Any) -> str:
    parts = [f"{elapsed_s:6.1f} s", f"{rate:>9,.0f}/s", f"{meter.message_count:>11,} messages"]
    if recent.count:
        p50, p99 = recent.percentile(50) / 1000, recent.percentile(99) / 1000
        parts.append(f"p50 {p50:.2f} ms  p99 {p99:.2f} ms  max {recent.max / 1000:.2f} ms")
    if meter.failed_count:
        parts.append(f"{meter.failed_count:,} failed")
    return "   ".join(parts)


class _LiveLine:
    """One line that changes at a terminal; a line each time in a pipe, beside JSON on stderr."""

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
        """Show how it goes."""
        if self._live is not None:
            self._live.update(text)
        else:
            print(text, file=self._stream, flush=True)


# --- at the end ---------------------------------------------------------------------------------


def _result(kind: str, topic: str, seconds: float, meter: "Meter", settings: Document) -> Document:
    latency = meter.latency_us
    milliseconds: Document = {f"p{one:g}": _ms(latency.percentile(one)) for one in _PERCENTILES}
    milliseconds |= {"max": _ms(latency.max if latency.count else None), "mean": _ms(latency.mean)}
    return {
        "bench": kind,
        "topic": topic,
        "seconds": round(seconds, 3),
        "message_count": meter.message_count,
        "failed_count": meter.failed_count,
        "failures": meter.failures,
        "bytes": meter.body_bytes,
        "messages_per_second": round(meter.message_count / seconds, 1) if seconds else 0.0,
        "megabytes_per_second": round(meter.body_bytes / seconds / 1e6, 3) if seconds else 0.0,
        "latency_ms": milliseconds,
        "settings": settings,
    }


def _ms(value_us: float | None) -> float | None:
    return None if value_us is None else round(value_us / 1000, 3)


def _view(document: Document) -> View:
    latency = document["latency_ms"]
    shown = "  ".join(f"{name} {one}" for name, one in latency.items() if one is not None)
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
