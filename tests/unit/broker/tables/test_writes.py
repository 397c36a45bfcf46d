"""Tables that requests change: written outside the loop, once for all waiting requests; limits."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import world
from reput.broker.tables.failures import WriteFailures
from reput.broker.tables.writes import TableWrites, write_table
from reput.broker.threads import WorkerThread
from reput.clock import ManualClock
from reput.errors import WriteFailed
from reput.format import bodies
from reput.format.bodies import TopicConfigData, TopicConfigList
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.store.config import FlushDiskType
from reput.store.files.disk import Disk
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.topics import TopicTable
from world import Subject, until

if TYPE_CHECKING:
    from reput.remoting.channel import Channel


def topic(name: str, queue_count: int = 1, **more: Any) -> TopicConfigData:
    settings = {
        "order": False, "perm": 6, "topic_filter_type": "SINGLE_TAG", "topic_sys_flag": 0,
        "topic_name": name, "read_queue_nums": queue_count, "write_queue_nums": queue_count,
    }  # fmt: skip
    return TopicConfigData(**{**settings, **more})


async def create_topics(subject: Subject, *topics: TopicConfigData) -> Command:
    body = bodies.encode(TopicConfigList(topic_config_list=list(topics)))
    return await subject.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)


async def create_groups(subject: Subject, *groups: dict[str, Any]) -> Command:
    body = json.dumps({"groupConfigList": groups}).encode()
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    return await subject.ask(code, body=body)


def table_writes() -> TableWrites:
    clock = ManualClock(0)
    return TableWrites(clock, WriteFailures(clock.monotonic_ms))


class Client:
    """A connection that keeps its replies."""

    def __init__(self) -> None:
        self.replies: list[Command] = []

    def answer(self, request: Command, reply: Command) -> None:
        self.replies.append(reply)


async def test_one_write_serves_all_waiting_requests(tmp_path: Path) -> None:
    table = TopicTable.load(str(tmp_path), Disk())
    writes = table_writes()
    waiting = []
    for number in range(100):
        table.put(TopicConfig(f"T{number}", 1, 1, 6), 0)
        waiting.append(writes.soon(table))
    await asyncio.gather(*waiting)
    assert writes.write_count == 1
    saved = json.loads((tmp_path / "config/topics.json").read_text())["topicConfigTable"]
    assert len(saved) == 100
    await writes.stop()


async def test_changes_during_a_write_are_written_as_well(tmp_path: Path) -> None:
    table = TopicTable.load(str(tmp_path), Disk())
    writes = table_writes()
    first = writes.soon(table)
    await until(lambda: writes.write_count)
    table.put(TopicConfig("Late", 1, 1, 6), 0)
    await asyncio.gather(first, writes.soon(table))
    assert writes.write_count == 2
    assert "Late" in (tmp_path / "config/topics.json").read_text()
    await writes.stop()


async def test_waiting_requests_get_the_failure(tmp_path: Path) -> None:
    table = TopicTable.load(str(tmp_path), Disk())
    (tmp_path / "config").write_text("no folder")
    writes = table_writes()
    with pytest.raises((WriteFailed, OSError)):
        await writes.soon(table)
    await writes.stop()


async def test_requests_waiting_for_a_cancelled_write_get_an_error(
    tmp_path: Path,
) -> None:
    table = TopicTable.load(str(tmp_path), Disk())
    writes, client = table_writes(), Client()
    writes.answer(cast("Channel", client), Command(RequestCode.UPDATE_AND_CREATE_TOPIC), table)
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await writes.stop()
    await asyncio.sleep(0)
    (reply,) = client.replies
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert (reply.remark or "").startswith("not written")


class PassingThread(WorkerThread):
    """A thread that calls a function before its next action."""

    def __init__(self, before: Callable[[], None]) -> None:
        super().__init__("passing")
        self.before: Callable[[], None] | None = before

    async def run(self, action: Callable[[], Any]) -> Any:
        before, self.before = self.before, None
        if before is not None:
            before()
        return await super().run(action)


async def test_a_write_overtaken_by_a_failed_one_is_retried(tmp_path: Path) -> None:
    class Failing(Disk):
        is_full = False

        def write(self, descriptor: int, path: str, position: int, data: Any) -> None:
            if self.is_full:
                raise WriteFailed(path, "full")
            super().write(descriptor, path, position, data)

    disk, clock = Failing(), ManualClock(0)
    table = TopicTable.load(str(tmp_path), disk)
    table.put(TopicConfig("T", 1, 1, 6), 0)

    def fail() -> None:
        disk.is_full = True
        with pytest.raises(WriteFailed):
            table.save(0, is_durable=False)
        disk.is_full = False

    failures = WriteFailures(clock.monotonic_ms)
    thread = PassingThread(fail)
    await write_table(table, thread, clock, failures, is_durable=True)
    assert table.is_saved
    assert "T" in (tmp_path / "config/topics.json").read_text()
    thread.stop()


async def test_a_failed_table_is_reported_until_it_is_written(
    tmp_path: Path,
) -> None:
    clock = ManualClock(0)
    table = TopicTable.load(str(tmp_path), Disk())
    failures = WriteFailures(clock.monotonic_ms)
    writes = TableWrites(clock, failures)
    (tmp_path / "config").write_text("no folder")
    with pytest.raises((WriteFailed, OSError)):
        await writes.soon(table)
    assert list(failures.current) == ["table config/topics.json"]
    (tmp_path / "config").unlink()
    thread = WorkerThread("writes")
    await write_table(table, thread, clock, failures, is_durable=True)
    thread.stop()
    assert not failures.current
    await writes.stop()


async def test_health_is_green_again_after_a_request_wrote_the_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop of all tables fails; then the write for waiting sends makes the table durable."""
    async with world.broker(
        tmp_path, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    ) as subject:
        parts, table = subject.broker.parts, subject.parts.topics.table
        with monkeypatch.context() as patch:

            def fail(*_: object, **__: object) -> None:
                raise WriteFailed(table.path, "full")

            patch.setattr(table, "write", fail)
            table.touch(0)
            assert not await parts.saved_tables.save(table)
        assert parts.write_failures.current
        assert (await subject.send("New")).code == ResponseCode.SUCCESS
        assert table.path not in str(parts.write_failures.current)


async def test_a_send_is_answered_when_topics_cannot_be_written_for_any_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.broker(tmp_path) as subject:
        table = subject.parts.topics.table
        with monkeypatch.context() as patch:

            def fail(*_: object, **__: object) -> None:
                raise ValueError("no text")

            patch.setattr(table, "write", fail)
            assert (await subject.send("New")).code == ResponseCode.SUCCESS
            (failure,) = subject.parts.write_failures.current.values()
            assert failure == "ValueError: no text"


async def test_topics_are_written_by_another_task_if_the_first_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.broker(tmp_path) as subject:
        broker = subject.broker
        known = broker.parts.topics.written
        calls = []

        def fail_once(made_count: int) -> None:
            calls.append(made_count)
            if len(calls) == 1:
                raise ValueError("a bug")
            known(made_count)

        monkeypatch.setattr(broker.parts.topics, "written", fail_once)
        assert (await subject.send("New")).code == ResponseCode.SUCCESS
        assert len(calls) >= 2
        await until(lambda: not broker.parts.write_failures.current)


@pytest.mark.parametrize("topic", ["T", "New"])
async def test_a_send_stored_during_a_stop_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """The send is read while the broker waits for the tables of other requests."""
    store = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with world.broker(tmp_path, store=store) as subject:
        broker = subject.broker
        await subject.send("T")
        stop = broker.parts.table_writes.stop
        sends: list[asyncio.Task[Command]] = []

        async def stop_slowly() -> None:
            count = broker.store.max_physical_offset
            sends.append(asyncio.create_task(subject.send(topic)))
            await until(lambda: broker.store.max_physical_offset != count)
            await stop()

        monkeypatch.setattr(broker.parts.table_writes, "stop", stop_slowly)
        async with asyncio.timeout(30):
            await broker.stop()

        async def has_stopped() -> None:
            pass

        monkeypatch.setattr(broker, "stop", has_stopped)
        (send,) = sends
        assert (await send).code == ResponseCode.SUCCESS
        saved = json.loads((tmp_path / "config/topics.json").read_text())["topicConfigTable"]
        assert topic in saved


async def test_requests_after_the_stop_get_an_error(tmp_path: Path) -> None:
    table = TopicTable.load(str(tmp_path), Disk())
    writes, client = table_writes(), Client()
    await writes.stop()
    writes.answer(cast("Channel", client), Command(RequestCode.UPDATE_AND_CREATE_TOPIC), table)
    await asyncio.sleep(0)
    (reply,) = client.replies
    assert (reply.remark or "").startswith("not written")


async def test_a_list_of_topics_is_one_write(subject: Subject) -> None:
    before = subject.parts.table_writes.write_count
    reply = await create_topics(subject, *(topic(f"N{number}") for number in range(2000)))
    assert reply.code == ResponseCode.SUCCESS
    assert subject.parts.table_writes.write_count == before + 1
    saved = json.loads((Path(subject.broker.store.root) / "config/topics.json").read_text())
    assert "N1999" in saved["topicConfigTable"]


async def test_a_list_of_groups_is_one_write(subject: Subject) -> None:
    before = subject.parts.table_writes.write_count
    reply = await create_groups(subject, *({"groupName": f"n{number}"} for number in range(2000)))
    assert reply.code == ResponseCode.SUCCESS
    assert subject.parts.table_writes.write_count == before + 1
    path = Path(subject.broker.store.root) / "config/subscriptionGroup.json"
    assert "n1999" in json.loads(path.read_text())["subscriptionGroupTable"]


async def test_large_settings_of_groups_are_refused(subject: Subject) -> None:
    for settings in (
        {"attributes": {"+priority.factor": "9" * 5000}},
        {"attributes": {"+lite.bind.topic": "x" * 2000}},
        {"attributes": {f"+{number}": "" for number in range(100)}},
        {"groupRetryPolicy": {"type": "CUSTOMIZED", "next": ["x" * 100_000]}},
        {"subscriptionDataSet": [{"topic": "x" * 100_000}]},
    ):
        body = json.dumps({"groupName": "g", **settings}).encode()
        reply = await subject.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert reply.code != ResponseCode.SUCCESS, str(settings)[:80]
        assert "Error:" not in (reply.remark or "")
        assert subject.parts.subscription_groups.get("g") is None


async def test_large_settings_of_topics_are_refused(subject: Subject) -> None:
    reply = await create_topics(subject, topic("New", attributes={"+reserve.time": "1" * 5000}))
    assert reply.code != ResponseCode.SUCCESS
    assert "Error:" not in (reply.remark or "")
    assert subject.parts.topics.get("New") is None
