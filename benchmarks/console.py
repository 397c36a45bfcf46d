"""The console beside a broker with many topics and groups: pages, its memory, its requests.

The times of pages are those of a client on this machine that keeps its connection. Chromium loads
the same pages, if it is there. CPU times are those of processes, from ``/proc``.
"""

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import broker_targets as targets, java
from benchmarks.broker_process import Usage, cpu_seconds
from benchmarks.broker_targets import Target, pause
from reput.client import Admin, Message, Producer
from reput.clock import SystemClock
from reput.console.cluster import WatchedCluster
from reput.format.bodies import MessageQueue

NAME = "console"
QUESTION = "list pages at 10,000 topics x 2,000 groups, load on the broker at rest, memory, search"
QUEUES = 4
TOPICS_OF_GROUP = 5
MESSAGES_OF_TOPIC = 8
SEARCHED = "bench-searched"
BODY = b"x" * 1_000
UNDER_WAY = 64
"""Requests at once while the broker is filled."""
SCANS = {
    "text": "text=absent",
    "expression": "expression=absent%5Cd",
    "expression_without_text": "expression=%5Cd%7B4%7D",
    "sql": "sql=weight%20%3E%201",
    "tag": "tags=absent",
}
"""Conditions that no message meets, by the names of their results."""
SETTLE_S = 900.0
PAGES = {
    "topics": "topics",
    "topics_by_lag": "topics?sort=-lag",
    "topics_by_name_last_page": "topics?sort=-name&page=100",
    "topics_found": "topics?q=77",
    "groups": "groups",
    "groups_by_name": "groups?sort=name",
    "topic": "topics/bench-00000",
    "group": "groups/bench-group-0000",
}
"""Pages by the names of their results. Only the last two ask the broker."""


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure; quick: about a minute, with a tenth of the topics and groups."""
    topics, groups, searched = (1_000, 200, 10_000) if quick else (10_000, 2_000, 100_000)
    seconds = 20.0 if quick else 90.0
    folder = folder / NAME
    folder.mkdir(parents=True)
    with targets.ours(folder, targets.OFFICIAL) as broker:
        asyncio.run(fill(broker, topics, groups, searched))
        idle_cpu = _share_of(broker.pid, seconds)
        results: dict[str, object] = {
            "topics": topics,
            "groups": groups,
            "broker_at_rest": {
                "core_percent_without_console": round(100 * idle_cpu, 2),
                **asyncio.run(_collect(broker, seconds)),
            },
        }
        console_process = java.module_of_tests("console_process").ConsoleProcess
        with console_process(broker.namesrv, folder / "before"):
            pass  # the first start of a version compiles its modules
        begun = time.perf_counter()
        with (
            console_process(broker.namesrv, folder / "of-console") as console,
            contextlib.closing(_Client(console.url)) as client,
        ):
            client.get("")
            results["start_to_first_page_s"] = round(time.perf_counter() - begun, 3)
            results["all_rows_known_s"] = round(_settle(client, topics, groups, begun), 1)
            results["pages_ms"] = _pages(client, 20 if quick else 100, console.pid)
            results["search"] = _searches(client, console.pid)
            results["chromium_ms"] = _chromium(folder, console.url, 5 if quick else 15)
            pause(5)  # what pages looked at is no longer asked for first
            share = _share_of(console.pid, seconds)
            usage = Usage.of(console.pid)
            results["console_at_rest"] = {
                "core_percent": round(100 * share, 2),
                "rss_megabytes": usage.rss_bytes >> 20,
                "anonymous_megabytes": usage.anonymous_bytes >> 20,
            }
        return results


async def fill(broker: Target, topics: int, groups: int, searched: int) -> None:
    """Create topics and groups with offsets, and send messages to a fifth of the topics."""
    slots = asyncio.Semaphore(UNDER_WAY)

    async def within(work: Any) -> None:
        async with slots:
            await work

    names = [f"bench-{number:05}" for number in range(topics)]
    async with (
        Admin(broker.namesrv) as admin,
        Producer("bench", namesrv=broker.namesrv) as producer,
    ):
        await admin.create_topic(SEARCHED, queue_count=QUEUES)
        for start in range(0, topics, 1_000):
            async with asyncio.TaskGroup() as tasks:
                for name in names[start : start + 1_000]:
                    tasks.create_task(within(admin.create_topic(name, queue_count=QUEUES)))
        async with asyncio.TaskGroup() as tasks:
            for number in range(groups):
                tasks.create_task(within(admin.create_group(f"bench-group-{number:04}")))
        async with asyncio.TaskGroup() as tasks:
            for number in range(groups * TOPICS_OF_GROUP):
                topic = names[(number % groups + 37 * (number // groups)) % (topics // 5)]
                queue = MessageQueue(topic, "broker-a", number % QUEUES)
                group = f"bench-group-{number % groups:04}"
                tasks.create_task(within(admin.update_consumer_offset(group, queue, 1)))
        for name in names[: topics // 5]:
            await producer.send_batch([Message(name, BODY) for _ in range(MESSAGES_OF_TOPIC)])
        for first in range(0, searched, 500):
            batch = [
                Message(SEARCHED, BODY, keys=f"key-{number}")
                for number in range(first, first + 500)
            ]
            await producer.send_batch(batch)


async def _collect(broker: Target, seconds: float) -> dict[str, object]:
    """Return the requests of a collector without open pages to a broker, after its first round."""
    async with Admin(broker.namesrv) as admin:
        cluster = WatchedCluster.of(admin, SystemClock())
        await cluster.collector.round()
        task = asyncio.create_task(cluster.collector.run())
        try:
            count, cpu = cluster.collector.request_count, cpu_seconds(broker.pid)
            begun = time.perf_counter()
            await asyncio.sleep(seconds)
            took = time.perf_counter() - begun
            return {
                "requests_per_s": round((cluster.collector.request_count - count) / took, 2),
                "core_percent": round(100 * (cpu_seconds(broker.pid) - cpu) / took, 2),
            }
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class _Client:
    """A client of HTTP that keeps its connection."""

    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=60)

    def get(self, path: str, kind: str = "text/html") -> bytes:
        """Return a page as HTML or JSON."""
        self._connection.request("GET", f"/{path}", headers={"Accept": kind})
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status}")
        return body

    def data(self, path: str) -> Any:
        """Return the data of a page."""
        return json.loads(self.get(path, "application/json"))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _settle(client: _Client, topics: int, groups: int, begun: float) -> float:
    """Wait until all topics and groups are in the lists; return seconds since the start."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        known = client.data("topics")["counts"]["user"], client.data("groups")["counts"]["user"]
        if known >= (topics, groups):
            return time.perf_counter() - begun
        pause(0.2)
    raise TimeoutError(f"{known} topics and groups are known after {SETTLE_S} s")


def _pages(client: _Client, count: int, pid: int) -> dict[str, object]:
    """Return the times of pages, and the CPU time of the console for each."""
    return {
        name: _times(lambda path=path: client.get(path), count, pid) for name, path in PAGES.items()
    }


def _times(work: Callable[[], object], count: int, pid: int = 0) -> dict[str, float]:
    times = []
    cpu = cpu_seconds(pid)
    for _ in range(count):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    results = {
        "p50": round(statistics.median(times), 1),
        "p95": round(sorted(times)[int(0.95 * (count - 1))], 1),
    }
    return {**results, "cpu": round(1000 * (cpu_seconds(pid) - cpu) / count, 1)} if pid else results


def _searches(client: _Client, pid: int) -> dict[str, object]:
    """Return times of searches: to the newest rows, by key, through every message."""
    return {
        "newest_ms": _times(lambda: client.get(f"messages?topic={SEARCHED}"), 5),
        "key_ms": _times(lambda: client.get(f"messages?topic={SEARCHED}&key=key-77"), 5),
        "through_all": {name: _scan(client, condition, pid) for name, condition in SCANS.items()},
    }


def _scan(client: _Client, condition: str, pid: int) -> dict[str, float]:
    """Return the messages that a search looks at per second, and the CPU time for each in µs.

    The process that matches a regular expression is not counted.
    """
    cpu = cpu_seconds(pid)
    answer = client.data(f"messages?topic={SEARCHED}&{condition}&max_seconds=50")["answer"]
    count = answer["looked_at"]["message_count"]
    return {
        "messages_per_s": round(1000 * count / answer["took_ms"]),
        "cpu_us": round(1e6 * (cpu_seconds(pid) - cpu) / count, 1),
    }


def _chromium(folder: Path, url: str, count: int) -> dict[str, object]:
    """Return the times from the start of a navigation to the end of the load event."""
    with _browser(folder) as browser:
        if browser is None:
            return {}

        def load(page: str) -> float:
            browser.open(url + page)
            elapsed: float = browser.load_ms()
            return elapsed

        return {
            name: round(statistics.median(load(PAGES[name]) for _ in range(count)), 1)
            for name in ("topics", "topics_by_lag", "groups")
        }


@contextlib.contextmanager
def _browser(folder: Path) -> Iterator[Any]:
    driver = java.module_of_tests("browser.driver")
    if driver.CHROMIUM is None:
        print("without Chromium", file=sys.stderr)
        yield None
        return
    browser = driver.Browser(folder / "chromium")
    try:
        browser.start()
        yield browser
    finally:
        browser.close()


def _share_of(pid: int, seconds: float) -> float:
    """Return the share of a core that a process uses."""
    begun, cpu = time.perf_counter(), cpu_seconds(pid)
    pause(seconds)
    return (cpu_seconds(pid) - cpu) / (time.perf_counter() - begun)
