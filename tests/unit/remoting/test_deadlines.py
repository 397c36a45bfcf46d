"""Deadlines of connections: in the order of time, a limited number in a turn of the loop."""

import asyncio
from collections import Counter

from remoting_subject import both_loops
from reput.grpc import limits
from reput.remoting.deadlines import CUTS_MAX, Deadlines
from waiting import until

NOW = limits.HTTP2_PREFACE_MS.at(0)


@both_loops
async def test_other_work_runs_between_many_cuts() -> None:
    loop = asyncio.get_running_loop()
    turn = 0
    cuts: Counter[int] = Counter()

    def count_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count_turn)

    def cut(number: int) -> None:
        cuts[turn] += 1
        deadlines.remove(number)

    count_turn()
    deadlines: Deadlines[int] = Deadlines(NOW, cut)
    for number in range(CUTS_MAX * 5 // 2):
        deadlines.add(number)
    await until(lambda: not len(deadlines))
    assert list(cuts.values()) == [CUTS_MAX, CUTS_MAX, CUTS_MAX // 2]
