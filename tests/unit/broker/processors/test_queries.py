"""12, 33, 43, 45, 303, 321 at a broker."""

import pytest

import world
from reput.broker.processors import queries
from reput.format import headers
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    QueryMessageHeader,
)
from world import Subject, messages_in

END_OF_TIME_MS = (1 << 63) - 1


async def query(subject: Subject, key: str, **fields: object) -> Command:
    header = QueryMessageHeader(
        topic="T", key=key, max_num=64, begin_timestamp=0, end_timestamp=END_OF_TIME_MS
    )
    header = world.with_fields(header, fields)
    return await subject.ask(RequestCode.QUERY_MESSAGE, header)


async def test_an_impossible_key_is_refused(subject: Subject) -> None:
    reply = await query(subject, "k" * 32_767)
    assert reply.code == ResponseCode.QUERY_NOT_FOUND
    assert "allowed: at most 32767 characters, limit query_key_letters" in (reply.remark or "")


def processed(subject: Subject, key: str) -> tuple[Command, int]:
    """Return the processor's reply to a query, and the number of its steps."""
    request = Command(
        RequestCode.QUERY_MESSAGE,
        ext_fields=headers.encode(
            QueryMessageHeader(
                topic="T", key=key, max_num=64, begin_timestamp=0, end_timestamp=END_OF_TIME_MS
            )
        ),
    )
    work = queries.query_message(subject.broker, channel=None, request=request)  # type: ignore[arg-type]
    turns = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, turns
        turns += 1


async def test_a_long_query_runs_in_small_steps(subject: Subject) -> None:
    """A message with a key 5,000 times is one message, and a chain of 5,000 entries."""
    await subject.send("T", b"found", properties={"KEYS": "k " * 5000})
    reply, turns = processed(subject, "k")
    assert turns >= 5000 // 500
    assert [message.body for message in messages_in(reply.body)] == [b"found"]


async def test_a_query_keeps_no_more_than_a_reply_holds(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "BODY_BYTES_MAX", 1000)
    for number in range(4):
        await subject.send("T", b"%d" % number + bytes(300), properties={"KEYS": "k"})
    reply, _ = processed(subject, "k")
    assert [message.body[:1] for message in messages_in(reply.body)] == [b"2", b"3"]
    assert reply.remark == "the newest 2; there may be more"


async def test_many_hits_return_the_newest_with_a_remark(subject: Subject) -> None:
    for number in range(70):
        await subject.send("T", b"%d" % number, properties={"KEYS": "k", "UNIQ_KEY": "u"})
    reply = await query(subject, "k", max_num=1 << 30)
    assert [message.body for message in messages_in(reply.body)] == [
        b"%d" % i for i in range(6, 70)
    ]
    assert reply.code == ResponseCode.SUCCESS
    assert reply.remark == "the newest 64; there may be more"
    reply = await query(subject, "k", max_num=2)
    assert [message.body for message in messages_in(reply.body)] == [b"68", b"69"]
    reply = await query(subject, "u", max_num=1, is_unique_key=True)
    assert len(messages_in(reply.body)) == 32  # defaultQueryMaxNum, whatever number is requested
    assert (await query(subject, "k", max_num=-1)).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_reply_is_no_larger_than_a_frame(subject: Subject) -> None:
    for number in range(5):
        await subject.send("T", b"%d" % number * (4 << 20), properties={"KEYS": "k"})
    reply = await query(subject, "k")
    assert [message.body[:1] for message in messages_in(reply.body)] == [b"2", b"3", b"4"]
    assert reply.remark == "the newest 3; there may be more"
