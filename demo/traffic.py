"""A broker, and messages that are sent to it and consumed from it.

The broker is ``reput up`` in a separate process on a new folder. Messages are sent and consumed
over the network, by the clients of ``reput.client``.
"""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from demo.story import Samples, Traffic
from reput.client import ConsumeContext, ConsumeResult, Message, Producer, PushConsumer
from reput.client.config import ConsumeFromWhere, ConsumerConfig
from reput.client.message import ReceivedMessage
from reput.clock import SystemClock
from reput.errors import ReputError

MESSAGE_COUNT = 200_000
GROUP = "demo-consumers"
CONFIG_FILE = "broker.conf"
TOPICS = {"Orders": 6, "Payments": 3, "Shipments": 2, "Clicks": 9}
"""Share of each topic in the messages, in twentieths."""
_TAGS = ("created", "changed", "paid", "cancelled")
_CLOCK = SystemClock()
_CHUNK = 2_000
_STALLED_S = 60
_STOP_S = 20
# A reader of the folder gets all queue units within a second of the last message.
_CONFIG = """\
flushConsumeQueueThoroughInterval=1000
mappedFileSizeCommitLog=67108864
brokerName=demo-broker
"""

Progress = Callable[[str, int, int], None]
"""Called with the name of a part, the amount that is done and the total."""


class DemoFailed(ReputError):
    """A part of the demo failed; the text gives the reason."""


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Run ``reput up`` on ``folder/store``; yield the name server's address.

    Raises:
        DemoFailed: It did not start; the text contains its output.
    """
    config = folder / CONFIG_FILE
    config.write_text(_CONFIG, encoding="ascii")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "reput", "up", "-c", str(config)),
            *("--store", str(folder / "store"), "--port", "0", "--broker-port", "0"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield _address(process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _address(process: "subprocess.Popen[str]") -> str:
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        name, _, value = line.strip().partition("  ")
        if name == "name server":
            return value.strip()
    raise DemoFailed(f"reput up did not start: {' '.join(lines)}")


def run(namesrv: str, progress: Progress, count: int = MESSAGE_COUNT) -> Traffic:
    """Send messages and consume them in a group.

    Args:
        namesrv: Address of the name server.
        progress: Called with the progress.
        count: Number of messages.

    Returns:
        Counts, times and samples.

    Raises:
        DemoFailed: Not all messages were consumed.
        ReputError: A message could not be sent.
    """
    return asyncio.run(_run(namesrv, progress, count))


async def _run(namesrv: str, progress: Progress, count: int) -> Traffic:
    traffic = Traffic(message_count=count, group=GROUP)
    async with Producer("demo-producers", namesrv=namesrv) as producer:
        started = time.monotonic()
        new = messages(count)
        for done in range(0, count, _CHUNK):
            progress("publishing", done, count)
            sample(traffic.published, done)
            await producer.send_many([next(new) for _ in range(min(_CHUNK, count - done))])
        sample(traffic.published, count)
        traffic.publish_seconds = time.monotonic() - started
    progress("publishing", count, count)
    await _consume(namesrv, traffic, progress)
    return traffic


def sample(samples: Samples, count: int) -> None:
    """Add a sample of the present time and count."""
    samples.append((_CLOCK.now_ms(), count))


def messages(count: int) -> Iterator[Message]:
    """Yield messages of a shop, the same ones each time."""
    dice = random.Random(4711)
    topics = [topic for topic, share in TOPICS.items() for _ in range(share)]
    for number in range(count):
        size = int(dice.lognormvariate(5.3, 0.8))
        yield Message(
            dice.choice(topics),
            f'{{"order":{number},"note":"'.encode() + b"." * size + b'"}',
            tags=dice.choice(_TAGS),
            keys=(f"order-{number}",),
        )


async def _consume(namesrv: str, traffic: Traffic, progress: Progress) -> None:
    seen: set[str] = set()
    latest = [time.monotonic()]
    is_done = asyncio.Event()

    async def listen(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        seen.update(message.message_id for message in messages)
        latest[0] = time.monotonic()
        if len(seen) >= traffic.message_count:
            is_done.set()
        return ConsumeResult.SUCCESS

    config = ConsumerConfig(
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_message_batch_max_size=32
    )
    consumer = PushConsumer(GROUP, namesrv=namesrv, listener=listen, config=config)
    started = time.monotonic()
    async with consumer:
        for topic in TOPICS:
            await consumer.subscribe(topic)
        while not is_done.is_set():
            progress("consuming", len(seen), traffic.message_count)
            sample(traffic.consumed, len(seen))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_done.wait(), 0.1)
            if time.monotonic() - latest[0] > _STALLED_S:
                raise DemoFailed(
                    f"{len(seen)} of {traffic.message_count} messages were consumed, "
                    f"then none for {_STALLED_S} s"
                )
        traffic.consume_seconds = time.monotonic() - started
        traffic.consumed_count = len(seen)
        sample(traffic.consumed, len(seen))
    progress("consuming", traffic.message_count, traffic.message_count)
