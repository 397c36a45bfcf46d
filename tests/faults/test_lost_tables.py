"""Tables under config/ that are missing, empty or damaged when a broker starts.

missing or empty  topics follow from their queues, groups from consumer offsets; consumer offsets
                  and progress of delayed messages cannot be derived: a warning in the log and in
                  ``/health`` describes the effect
damaged           topics.json, subscriptionGroup.json, consumerOffset.json refuse the start (a
                  readable ``.bak`` is used first); delayOffset.json and timerProgress.json are
                  set aside: messages may be delivered again, none is lost
"""

from pathlib import Path

import pytest

import world
from reput.errors import CorruptRecord
from reput.format.codes import ResponseCode
from reput.store.tables.saved_file import DAMAGED_SUFFIX
from world import Subject

pytestmark = pytest.mark.crash

TOPICS, GROUPS = "topics.json", "subscriptionGroup.json"
OFFSETS, DELAYS, TIMER = "consumerOffset.json", "delayOffset.json", "timerProgress.json"


def warnings(subject: Subject) -> list[str]:
    health = world.health_of(subject.broker)
    return [warning for warning in health.warnings if "namesrvAddr" not in warning]


async def pulled(subject: Subject) -> list[bytes]:
    """Return the bodies in a queue."""
    reply = await subject.pull("Orders", 1)
    return [message.body for message in world.messages_in(reply.body)]


async def fill(root: Path) -> None:
    async with world.broker(root) as subject:
        for number in range(12):
            await subject.send("Orders", b"%d" % number, queue_id=number % 4)
        await subject.send("Once", b"x")
        delayed = await subject.send("Orders", b"later", properties={"DELAY": "18"})
        assert delayed.code == ResponseCode.SUCCESS
        broker = subject.broker
        broker.parts.subscription_groups.find("readers", broker.clock.now_ms())
        broker.parts.deliveries.consumer_offsets.put("Orders", "readers", 1, 2)
        assert warnings(subject) == []


def lose(root: Path, name: str, how: str) -> None:
    for path in (root / "config" / name, root / "config" / f"{name}.bak"):
        if how == "gone":
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(b"" if how == "empty" else b'{"topicConfigTable":{"Ord\x00\xff')


@pytest.mark.parametrize("how", ["gone", "empty"])
async def test_topics_follow_from_their_queues(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(tmp_path)
    lose(tmp_path, TOPICS, how)
    async with world.broker(tmp_path) as subject:
        (warning,) = warnings(subject)
        assert warning.startswith(
            "config/topics.json is missing while the store has queues: 2 topics"
        )
        assert "Once, Orders" in warning
        assert warning in caplog.text
        orders = subject.parts.topics.get("Orders")
        assert orders is not None
        assert (orders.read_queue_count, orders.write_queue_count, orders.perm) == (4, 4, 6)
        assert await pulled(subject) == [b"1", b"5", b"9"]
        assert (await subject.send("Orders", b"new", queue_id=3)).code == ResponseCode.SUCCESS
    async with world.broker(tmp_path) as subject:
        assert warnings(subject) == []
        assert subject.parts.topics.get("Orders") == orders


async def test_a_new_store_has_no_warnings(tmp_path: Path) -> None:
    async with world.broker(tmp_path) as subject:
        assert warnings(subject) == []


@pytest.mark.parametrize("how", ["gone", "empty"])
async def test_groups_follow_from_consumer_offsets(tmp_path: Path, how: str) -> None:
    await fill(tmp_path)
    lose(tmp_path, GROUPS, how)
    async with world.broker(tmp_path, auto_create_subscription_group=False) as subject:
        (warning,) = warnings(subject)
        assert warning.startswith("config/subscriptionGroup.json is missing while groups have")
        assert "readers" in warning
        assert subject.parts.subscription_groups.table.get("readers") is not None
        assert subject.parts.deliveries.consumer_offsets.get("Orders", "readers", 1) == 2


@pytest.mark.parametrize("how", ["gone", "empty"])
async def test_lost_consumer_offsets_are_reported(tmp_path: Path, how: str) -> None:
    await fill(tmp_path)
    lose(tmp_path, OFFSETS, how)
    async with world.broker(tmp_path) as subject:
        (warning,) = warnings(subject)
        assert warning.startswith(
            "config/consumerOffset.json is missing while the store has messages"
        )
        assert "consumeFromWhere" in warning


@pytest.mark.parametrize("how", ["gone", "empty"])
async def test_lost_delay_offsets_are_reported(tmp_path: Path, how: str) -> None:
    await fill(tmp_path)
    lose(tmp_path, DELAYS, how)
    async with world.broker(tmp_path) as subject:
        (warning,) = warnings(subject)
        assert warning.startswith("config/delayOffset.json is missing while the store has delayed")
        (level,) = subject.parts.delayed.progress().values()
        assert level == (0, 1)


@pytest.mark.parametrize("name", [TOPICS, GROUPS, OFFSETS])
async def test_a_damaged_table_refuses_the_start(tmp_path: Path, name: str) -> None:
    await fill(tmp_path)
    lose(tmp_path, name, "damaged")
    with pytest.raises(CorruptRecord, match=f"config/{name}.*move both away"):
        async with world.broker(tmp_path):
            pass
    assert (tmp_path / "config" / name).exists(), "a table that an operator may repair is kept"
    lose(tmp_path, name, "gone")
    async with world.broker(tmp_path) as subject:
        assert len(warnings(subject)) == 1
        assert await pulled(subject) == [b"1", b"5", b"9"]


@pytest.mark.parametrize("name", [DELAYS, TIMER])
async def test_damaged_progress_starts_over(tmp_path: Path, name: str) -> None:
    await fill(tmp_path)
    (tmp_path / "config" / f"{name}.bak").unlink(missing_ok=True)
    path = tmp_path / "config" / name
    aside = path.with_name(f"{path.name}{DAMAGED_SUFFIX}")
    path.write_bytes(b"\0" * 100)
    async with world.broker(tmp_path) as subject:
        (warning,) = warnings(subject)
        assert f"config/{name}" in warning
        assert "put aside" in warning
        assert aside.read_bytes() == b"\0" * 100
        assert await pulled(subject) == [b"1", b"5", b"9"]
        if name == DELAYS:
            assert list(subject.parts.delayed.progress().values()) == [(0, 1)]
    async with world.broker(tmp_path) as subject:
        assert [line for line in warnings(subject) if "put aside" in line] == []
