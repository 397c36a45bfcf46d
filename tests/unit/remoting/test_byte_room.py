"""Room for messages: who waits, and who continues when bytes are given back."""

import asyncio

from reput.limits import Limit
from reput.remoting import limits
from reput.remoting.byte_room import ByteRoom


def limit(maximum: int) -> Limit:
    return limits.GRPC_WORKED_ON_BYTES.at(maximum)


class Rooms:
    """A room, and the connections that have taken some of it."""

    def __init__(self, in_all: int = 100, per_address: int = 50, per_connection: int = 20) -> None:
        self.room = ByteRoom(limit(in_all), limit(per_address), limit(per_connection))
        self.taken: list[str] = []

    def take(self, connection: str, address: str, count: int) -> "asyncio.Task[None]":
        async def taking() -> None:
            await self.room.take(connection, address, count)
            self.taken.append(connection)

        return asyncio.ensure_future(taking())


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_connection_an_address_and_all_together_have_maxima() -> None:
    rooms = Rooms()
    for connection, address, count in [
        ("a", "1", 20), ("a", "1", 1), ("b", "1", 20), ("c", "1", 31), ("d", "2", 20),
        ("e", "2", 20), ("f", "3", 20), ("g", "3", 1),
    ]:  # fmt: skip
        rooms.take(connection, address, count)
    await turn()
    assert rooms.taken == ["a", "d", "e", "f", "g"]  # b waits after the second one of a
    assert rooms.room.total_bytes == 81
    rooms.room.release("a", "1", 20)
    await turn()
    assert rooms.taken[5:] == ["a", "b"]
    rooms.room.release("b", "1", 20)
    await turn()
    assert rooms.taken[7:] == ["c"]


async def test_what_is_larger_than_the_maximum_comes_alone() -> None:
    rooms = Rooms()
    rooms.take("a", "1", 1_000)
    rooms.take("b", "2", 1)
    await turn()
    assert rooms.taken == ["a"]
    rooms.room.release("a", "1", 1_000)
    await turn()
    assert rooms.taken == ["a", "b"]


async def test_addresses_take_turns() -> None:
    rooms = Rooms(in_all=10)
    for number in range(100):
        rooms.take(f"many{number}", "1", 10)
    rooms.take("other", "2", 10)
    await turn()
    rooms.room.release("many0", "1", 10)
    await turn()
    rooms.room.release("many1", "1", 10)
    await turn()
    rooms.room.release("other", "2", 10)
    await turn()
    assert rooms.taken == ["many0", "many1", "other", "many2"]


async def test_bytes_that_are_added_keep_others_out() -> None:
    rooms = Rooms()
    rooms.room.add("a", "1", 60)
    rooms.take("b", "1", 1)
    await turn()
    assert rooms.taken == []
    rooms.room.release("a", "1", 11)
    await turn()
    assert rooms.taken == ["b"]


async def test_one_that_is_cancelled_keeps_nothing() -> None:
    rooms = Rooms(in_all=10)
    rooms.take("a", "1", 10)
    waiting = rooms.take("b", "1", 10)
    rooms.take("c", "1", 10)
    await turn()
    waiting.cancel()
    await turn()
    rooms.room.release("a", "1", 10)
    await turn()
    assert rooms.taken == ["a", "c"]
    admitted = rooms.take("d", "1", 10)
    await turn()
    rooms.room.release("c", "1", 10)
    admitted.cancel()  # after there was room, and before it continued
    await turn()
    assert rooms.room.total_bytes == 0
