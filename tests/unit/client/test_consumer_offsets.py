"""Consumer offsets in a file, in Java's layout, or on the brokers of a group."""

import asyncio
import logging
from pathlib import Path

import pytest

from reput.client import consumer_offsets
from reput.client.config import ClientConfig
from reput.client.consumer_offsets import BrokerOffsets, FileOffsets
from reput.client.core import offset_table, requests
from reput.client.instance import ClientInstance, Guest
from reput.client.pull_consumer import PullConsumer
from reput.format import command
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode
from scripted_cluster import ScriptedCluster

A = MessageQueue("T", "broker-a", 0)
B = MessageQueue("T", "broker-a", 1)


def test_the_path_is_javas(tmp_path: Path) -> None:
    path = consumer_offsets.path_for("192.0.2.1@DEFAULT", "group", tmp_path)
    assert path == tmp_path / "192.0.2.1@DEFAULT" / "group" / "offsets.json"


async def test_saved_offsets_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "client" / "group" / "offsets.json"
    offsets = FileOffsets(path)
    assert await offsets.read(A) is None
    offsets.table.set(A, 5)
    offsets.table.set(B, 6)
    await offsets.save([A])
    assert offset_table.decode_file(path.read_bytes()) == {A: 5}
    await offsets.save()
    assert offset_table.decode_file(path.read_bytes()) == {A: 5, B: 6}
    again = FileOffsets(path)
    assert await again.read(B) == 6
    # The file keeps offsets of queues that this member has lost.
    again.table.set(A, 9)
    await again.save()
    assert offset_table.decode_file(path.read_bytes()) == {A: 9, B: 6}
    backup = path.with_name("offsets.json.bak")
    assert offset_table.decode_file(backup.read_bytes()) == {A: 5, B: 6}
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "offsets.json",
        "offsets.json.bak",
    ]


async def test_a_save_without_changes_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    offsets = FileOffsets(path)
    await offsets.save()
    assert not path.exists()


@pytest.mark.parametrize("damage", [b"", b'{"offsetTable":{{"bro', b"\xff\xfe"])
async def test_the_backup_is_read_if_the_file_is_damaged(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes(damage)
    (tmp_path / "offsets.json.bak").write_bytes(offset_table.encode_file({A: 3}))
    assert await FileOffsets(path).read(A) == 3


async def test_a_failed_write_is_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "folder").write_bytes(b"in the way")
    path = tmp_path / "folder" / "offsets.json"
    offsets = FileOffsets(path)
    offsets.table.set(A, 5)
    with caplog.at_level(logging.ERROR):
        await offsets.save()
    assert "offsets.json" in caplog.text
    (tmp_path / "folder").unlink()
    await offsets.save()
    assert await FileOffsets(path).read(A) == 5


async def test_members_share_a_file_without_conflicts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "offsets.json"
    members = [FileOffsets(path) for _ in range(8)]
    for turn in range(5):
        for member in members:
            member.table.set(A, turn)
        await asyncio.gather(*(member.save() for member in members))
    assert not caplog.records
    assert await FileOffsets(path).read(A) == 4
    files = sorted(file.name for file in tmp_path.iterdir())  # noqa: ASYNC240 - a small folder
    assert files == ["offsets.json", "offsets.json.bak"]


async def test_a_save_waits_for_an_update_in_flight_of_a_cancelled_save() -> None:
    member = Guest()
    async with ScriptedCluster({"T": {"broker-a": 1}}) as cluster:
        cluster.broker.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda _: None
        instance = await ClientInstance.join(ClientConfig(namesrv_addr=cluster.namesrv), member)
        offsets = BrokerOffsets(instance, "G")
        offsets.table.set(A, 1)
        first = asyncio.create_task(offsets.save())
        (held,) = await cluster.broker.until_asked(RequestCode.UPDATE_CONSUMER_OFFSET)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        offsets.table.set(A, 2)
        second = asyncio.create_task(offsets.save())
        await instance.ask(cluster.broker.address, requests.heartbeat(b"{}"))
        assert cluster.broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET) == [held]
        cluster.broker.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = command.reply
        cluster.broker.channels[0].answer(held, command.reply(held))
        await second
        assert len(cluster.broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET)) == 2
        await instance.leave(member)


async def test_offsets_are_sent_again_after_a_lost_connection() -> None:
    async with ScriptedCluster({"T": {"broker-a": 1}}) as cluster:
        broker = cluster.broker
        broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda request: command.reply(
            request, ext_fields={"offset": "5"}
        )
        broker.answers[RequestCode.PULL_MESSAGE] = lambda _: None
        broker.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = command.reply
        client = ClientConfig(namesrv_addr=cluster.namesrv, persist_offsets_ms=10)
        async with PullConsumer("G", client=client) as consumer:
            await consumer.assign([A])
            await broker.until_asked(RequestCode.PULL_MESSAGE)
            await consumer.commit({A: 7})
            for channel in list(broker.channels):
                channel.close()
            updates = await broker.until_asked(RequestCode.UPDATE_CONSUMER_OFFSET, 2)
            offsets = [(update.ext_fields or {})["commitOffset"] for update in updates]
            assert offsets == ["7", "7"], "it may have been killed before it wrote that down"
