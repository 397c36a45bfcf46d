"""Registrations with name servers: complete ones, changes, and servers that are slow or refuse."""

import asyncio
from pathlib import Path

import pytest

import world
from reput.broker import registration
from reput.errors import RequestRefused
from reput.format.codes import RequestCode, ResponseCode
from reput.namesrv.route_table import Registered, Registration as Said
from reput.namesrv.server import NameServer
from reput.remoting.client import RemotingClient
from reput.remoting.time_slices import run_whole
from reput.store.tables.config_tables import TopicConfig
from world import Subject, until


async def test_it_registers_with_every_name_server_and_unregisters(tmp_path: Path) -> None:
    async with (
        world.name_server(tmp_path / "a") as first,
        world.name_server(tmp_path / "b") as second,
    ):
        addresses = f"{world.address_of(first)};{world.address_of(second)}"
        async with world.broker(tmp_path / "store", namesrv_addr=addresses) as subject:
            for server in (first, second):
                await known(server, "SELF_TEST_TOPIC", is_there=True)
            await subject.send("New")
            for server in (first, second):  # at once, not in half a minute
                await known(server, "New", is_there=True)
        for server in (first, second):
            await known(server, "New", is_there=False)


class RegistrationRecorder:
    """A name server that records how many topics each registration has."""

    def __init__(self, path: Path, port: int = 0) -> None:
        self.counts: list[int] = []
        self.refusals = 0
        """Number of registrations that are refused next."""
        self.server = world.name_server(path, listen_port=port)
        self._register = self.server.routes.register
        self.server.routes.register = self.register  # type: ignore[method-assign]

    def register(self, request: Said, connection: object, now_ms: int) -> Registered:
        self.counts.append(len(request.topics))
        if self.refusals:
            self.refusals -= 1
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "not now")
        return self._register(request, connection, now_ms)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def perm(self, topic: str) -> int:
        route = run_whole(self.server.routes.route(topic))
        assert route is not None
        return route.queue_datas[0].perm


async def idle(subject: Subject) -> None:
    """Wait until all registrations are done."""
    registration = subject.parts.registration
    await until(lambda: not (registration._is_due or registration._tasks))


async def test_a_change_is_sent_alone_after_a_complete_registration(tmp_path: Path) -> None:
    recorder = RegistrationRecorder(tmp_path)
    async with (
        recorder.server,
        world.broker(tmp_path / "store", namesrv_addr=recorder.address) as subject,
    ):
        await subject.parts.registration.register()
        built_in = len(subject.parts.topics.all())
        assert set(recorder.counts) == {built_in}
        recorder.counts.clear()
        for topic in ("One", "Two"):
            await subject.send(topic)
            await idle(subject)
        subject.parts.topics.delete("One", 5)
        await idle(subject)
        assert recorder.counts == [1, 1], "the client reports a deletion"
        await subject.parts.registration.register()
        assert recorder.counts == [1, 1, built_in + 1]
        assert {"One", "Two", "TBW102"} <= set(run_whole(recorder.server.routes.topics()))
        recorder.server.routes.delete_topic("One")
        await subject.send("One")
        await idle(subject)
        assert recorder.counts[3:] == [1]
        assert "One" in run_whole(recorder.server.routes.topics())


async def test_more_topics_than_a_frame_holds_are_sent_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_BODY_BYTES_MAX", 2_000)
    recorder = RegistrationRecorder(tmp_path)
    async with (
        recorder.server,
        world.broker(tmp_path / "store", namesrv_addr=recorder.address) as subject,
    ):
        topics = subject.parts.topics
        for number in range(50):
            topics.put(TopicConfig(f"T{number}", 1, 1, 6), 1_000)
        await idle(subject)
        recorder.counts.clear()
        await subject.parts.registration.register()
        assert len(recorder.counts) > 3
        assert sum(recorder.counts) == len(topics.all())
        assert set(run_whole(recorder.server.routes.topics())) >= set(topics.all())
        version = recorder.server.routes.data_version(subject.broker.identity.address)
        assert version is not None
        assert version.counter == topics.table.version.counter
        assert version.timestamp == topics.table.version.timestamp_ms


async def test_a_name_server_that_refused_a_change_gets_all_topics(tmp_path: Path) -> None:
    recorder = RegistrationRecorder(tmp_path)
    async with (
        recorder.server,
        world.broker(tmp_path / "store", namesrv_addr=recorder.address) as subject,
    ):
        await subject.parts.registration.register()
        recorder.counts.clear()
        recorder.refusals = 1
        await subject.send("Missed")
        await idle(subject)
        assert subject.parts.registration.problems
        assert "Missed" not in run_whole(recorder.server.routes.topics())
        await subject.send("New")
        await idle(subject)
        assert recorder.counts == [1, len(subject.parts.topics.all())]
        assert {"Missed", "New"} <= set(run_whole(recorder.server.routes.topics()))
        assert not subject.parts.registration.problems


async def test_a_restarted_name_server_gets_all_topics(tmp_path: Path) -> None:
    first = RegistrationRecorder(tmp_path)
    await first.server.start()
    port = first.server.port
    async with world.broker(tmp_path / "store", namesrv_addr=f"127.0.0.1:{port}") as subject:
        await subject.send("Old")
        await subject.parts.registration.register()
        await first.server.stop()
        second = RegistrationRecorder(tmp_path, port)
        async with second.server:
            await subject.send("New")  # before the next complete registration
            await known(second.server, "New", is_there=True)
            assert {"Old", "New", "TBW102"} <= set(run_whole(second.server.routes.topics()))


async def test_the_permission_of_the_broker_is_registered(tmp_path: Path) -> None:
    recorder = RegistrationRecorder(tmp_path)
    async with (
        recorder.server,
        world.broker(tmp_path / "store", namesrv_addr=recorder.address) as subject,
    ):
        await subject.send("T")
        await subject.parts.registration.register()
        assert recorder.perm("T") == 6
        world.reconfigure(subject.broker, {"brokerPermission": "2"})
        await idle(subject)
        assert recorder.perm("T") == 2


async def known(server: NameServer, topic: str, *, is_there: bool) -> None:
    async with RemotingClient() as client, asyncio.timeout(20):
        while True:
            reply = await client.invoke(
                f"127.0.0.1:{server.port}",
                world.Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic}),
                5_000,
            )
            if (reply.code == ResponseCode.SUCCESS) == is_there:
                return
            await asyncio.sleep(0.01)


async def test_an_unreachable_name_server_blocks_no_request(tmp_path: Path) -> None:
    async with world.broker(tmp_path, namesrv_addr="127.0.0.1:1") as subject:
        assert (await subject.send("T")).code == ResponseCode.SUCCESS
        await until(lambda: subject.parts.registration.problems)
        assert "127.0.0.1:1" in subject.parts.registration.problems


async def test_a_slow_name_server_delays_no_other_request(tmp_path: Path) -> None:
    """The server accepts and never replies: nothing piles up, and the broker stops without it."""
    writers: list[asyncio.StreamWriter] = []

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    slow = await asyncio.start_server(stay_silent, "127.0.0.1", 0)
    slow_address = f"127.0.0.1:{slow.sockets[0].getsockname()[1]}"
    try:
        async with world.name_server(tmp_path) as quick:
            addresses = f"{slow_address};127.0.0.1:{quick.port}"
            async with world.broker(tmp_path / "store", namesrv_addr=addresses) as broker:
                for number in range(20):
                    await broker.send(f"New{number}")
                await known(quick, "New19", is_there=True)
                notifying = [
                    task for task in broker.broker.parts.registration.begin() if not task.done()
                ]
                tasks = [
                    task
                    for task in asyncio.all_tasks()
                    if "_register_pending" in repr(task.get_coro())
                ]
                assert set(tasks) == set(notifying)
                async with asyncio.timeout(20):  # less than the timeout of a registration
                    await broker.broker.parts.registration.stop()
    finally:
        for writer in writers:
            writer.close()
        slow.close()
        await slow.wait_closed()


async def test_name_servers_that_disagree_on_order_cause_no_storm(tmp_path: Path) -> None:
    async with world.broker(tmp_path) as subject:
        await subject.send("T")
        notices: list[None] = []
        subject.parts.registration.notify_soon = lambda: notices.append(None)  # type: ignore[method-assign]
        for table in ({}, {"T": "broker-a:4"}, {}):
            subject.parts.topics.take_ordered(table, 0)
        topic = subject.parts.topics.get("T")
        assert topic is not None
        assert topic.order
        assert not notices
