"""Loops of the broker: failures are reported, and each loop turns when it has work."""

import asyncio
from pathlib import Path

import pytest

import broker_subject
from broker_subject import Subject
from reput.store.config import BrokerRole


async def test_a_failed_loop_is_reported_and_restarted(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = subject.broker.loops

    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("reput.broker.loops._RESTART_MS", 1)
    monkeypatch.setattr(subject.broker.loops, "expire_held", fail)
    async with asyncio.timeout(20):
        while "holds" not in loops.failures:
            await asyncio.sleep(0.01)
    assert loops.failures["holds"] == "RuntimeError: a bug"
    monkeypatch.undo()
    async with asyncio.timeout(20):
        while loops.failures:
            await asyncio.sleep(0.01)


async def test_dispatch_follows_the_commit_of_a_pool_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("BUSY_MS", "CALM_MS", "IDLE_MS"):
        monkeypatch.setattr(f"reput.broker.loops.{pause}", 3_600_000)
    pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
    async with broker_subject.running(tmp_path, store=pool) as subject:
        broker = subject.broker
        async with asyncio.timeout(20):
            while not {"store", "disk"} <= broker.loops.turns.keys():
                await asyncio.sleep(0.01)
            await subject.send("Orders", b"x")
            assert broker.store.log.readable_offset == 0
            await broker.loops.step_disk()
            while broker.store.max_offset("Orders", 0) == 0:
                await asyncio.sleep(0.01)


async def test_the_loop_of_delayed_messages_turns_on_a_slave_too(tmp_path: Path) -> None:
    """The loop has no work there, and must not count as dead."""
    store = {"broker_role": BrokerRole.SLAVE}
    async with broker_subject.running(tmp_path, store=store, broker_id=1) as subject:
        async with asyncio.timeout(20):
            while "delayed" not in subject.broker.loops.turns:
                await asyncio.sleep(0.01)
        assert not subject.broker.loops.failures
