"""A slave that follows a master: a broker in this process, a master that the test scripts."""

import asyncio
import contextlib
import json
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import world
from reput.broker.replication import follower, metadata
from reput.broker.replication.state import SlaveState, SlaveStatus
from reput.broker.server import Broker
from reput.errors import DiskFull
from reput.format import command, headers
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import RegisterBrokerReplyHeader
from reput.store.config import BrokerRole, DivergedPolicy, DurableIn, FlushDiskType
from scripted_cluster import ScriptedServer
from scripted_master import FILE_SIZE, SIZES, ScriptedMaster
from world import NAME, Subject, until

DEADLINE_S = 20.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "RETRY_MS", 50)
    monkeypatch.setattr(follower, "DIVERGED_RETRY_MS", 50)


class NameServer(ScriptedServer):
    """A name server that has one master, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.master: ScriptedMaster | None = None
        self.answers = {
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: command.reply,
        }

    def _register(self, request: Command) -> Command:
        header = RegisterBrokerReplyHeader()
        if self.master is not None:
            header.master_addr = self.master.address
            header.ha_server_addr = self.master.ha_address
        return command.reply(request, ext_fields=headers.encode(header))


class Pair:
    """A name server, and a slave on a folder."""

    def __init__(self, names: NameServer, slave: Subject) -> None:
        self.names = names
        self.slave = slave

    @property
    def status(self) -> SlaveStatus:
        return self.slave.parts.replication.follower.status

    @property
    def log_end(self) -> int:
        return self.slave.broker.store.replica_log.end

    async def until_refused(self, state: SlaveState) -> str:
        await until(lambda: self.status.state is state)
        return self.status.reason


@contextlib.asynccontextmanager
async def running(
    root: Path, master: ScriptedMaster | None, *, names: NameServer | None = None, **store: Any
) -> AsyncIterator[Pair]:
    """Run a slave, with a deadline for the whole test."""
    names = names or NameServer()
    names.master = master
    await names.start()
    settings = {**SIZES, "broker_role": BrokerRole.SLAVE, **store}
    try:
        async with (
            asyncio.timeout(DEADLINE_S),
            world.broker(root, store=settings, broker_id=1, namesrv_addr=names.address) as slave,
        ):
            yield Pair(names, slave)
    finally:
        await names.stop()


def log_of(root: Path) -> bytes:
    """Return the log of a closed store, without the zeros at its end."""
    files = sorted((root / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


async def assert_equal(master: ScriptedMaster, pair: Pair) -> None:
    """Wait until the slave has everything; then log and queues are equal."""
    await master.until_reported(master.end)
    ours, theirs = pair.slave.broker.store, master.store
    await until(lambda: ours.dispatcher.dispatched_offset == ours.replica_log.end)
    assert ours.max_physical_offset == theirs.max_physical_offset
    assert ours.min_physical_offset == theirs.min_physical_offset
    for start in range(ours.min_physical_offset, ours.max_physical_offset, FILE_SIZE):
        size = min(FILE_SIZE, ours.max_physical_offset - start)
        assert ours.log.read(start, size) == theirs.log.read(start, size)
    assert len(ours.queues) == len(theirs.queues)
    for queue in theirs.queues:
        other = ours.queues.find(queue.topic, queue.queue_id)
        assert other is not None
        assert other.max_offset == queue.max_offset
        last = queue.max_offset - 1
        args = queue.topic, queue.queue_id, last
        assert ours.get(*args).records == theirs.get(*args).records


@pytest.mark.parametrize("has_expired", [False, True])
async def test_an_empty_slave_gets_all_files_of_its_master(
    tmp_path: Path, has_expired: bool
) -> None:
    async with ScriptedMaster(tmp_path / "master") as master:
        await master.put(160)
        if has_expired:
            master.expire_first_file()
        assert master.end - master.store.min_physical_offset > 2 * FILE_SIZE
        async with running(tmp_path / "slave", master) as pair:
            await assert_equal(master, pair)
            assert pair.status.state is SlaveState.FOLLOWING
            assert pair.status.master_address == master.address
            assert pair.status.master_ha_address == master.ha_address
            await master.put(60)
            await assert_equal(master, pair)
            assert pair.status.master_max_offset == master.end


async def test_an_empty_slave_begins_at_the_last_file_if_that_is_set(tmp_path: Path) -> None:
    async with ScriptedMaster(tmp_path / "master") as master:
        await master.put(120)
        async with running(tmp_path / "slave", master, sync_from_last_file=True) as pair:
            await master.until_reported(master.end)
            begin = pair.slave.broker.store.min_physical_offset
            assert begin == master.end // FILE_SIZE * FILE_SIZE
            assert master.sent_bytes == master.end - begin


async def test_an_empty_slave_of_an_empty_master_waits_for_its_first_message(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedMaster(tmp_path / "master") as master,
        running(tmp_path / "slave", master) as pair,
    ):
        await master.until_reported(0)
        await master.put(1)
        await assert_equal(master, pair)


@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.parametrize("ack_after", list(DurableIn))
async def test_a_restarted_slave_continues_where_it_ended(
    tmp_path: Path, flush: FlushDiskType, ack_after: DurableIn
) -> None:
    settings = {"flush_disk_type": flush, "ha_ack_after": ack_after}
    async with ScriptedMaster(tmp_path / "master") as master:
        await master.put(60)
        async with running(tmp_path / "slave", master, **settings) as pair:
            await assert_equal(master, pair)
        end, sent_bytes = master.end, master.sent_bytes
        await master.put(60)
        async with running(tmp_path / "slave", master, **settings) as pair:
            await assert_equal(master, pair)
        assert master.reports[-1][0] == end
        assert master.sent_bytes - sent_bytes == master.end - end
    assert log_of(tmp_path / "slave") == log_of(tmp_path / "master")


async def test_ack_after_disk_acknowledges_only_what_is_on_disk(tmp_path: Path) -> None:
    async with (
        ScriptedMaster(tmp_path / "master") as master,
        running(tmp_path / "slave", master, ha_ack_after=DurableIn.DISK) as pair,
    ):
        await master.until_reported(0)
        store = pair.slave.broker.store
        flush, seen = store.log.flush, []

        def counted_flush() -> int:
            seen.append(flush())
            return seen[-1]

        store.log.flush = counted_flush  # type: ignore[method-assign]
        for _ in range(20):
            await master.put(5)
            await master.until_reported(master.end)
            assert seen[-1] == master.end
        assert set(master.reports[-1]) <= {0, *seen}


TOPICS = RequestCode.GET_ALL_TOPIC_CONFIG


def topics_reply(request: Command, counter: int, **queue_counts: int) -> Command:
    """Return a reply with topics, as a master of RocketMQ has them."""
    table = {
        name: {"topicName": name, "readQueueNums": count, "writeQueueNums": count, "perm": 6}
        for name, count in queue_counts.items()
    }
    version = {"stateVersion": 0, "timestamp": 1, "counter": counter}
    text = json.dumps({"topicConfigTable": table, "dataVersion": version})
    return command.reply(request, body=text.encode())


class HeldTopics:
    """Answers for the topics of a master, which a test gives when it wants."""

    def __init__(self, master: ScriptedMaster, known: dict[str, int]) -> None:
        self.known = known
        self.counter = 1
        self.is_holding = False
        self._master = master
        self._held: list[Command] = []
        master.answers[TOPICS] = self._answer

    def _answer(self, request: Command) -> Command | None:
        if self.is_holding:
            self._held.append(request)
            return None
        return topics_reply(request, self.counter, **self.known)

    def release(self) -> None:
        self.is_holding = False
        for request in self._held:
            for channel in self._master.channels:
                channel.send(topics_reply(request, self.counter, **self.known))
        self._held.clear()


@pytest.mark.parametrize("ack_after", DurableIn)
async def test_a_record_is_acknowledged_once_its_topic_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ack_after: DurableIn
) -> None:
    monkeypatch.setattr(metadata, "INTERVAL_MS", 3_600_000)
    async with ScriptedMaster(tmp_path / "master") as master:
        topics = HeldTopics(master, {"T": 4})
        async with running(tmp_path / "slave", master, ha_ack_after=ack_after) as pair:
            await master.put(20)
            await master.until_reported(master.end)
            known_end = master.end
            await until(lambda: pair.status.state is SlaveState.FOLLOWING)
            asked = len(master.asked(TOPICS))
            await master.put(20)
            await master.until_reported(master.end)
            assert len(master.asked(TOPICS)) == asked  # each queue of a topic is looked up once
            known_end = master.end

            topics.is_holding = True
            await master.put(1, topic="New")
            await master.put(5)
            await master.until_asked(TOPICS, asked + 1)
            await until(lambda: pair.log_end == master.end)
            assert max(master.reports[-1]) == known_end
            topics.known["New"], topics.counter = 7, 2
            topics.release()
            await master.until_reported(master.end)
            new = pair.slave.parts.topics.get("New")
            assert new is not None
            assert new.read_queue_count == 7


async def test_a_queue_that_a_topic_got_is_asked_for(tmp_path: Path) -> None:
    async with ScriptedMaster(tmp_path / "master") as master:
        topics = HeldTopics(master, {"T": 1})
        async with running(tmp_path / "slave", master) as pair:
            await master.until_reported(0)
            topics.known["T"], topics.counter = 3, 2
            await master.put(20)
            await master.until_reported(master.end)
            wider = pair.slave.parts.topics.get("T")
            assert wider is not None
            assert wider.write_queue_count == 3


@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_topic_that_the_master_lacks_or_hides_delays_no_acknowledgement(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_refused: bool
) -> None:
    async with ScriptedMaster(tmp_path / "master") as master:
        topics = HeldTopics(master, {"Other": 1})
        async with running(tmp_path / "slave", master) as pair:
            await master.until_reported(0)
            if is_refused:
                master.answers[TOPICS] = lambda request: command.reply(
                    request, ResponseCode.NO_PERMISSION, "go away"
                )
            for _ in range(3):
                await master.put(5)
                await master.until_reported(master.end)
            assert pair.slave.parts.topics.get("T") is None
        problems = [text for text in caplog.messages if "although the topics are not" in text]
        assert len(problems) == is_refused
        assert all("go away" in problem for problem in problems)
    assert topics.counter == 1


async def test_a_slave_that_lost_its_connection_in_a_record_continues_there(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedMaster(tmp_path / "master") as master,
        running(tmp_path / "slave", master) as pair,
    ):
        await master.put(3, 200)
        await master.until_reported(master.end)
        # Large records are sent in several frames; some end inside of one.
        for _ in range(20):
            await master.put(2, FILE_SIZE // 4)
            await asyncio.sleep(0)
            master.drop_slaves()
        await assert_equal(master, pair)
        starts = [reports[0] for reports in master.reports]
        assert starts == sorted(starts)


async def test_a_slave_finds_its_master_again(tmp_path: Path) -> None:
    async with (
        ScriptedMaster(tmp_path / "master") as master,
        running(tmp_path / "slave", master) as pair,
    ):
        await master.put(10)
        await master.until_reported(master.end)
        await master.close_ha()
        await pair.until_refused(SlaveState.SEARCHING)
        await until(lambda: "refused" in pair.status.reason)
        assert master.ha_address in pair.status.reason
        await master.put(10)
        await master.open_ha(master.ha_port)
        await assert_equal(master, pair)
        assert pair.status == SlaveStatus(
            state=SlaveState.FOLLOWING,
            master_address=master.address,
            master_ha_address=master.ha_address,
            master_max_offset=master.end,
            received_bytes=pair.status.received_bytes,
            read_ms=pair.status.read_ms,
            written_ms=pair.status.written_ms,
        )


async def test_a_slave_without_a_master_registers_until_there_is_one(tmp_path: Path) -> None:
    async with (
        ScriptedMaster(tmp_path / "master") as master,
        running(tmp_path / "slave", None) as pair,
    ):
        await pair.names.until_asked(RequestCode.REGISTER_BROKER, 3)
        assert pair.status.state is SlaveState.SEARCHING
        assert NAME in pair.status.reason
        await master.put(5)
        pair.names.master = master
        await assert_equal(master, pair)


async def test_a_slave_leaves_its_master_for_a_new_one(tmp_path: Path) -> None:
    async with ScriptedMaster(tmp_path / "old") as old:
        await old.put(20)
        old.store.sync()
        shutil.copytree(tmp_path / "old", tmp_path / "new")
        async with (
            ScriptedMaster(tmp_path / "new") as new,
            running(tmp_path / "slave", old) as pair,
        ):
            await assert_equal(old, pair)
            await new.put(20)
            pair.names.master = new
            await pair.slave.parts.registration.register()
            await assert_equal(new, pair)
            assert pair.status.master_ha_address == new.ha_address


async def test_a_lost_master_is_looked_for_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the next registration is due, in half a minute."""
    async with (
        ScriptedMaster(tmp_path / "old") as old,
        ScriptedMaster(tmp_path / "new") as new,
        running(tmp_path / "slave", old) as pair,
    ):
        await old.until_reported(0)
        monkeypatch.setattr(follower, "RETRY_MS", 60_000)
        await new.put(5)
        pair.names.master = new
        await old.close_ha()
        await assert_equal(new, pair)
        await old.open_ha()


async def test_the_configured_address_is_used_instead_of_the_registered_one(
    tmp_path: Path,
) -> None:
    async with ScriptedMaster(tmp_path / "master") as master:
        await master.put(5)
        proxy = await asyncio.start_server(master._serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        await master.close_ha()
        async with running(tmp_path / "slave", master, ha_master_address=address) as pair:
            await assert_equal(master, pair)
            assert pair.status.master_address == master.address
            assert pair.status.master_ha_address == address
        proxy.close()
        await master.open_ha()


async def test_without_a_name_server_requests_go_to_the_port_before_the_configured_one(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedMaster(tmp_path / "master") as master,
        running(tmp_path / "slave", None, ha_master_address=master.ha_address) as pair,
    ):
        await until(lambda: pair.status.master_address)
        assert pair.status.master_address == f"127.0.0.1:{master.ha_port - 1}"
        # The port for requests of this master is another one.
        await until(lambda: "set namesrvAddr if" in pair.status.reason)


async def test_the_threads_of_a_slave_have_names_of_their_own(tmp_path: Path) -> None:
    async with ScriptedMaster(tmp_path / "master") as master:
        before = set(threading.enumerate())
        async with running(tmp_path / "slave", master):
            names = Counter(thread.name for thread in set(threading.enumerate()) - before)
            assert names["reput-sync"] == names["reput-acks"] == 1


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("brokerClusterName", "Other", ["brokerClusterName", "DefaultCluster", "Other"]),
        ("brokerName", "broker-b", ["brokerName", "broker-a", "broker-b"]),
        ("mappedFileSizeCommitLog", "1024", ["mappedFileSizeCommitLog", str(FILE_SIZE), "1024"]),
        ("brokerRole", "SLAVE", ["no master", "SLAVE"]),
    ],
)
async def test_a_master_of_another_broker_is_refused(
    tmp_path: Path, key: str, value: str, words: list[str]
) -> None:
    async with ScriptedMaster(tmp_path / "master") as master:
        await master.put(5)
        right = master.settings[key]
        master.settings[key] = value
        async with running(tmp_path / "slave", master) as pair:
            reason = await pair.until_refused(SlaveState.REFUSED)
            assert [word for word in words if word not in reason] == []
            await master.until_asked(RequestCode.GET_BROKER_CONFIG, 3)
            assert not master.reports
            assert pair.log_end == 0
            master.settings[key] = right
            await assert_equal(master, pair)
            assert pair.status.reason == ""


class Diverged:
    """Two masters with the same log up to ``common``, and then with different records."""

    def __init__(self, first: ScriptedMaster, second: ScriptedMaster) -> None:
        self.first = first
        self.second = second
        self.common = first.end


@contextlib.asynccontextmanager
async def diverged(root: Path, count: int = 40) -> AsyncIterator[Diverged]:
    async with ScriptedMaster(root / "first") as first:
        await first.put(count)
        first.store.sync()
        shutil.copytree(root / "first", root / "second")
        async with ScriptedMaster(root / "second") as second:
            yield Diverged(first, second)


async def test_a_slave_that_is_ahead_is_refused_and_reports_nothing(tmp_path: Path) -> None:
    async with diverged(tmp_path) as logs:
        await logs.first.put(1)
        async with running(tmp_path / "slave", logs.first) as pair:
            await assert_equal(logs.first, pair)
        async with running(tmp_path / "slave", logs.second) as pair:
            reason = await pair.until_refused(SlaveState.AHEAD)
            assert pair.status.diverged_offset == logs.common
            assert str(logs.first.end) in reason
            assert str(logs.common) in reason
            await logs.second.until_asked(RequestCode.GET_BROKER_CONFIG, 3)
            assert not logs.second.reports
            assert pair.status.state is SlaveState.AHEAD
            assert pair.log_end == logs.first.end


@pytest.mark.parametrize("own_count", [1, 30])
async def test_a_slave_with_other_records_is_refused_at_the_first_of_them(
    tmp_path: Path, own_count: int
) -> None:
    async with diverged(tmp_path) as logs:
        await logs.first.put(own_count, topic="Other")
        await logs.second.put(own_count + 30)
        async with running(tmp_path / "slave", logs.first) as pair:
            await assert_equal(logs.first, pair)
        async with running(tmp_path / "slave", logs.second) as pair:
            reason = await pair.until_refused(SlaveState.DIVERGED)
            assert pair.status.diverged_offset == logs.common
            assert str(logs.common) in reason
            assert not logs.second.reports
            assert pair.log_end == logs.first.end


async def test_with_the_policy_truncate_the_log_is_cut_where_it_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts: list[int | None] = []

    async def reopen(broker: Broker, cut_at: int | None = None) -> None:
        cuts.append(cut_at)

    monkeypatch.setattr(Broker, "reopen", reopen)
    async with diverged(tmp_path) as logs:
        await logs.first.put(3, topic="Other")
        await logs.second.put(30)
        async with running(tmp_path / "slave", logs.first) as pair:
            await assert_equal(logs.first, pair)
        policy = DivergedPolicy.TRUNCATE
        async with running(tmp_path / "slave", logs.second, ha_diverged_policy=policy) as pair:
            await until(lambda: cuts)
            assert cuts == [logs.common]
            assert not logs.second.reports
            task = pair.slave.parts.replication.follower._task
            assert task is not None
            await until(task.done)  # Nothing is attempted until the store is open again.
            assert cuts == [logs.common]


async def test_a_slave_that_ends_before_its_masters_log_must_be_rebuilt(tmp_path: Path) -> None:
    async with diverged(tmp_path) as logs:
        async with running(tmp_path / "slave", logs.first) as pair:
            await assert_equal(logs.first, pair)
        await logs.second.put(120)
        while logs.second.store.min_physical_offset <= logs.common:
            logs.second.expire_first_file()
        async with running(tmp_path / "slave", logs.second) as pair:
            reason = await pair.until_refused(SlaveState.TOO_OLD)
            assert "rebuild" in reason
            assert str(logs.common) in reason
            assert str(logs.second.store.min_physical_offset) in reason
            assert not logs.second.reports


async def test_a_master_that_answers_no_requests_is_followed_unchecked_after_some_attempts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedMaster(tmp_path / "master") as master:
        await master.put(120)
        master.answers[RequestCode.GET_BROKER_CONFIG] = lambda request: command.reply(
            request, ResponseCode.NO_PERMISSION, "go away"
        )
        async with running(tmp_path / "slave", master) as pair:
            await until(lambda: pair.status.state is SlaveState.FOLLOWING)
            assert len(master.asked(RequestCode.GET_BROKER_CONFIG)) == follower.UNCHECKED_AFTER
            # As a slave of RocketMQ: from the last file on.
            await master.until_reported(master.end)
            begin = pair.slave.broker.store.min_physical_offset
            assert begin == master.end // FILE_SIZE * FILE_SIZE
            master.drop_slaves()
            await until(lambda: len(master.reports) == 2)
        warnings = [text for text in caplog.messages if "unchecked" in text]
        assert len(warnings) == 1
        assert "go away" in warnings[0]


async def test_attempts_while_the_master_is_down_do_not_count(
    tmp_path: Path,
) -> None:
    """A master that starts accepts slaves before it answers requests."""
    async with ScriptedMaster(tmp_path / "master") as master:
        await master.put(5)
        answer = master.answers.pop(RequestCode.GET_BROKER_CONFIG)
        await master.close_ha()
        async with running(tmp_path / "slave", master) as pair:
            await master.until_asked(RequestCode.GET_BROKER_CONFIG, 2 * follower.UNCHECKED_AFTER)
            await master.open_ha(master.ha_port)
            count = len(master.asked(RequestCode.GET_BROKER_CONFIG))
            await master.until_asked(RequestCode.GET_BROKER_CONFIG, count + 1)
            assert not master.reports
            master.answers[RequestCode.GET_BROKER_CONFIG] = answer
            await assert_equal(master, pair)


# --- the own disk -----------------------------------------------------------------------------


async def test_a_full_disk_stops_the_slave_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        ScriptedMaster(tmp_path / "master") as master,
        running(tmp_path / "slave", master) as pair,
    ):
        await master.put(3)
        await master.until_reported(master.end)
        end = pair.log_end

        def fail(size: int, kept: int = 0) -> memoryview:
            raise DiskFull("/slave/commitlog", size, "no space")

        with monkeypatch.context() as patch:
            log = pair.slave.broker.store.replica_log
            patch.setattr(log, "spare", lambda size_max: memoryview(bytearray()))
            patch.setattr(log, "buffer", fail)
            await master.put(3)
            reason = await pair.until_refused(SlaveState.FAILED)
            assert "/slave/commitlog" in reason
            count = len(master.reports)
            await until(lambda: len(master.reports) > count + 2)
            assert pair.status.state is SlaveState.FAILED
            assert pair.log_end == end
        await assert_equal(master, pair)
        assert pair.status.state is SlaveState.FOLLOWING


async def test_bytes_that_are_no_record_stop_the_slave(tmp_path: Path) -> None:
    async with (
        ScriptedMaster(tmp_path / "master") as master,
        running(tmp_path / "slave", master) as pair,
    ):
        await master.put(3)
        await assert_equal(master, pair)
        end = master.end
        read = master.store.log.read
        master.store.log.read = lambda start, size: b"?" * len(read(start, size) or b"")  # type: ignore[method-assign]
        await master.put(3)
        reason = await pair.until_refused(SlaveState.DIVERGED)
        assert f"physical offset {end}" in reason
        assert pair.slave.broker.store.dispatcher.dispatched_offset == end
