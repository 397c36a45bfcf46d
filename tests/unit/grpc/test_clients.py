"""Clients that are gone are forgotten, and a failure with one does not keep the others."""

import asyncio

from reput.clock import ManualClock
from reput.errors import RequestTimedOut
from reput.grpc.backend import GroupFacts, TopicFacts
from reput.grpc.caller import Caller
from reput.grpc.clients import IDLE_MS, SILENT_MS, Client, Clients
from reput.grpc.statuses import Code, StatusError
from reput.remoting.channel import Channel, Owner


class NoBackend:
    """Knows nothing, and connects to nothing."""

    async def topic(self, name: str) -> TopicFacts | None:
        return None

    async def group(self, name: str, address: str) -> GroupFacts | None:
        return None

    async def connect(self, broker_name: str, owner: Owner, address: tuple[str, int]) -> Channel:
        raise RequestTimedOut(broker_name, 0, 0)


def caller(client_id: str) -> Caller:
    return Caller(client_id, "JAVA", ("10.0.0.7", 1), ("10.0.0.1", 8081))


class Fixture:
    """Clients whose calls are recorded, and whose departure can fail."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.left: list[str] = []
        self.renewed: list[str] = []
        self.failure: Exception | None = None
        self.clients = Clients(NoBackend(), self.clock, lambda *_: None, self._leave, self._renew)

    async def _leave(self, client: Client) -> None:
        self.left.append(client.client_id)
        if self.failure is not None:
            raise self.failure

    async def _renew(self, client: Client) -> None:
        self.renewed.append(client.client_id)
        if self.failure is not None:
            raise self.failure


def test_a_silent_client_gives_back_its_messages_and_is_forgotten_later() -> None:
    async def check() -> None:
        fixture = Fixture()
        fixture.clients.of(caller("a"))
        await fixture.clients.look()
        assert fixture.left == []
        fixture.clock.advance(SILENT_MS + 1)
        await fixture.clients.look()
        assert (fixture.left, len(fixture.clients)) == (["a"], 1)
        fixture.clock.advance(IDLE_MS)
        await fixture.clients.look()
        assert len(fixture.clients) == 0

    asyncio.run(check())


def test_a_failure_with_one_client_does_not_keep_the_others() -> None:
    async def check() -> None:
        fixture = Fixture()
        for name in ("a", "b"):
            fixture.clients.of(caller(name))
        fixture.failure = StatusError(Code.INVALID_RECEIPT_HANDLE, "expired")
        fixture.clock.advance(SILENT_MS + 1)
        await fixture.clients.look()
        assert fixture.left == ["a", "b"]
        fixture.clock.advance(IDLE_MS)
        await fixture.clients.look()
        await fixture.clients.stop()
        assert sorted(fixture.left) == ["a", "a", "b", "b"]
        assert len(fixture.clients) == 0

    asyncio.run(check())


def test_a_message_that_is_due_is_renewed() -> None:
    async def check() -> None:
        fixture = Fixture()
        client = fixture.clients.of(caller("a"))
        now_ms = fixture.clock.now_ms()
        client.renewals.add("group", "topic", "receipt", now_ms + 30_000, now_ms)
        await fixture.clients.look()
        assert fixture.renewed == []
        fixture.clock.advance(20_001)
        await fixture.clients.look()
        assert fixture.renewed == ["a"]

    asyncio.run(check())
