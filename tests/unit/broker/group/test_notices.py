"""Notices to members: at most one per turn of the event loop, and pauses for large groups."""

import asyncio
from typing import Any

import pytest

from reput.broker.group.groups import Groups
from reput.broker.group.notices import NOTICES_PER_S, MemberNotices
from reput.format.bodies import ConsumerData
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.remoting.time_slices import TimeSlices
from world import until


class Member:
    """A connection that keeps its notices."""

    peer = "192.0.2.1:1"

    def __init__(self) -> None:
        self.received: list[Command] = []

    def notify(self, notice: Command) -> bool:
        self.received.append(notice)
        return True


def group_of(members: list[Member], name: str = "g") -> Groups[Any]:
    groups: Groups[Any] = Groups()
    data = ConsumerData(consume_from_where="", consume_type="", group_name=name, message_model="")
    for number, member in enumerate(members):
        groups.register_consumer(member, str(number), data, 0, 1, 0)
    return groups


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_group_gets_one_notice_per_turn() -> None:
    members = [Member(), Member()]
    notices = MemberNotices(group_of(members), lambda group: True, TimeSlices())
    for _ in range(1000):
        notices.notify_soon("g")
        notices.notify_soon("not there")
    await turns()
    assert [len(member.received) for member in members] == [1, 1]
    (notice,) = members[0].received
    assert notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert notice.is_oneway
    assert notice.ext_fields == {"consumerGroup": "g"}
    notices.notify_soon("g")
    await turns()
    assert [len(member.received) for member in members] == [2, 2]


async def test_a_group_without_notices_gets_none() -> None:
    member = Member()
    notices = MemberNotices(group_of([member]), lambda group: False, TimeSlices())
    notices.notify_soon("g")
    await turns()
    assert member.received == []


async def test_a_group_name_that_cannot_be_sent_blocks_no_other_notices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd, member = Member(), Member()
    groups = group_of([odd], "odd\ud800")
    data = ConsumerData(consume_from_where="", consume_type="", group_name="g", message_model="")
    groups.register_consumer(member, "1", data, 0, 1, 0)
    notices = MemberNotices(groups, lambda group: True, TimeSlices())
    notices.notify_soon("odd\ud800")
    notices.notify_soon("g")
    await turns()
    assert (len(odd.received), len(member.received)) == (0, 1)
    assert "odd\\ud800" in caplog.text


async def test_after_an_error_groups_get_notices_again() -> None:
    class Broken(Member):
        def notify(self, notice: Command) -> bool:
            member.received.append(notice)
            if len(member.received) == 1:
                raise ValueError("a bug")
            return True

    member = Member()
    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context.get("exception")))
    notices = MemberNotices(group_of([Broken()]), lambda group: True, TimeSlices())
    notices.notify_soon("g")
    await turns()
    notices.notify_soon("g")
    await turns()
    assert len(member.received) == 2
    assert len(errors) == 1


async def test_a_large_group_gets_later_changes_after_a_pause() -> None:
    members = [Member() for _ in range(200)]
    notices = MemberNotices(group_of(members), lambda group: True, TimeSlices())
    loop = asyncio.get_running_loop()
    start = loop.time()
    notices.notify_soon("g")
    await turns(100)
    assert {len(member.received) for member in members} == {1}
    rested = loop.time() + len(members) / NOTICES_PER_S
    for _ in range(50):
        notices.notify_soon("g")
        await turns(3)
    count = max(len(member.received) for member in members)
    assert count == 1 or loop.time() >= start + len(members) / NOTICES_PER_S
    await until(lambda: loop.time() >= rested + 0.001)
    await until(lambda: all(len(member.received) >= 2 for member in members))
    assert {len(member.received) for member in members} == {2}
