"""Long work runs in time slices, between which other callbacks run."""

import asyncio
from collections.abc import Generator

import pytest

from reput.remoting.fair_order import FairOrder
from reput.remoting.time_slices import TimeSlices, advance, run_whole

AT_ONCE = 0.0
"""A slice that is over after the first step."""


def counting(log: list[str], name: str, count: int) -> Generator[None, None, str]:
    for number in range(count):
        log.append(f"{name}{number}")
        yield
    return name


def test_a_generator_runs_until_the_deadline() -> None:
    log: list[str] = []
    work = counting(log, "a", 3)
    assert advance(work, deadline=AT_ONCE) == (False, None)
    assert log == ["a0"]
    assert advance(work, deadline=float("inf")) == (True, "a")
    assert log == ["a0", "a1", "a2"]


def test_a_generator_runs_to_its_end() -> None:
    log: list[str] = []
    assert run_whole(counting(log, "a", 3)) == "a"
    assert len(log) == 3


def stepping(log: list[str], name: str, count: int) -> Generator[None, None, None]:
    yield from counting(log, name, count)


class Clock:
    """A clock that work moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_long_work_runs_in_slices() -> None:
    log: list[str] = []
    slices = TimeSlices(AT_ONCE, Clock())
    slices.run(stepping(log, "a", 4))
    slices.run(stepping(log, "b", 4))
    assert log == ["a0"]  # One slice at once, which both generators share.
    turns = 0
    while len(slices):
        await asyncio.sleep(0)
        turns += 1
        log.append("|")
    assert [word for word in log if word != "|"] == [
        "a0", "a1", "b0", "a2", "b1", "a3", "b2", "b3",
    ]  # fmt: skip
    assert turns >= 8  # One slice a turn: other callbacks had their turn in between.


async def test_addresses_take_turns() -> None:
    """Three hundred requests of one client delayed each request of others by 300 slices."""
    log: list[str] = []
    slices = TimeSlices(AT_ONCE, Clock())

    def add(name: str, count: int, address: str) -> None:
        work = stepping(log, name, count)
        slices.add(lambda deadline: not advance(work, deadline)[0], address)

    for name in "abc":
        add(name, 2, "10.0.0.1")
    add("x", 2, "10.0.0.2")
    while len(slices):
        await asyncio.sleep(0)
    assert log == ["a0", "x0", "b0", "x1", "c0", "a1", "b1", "c1"]


@pytest.mark.parametrize("stolen_s", [0.0, 100.0], ids=["alone", "beside other processes"])
async def test_the_connection_of_an_address_that_has_used_the_least_is_next(
    stolen_s: float,
) -> None:
    """Short reads waited for a slice of each busy connection of their address, 0.9 s."""
    clock = Clock()
    stolen_sum_s = 0.0
    slices = TimeSlices(1.0, clock, lambda: clock.now_s - stolen_sum_s)
    log: list[str] = []

    def busy(name: str) -> None:
        def step(deadline: float) -> bool:
            log.append(name)
            clock.now_s = deadline
            if name < "d":
                slices.add(step, "one", name)  # the rest, as a channel does
                return False
            return True

        slices.add(step, "one", name)

    def short(deadline: float) -> bool:
        nonlocal stolen_sum_s
        log.append("short")
        clock.now_s += 0.01 + stolen_s
        stolen_sum_s += stolen_s
        return False

    for name in "abcdef":
        busy(name)
    for number in range(60):
        if number % 3 == 0:
            slices.add(short, "one", "short")
        await asyncio.sleep(0)
    places = [place for place, name in enumerate(log) if name == "short"]
    assert len(places) == 20
    counts = {name: log.count(name) for name in "abcdef"}
    assert max(counts.values()) - min(counts.values()) <= 1
    slices.add(short, "one", "short")
    before = len(log)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "short" in log[before:]


def test_the_memory_of_who_used_time_is_bounded() -> None:
    order = FairOrder()
    for number in range(10_000):
        order.serve(number)
        order.charge(number, 0.5)
        if number % 10 == 0:
            order.charge("busy", 10.0)
    assert len(order) <= 512
    assert order.place("busy") > order.place("new")


def test_new_keys_do_not_delay_a_busy_one_for_ever() -> None:
    order = FairOrder()
    order.serve("busy")
    order.charge("busy", 1.0)
    place = order.place("busy")
    count = 0
    while order.place(f"new{count}") < place:
        order.serve(f"new{count}")
        order.charge(f"new{count}", 1.0)
        count += 1
    assert 1 <= count <= 200


async def test_work_of_one_turn_shares_a_slice() -> None:
    log: list[str] = []
    slices = TimeSlices(3600)
    for name in "abc":
        slices.run(stepping(log, name, 2))
    assert log == ["a0", "a1", "b0", "b1", "c0", "c1"]  # No slice is over: all work runs at once.
    slices.slice_s = AT_ONCE
    await asyncio.sleep(0)
    for name in "de":
        slices.run(stepping(log, name, 1))
    assert log[6:] == ["d0"]
    await asyncio.sleep(0)
    slices.run(stepping(log, "f", 1))  # Another turn.
    assert "f0" in log


async def test_short_work_shares_the_slice_of_a_turn() -> None:
    """Each of 20 connections with a short rest waited for a separate turn, of up to 20 ms."""
    log: list[str] = []
    slices = TimeSlices(3600)
    for name in "abc":
        work = stepping(log, name, 1)
        slices.add(lambda deadline, work=work: not advance(work, deadline)[0], name)  # type: ignore[misc]
    await asyncio.sleep(0)
    assert log == ["a0", "b0", "c0"]
    assert len(slices) == 0


async def test_work_that_fails_does_not_stop_the_others() -> None:
    log: list[str] = []
    problems: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: problems.append(context["exception"]))
    slices = TimeSlices(AT_ONCE)

    def broken(deadline: float) -> bool:
        raise ArithmeticError("a bug")

    slices.add(broken)
    slices.run(stepping(log, "a", 2))
    while len(slices):
        await asyncio.sleep(0)
    assert log == ["a0", "a1"]
    assert [type(problem) for problem in problems] == [ArithmeticError]


def test_an_exception_is_passed_on() -> None:
    def broken() -> Generator[None, None, None]:
        yield
        raise ArithmeticError("a bug")

    with pytest.raises(ArithmeticError):
        advance(broken(), float("inf"))
