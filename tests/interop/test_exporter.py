"""``reput exporter`` beside official brokers: its numbers are those of the brokers."""

import asyncio
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

pytest.importorskip("uvicorn", reason="reput.console imports it")

from interop.clusters import until
from interop.java_cluster import JavaCluster
from reput.client import Message, Producer, PushConsumer, ReceivedMessage
from reput.client.admin import Admin
from reput.client.admin.progress import ConsumeStats
from reput.client.config import ClientConfig, ConsumeFromWhere, ConsumerConfig

pytestmark = [pytest.mark.interop, pytest.mark.rotating, pytest.mark.slow]

TOPIC, GROUP, SENDER = "ExportedOrders", "exported-billing", "exported-sender"
PLACE = {"cluster": "DefaultCluster", "broker": "broker-a"}
COUNT, CONSUMED, BODY = 60, 7, b"x" * 200
_LINE = re.compile(r"(\w+)\{([^}]*)\} (\S+)")


@contextmanager
def exporter(namesrv: str) -> Iterator[str]:
    """Run an exporter; its URL."""
    command = (sys.executable, "-m", "reput", "exporter", "-n", namesrv, "--listen", "127.0.0.1:0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split("exporter: ")[1].strip()
        finally:
            process.terminate()


def scrape(url: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return labels and value of each series, by metric."""
    with urllib.request.urlopen(url, timeout=30) as response:
        text = response.read().decode()
    series: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in _LINE.findall(text):
        pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        series.setdefault(name, []).append((pairs, float(value)))
    return series


async def test_numbers_are_those_of_the_broker(official: JavaCluster) -> None:
    client = ClientConfig(namesrv_addr=official.namesrv, request_timeout_ms=30_000)
    async with Admin(client=client) as admin:
        await admin.create_topic(TOPIC, queue_count=2)
        await admin.create_group(GROUP)
        consumed = asyncio.Event()
        stuck = asyncio.Event()
        begun_ms = time.time_ns() // 1_000_000
        handled = 0

        async def consume(messages: Sequence[ReceivedMessage], context: object) -> None:
            """Consume a few, then wait: the group lags."""
            nonlocal handled
            if handled >= CONSUMED:
                await stuck.wait()
            handled += len(messages)
            if handled >= CONSUMED:
                consumed.set()

        config = ConsumerConfig(
            consume_concurrency=1, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
        )
        consumer = PushConsumer(GROUP, client=client, listener=consume, config=config)
        await consumer.subscribe(TOPIC)
        async with Producer(SENDER, client=client) as producer:
            for _ in range(COUNT):
                await producer.send(Message(TOPIC, BODY))
            async with consumer:
                await asyncio.wait_for(consumed.wait(), 60)
                with exporter(official.namesrv) as url:
                    # 4.5 does not know the question for producers (328).
                    producer_count = None if official.version.startswith("4.5") else 1
                    await asyncio.to_thread(compare, url, begun_ms, producer_count)
                    loop = asyncio.get_running_loop()

                    def progress() -> ConsumeStats:
                        stats = admin.consume_stats(GROUP, TOPIC)
                        return asyncio.run_coroutine_threadsafe(stats, loop).result()

                    def put_rate() -> float:
                        stats = admin.broker_stats("broker-a", "TOPIC_PUT_NUMS", TOPIC)
                        nums = asyncio.run_coroutine_threadsafe(stats, loop).result()
                        return 0.0 if nums is None else nums.stats_minute.tps

                    await asyncio.to_thread(compare_progress, url, progress)
                    sends = asyncio.create_task(send_on(producer))
                    await asyncio.to_thread(compare_rates, url)
                    await asyncio.to_thread(compare_with_broker, url, put_rate, progress)
                    sends.cancel()
                stuck.set()


def value_of(url: str, metric: str, **labels: str) -> float | None:
    """Return the value of the series with labels; None without one."""
    values = [
        value for series, value in scrape(url).get(metric, []) if labels.items() <= series.items()
    ]
    assert len(values) <= 1, (metric, labels, values)
    return values[0] if values else None


def compare(url: str, begun_ms: int, producer_count: int | None) -> None:
    """Compare what does not depend on the moment, as soon as it is known."""
    place, read = PLACE, {**PLACE, "topic": TOPIC, "group": GROUP}
    for metric, labels, expected in (
        ("rocketmq_producer_offset", {**place, "topic": TOPIC}, COUNT),
        ("rocketmq_producer_count", {**place, "group": SENDER}, producer_count),
        ("rocketmq_group_count", {"group": GROUP}, 1),
    ):
        until(
            lambda metric=metric, labels=labels, expected=expected: (
                value_of(url, metric, **labels) == expected
            )
        )
    diff = {"group": GROUP, "topic": TOPIC, "countOfOnlineConsumers": "1", "msgModel": "1"}
    until(lambda: 0 < (value_of(url, "rocketmq_group_diff", **diff) or 0) <= COUNT)
    until(lambda: value_of(url, "rocketmq_group_get_latency_by_storetime", **read))
    latency_ms = value_of(url, "rocketmq_group_get_latency_by_storetime", **read)
    assert latency_ms is not None
    assert 0 < latency_ms <= time.time_ns() // 1_000_000 - begun_ms
    client = {"group": GROUP, "topic": TOPIC}
    until(lambda: value_of(url, "rocketmq_client_consume_ok_msg_tps", **client) is not None)


def compare_progress(url: str, progress: Callable[[], ConsumeStats]) -> None:
    """Compare the progress of the group with the answer of the broker to ``mqadmin``."""
    read = {**PLACE, "topic": TOPIC, "group": GROUP}

    def agrees() -> bool:
        stats = progress()
        consumed = sum(queue.consumer_offset for queue in stats.queues)
        return (
            consumed > 0
            and value_of(url, "rocketmq_consumer_offset", **read) == consumed
            and value_of(url, "rocketmq_message_accumulation", **read) == stats.lag
        )

    until(agrees)
    # What the board of rocketmq-exporter shows as "message_accumulation".
    ends = value_of(url, "rocketmq_producer_offset", **PLACE, topic=TOPIC)
    consumed = value_of(url, "rocketmq_consumer_offset", **read)
    assert ends is not None
    assert consumed is not None
    assert value_of(url, "rocketmq_message_accumulation", **read) == ends - consumed


async def send_on(producer: Producer) -> None:
    """Send a message after the other; members pull them although they do not consume them."""
    while True:
        await producer.send(Message(TOPIC, BODY))
        await asyncio.sleep(0.2)


def compare_with_broker(
    url: str, put_rate: Callable[[], float], progress: Callable[[], ConsumeStats]
) -> None:
    """Compare rates with the broker's, which are older or newer by a sample at most moments."""
    written = {**PLACE, "topic": TOPIC}
    read = {**written, "group": GROUP}

    def agrees() -> bool:
        put, got = put_rate(), progress().consume_tps
        expected = {
            "rocketmq_producer_tps": (written, put),
            "rocketmq_consumer_tps": (read, got),
            "rocketmq_group_consume_tps": (read, got),
        }
        return put > 0 < got and all(
            value_of(url, metric, **labels) == pytest.approx(rate, rel=0.5)
            for metric, (labels, rate) in expected.items()
        )

    until(agrees)


def compare_rates(url: str) -> None:
    """Compare rates with sizes: a broker samples both every ten seconds."""
    sizes = {}
    for kind in ("producer", "consumer"):

        def rates(kind: str = kind) -> tuple[float, float] | None:
            messages = value_of(url, f"rocketmq_{kind}_tps", **PLACE, topic=TOPIC)
            size = value_of(url, f"rocketmq_{kind}_message_size", **PLACE, topic=TOPIC)
            return (messages, size) if messages and size else None

        messages, size = until(rates)
        sizes[kind] = size / messages
    assert sizes["producer"] == pytest.approx(sizes["consumer"], rel=0.05)
    assert len(BODY) < sizes["producer"] < len(BODY) + 300  # head, topic and properties
