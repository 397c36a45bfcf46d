"""Take the pictures of the console in docs/images, in Chromium: a broker with traffic, its pages.

    PYTHONPATH=tests python scripts/console_screenshots.py [--folder docs/images] [--seconds 150]

The traffic runs first, so that the lines of the last hour have points.
"""

import argparse
import asyncio
import contextlib
import tempfile
from pathlib import Path

from browser.driver import Browser
from console_process import ConsoleProcess
from reput.client import Message, MessageQueue, Producer
from reput.client.admin import Admin
from reput.testing import LocalBroker

ROOT = Path(__file__).parents[1]
RATES = {"orders": 40, "payments": 25, "shipments": 12, "invoices": 6, "stock": 30, "emails": 3}
"""Topics, and messages a second."""
GROUPS = {
    "billing": ("orders", 0.97),
    "warehouse": ("orders", 1.0),
    "ledger": ("payments", 1.0),
    "fraud-check": ("payments", 0.4),
    "tracking": ("shipments", 0.9),
    "forecast": ("stock", 0.8),
}
"""Groups, their topic, and the share of its messages that they have consumed."""
QUEUES = 4
WIDTH, HEIGHT = 1280, 800
PICTURES = {
    "console-overview": ("", "light"),
    "console-groups": ("groups", "light"),
    "console-group-dark": ("groups/fraud-check", "dark"),
    "console-messages": ("messages?topic=orders&key=order-7", "light"),
}
"""Names of pictures, with page and colors."""


async def make_traffic(broker: LocalBroker, seconds: int) -> None:
    """Send messages, and commit the offsets of groups, for some seconds."""
    counts = dict.fromkeys(RATES, 0)
    async with (
        Admin(broker.namesrv_addr) as admin,
        Producer("shop", namesrv=broker.namesrv_addr) as producer,
    ):
        for group in GROUPS:
            await admin.create_group(group)
        for _ in range(seconds):
            for topic, rate in RATES.items():
                for number in range(counts[topic], counts[topic] + rate):
                    body = b'{"order": %d, "items": [{"sku": "A-%d"}]}' % (number, number % 97)
                    key = f"order-{number}"
                    await producer.send(Message(topic, body, keys=key, tags="Created"))
                counts[topic] += rate
            for group, (topic, share) in GROUPS.items():
                consumed = int(counts[topic] * share) // QUEUES
                for queue_id in range(QUEUES):
                    queue = MessageQueue(topic, "broker-a", queue_id)
                    await admin.update_consumer_offset(group, queue, consumed)
            await asyncio.sleep(1)


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--seconds", type=int, default=150, help="of traffic")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as running:
        work = Path(running.enter_context(tempfile.TemporaryDirectory()))
        broker = running.enter_context(LocalBroker(topics=dict.fromkeys(RATES, QUEUES)))
        console = running.enter_context(ConsoleProcess(broker.namesrv_addr, work / "console"))
        asyncio.run(make_traffic(broker, arguments.seconds))
        browser = Browser(work / "chromium")
        running.callback(browser.close)
        browser.start()
        for name, (page, scheme) in PICTURES.items():
            browser.open(console.url + page, WIDTH, scheme)
            file = arguments.folder / f"{name}.png"
            file.write_bytes(browser.screenshot(HEIGHT))
            print(f"{file}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
