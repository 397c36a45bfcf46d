"""Held requests: their limits, deadlines, and connections that do not read their replies."""

import asyncio
from typing import Any

from reput.broker.held_requests import HeldRequests
from reput.format.command import Command
from reput.remoting.time_slices import Steps, TimeSlices, run_whole


class Connection:
    """A connection that may have unread replies."""

    def __init__(self, address: str = "192.0.2.1") -> None:
        self.address = address
        self.takes_notices = True

    def answer(self, request: Command, reply: Command) -> None:
        """Take a reply."""


class Held:
    """A request for a queue, by a group."""

    key: object = None

    def __init__(
        self, channel: Connection, deadline_ms: int = 1000, *, queue_id: int = 0, group: str = "G"
    ) -> None:
        self.channel = channel
        self.places = ("T", queue_id), ("T", group)
        self.bytes_about = 10
        self.deadline_ms = deadline_ms
        self.is_over = False
        self.request = Command(0)
        self.server: Server | None = None

    def retry(self, *, is_last: bool) -> Command | None:
        """Let the server return a reply, or none."""
        assert self.server is not None
        return self.server.serve(self, is_last=is_last)


class Server:
    """A handler of held requests that records each, and answers them or not."""

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.served: list[Held] = []
        self.expired: list[Held] = []
        self.has_served = asyncio.Event()

    def serve(self, held: Held, *, is_last: bool) -> Command | None:
        """Record a request; return a reply if it gets one."""
        (self.expired if is_last else self.served).append(held)
        self.has_served.set()
        return Command(0) if self.answers or is_last else None

    @property
    def channels(self) -> list[Connection]:
        """Connections of the served requests, in order."""
        return [held.channel for held in self.served]

    @property
    def queue_ids(self) -> list[int]:
        """Queue ids of the served requests, in order."""
        return [held.places[0][1] for held in self.served]


class ServedRequests(HeldRequests[Any]):
    """Held requests that a server of the test answers."""

    def __init__(self, server: Server, **more: Any) -> None:
        super().__init__(100, **more)
        self._server = server

    def hold(self, held: Held) -> bool:
        """Hold a request for the server."""
        held.server = self._server
        return super().hold(held)


def requests(server: Server | None = None, **more: Any) -> HeldRequests[Any]:
    return ServedRequests(server or Server(), **more)


def test_a_connection_and_an_address_have_limits() -> None:
    held = requests(per_connection_max=2, per_address_max=3)
    first, second, other = Connection(), Connection(), Connection("192.0.2.2")
    assert [held.hold(Held(first)) for _ in range(3)] == [True, True, False]
    assert [held.hold(Held(second)) for _ in range(2)] == [True, False]
    assert held.hold(Held(other))
    held.forget(first)
    assert [held.hold(Held(second)) for _ in range(2)] == [True, False]
    assert len(held) == 3


def test_an_answered_request_makes_room() -> None:
    serve = Server()
    held = requests(serve, per_connection_max=1, per_address_max=1)
    channel = Connection()
    for _ in range(3):
        assert held.hold(Held(channel))
        held.wake("T", 0)
    assert len(held) == 0
    assert held.hold(Held(channel, deadline_ms=5))
    run_whole(held.expire(4))
    assert serve.expired == []
    run_whole(held.expire(5))
    assert len(serve.expired) == 1
    assert held.hold(Held(channel))


async def test_a_connection_that_does_not_read_gets_no_replies() -> None:
    serve = Server()
    held = requests(serve)
    reads, stuck = Connection(), Connection()
    stuck.takes_notices = False
    for number in range(10):
        held.hold(Held(stuck if number % 2 else reads))
    held.wake("T", 0)
    assert serve.channels == [reads] * 5
    assert len(held) == 5
    run_whole(held.retry_unread())
    assert len(held) == 5
    stuck.takes_notices = True
    run_whole(held.retry_unread())
    assert serve.channels[5:] == [stuck] * 5
    assert len(held) == 0


async def test_a_connection_that_reads_late_is_answered_soon_and_once() -> None:
    serve = Server()
    held = requests(serve)
    channel = Connection()
    channel.takes_notices = False
    held.hold(Held(channel))
    for _ in range(3):
        held.wake("T", 0)
    channel.takes_notices = True
    await asyncio.wait_for(serve.has_served.wait(), 5)
    assert len(serve.served) == 1
    assert len(held) == 0


async def test_unread_requests_end_at_their_deadline_without_a_reply() -> None:
    serve = Server()
    held = requests(serve)
    channel = Connection()
    channel.takes_notices = False
    held.hold(Held(channel, deadline_ms=10))
    held.wake("T", 0)
    run_whole(held.expire(10))
    assert serve.expired == []  # it gets no reply
    assert len(held) == 0
    held.hold(Held(channel, deadline_ms=20))  # no message arrived for this request
    run_whole(held.expire(20))
    assert len(serve.expired) == 1
    held.forget(channel)
    assert len(held) == 0


def test_all_requests_are_answered_at_the_end() -> None:
    serve = Server(answers=False)
    held = requests(serve)
    first, second = Connection(), Connection()
    wanted = [Held(first), Held(second, queue_id=3), Held(first, queue_id=1)]
    for request in wanted:
        held.hold(request)
    held.answer_all()
    assert serve.served == []
    assert {id(request) for request in serve.expired} == {id(request) for request in wanted}
    assert len(held) == 0


def test_memory_has_a_limit() -> None:
    held = requests(bytes_max=25)
    channel = Connection()
    assert [held.hold(Held(channel)) for _ in range(3)] == [True, True, False]
    held.wake("T", 0)
    assert [held.hold(Held(channel)) for _ in range(3)] == [True, True, False]


def test_requests_of_a_group_are_woken_at_any_queue() -> None:
    serve = Server()
    held = requests(serve)
    channel = Connection()
    for number in range(6):
        held.hold(Held(channel, queue_id=number, group="GH"[number % 2]))
    held.wake("T", "G")
    assert serve.queue_ids == [0, 2, 4]
    assert [len(held.held_at("T", number)) for number in range(6)] == [0, 1] * 3


def test_requests_with_the_key_of_an_unanswered_one_are_not_tried() -> None:
    serve = Server(answers=False)
    held = requests(serve)
    for number in range(6):
        request = Held(Connection())
        request.key = None if number == 5 else number % 2
        held.hold(request)
    held.wake("T", 0)
    assert [request.key for request in serve.served] == [0, 1, None]
    held.wake("T", 0)  # a message has arrived in between
    assert [request.key for request in serve.served[3:]] == [0, 1, None]
    serve.answers = True
    held.wake("T", 0)
    assert len(serve.served) == 6 + 6
    assert len(held) == 0


def test_many_wakes_of_a_waiting_place_are_one() -> None:
    """Each wake used to have a separate list of all waiting requests."""
    begun: list[Steps[None]] = []
    serve = Server(answers=False)
    held = requests(serve, run=begun.append)
    channel = Connection()
    for _ in range(50):
        held.hold(Held(channel))
    for _ in range(1000):
        held.wake("T", 0)
    (work,) = begun
    next(work)
    for _ in range(1000):
        held.wake("T", 0)
    assert len(begun) == 1
    run_whole(work)
    assert len(serve.served) == 2 * 50
    held.wake("T", 0)
    assert len(begun) == 2


def test_a_place_without_requests_is_skipped() -> None:
    begun: list[Steps[None]] = []
    serve = Server(answers=False)
    held = requests(serve, run=begun.append)
    stays, leaves = Connection(), Connection()
    held.hold(Held(stays))
    held.hold(Held(leaves, queue_id=1))
    for queue_id in (1, 0):
        held.wake("T", queue_id)
    held.forget(leaves)
    run_whole(begun[0])
    assert serve.channels == [stays]


async def test_many_queues_that_are_woken_in_one_turn_share_a_slice() -> None:
    slices = TimeSlices(0.0)  # done with the first step
    serve = Server()
    held = requests(serve, run=slices.run)
    channel = Connection()
    for queue_id in range(40):
        held.hold(Held(channel, queue_id=queue_id))
    for queue_id in range(40):
        held.wake("T", queue_id)
    assert serve.queue_ids == [0]
    while len(slices):
        before = len(serve.served)
        await asyncio.sleep(0)
        assert len(serve.served) <= before + 1
    assert serve.queue_ids == list(range(40))
