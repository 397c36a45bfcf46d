"""Copies of tables that masters have from 5.0 on, and of a master that lacks some of its tables."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import world
from reput.broker.replication.master_requests import MasterRange, MasterRequests, Unanswered
from reput.broker.tables.saved_tables import SavedTables
from reput.clock import ManualClock
from reput.format import bodies, command, names, timer_check
from reput.format.bodies import KvTable
from reput.format.codes import RequestCode, ResponseCode
from reput.format.timer_check import TimerCheck
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.pop_tables import POP, PULL, RequestMode
from reput.store.tables.timer_table import TimerProgress
from scripted_cluster import ScriptedServer
from world import Subject

NOW_MS = 1_700_000_000_000
NEWER = {"timerReadBehind": "0"}
TOPICS = b'{"topicConfigTable":{"T":{"topicName":"T","perm":6}},"dataVersion":{"counter":1}}'
GROUPS = b'{"subscriptionGroupTable":{"g":{"groupName":"g"}},"dataVersion":{"counter":1}}'
OFFSETS = b'{"offsetTable":{"T@g":{"0":5}}}'
DELAYS = b'{"offsetTable":{"1":4}}'
CHECK = TimerCheck(NOW_MS - 1000, 52, 7, 7, 1, NOW_MS, 30)


@pytest_asyncio.fixture
async def slave(tmp_path: Path) -> AsyncIterator[Subject]:
    async with world.slave(tmp_path / "slave", clock=ManualClock(NOW_MS)) as running:
        yield running


class ScriptedMaster(ScriptedServer):
    """A master with an empty log; the test decides its tables."""

    def __init__(self, runtime_info: dict[str, str]) -> None:
        super().__init__()
        ends = {"commitLogMinOffset": "0", "commitLogMaxOffset": "0"}
        info = bodies.encode(KvTable(table=ends | runtime_info))
        self.answer(RequestCode.GET_BROKER_RUNTIME_INFO, info)
        self.answer(RequestCode.GET_ALL_TOPIC_CONFIG, TOPICS)
        self.answer(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GROUPS)
        self.answer(RequestCode.GET_ALL_CONSUMER_OFFSET, OFFSETS)
        self.answer(RequestCode.GET_ALL_DELAY_OFFSET, DELAYS)

    def answer(self, code: RequestCode, body: bytes) -> None:
        self.answers[code] = lambda request: command.reply(request, body=body)

    def refuse(self, code: RequestCode, response: ResponseCode = ResponseCode.SYSTEM_ERROR) -> None:
        self.answers[code] = lambda request: command.reply(request, response, "no")

    async def __aenter__(self) -> "ScriptedMaster":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


async def copy(slave: Subject, address: str) -> None:
    metadata = slave.parts.replication.metadata
    await metadata.copy(MasterRequests(slave.client, address))


def modes_of(subject: Subject) -> set[RequestMode]:
    return set(subject.parts.request_modes.table.all())


def assert_others_are_copied(slave: Subject) -> None:
    """Return whether the tables that all masters have are there."""
    assert slave.parts.topics.get("T") is not None
    assert slave.parts.subscription_groups.get("g") is not None
    assert slave.parts.deliveries.consumer_offsets.get("T", "g", 0) == 5
    assert slave.parts.delayed.table.get(1) == 4


async def test_a_master_of_reput(slave: Subject, tmp_path: Path) -> None:
    async with world.broker(tmp_path / "master", clock=ManualClock(NOW_MS)) as master:
        theirs = master.parts
        theirs.topics.put(TopicConfig("T", 1, 1, 6), NOW_MS)
        table = theirs.request_modes.table
        table.put(RequestMode("T", "g", POP, 2))
        table.put(RequestMode("U", "g", PULL))
        slave.parts.request_modes.table.put(RequestMode("V", "old", POP))
        await copy(slave, master.address)
        assert modes_of(slave) == {RequestMode("T", "g", POP, 2), RequestMode("U", "g", PULL)}
        assert slave.parts.request_modes.table.count == 2
        expected = theirs.timers.progress(NOW_MS)
        assert expected == TimerProgress(NOW_MS - 999)
        assert slave.parts.timers.table.progress == expected

        table.delete(topic="T")
        changes = slave.parts.request_modes.table.change_count
        await copy(slave, master.address)
        await copy(slave, master.address)
        assert modes_of(slave) == {RequestMode("U", "g", PULL)}
        assert slave.parts.request_modes.table.change_count == changes + 1


async def test_a_master_of_5(slave: Subject) -> None:
    modes = b'{"messageRequestModeMap":{"T":{"g":{"consumerGroup":"g","mode":"POP",'
    modes += b'"popShareQueueNum":-1,"topic":"T"}}}}'
    async with ScriptedMaster(NEWER) as master:
        master.answer(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, modes)
        master.answer(RequestCode.GET_TIMER_CHECK_POINT, timer_check.encode(CHECK))
        await copy(slave, master.address)
    assert_others_are_copied(slave)
    assert modes_of(slave) == {RequestMode("T", "g", POP, -1)}
    assert slave.parts.timers.table.progress == TimerProgress(NOW_MS - 1000, 0, 7, 0)


async def test_a_master_of_4_is_not_asked(slave: Subject) -> None:
    """4.5 would not even answer."""
    table = slave.parts.request_modes.table
    table.put(RequestMode("T", "g", POP))
    async with ScriptedMaster({}) as master:
        await copy(slave, master.address)
        newer = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, RequestCode.GET_TIMER_CHECK_POINT
        assert not master.asked(*newer)
    assert_others_are_copied(slave)
    assert modes_of(slave) == {RequestMode("T", "g", POP)}
    assert slave.parts.timers.table.progress is None


@pytest.mark.parametrize(
    "code", [ResponseCode.SYSTEM_ERROR, ResponseCode.REQUEST_CODE_NOT_SUPPORTED]
)
async def test_a_master_without_a_timer(slave: Subject, code: ResponseCode) -> None:
    async with ScriptedMaster(NEWER) as master:
        master.refuse(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, code)
        master.refuse(RequestCode.GET_TIMER_CHECK_POINT, code)
        await copy(slave, master.address)
    assert_others_are_copied(slave)
    assert slave.parts.timers.table.progress is None


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.GET_TIMER_CHECK_POINT, b"short"),
        (RequestCode.GET_TIMER_CHECK_POINT, timer_check.encode(CHECK._replace(queue_offset=-1))),
        (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, b"[]"),
        (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, b'{"messageRequestModeMap":{"T":5}}'),
        (
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
            b'{"messageRequestModeMap":{"T":{"g":{"popShareQueueNum":"x"}}}}',
        ),
    ],
)
async def test_a_bad_table_does_not_stop_the_others(
    slave: Subject, code: RequestCode, body: bytes
) -> None:
    async with ScriptedMaster(NEWER) as master:
        master.refuse(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        master.refuse(RequestCode.GET_TIMER_CHECK_POINT)
        master.answer(code, body)
        with pytest.raises(Unanswered, match=f"{master.address} answers for"):
            await copy(slave, master.address)
    assert_others_are_copied(slave)
    assert modes_of(slave) == set()
    assert slave.parts.timers.table.progress is None


async def test_topics_that_cannot_be_saved_do_not_stop_the_other_tables(
    slave: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> bool:
        return False

    monkeypatch.setattr(SavedTables, "save", fails)
    async with ScriptedMaster({}) as master:
        with pytest.raises(Unanswered, match="cannot be saved now; the topics are copied again"):
            await copy(slave, master.address)
    assert_others_are_copied(slave)


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
    ],
)
async def test_a_refused_table_does_not_stop_the_others(slave: Subject, code: RequestCode) -> None:
    async with ScriptedMaster({}) as master:
        master.refuse(code)
        with pytest.raises(Unanswered, match=r"refuses \w+: code 1 no"):
            await copy(slave, master.address)
    parts = slave.parts
    copied = {
        RequestCode.GET_ALL_TOPIC_CONFIG: parts.topics.get("T") is not None,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: parts.subscription_groups.get("g")
        is not None,
        RequestCode.GET_ALL_CONSUMER_OFFSET: parts.deliveries.consumer_offsets.get("T", "g", 0)
        == 5,
        RequestCode.GET_ALL_DELAY_OFFSET: parts.delayed.table.get(1) == 4,
    }
    assert [number for number, is_there in copied.items() if not is_there] == [code]


async def test_the_progress_of_brokers_is_always_the_masters(slave: Subject) -> None:
    """A larger one is from a time as master, of messages that may have been cut from the log."""
    table = slave.parts.deliveries.consumer_offsets
    table.put("revive", names.REVIVE_GROUP, 0, 9)
    table.put("T", "g", 0, 9)
    body = b'{"offsetTable":{"revive@%s":{"0":4},"T@g":{"0":4}}}' % names.REVIVE_GROUP.encode()
    async with ScriptedMaster({}) as master:
        master.answer(RequestCode.GET_ALL_CONSUMER_OFFSET, body)
        await copy(slave, master.address)
    assert table.get("revive", names.REVIVE_GROUP, 0) == 4
    assert table.get("T", "g", 0) == 9


async def test_a_master_of_4_without_files(slave: Subject) -> None:
    """Its log begins at -1 then, where no log can begin."""
    async with ScriptedMaster({"commitLogMinOffset": "-1"}) as master:
        requests = MasterRequests(slave.client, master.address)
        assert await requests.log_range() == MasterRange(0, 0)


async def test_a_slave_answers_with_the_progress_of_its_master(slave: Subject) -> None:
    async with ScriptedMaster(NEWER) as master:
        master.answer(RequestCode.GET_TIMER_CHECK_POINT, timer_check.encode(CHECK))
        with contextlib.suppress(Unanswered):
            await copy(slave, master.address)
    reply = await slave.ask(RequestCode.GET_TIMER_CHECK_POINT)
    assert timer_check.decode(reply.body) == TimerCheck(NOW_MS - 1000, 0, 7, 7)
