"""A measurement of many metrics lets other tasks of the loop run."""

import asyncio

import pytest

from reput.remoting.metrics_server import Turns

HOUR_S = 3_600.0


@pytest.mark.parametrize(("slice_s", "pauses"), [(0.0, True), (HOUR_S, False)])
async def test_others_get_their_turn_when_the_interval_has_passed(
    slice_s: float, pauses: bool
) -> None:
    ran = asyncio.Event()

    async def run() -> None:
        ran.set()

    turns = Turns(slice_s)
    task = asyncio.create_task(run())
    await turns.rest()
    assert ran.is_set() is pauses
    await task
