"""Record ``tests/data/metrics``: ``python -m interop.record_metrics``, in ``tests/``.

The file has the metrics of an official broker of 5.5.0 with ``metricsExporterType=PROM`` after the
traffic of ``traffic``: name -> kind, names of labels, and bounds of a histogram's buckets.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from interop.java_cluster import JavaCluster
from ports import free_port
from reput.client import (
    Admin,
    ClientConfig,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    PopConsumer,
    Producer,
    ProducerConfig,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)

FILE = Path(__file__).parents[1] / "data" / "metrics" / "rocketmq-5.5.0.json"
VERSION = "5.5.0"
CONFIG = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
ORIGIN = (
    "Metrics of apache/rocketmq 5.5.0, as its broker exports them with metricsExporterType=PROM "
    "after the traffic of tests/interop/record_metrics.py"
)
GUARD_S = 90


def settings(port: int) -> dict[str, str | int]:
    """Return the settings that export metrics at a port."""
    return {
        "metricsExporterType": "PROM",
        "metricsPromExporterHost": "127.0.0.1",
        "metricsPromExporterPort": port,
        "metricsLabel": "instance_id:test,uid:7",
    }


@contextlib.asynccontextmanager
async def traffic(namesrv: str, broker: str) -> AsyncIterator[None]:
    """Send and consume messages of all kinds; the consumers stay until the end.

    Topic ``Metered``: 6 normal messages, 1 delayed by a level, 1 by the timer, 1 committed and 1
    rolled back. Group ``readers`` consumes all, and sends the first one back; it becomes a dead
    letter. Group ``poppers`` pops.
    """
    patient = ClientConfig(namesrv_addr=namesrv, request_timeout_ms=GUARD_S * 1000)
    sending = ProducerConfig(send_timeout_ms=GUARD_S * 1000)
    async with Admin(client=patient) as admin:
        await admin.create_topic("Metered", queue_count=1, broker=broker)
        for group in ("readers", "poppers"):
            await admin.create_group(group, broker=broker)
        await admin.set_request_mode("poppers", "Metered", "POP", broker=broker)
    received: list[bytes] = []
    dead = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=0)

    async def consume(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        received.extend(message.body for message in messages)
        return ConsumeResult.LATER if messages[0].body == b"0" else ConsumeResult.SUCCESS

    reader = PushConsumer("readers", client=patient, listener=consume, config=dead)
    await reader.subscribe("Metered")
    popper = PopConsumer("poppers", client=patient, config=CONFIG)
    await popper.subscribe("Metered")
    async with Producer("senders", client=patient, config=sending) as producer, reader, popper:
        for number in range(6):
            await producer.send(Message("Metered", b"%d" % number))
        await producer.send(Message("Metered", b"level", delay_level=1))
        await producer.send(Message("Metered", b"timer", delay_ms=1_000))
        async with TransactionProducer(
            "deciders", client=patient, config=sending, check=lambda _: TransactionState.COMMIT
        ) as decider:
            for state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
                await decider.send_in_transaction(
                    Message("Metered", str(state).encode()), lambda *_, state=state: state
                )
        popped: list[Any] = []
        async with asyncio.timeout(GUARD_S):
            while len(popped) < 6:
                messages = await popper.pop()
                popped += messages
                await asyncio.gather(*(popper.ack(message) for message in messages))
            while len(received) < 9:
                await asyncio.sleep(0.1)
        yield


def scrape(port: int) -> str:
    """Return the text of /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def shape(text: str) -> dict[str, dict[str, Any]]:
    """Return the metrics of a text: name -> kind, names of labels, bounds of buckets.

    Without the label ``le`` of buckets.
    """
    shapes: dict[str, dict[str, Any]] = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        if not name.startswith("rocketmq_"):
            continue
        labels = {label for sample in family.samples for label in sample.labels}
        bounds = {float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels}
        shapes[name] = {"kind": family.type, "labels": sorted(labels - {"le"})}
        if bounds:
            shapes[name]["bounds"] = [str(bound) for bound in sorted(bounds)]
    return dict(sorted(shapes.items()))


async def _text_of_java(folder: Path) -> str:
    port = free_port()
    with JavaCluster(VERSION, folder, {**settings(port), "timerWheelEnable": True}) as cluster:
        async with traffic(cluster.namesrv, cluster.address):
            await asyncio.sleep(12)  # the store computes some of them at intervals
            return await asyncio.to_thread(scrape, port)


def record() -> None:
    """Write the file; print the text that it is made of."""
    with tempfile.TemporaryDirectory() as folder:
        text = asyncio.run(_text_of_java(Path(folder)))
    sys.stdout.write(text)
    content = {"origin": ORIGIN, "metrics": shape(text)}
    FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
