"""Messages that come back because their consumer, its call or its connection is gone.

As rocketmq-proxy 5.5.0, the front counts the attempt of a message that was handed out: it may be
the reason why its consumer is gone. What never left the server does not count.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import world
from grpc_client import GrpcClient, receive_request
from remoting_subject import GUARD_S
from reput.clock import ManualClock
from reput.grpc import receiving
from reput.grpc.receiving import GIVEN_BACK_MS
from reput.grpc.server import FrontServer
from reput.grpc.wire.grpc_messages import ClientType
from reput.store.tables.groups import SubscriptionGroup
from waiting import until
from world import Subject

START_MS = 1_700_000_000_000
GROUP = "G"
ORDERS = pytest.mark.parametrize("is_ordered", [False, True], ids=["any order", "in order"])


class Place:
    """A broker with a front, whose clock a test advances."""

    def __init__(self, subject: Subject, front: FrontServer, clock: ManualClock) -> None:
        self.subject = subject
        self.front = front
        self._clock = clock

    def consumer(self, client_id: str) -> GrpcClient:
        return GrpcClient(f"127.0.0.1:{self.front.port}", client_id)

    async def attempts(self, client: GrpcClient) -> list[int]:
        """Receive as a push consumer, once messages that were given back are due."""
        self._clock.advance(GIVEN_BACK_MS)
        broker = self.subject.broker
        while broker.loops.step_pops(broker.clock.now_ms()):
            broker.store.step_memory()
        broker.store.step_memory()
        await asyncio.to_thread(client.consume, GROUP, "T", kind=ClientType.PUSH_CONSUMER)
        items = await asyncio.to_thread(
            client.messages, GROUP, "T", auto_renew=True, long_polling_timeout={}
        )
        return [item["system_properties"]["delivery_attempt"] for item in items]

    async def next_attempt(self, client: GrpcClient) -> int:
        """Return the number of the attempt of a message that is given back soon."""
        async with asyncio.timeout(GUARD_S):
            while not (attempts := await self.attempts(client)):
                assert self._clock.now_ms() < START_MS + receiving.AUTO_RENEW_MS, "not given back"
        (attempt,) = attempts
        return attempt


@asynccontextmanager
async def place(folder: Path, *, is_ordered: bool, retry_max: int = 16) -> AsyncIterator[Place]:
    clock = ManualClock(START_MS)
    async with world.broker(folder, clock=clock) as subject:
        subject.broker.parts.subscription_groups.put(
            SubscriptionGroup(name=GROUP, consume_orderly=is_ordered, retry_max=retry_max),
            clock.now_ms(),
        )
        front = FrontServer(subject.broker, 0)
        await front.start()
        try:
            yield Place(subject, front, clock)
        finally:
            await front.stop()


@ORDERS
async def test_a_message_that_ends_its_consumers_becomes_a_dead_letter(
    tmp_path: Path, is_ordered: bool
) -> None:
    async with place(tmp_path, is_ordered=is_ordered, retry_max=2) as here:
        await here.subject.send("T", b"poison")
        seen = []
        for number in range(3):
            with here.consumer(f"victim-{number}") as victim:
                seen.append(await here.next_attempt(victim))
                await asyncio.to_thread(
                    victim.call, "NotifyClientTermination", group={"name": GROUP}
                )
        assert seen == [1, 2, 3]
        with here.consumer("last") as last:
            async with asyncio.timeout(GUARD_S):
                while here.subject.broker.parts.topics.get(f"%DLQ%{GROUP}") is None:
                    assert await here.attempts(last) == []


Pop = Callable[..., Awaitable[Any]]


@ORDERS
async def test_a_message_of_a_call_that_ended_before_its_reply_does_not_count(
    tmp_path: Path, is_ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_popped, has_ended = asyncio.Event(), asyncio.Event()
    pop: Pop = receiving.pop

    async def slow(*arguments: Any) -> Any:
        popped = await pop(*arguments)
        has_popped.set()
        await has_ended.wait()
        return popped

    async with place(tmp_path, is_ordered=is_ordered) as here:
        for body in (b"1", b"2"):
            await here.subject.send("T", body)
        with here.consumer("impatient") as impatient:
            await asyncio.to_thread(impatient.consume, GROUP, "T", kind=ClientType.PUSH_CONSUMER)
            monkeypatch.setattr(receiving, "pop", slow)
            call = impatient.begin_receive(**receive_request(GROUP, "T", auto_renew=True))
            await has_popped.wait()
            monkeypatch.undo()
            call.cancel()
            await until(lambda: here.front.front._giving_back)
            has_ended.set()
        with here.consumer("patient") as patient:
            attempts: list[int] = []
            async with asyncio.timeout(GUARD_S):
                while len(attempts) < 2:
                    attempts += await here.attempts(patient)
        assert attempts == [1, 1]
