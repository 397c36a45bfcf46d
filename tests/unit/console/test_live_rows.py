"""Pages that follow the cluster: events of rows that move, ends of streams, their limit."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Message, Scope

from asgi import call
from reput.clock import ManualClock
from reput.console import live_rows
from reput.console.access import Right
from reput.console.app import Console
from reput.console.page import Route
from reput.console.pages import topic, topics
from reput.console.parts import ConsoleParts
from reput.console.snapshot import BrokerPlace, Ends, QueueEnds
from topic_configs import topic_config
from waiting import until

PLACE = BrokerPlace("c", "broker-a", 0, "127.0.0.1:1")
WAIT_S = 20.0


class Stream:
    """A stream that a client reads, and leaves when it closes the connection."""

    def __init__(self) -> None:
        self.status = 0
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._requests = [{"type": "http.request", "body": b"", "more_body": False}]
        self._is_gone = asyncio.Event()

    async def receive(self) -> Message:
        if self._requests:
            return self._requests.pop()
        await self._is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self._chunks.put_nowait(message.get("body", b""))

    async def next(self, part: bytes) -> str:
        """Return the next chunk that has a part."""
        async with asyncio.timeout(WAIT_S):
            while part not in (chunk := await self._chunks.get()):
                pass
        return chunk.decode()

    async def moved(self) -> dict[str, str]:
        """Return the elements of the next event, by their ids."""
        elements: dict[str, str] = json.loads((await self.next(b"data: ")).removeprefix("data: "))
        return elements

    def close(self) -> None:
        self._is_gone.set()


@pytest.fixture
def console(parts: ConsoleParts, clock: ManualClock) -> Console:
    snapshot = parts.cluster.snapshot
    snapshot.put_places([PLACE], clock.now_ms())
    names = ("Orders", "Bills", "<b>")
    snapshot.put_topics(PLACE.address, {name: topic_config(name) for name in names}, clock.now_ms())
    routes = {
        "/topics": Route(topics.page, Right.VIEW, live_s=0.01),
        "/topics/{topic}": Route(topic.page, Right.VIEW, live_s=0.01),
    }
    return Console(parts, routes=routes)


def scope_of(path: str) -> Scope:
    """Return the request for the stream of a page."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"live=1",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1:8080")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
    }


@asynccontextmanager
async def stream_of(
    console: Console, path: str
) -> AsyncIterator[tuple[Stream, asyncio.Task[None]]]:
    """Open a stream; at the end its client is gone."""
    stream = Stream()
    task = asyncio.create_task(console(scope_of(path), stream.receive, stream.send))
    try:
        await stream.next(b"retry: ")
        yield stream, task
    finally:
        stream.close()
        await asyncio.wait([task], timeout=WAIT_S)
        assert task.done()


def move(parts: ConsoleParts, name: str, end: int) -> None:
    """Let a topic have more messages."""
    parts.clock.advance(1_000)  # type: ignore[attr-defined]
    now_ms = parts.clock.now_ms()
    parts.cluster.snapshot.put_ends(
        PLACE.address, name, Ends(now_ms, (QueueEnds(0, 0, end, now_ms),))
    )


async def test_rows_that_move_are_sent_and_no_others(console: Console, parts: ConsoleParts) -> None:
    async with stream_of(console, "/topics") as (stream, _):
        await until(lambda: "Orders" in parts.cluster.collector._viewed_topics)
        move(parts, "Orders", 1_234_567)
        moved = await stream.moved()
        assert moved.keys() == {"r-Orders"}
        assert moved["r-Orders"].startswith('<tr id="r-Orders">')
        assert "1,234,567" in moved["r-Orders"]
        move(parts, "<b>", 5)
        moved = await stream.moved()
        assert "r-%3Cb%3E" in moved
        assert all("<b>" not in html for html in moved.values())


async def test_a_client_that_leaves_ends_its_stream(console: Console, parts: ConsoleParts) -> None:
    async with stream_of(console, "/topics") as (_, task):
        assert parts.stream_count == 1
        assert not task.done()
    assert parts.stream_count == 0


async def test_a_server_that_stops_ends_its_streams(console: Console, parts: ConsoleParts) -> None:
    async with stream_of(console, "/topics") as (stream, task):
        task.cancel()  # as uvicorn does after its time to stop
        await asyncio.wait([task])
        assert task.cancelled()
        assert parts.stream_count == 0
        assert stream.status == 200


async def test_the_stream_of_a_topic_ends_with_the_topic(
    console: Console, parts: ConsoleParts, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput.console.pages.topic.gather", no_answers)
    async with stream_of(console, "/topics/Orders") as (_, task):
        clock.advance(1_000)
        parts.cluster.snapshot.put_topics(PLACE.address, {}, clock.now_ms())
        await asyncio.wait_for(asyncio.shield(task), WAIT_S)
    assert parts.stream_count == 0
    assert (
        await call(console, "/topics/Orders?live=1")
    ).status == 200  # a stream that ends at once
    assert (await call(console, "/topics/Orders")).status == 404


async def no_answers(asked: dict[str, object]) -> dict[str, object]:
    """Return no answers of brokers."""
    for request in asked.values():
        request.close()  # type: ignore[attr-defined]
    return {}


async def test_more_pages_than_the_limit_do_not_follow(
    console: Console, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_rows, "STREAM_COUNT_MAX", 2)
    async with stream_of(console, "/topics"), stream_of(console, "/topics"):
        refused = await call(console, "/topics?live=1")
        assert refused.status == 503
        assert "2 pages follow the cluster already" in refused.text
    async with stream_of(console, "/topics") as (stream, _):
        assert stream.status == 200


async def test_a_burst_does_not_pass_the_limit(
    console: Console, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_rows, "STREAM_COUNT_MAX", 2)
    streams = [Stream() for _ in range(5)]
    tasks = [
        asyncio.create_task(console(scope_of("/topics"), stream.receive, stream.send))
        for stream in streams
    ]
    await until(lambda: all(stream.status for stream in streams))
    assert sorted(stream.status for stream in streams) == [200, 200, 503, 503, 503]
    assert parts.stream_count == 2
    for stream in streams:
        stream.close()
    await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)
    assert parts.stream_count == 0


async def test_a_quiet_stream_has_a_heartbeat(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_rows, "HEARTBEAT_S", 0.05)
    async with stream_of(console, "/topics") as (stream, _):
        assert await stream.next(b"still") == ": still here\n\n"
