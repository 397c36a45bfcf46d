"""15 and what else sets consumer offsets: queues that there are, numbers of Java, so many."""

from pathlib import Path

import pytest

import broker_subject
from broker_subject import Subject
from reput import limits
from reput.format.codes import PullFlag, RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    AckMessageHeader,
    CloneGroupOffsetHeader,
    ResetOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from reput.store.pull_subscriptions import Delivery

LONG_MAX = (1 << 63) - 1


async def commit(
    subject: Subject, group: str = "g", queue_id: int = 0, value: int = 1, topic: str = "T"
) -> Command:
    header = UpdateConsumerOffsetHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=value
    )
    return await subject.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)


@pytest.mark.parametrize("value", [0, 7, LONG_MAX])
async def test_offsets_that_java_can_have_are_kept(subject: Subject, value: int) -> None:
    assert (await commit(subject, value=value)).code == ResponseCode.SUCCESS
    assert subject.parts.deliveries.consumer_offsets.get("T", "g", 0) == value


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue_id": 4}, {"queue_id": -1}, {"queue_id": 1 << 31}, {"value": -1},
        {"value": LONG_MAX + 1}, {"value": 10**4000}, {"topic": "None"},
        {"group": "CID_RMQ_SYS_TRANS"}, {"group": "CID_RMQ_SYS_REVIVE_GROUP"},
    ],
)  # fmt: skip
async def test_no_other_offset_is_kept(subject: Subject, wrong: dict[str, object]) -> None:
    before = list(subject.parts.deliveries.consumer_offsets.all())
    reply = await commit(subject, **wrong)  # type: ignore[arg-type]
    assert reply.code != ResponseCode.SUCCESS
    assert list(subject.parts.deliveries.consumer_offsets.all()) == before


async def test_an_offset_that_comes_with_a_pull_is_left_out_and_the_pull_answered(
    subject: Subject,
) -> None:
    flags = int(PullFlag.HAS_SUBSCRIPTION | PullFlag.COMMIT_OFFSET)
    reply = await subject.pull("T", 3, sys_flag=flags, commit_offset=-5)
    assert reply.code == ResponseCode.SUCCESS
    assert subject.parts.deliveries.consumer_offsets.get("T", "consumers", 3) is None
    assert (await subject.pull("T", 3, sys_flag=flags, commit_offset=1)).code == 0
    assert subject.parts.deliveries.consumer_offsets.get("T", "consumers", 3) == 1


async def test_with_so_many_offsets_no_other_is_kept(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, reput_consumer_offsets_max=3) as subject:
        await subject.send("T")
        for queue_id in range(3):
            assert (await commit(subject, queue_id=queue_id)).code == ResponseCode.SUCCESS
        reply = await commit(subject, queue_id=3)
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "reputConsumerOffsetsMax" in (reply.remark or "")
        assert (await commit(subject, queue_id=1, value=9)).code == ResponseCode.SUCCESS
        header = CloneGroupOffsetHeader(src_group="g", dest_group="h", topic="T", offline=True)
        reply = await subject.ask(RequestCode.CLONE_GROUP_OFFSET, header)
        assert "consumer_offsets" in (reply.remark or "")
        flags = int(PullFlag.HAS_SUBSCRIPTION | PullFlag.COMMIT_OFFSET)
        assert (await subject.pull("T", sys_flag=flags, commit_offset=1)).code == 0
        assert subject.parts.deliveries.consumer_offsets.count == 3
        assert subject.broker.serving.refusals.counts["consumer_offsets"] >= 2


async def test_an_offset_that_the_kernel_was_told_is_counted_if_it_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_subject.running(tmp_path, reput_consumer_offsets_max=1) as subject:
        broker = subject.broker
        assert broker.parts.deliveries.consumer_offsets.count == 0
        told = [Delivery("T", "g", queue_id, 1, 1, 10, 5) for queue_id in range(3)]
        monkeypatch.setattr(
            type(broker.store.pull_subscriptions), "has_news", property(lambda _: True)
        )
        monkeypatch.setattr(broker.store.pull_subscriptions, "take", lambda: told)
        assert broker.parts.deliveries.consumer_offsets.count == 1
        assert broker.serving.refusals.counts == {"consumer_offsets": 2}
        monkeypatch.undo()


async def test_one_address_commits_so_many_new_offsets(tmp_path: Path) -> None:
    settings = {"reput_consumer_offsets_per_address_max": 2}
    async with broker_subject.running(tmp_path, **settings) as subject:
        await subject.send("T")
        for queue_id in (0, 1, 0, 1):
            assert (await commit(subject, queue_id=queue_id)).code == ResponseCode.SUCCESS
        reply = await commit(subject, queue_id=2)
        assert "consumer_offsets_per_address" in (reply.remark or "")


async def test_what_is_counted_is_what_there_is(subject: Subject) -> None:
    table = subject.parts.deliveries.consumer_offsets
    for queue_id in (0, 1, 1, 2):
        await commit(subject, queue_id=queue_id)
    await commit(subject, group="h")
    assert table.count == len(list(table.all())) == 4
    table.delete(topic="T", group="g")
    assert table.count == len(list(table.all())) == 1


async def test_resets_that_nobody_takes_are_bounded(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESET_OFFSETS", limits.RESET_OFFSETS.at(4))
    await subject.pull("T", consumer_group="g")
    await subject.pull("T", consumer_group="h")

    async def reset(group: str) -> Command:
        header = ResetOffsetHeader(topic="T", group=group, timestamp=0, is_force=True, queue_id=-1)
        return await subject.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)

    assert (await reset("g")).code == ResponseCode.SUCCESS
    assert len(subject.parts.resets) == 4
    assert "reset_offsets" in ((await reset("h")).remark or "")
    assert (await subject.pull("T", consumer_group="g")).code == ResponseCode.PULL_OFFSET_MOVED
    assert len(subject.parts.resets) == 3
    subject.parts.resets.delete(group="g")
    assert len(subject.parts.resets) == 0


async def test_acks_of_groups_that_are_not_there_leave_nothing_behind(subject: Subject) -> None:
    handle = "0 1700000000000 60000 0 0 broker-a 3 0"
    for number in range(50):
        header = AckMessageHeader(
            consumer_group=f"nobody{number}", topic="T", queue_id=3, extra_info=handle, offset=0
        )
        assert (await subject.ask(RequestCode.ACK_MESSAGE, header)).code == ResponseCode.SUCCESS
    in_order = handle.replace(" 0 0 broker-a", " 999 0 broker-a")
    header = AckMessageHeader(
        consumer_group="nobody", topic="T", queue_id=3, extra_info=in_order, offset=0
    )
    await subject.ask(RequestCode.ACK_MESSAGE, header)
    assert subject.parts.deliveries.stats.values("GROUP_ACK_NUMS") == {}
    assert not [
        one for one in subject.parts.deliveries.consumer_offsets.all() if "nobody" in one.group
    ]
    assert subject.parts.subscription_groups.get("nobody0") is None
