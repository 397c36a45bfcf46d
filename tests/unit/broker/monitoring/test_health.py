"""Failures that turn /health red, and warnings (known-bugs.md#silent-threads)."""

import asyncio
from pathlib import Path

import pytest

import world
from reput.broker.monitoring.current_meter import CurrentMeter
from reput.broker.monitoring.health import SILENT_MS_MAX, judge_loops
from reput.broker.replication.state import SlaveState
from reput.broker.server import Broker
from reput.errors import WriteFailed
from reput.format import bodies
from reput.format.codes import RequestCode
from reput.remoting.metrics_server import Family
from reput.store.config import BrokerRole
from world import Subject, until

NO_FILE = "commitlog: cannot create: a test"
OF_JAVA = "create mapped file failed, server is busy or broken"
TURNED = dict.fromkeys(SILENT_MS_MAX, 1_000_000)


def test_turning_loops_are_healthy() -> None:
    assert judge_loops(TURNED, {}, 0, 1_000_000) == []
    latest = {name: 1_000_000 - limit_ms for name, limit_ms in SILENT_MS_MAX.items()}
    assert judge_loops(latest, {}, 0, 1_000_000) == []


@pytest.mark.parametrize("name", sorted(SILENT_MS_MAX))
def test_a_loop_without_a_turn_for_too_long_is_named(name: str) -> None:
    now_ms = 1_000_000 + SILENT_MS_MAX[name] + 1
    turned = dict.fromkeys(SILENT_MS_MAX, now_ms) | {name: 1_000_000}
    text = f"loop {name} has not turned for {SILENT_MS_MAX[name] + 1} ms"
    assert judge_loops(turned, {}, 0, now_ms) == [text]
    del turned[name]  # it has never turned
    assert judge_loops(turned, {}, 1_000_000, now_ms) == [text]
    assert judge_loops(turned, {}, 1_000_001, now_ms) == []


def test_a_loop_that_failed_is_named_once_with_its_error() -> None:
    problems = judge_loops(TURNED, {"store": "ValueError: no"}, 0, 10_000_000 - 1)
    assert problems[0] == "loop store failed: ValueError: no"
    assert sum("store" in problem for problem in problems) == 1


async def test_a_new_broker_is_healthy(subject: Subject) -> None:
    health = world.health_of(subject.broker)
    assert health.is_well
    assert health.warnings == (
        "this broker is not registered with name servers: namesrvAddr is empty",
    )
    assert health.describe()["status"] == "ok"
    assert health.describe()["address"] == subject.address


async def test_a_loop_that_fails_turns_it_red_until_it_turns_again(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = subject.broker
    has_failed = asyncio.Event()

    def expire() -> None:
        has_failed.set()
        raise LookupError("no such thing")

    with monkeypatch.context() as patch:
        patch.setattr(broker.loops, "expire_held", expire)
        await has_failed.wait()
        await until(lambda: broker.loops.failures)
        health = world.health_of(broker)
        assert health.problems == ("loop holds failed: LookupError: no such thing",)
        assert health.describe()["status"] == "failing"
    assert "loop holds failed" in caplog.text
    await until(lambda: not broker.loops.failures)  # the loop is restarted
    assert world.health_of(broker).is_well


async def test_a_disk_that_failed_turns_it_red(subject: Subject) -> None:
    broker = subject.broker
    broker.store.flusher.failure = WriteFailed("/x", "Input/output error")
    try:
        health = world.health_of(broker)
        (problem,) = health.problems
        assert problem.startswith("the disk failed: ")
        assert "Input/output error" in problem
    finally:
        broker.store.flusher.failure = None


@pytest.mark.parametrize("number", [0, 1], ids=["first file", "later file"])
async def test_a_log_file_that_cannot_be_created_turns_it_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    sizes = {"mapped_file_size_commit_log": 1 << 20, "max_message_size": 600_000}
    async with world.broker(tmp_path, store=sizes) as subject:
        broker = subject.broker
        for _ in range(number):
            assert (await subject.send("T", bytes(500_000))).code == 0
        files = broker.store.log.files
        with monkeypatch.context() as patch:
            patch.setattr(files, "_make_in", refuse)
            files.drop_prepared()
            assert await is_writable(broker)
            reply = await subject.send("T", bytes(500_000 + number))
            reply = await subject.send("T", bytes(600_000)) if reply.code == 0 else reply
            assert (reply.code, reply.remark) == (1, f"{OF_JAVA}: {NO_FILE}")
            problem = world.health_of(broker).problems[0]
            assert problem == f"no messages are accepted: {NO_FILE}"
            assert not await is_writable(broker)
        await until(lambda: world.health_of(broker).is_well)  # the disk loop creates it
        assert await is_writable(broker)
        assert (await subject.send("T", b"x")).code == 0


def refuse(*_: object, **__: object) -> None:
    raise WriteFailed("commitlog", "cannot create: a test")


async def is_writable(broker: Broker) -> bool:
    for family in await world.meter(broker).measure():
        if family.name == "reput_store_writable":
            assert isinstance(family, Family)
            return bool(family.values[()])
    raise AssertionError("no such metric")


async def test_a_name_server_that_does_not_answer_is_a_warning(tmp_path: Path) -> None:
    async with world.broker(tmp_path, namesrv_addr="127.0.0.1:1") as subject:
        await subject.parts.registration.register()
        health = world.health_of(subject.broker)
    assert health.is_well
    (warning,) = health.warnings
    assert warning.startswith("this broker is not registered with name server 127.0.0.1:1: ")


async def test_a_missing_file_is_reported_on_a_slave_too(tmp_path: Path) -> None:
    """A slave refuses messages anyway, so no refusal names the file."""
    async with world.broker(tmp_path) as subject:
        await subject.send("Orders", b"x")
    slave = {"broker_role": BrokerRole.SLAVE}
    async with world.broker(tmp_path, broker_id=1, store=slave) as subject:
        broker = subject.broker
        last = broker.store.log.files.last
        assert last is not None
        text = f"{last.path} was deleted while the store is open"
        broker.store.watch.problems[last.path] = broker.store.watch.refusal = text
        broker.store.step_memory()
        try:
            assert broker.store.refusal == text
            assert world.health_of(broker).problems == (text,)
        finally:
            broker.store.watch.refusal = ""
            broker.store.watch.problems.clear()


async def test_a_slave_that_refuses_to_follow_is_unhealthy(tmp_path: Path) -> None:
    slave = {"broker_role": BrokerRole.SLAVE}
    async with world.broker(tmp_path, broker_id=1, store=slave) as subject:
        status = subject.parts.replication.follower.status
        health = world.health_of(subject.broker)
        assert health.is_well
        assert any("this slave has no master" in text for text in health.warnings)
        await subject.parts.replication.follower.stop()  # it would search again
        status.state, status.reason = SlaveState.DIVERGED, "the records at 118 differ"
        status.master_max_offset = 300
        health = world.health_of(subject.broker)
        assert health.problems == (
            "this slave does not follow its master, diverged: the records at 118 differ",
        )
        assert health.details["replication"]["lag_bytes"] == 300
        reply = await subject.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = bodies.decode(bodies.KvTable, reply.body).table
        assert (table["brokerRole"], table["slaveState"]) == ("SLAVE", "diverged")
        assert (table["slaveReason"], table["slaveLagBytes"]) == (status.reason, "300")


async def test_a_master_that_lacks_slaves_has_a_warning(tmp_path: Path) -> None:
    config = {"broker_role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 3}
    async with world.broker(tmp_path, store=config) as subject:
        health = world.health_of(subject.broker)
        assert health.is_well
        assert any("0 slaves are in sync, and sends" in text for text in health.warnings)
        assert health.details["replication"]["slaves_needed"] == 2


async def test_a_permanent_licence_to_be_a_second_master_is_a_warning(tmp_path: Path) -> None:
    async with world.broker(tmp_path, store={"ha_force_master": True}) as subject:
        health = world.health_of(subject.broker)
        assert any("haForceMaster is set" in text for text in health.warnings)


async def test_health_and_metrics_follow_a_change_of_the_role(tmp_path: Path) -> None:
    async with world.broker(tmp_path) as subject:
        broker = subject.broker
        meter = CurrentMeter(broker)
        await broker.change_role(BrokerRole.SLAVE, 1)
        health = await meter.check_health()
        assert health.details["replication"]["role"] == "SLAVE"
        roles = next(metric for metric in await meter.measure() if metric.name == "reput_role")
        assert isinstance(roles, Family)
        assert {label for (label,), value in roles.values.items() if value} == {"SLAVE"}
