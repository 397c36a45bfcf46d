"""A consumer as a service: it runs until SIGTERM or SIGINT, and then closes cleanly.

    NAMESRV_ADDR=127.0.0.1:9876 python examples/consumer_service.py

Messages whose processing has begun are finished and committed before the process ends, with exit
code 0. The others go to the other members of the group, or wait for the next start. Without a name
server or topic the service waits for it, and logs that.
"""

import asyncio
import logging
import os
import signal
import sys

from reput.client import ConsumeContext, PushConsumer, ReceivedMessage
from reput.errors import ReputError

GROUP = "billing"
TOPIC = "Orders"
CLOSE_TIMEOUT_MS = 30_000
"""Time for messages in processing at the end, in ms: less than the supervisor's grace period."""
WORK_S = 1.0
"""Time that the work for a message takes here, in s."""

log = logging.getLogger("billing")


async def listen(messages: list[ReceivedMessage], _: ConsumeContext) -> None:
    """Process messages of a queue. If this raises an error, they are delivered again later.

    Delivery is at least once: a message may come a second time, after a failure or a crash.
    """
    for message in messages:
        log.info("processing %s", message.keys)
        await asyncio.sleep(WORK_S)  # replace it with your work
        log.info("processed %s: %d bytes", message.keys, len(message.body))


async def serve(namesrv: str) -> None:
    """Consume until a signal arrives."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with PushConsumer(
        GROUP, namesrv=namesrv, listener=listen, close_timeout_ms=CLOSE_TIMEOUT_MS
    ) as consumer:
        await consumer.subscribe(TOPIC)
        log.info("group %s consumes %s of %s", GROUP, TOPIC, namesrv)
        await stop.wait()
        log.info("stopping")
    log.info("stopped")


def main() -> int:
    """Run the service; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(serve(os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")))
    except ReputError as error:
        log.error("cannot consume: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
