"""Clients that are gone are forgotten, and a failure with one does not keep the others."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from reput.clock import ManualClock
from reput.errors import RequestTimedOut
from reput.format.command import Command
from reput.format.signing import Signer
from reput.grpc import clients as clients_module
from reput.grpc.backend import GroupFacts, TopicFacts
from reput.grpc.caller import Caller
from reput.grpc.clients import IDLE_MS, SILENT_MS, Client, Clients
from reput.grpc.renewal import ARRIVAL_MS, LONGEST_MS, Renewals
from reput.grpc.statuses import Code, StatusError
from reput.remoting.channel import Channel, Owner


class NoBackend:
    """Knows nothing, and connects to nothing."""

    checks_users = True

    async def topic(self, name: str) -> TopicFacts | None:
        return None

    async def group(self, name: str, address: str) -> GroupFacts | None:
        return None

    async def connect(
        self,
        broker_name: str,
        owner: Owner,
        address: tuple[str, int],
        signer: Signer | None = None,
    ) -> Channel:
        raise RequestTimedOut(broker_name, 0, 0)


class FullChannel:
    """A connection to which nothing can be written until ``read`` is called."""

    peer, is_closed, is_writable = "broker", False, False

    def __init__(self) -> None:
        self._is_read = asyncio.Event()
        self.sent: list[int] = []

    def read(self) -> None:
        self._is_read.set()

    async def writable(self) -> None:
        await self._is_read.wait()

    def send_request(self, request: Command, timeout_ms: int) -> "asyncio.Future[Command]":
        self.sent.append(request.code)
        return asyncio.get_running_loop().create_future()


class FullBackend(NoBackend):
    """Connects to ``channel``."""

    def __init__(self) -> None:
        self.channel = FullChannel()

    async def connect(self, *_: Any) -> Any:
        return self.channel


def caller(client_id: str) -> Caller:
    return Caller(client_id, "JAVA", ("10.0.0.7", 1), ("10.0.0.1", 8081))


class Fixture:
    """Clients whose calls are recorded, and whose departure can fail."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.left: list[str] = []
        self.renewed: list[str] = []
        self.failure: Exception | None = None
        self.hanging: asyncio.Event | None = None
        """Set when the renewals of the client ``hanging`` end."""
        self.clients = Clients(NoBackend(), self.clock, lambda *_: None, self._leave, self._renew)

    async def _leave(self, client: Client) -> None:
        self.left.append(client.client_id)
        if self.failure is not None:
            raise self.failure

    async def _renew(self, client: Client, margin_ms: int) -> None:
        self.renewed.append(client.client_id)
        if self.hanging is not None and client.client_id == "hanging":
            await self.hanging.wait()
        if self.failure is not None:
            raise self.failure


async def test_a_request_waits_for_room_in_its_connection() -> None:
    backend = FullBackend()
    client = Client(caller("a"), backend, lambda *_: None)
    await client.channel("b")
    with pytest.raises(RequestTimedOut):
        await client.send("b", Command(1), 0)
    # Its first step is not run by a task, as those of calls are.
    loop = asyncio.get_running_loop()
    begun: asyncio.Future[object] = loop.create_future()
    sending = client.send("b", Command(2), 1_000_000)
    loop.call_soon(lambda: begun.set_result(sending.send(None)))
    await begun
    assert backend.channel.sent == []
    sending.close()
    waiting = asyncio.ensure_future(client.send("b", Command(3), 1_000_000))
    backend.channel.read()
    await waiting
    assert backend.channel.sent == [3]


def test_a_silent_client_gives_back_its_messages_and_is_forgotten_later() -> None:
    async def check() -> None:
        fixture = Fixture()
        fixture.clients.of(caller("a"))
        await fixture.clients.look()
        assert fixture.left == []
        fixture.clock.advance(SILENT_MS + 1)
        await fixture.clients.look()
        assert (fixture.left, len(fixture.clients)) == (["a"], 1)
        fixture.clock.advance(IDLE_MS - SILENT_MS - 1)  # Java: silent for longer than the limit
        await fixture.clients.look()
        assert len(fixture.clients) == 1
        fixture.clock.advance(1)
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


def test_a_broker_that_hangs_holds_up_its_clients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        monkeypatch.setattr(clients_module, "LOOK_S", 0.01)
        fixture = Fixture()
        for name in ("hanging", "other"):
            client = fixture.clients.of(caller(name))
            client.renewals.add("group", "topic", "receipt", 1, 1)
        fixture.hanging = asyncio.Event()
        await fixture.clients.look()
        await fixture.clients.look()
        assert fixture.renewed == ["hanging", "other", "other"]
        fixture.hanging.set()
        await fixture.clients.look()
        await fixture.clients.look()
        assert fixture.renewed.count("hanging") == 2
        await fixture.clients.stop()

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


class Connected:
    """The Telemetry stream of a client."""

    def send(self, command: dict[str, Any]) -> None:
        raise AssertionError("nothing is sent")


def test_a_client_that_was_idle_is_looked_after_again() -> None:
    async def check() -> None:
        fixture = Fixture()
        client = fixture.clients.of(caller("a"))
        client.telemetry = Connected()
        for _ in range(2):
            fixture.clock.advance(IDLE_MS)
            await fixture.clients.look()
        assert (fixture.left, len(fixture.clients)) == ([], 1)
        now_ms = fixture.clock.now_ms()  # a long pop has ended
        client.renewals.add("group", "topic", "receipt", now_ms + 1_000, now_ms)
        fixture.clients.watch(client)
        await fixture.clients.look()
        assert fixture.renewed == ["a"]
        client.renewals.drop("group", "receipt")
        await fixture.clients.look()
        client.telemetry = None  # its stream has ended
        fixture.clients.watch(client)
        await fixture.clients.look()
        await fixture.clients.look()
        assert len(fixture.clients) == 0

    asyncio.run(check())


@dataclass(eq=False)
class Connection:
    """The connection of a delivery."""

    is_closed: bool = False


def test_a_message_that_may_be_lost_with_its_connection_is_not_renewed() -> None:
    renewals = Renewals()
    broken, other = Connection(), Connection()
    for name, connection, now_ms in (
        ("arrived", broken, 0),
        ("perhaps lost", broken, ARRIVAL_MS),
        ("elsewhere", other, ARRIVAL_MS),
    ):
        renewals.add("group", "topic", name, now_ms + 60_000, now_ms, connection)
    renewals.leave_lost(ARRIVAL_MS + 1)
    broken.is_closed = True
    renewals.leave_lost(ARRIVAL_MS + 2)
    assert [held.receipt for held, _ in renewals.due(60_000)] == ["arrived", "elsewhere"]
    assert [entry[1] for entry in renewals.dump()] == ["arrived", "elsewhere"]
    assert len(renewals) == 3  # it is given back when the client is gone
    renewals.due(60_000 + ARRIVAL_MS)
    assert [held.receipt for held in renewals.take_all()] == ["arrived", "elsewhere"]


def test_renewals_are_bounded_as_in_java() -> None:
    renewals = Renewals()
    renewals.add("group", "topic", "receipt", 60_000, 0)
    (held, _), *_ = renewals.due(LONGEST_MS, LONGEST_MS)
    renewals.renewed(held, "receipt", LONGEST_MS + 60_000)
    assert renewals.due(LONGEST_MS + 60_001) == []
    assert len(renewals) == 0
