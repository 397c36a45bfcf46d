"""Loops of the broker: failures are reported, and each loop turns when it has work."""

import asyncio
from pathlib import Path

import pytest

import world
from reput.store.config import BrokerRole
from world import Subject, until


async def test_a_failed_loop_is_reported_and_restarted(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = subject.broker.loops

    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("reput.broker.loops._RESTART_MS", 1)
    monkeypatch.setattr(subject.broker.loops, "expire_held", fail)
    await until(lambda: "holds" in loops.failures)
    assert loops.failures["holds"] == "RuntimeError: a bug"
    monkeypatch.undo()
    await until(lambda: not loops.failures)


async def test_dispatch_follows_the_commit_of_a_pool_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("BUSY_MS", "CALM_MS", "IDLE_MS"):
        monkeypatch.setattr(f"reput.broker.loops.{pause}", 3_600_000)
    pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
    async with world.broker(tmp_path, store=pool) as subject:
        broker = subject.broker
        async with asyncio.timeout(20):
            await until(lambda: {"store", "disk"} <= broker.loops.turns.keys())
            await subject.send("Orders", b"x")
            assert broker.store.log.readable_offset == 0
            await broker.loops.step_disk()
            await until(lambda: broker.store.max_offset("Orders", 0) != 0)


async def test_the_loop_of_delayed_messages_turns_on_a_slave_too(tmp_path: Path) -> None:
    """The loop has no work there, and must not count as dead."""
    store = {"broker_role": BrokerRole.SLAVE}
    async with world.broker(tmp_path, store=store, broker_id=1) as subject:
        await until(lambda: "delayed" in subject.broker.loops.turns)
        assert not subject.broker.loops.failures
