"""Requests that are answered in order, each when its work is done."""

import asyncio
from typing import cast

import pytest

from reput.errors import LimitExceeded, WriteFailed
from reput.format.codes import ResponseCode
from reput.format.command import IS_ONEWAY, Command
from reput.limits import Limit
from reput.remoting.channel import Channel
from reput.remoting.request_queue import RequestQueue

LIMIT = Limit("jobs", "jobs that wait", 2)


class Answers:
    """The channel of a client; it records the replies."""

    peer = "10.0.0.1:1"

    def __init__(self) -> None:
        self.replies: list[tuple[int, int, str | None]] = []

    def answer(self, request: Command, reply: Command) -> None:
        self.replies.append((request.opaque, reply.code, reply.remark))


@pytest.fixture
def answers() -> Answers:
    return Answers()


def request(opaque: int, flag: int = 0) -> Command:
    return Command(25, opaque=opaque, flag=flag, body=b"x" * 1000)


async def test_work_runs_in_the_order_of_requests_and_never_concurrently(
    answers: Answers,
) -> None:
    queue, running, order = RequestQueue(LIMIT.at(100)), 0, []

    async def work(number: int) -> str:
        nonlocal running
        running += 1
        assert running == 1
        order.append(number)
        await asyncio.sleep(0)
        running -= 1
        return f"remark {number}"

    for number in range(20):
        queue.answer(cast(Channel, answers), request(number), lambda n=number: work(n))  # type: ignore[misc]
    assert answers.replies == []
    await queue.close()
    assert order == list(range(20))
    assert answers.replies == [(number, 0, f"remark {number}") for number in range(20)]


async def test_a_failure_is_the_reply_and_the_next_request_runs(
    answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    queue = RequestQueue(LIMIT.at(100))

    async def refuse() -> None:
        raise WriteFailed("/x/broker.conf", "no room")

    async def fail() -> None:
        raise KeyError("bug")

    async def succeed() -> None:
        return None

    for number, work in enumerate((refuse, fail, succeed)):
        queue.answer(cast(Channel, answers), request(number), work)
    queue.answer(cast(Channel, answers), request(9, IS_ONEWAY), succeed)
    await queue.close()
    assert [opaque for opaque, _, _ in answers.replies] == [0, 1, 2]
    (_, _, refusal), (_, code, bug), (_, success, remark) = answers.replies
    assert refusal is not None
    assert "/x/broker.conf" in refusal
    assert (code, bug) == (ResponseCode.SYSTEM_ERROR, "KeyError: 'bug'")
    assert (success, remark) == (ResponseCode.SUCCESS, None)
    assert "request 25 of 10.0.0.1:1 failed" in caplog.text


async def test_requests_above_the_limit_are_refused(answers: Answers) -> None:
    queue, may_end = RequestQueue(LIMIT), asyncio.Event()

    async def work() -> None:
        await may_end.wait()

    channel = cast(Channel, answers)
    queue.answer(channel, request(0), work)
    await asyncio.sleep(0)  # Its work has begun: it no longer waits.
    for number in (1, 2):
        queue.answer(channel, request(number), work)
    with pytest.raises(LimitExceeded, match="jobs"):
        queue.answer(channel, request(3), work)
    may_end.set()
    await queue.close()
    queue.answer(channel, request(4), work)
    await queue.close()
    assert [opaque for opaque, _, _ in answers.replies] == [0, 1, 2, 4]
