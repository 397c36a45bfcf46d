"""Messages that a consumer works on while the front stops and starts again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import world
from grpc_client import OK, GrpcClient, message
from remoting_subject import GUARD_S
from reput.broker.topic.topics import READ_WRITE
from reput.clock import ManualClock
from reput.grpc.clients import SILENT_MS
from reput.grpc.receiving import AUTO_RENEW_MS, GIVEN_BACK_MS
from reput.grpc.renewal import STEPS_MS
from reput.grpc.server import KEPT, FrontServer
from reput.grpc.wire.grpc_messages import ClientType
from reput.store.tables.config_tables import TopicConfig
from world import Subject

START_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@asynccontextmanager
async def front_of(subject: Subject) -> AsyncIterator[FrontServer]:
    front = FrontServer(subject.broker, 0)
    await front.start()
    try:
        yield front
    finally:
        await front.stop()


class Consumer:
    """A push consumer with an id, whose calls do not block the loop."""

    def __init__(self, front: FrontServer, client_id: str = "worker") -> None:
        self._client = GrpcClient(f"127.0.0.1:{front.port}", client_id)

    async def __aenter__(self) -> "Consumer":
        await asyncio.to_thread(self._client.consume, "G", "T", kind=ClientType.PUSH_CONSUMER)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.__exit__(None, None, None)

    async def receive(self) -> list[str]:
        """Return the handles of the messages of a receive."""
        messages = await asyncio.to_thread(
            self._client.messages, "G", "T", auto_renew=True, long_polling_timeout={}
        )
        return [item["system_properties"]["receipt_handle"] for item in messages]

    async def ack(self, handle: str) -> int:
        """Return the code of the reply to an ack."""
        reply: dict[str, Any] = await asyncio.to_thread(
            self._client.call,
            "AckMessage",
            group={"name": "G"},
            topic={"name": "T"},
            entries=[{"message_id": "01", "receipt_handle": handle}],
        )
        code: int = reply["entries"][0]["status"]["code"]
        return code


def revive(subject: Subject) -> None:
    """Deliver messages again whose time is over."""
    broker = subject.broker
    while broker.loops.step_pops(broker.clock.now_ms()):
        broker.store.step_memory()
    broker.store.step_memory()


async def test_a_consumer_keeps_its_messages_over_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with world.broker(tmp_path, clock=clock) as subject:
        async with front_of(subject) as front, Consumer(front) as consumer:
            await subject.send("T", b"work")
            (handle,) = await consumer.receive()
            clock.advance(AUTO_RENEW_MS - 1)
        clock.advance(STEPS_MS[0] - 1)  # the time of the stop counts
        async with front_of(subject) as front, Consumer(front) as consumer:
            assert not (Path(subject.broker.settings.store.store_path_root_dir) / KEPT).exists()
            await front.front.clients.look()
            clock.advance(STEPS_MS[1] - 1)
            revive(subject)
            assert await consumer.receive() == []
            assert await consumer.ack(handle) == OK
            clock.advance(10 * STEPS_MS[1])
            revive(subject)
            assert await consumer.receive() == []


async def test_the_messages_of_a_consumer_that_does_not_return_are_given_back(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with world.broker(tmp_path, clock=clock) as subject:
        async with front_of(subject) as front, Consumer(front) as consumer:
            await subject.send("T", b"work")
            (handle,) = await consumer.receive()
        async with front_of(subject) as front, Consumer(front, "another") as consumer:
            clock.advance(SILENT_MS + 1)
            await front.front.clients.look()

            async def is_given_back() -> bool:
                clock.advance(GIVEN_BACK_MS)
                revive(subject)
                return await consumer.receive() not in ([], [handle])

            async with asyncio.timeout(GUARD_S):
                while not await is_given_back():
                    assert clock.now_ms() < START_MS + AUTO_RENEW_MS, "its time is not over"


async def test_a_handle_is_valid_while_the_broker_holds_its_message(
    tmp_path: Path, clock: ManualClock
) -> None:
    """As after a kill: nothing is known of the renewals."""
    async with world.broker(tmp_path, clock=clock) as subject:
        async with front_of(subject) as front, Consumer(front) as consumer:
            await subject.send("T", b"work")
            (handle,) = await consumer.receive()
            clock.advance(AUTO_RENEW_MS - 1)
            await front.front.clients.look()
        (Path(subject.broker.settings.store.store_path_root_dir) / KEPT).unlink()
        clock.advance(STEPS_MS[0] - 1)
        async with front_of(subject) as front, Consumer(front) as consumer:
            revive(subject)
            assert await consumer.receive() == []
            assert await consumer.ack(handle) == OK
            assert await consumer.ack(handle) == 40_013
            clock.advance(2 * STEPS_MS[0])
            revive(subject)
            assert await consumer.receive() == []


async def test_a_transaction_can_be_ended_after_a_restart(tmp_path: Path) -> None:
    topic, half = {"name": "T"}, message("T", b"half", "0123", message_type=4)

    async def end(front: FrontServer, resolution: int) -> int:
        with GrpcClient(f"127.0.0.1:{front.port}") as client:
            reply = await asyncio.to_thread(
                client.call,
                "EndTransaction",
                topic=topic,
                message_id="0123",
                transaction_id="0123",
                resolution=resolution,
            )
        code: int = reply["status"]["code"]
        return code

    async with world.broker(tmp_path) as subject:
        parts = subject.broker.parts
        parts.topics.put(
            TopicConfig("T", 4, 4, READ_WRITE, attributes=(("message.type", "TRANSACTION"),)),
            parts.clock.now_ms(),
        )
        async with front_of(subject) as front:
            with GrpcClient(f"127.0.0.1:{front.port}") as client:
                reply = await asyncio.to_thread(client.call, "SendMessage", messages=[half])
            assert reply["entries"][0]["transaction_id"] == "0123"
        async with front_of(subject) as front:
            assert await end(front, 1) == OK
            assert parts.transactions.committed_count == 1
            assert await end(front, 1) == OK  # once more: its reply may have been lost
            assert parts.transactions.committed_count == 1


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"a": [1]}', b'{"a": [[1, 2]]}', b"\xff"])
async def test_a_damaged_file_does_not_keep_the_front_from_starting(
    tmp_path: Path, data: bytes
) -> None:
    async with world.broker(tmp_path) as subject:
        path = Path(subject.broker.settings.store.store_path_root_dir) / KEPT
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        async with front_of(subject) as front:
            assert len(front.front.clients) == 0
        assert not path.exists()
