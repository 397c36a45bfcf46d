"""222 as 5.x's tools send it: the broker keeps where to go on, and the next pull is told.

Codes and texts are Java's, 5.5 (``AdminBrokerProcessor.resetOffsetInner``). That clients obey is
tests/interop/test_reset.py.
"""

import asyncio
from pathlib import Path

import pytest

import broker_subject
from broker_subject import NAME, Subject
from reput.clock import ManualClock
from reput.format import bodies
from reput.format.bodies import MessageQueue, ResetOffsets
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    GroupNameHeader,
    QueryConsumerOffsetHeader,
    ResetOffsetHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
)
from reput.store.config import BrokerRole

START_MS = 1_700_000_000_000
SUSPEND = 2
COMMIT = 1
IN_REQUEST = 4


async def reset(subject: Subject, **fields: object) -> Command:
    header = ResetOffsetHeader(topic="T", group="consumers", timestamp=-1, queue_id=-1)
    fields.setdefault("is_force", False)
    return await subject.ask(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, broker_subject.with_fields(header, fields)
    )


def told(reply: Command) -> dict[int, int]:
    """Queue id -> where to go on."""
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    table = bodies.decode(ResetOffsets, reply.body).offset_table
    assert all(one == MessageQueue("T", NAME, one.queue_id) for one in table)
    return {one.queue_id: queue_offset for one, queue_offset in table.items()}


async def commit(subject: Subject, consumer_offset: int, queue_id: int = 0) -> Command:
    header = UpdateConsumerOffsetHeader(
        consumer_group="consumers", topic="T", queue_id=queue_id, commit_offset=consumer_offset
    )
    return await subject.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def known(subject: Subject, queue_id: int = 0) -> int:
    header = QueryConsumerOffsetHeader(consumer_group="consumers", topic="T", queue_id=queue_id)
    reply = await subject.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
    assert reply.ext_fields is not None
    return int(reply.ext_fields["offset"])


def moved_to(reply: Command) -> int:
    assert (reply.code, reply.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert reply.ext_fields is not None
    return int(reply.ext_fields["nextBeginOffset"])


async def filled(subject: Subject, count: int = 6) -> None:
    """Messages 0, 1, ... in queue 0 of a topic, and a group that has pulled them all."""
    for number in range(count):
        await subject.send("T", str(number).encode())
    for _ in range(3):  # the kernel answers the later ones
        await subject.pull("T")


async def test_without_members_too_the_group_goes_on_elsewhere(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await filled(subject)
        await commit(subject, 6)
        assert told(await reset(subject, queue_id=0, queue_offset=2)) == {0: 2}
        assert await known(subject) == 2
    async with broker_subject.running(tmp_path) as subject:
        assert await known(subject) == 2


async def test_the_next_pull_is_told_once(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await filled(subject)
        await reset(subject, queue_id=0, queue_offset=2)
        other = await subject.pull("T", queue_offset=5, consumer_group="other")
        assert other.code == ResponseCode.SUCCESS
        reply = await subject.pull("T", queue_offset=5)
        assert moved_to(reply) == 2
        assert reply.ext_fields is not None
        assert (reply.ext_fields["minOffset"], reply.ext_fields["maxOffset"]) == ("0", "6")
        for _ in range(3):
            assert (await subject.pull("T", queue_offset=5)).code == ResponseCode.SUCCESS


async def test_the_kernel_waits_until_all_queues_have_been_told(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await filled(subject)
        await subject.send("T", queue_id=1)
        await reset(subject)
        for _ in range(3):
            await subject.pull("T", 1, 0)
        assert moved_to(await subject.pull("T", 0, 0)) == 6


async def test_who_waits_at_the_end_hears_of_it_at_once(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await filled(subject)
        waiting = asyncio.ensure_future(
            subject.pull(
                "T", queue_offset=6, sys_flag=SUSPEND | IN_REQUEST, suspend_timeout_millis=15_000
            )
        )
        while not len(subject.parts.held_pulls):
            await asyncio.sleep(0)
        await reset(subject, queue_id=0, queue_offset=1)
        assert moved_to(await waiting) == 1


async def test_what_is_committed_from_before_does_not_count(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await filled(subject)
        await reset(subject, queue_id=0, queue_offset=2)
        reply = await commit(subject, 6)
        assert (reply.code, reply.remark) == (0, "Offset has been previously reset")
        flags = COMMIT | IN_REQUEST
        assert moved_to(await subject.pull("T", sys_flag=flags, commit_offset=6)) == 2
        assert await known(subject) == 2
        await commit(subject, 3)
        assert await known(subject) == 3


async def test_by_time_and_to_the_end(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    async with broker_subject.running(tmp_path, clock=clock) as subject:
        for number in range(4):
            await subject.send("T", str(number).encode())
            clock.advance(1000)
        await subject.pull("T")
        assert told(await reset(subject, timestamp=START_MS + 1500)) == {0: 2, 1: 0, 2: 0, 3: 0}
        assert told(await reset(subject, timestamp=-1)) == {0: 4, 1: 0, 2: 0, 3: 0}
        assert told(await reset(subject, queue_id=0, timestamp=START_MS, queue_offset=-1)) == {0: 0}


async def test_why_it_is_refused(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await filled(subject)
        for fields, code, why in (
            ({"topic": "X"}, ResponseCode.TOPIC_NOT_EXIST, "Topic X does not exist"),
            ({"group": "x"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group x does not exist"),
            (
                {"queue_id": 0, "queue_offset": 8},
                ResponseCode.SYSTEM_ERROR,
                "Target offset 8 not in consume queue range [0-6]",
            ),
            (
                {"queue_id": 4, "queue_offset": 0},
                ResponseCode.SYSTEM_ERROR,
                "topic[T] has no queue 4; allowed: 0 to 3",
            ),
        ):
            reply = await reset(subject, **fields)
            assert (reply.code, reply.remark) == (code, why)
        assert not subject.parts.resets.is_waiting("T", "consumers")
        assert told(await reset(subject, queue_id=0, queue_offset=7)) == {0: 7}, "as in Java"


async def test_a_slave_has_its_offsets_from_its_master(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await filled(subject)
    async with broker_subject.running(
        tmp_path, store={"broker_role": BrokerRole.SLAVE}, broker_id=1
    ) as subject:
        reply = await reset(subject)
        assert reply.remark == "Can not reset offset in slave broker"


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic="T")),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, GroupNameHeader(group_name="consumers")),
    ],
)
async def test_it_goes_with_its_topic_and_its_group(
    tmp_path: Path, code: RequestCode, header: TopicHeader | GroupNameHeader
) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await filled(subject)
        await reset(subject)
        await subject.ask(code, header)
        assert not subject.parts.resets.is_waiting("T", "consumers")


async def test_switched_off_it_is_as_in_4_9(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, use_server_side_reset_offset=False) as subject:
        await filled(subject)
        for queue_id in range(4):
            await commit(subject, 0, queue_id)
        reply = await reset(subject)
        assert reply.code == ResponseCode.CONSUMER_NOT_ONLINE
