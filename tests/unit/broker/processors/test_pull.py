"""Pulls and long polling. Codes are Java's (facts, sections 3.7 and 5)."""

import asyncio
from pathlib import Path

import pytest

import world
from reput.broker.filter.selection import Selection
from reput.broker.parts import Parts
from reput.broker.processors import pull
from reput.format import properties as props
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    PullMessageHeader,
)
from reput.store.getting import GetResult
from reput.store.writing.incoming import IncomingMessage
from world import Subject, pull_header, until

SUSPEND = 2
IN_REQUEST = 4


def bodies_of(reply: Command) -> list[bytes]:
    return [stored.body for stored in world.messages_in(reply.body)]


def message(topic: str, tag: str) -> IncomingMessage:
    return IncomingMessage(topic, b"body", 0, props.encode({props.TAGS: tag}))


async def held(subject: Subject, count: int = 1) -> None:
    await until(lambda: len(subject.parts.held_pulls) >= count)


# --- long polling ---------------------------------------------------------------


async def test_a_held_pull_keeps_only_the_fields_of_its_reply(subject: Subject) -> None:
    """A held pull used to keep its body of up to 16 MiB, and its fields."""
    header = pull_header(
        "T",
        sys_flag=SUSPEND | IN_REQUEST,
        suspend_timeout_millis=15_000,
        subscription="TagA || TagB",
        expression_type="TAG",
    )
    asked = subject.ask(RequestCode.PULL_MESSAGE, header, b"x" * 1000)
    waiting = asyncio.ensure_future(asked)
    await held(subject)
    (kept,) = subject.parts.held_pulls.held_at("T", 0)
    assert (kept.request.body, kept.request.ext_fields) == (b"", None)
    assert (kept.header.subscription, kept.header.expression_type) == (None, None)
    assert 0 < kept.bytes_about < 1000
    await subject.send("T", b"other tag", properties={"TAGS": "TagC"})
    await subject.send("T", b"it", properties={"TAGS": "TagB"})
    reply = await waiting
    assert (reply.code, bodies_of(reply)) == (ResponseCode.SUCCESS, [b"it"])


async def test_a_partial_scan_replies_instead_of_waiting(tmp_path: Path) -> None:
    """A step reads a limited number of units: a matching message may follow them."""
    store = {"max_filter_message_size": 20 * 4}
    async with world.broker(tmp_path, store=store) as subject:
        await subject.send("T", queue_id=1)
        waiting = asyncio.ensure_future(
            subject.pull(
                "T",
                sys_flag=SUSPEND | IN_REQUEST,
                suspend_timeout_millis=600_000,
                subscription="TagB",
                max_msg_nums=1,
            )
        )
        await held(subject)
        for _ in range(10):
            subject.broker.store.put(message("T", "TagA"))
        subject.broker.store.put(message("T", "TagB"))
        subject.broker.store.notify()
        reply = await waiting
        assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert reply.ext_fields is not None
        assert 0 < int(reply.ext_fields["nextBeginOffset"]) < 10


async def test_a_failed_pull_gets_an_error_and_the_others_continue(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [
        asyncio.ensure_future(
            subject.pull(
                "T",
                sys_flag=SUSPEND | IN_REQUEST,
                suspend_timeout_millis=600_000,
                consumer_group=group,
            )
        )
        for group in ("bad", "good")
    ]
    await held(subject, 2)
    real = pull._get

    def get(
        parts: Parts, header: PullMessageHeader, wanted: Selection, queue_offset: int
    ) -> GetResult:
        if header.consumer_group == "bad":
            raise RuntimeError("a bug")
        return real(parts, header, wanted, queue_offset)

    monkeypatch.setattr(pull, "_get", get)
    await subject.send("T", b"it")
    bad, good = [await reply for reply in waiting]
    assert (bad.code, bad.remark) == (ResponseCode.SYSTEM_ERROR, "RuntimeError: a bug")
    assert bodies_of(good) == [b"it"]


async def test_pulls_are_refused_on_the_fast_port(subject: Subject) -> None:
    fast = f"127.0.0.1:{subject.broker.identity.port - 2}"
    request = Command(RequestCode.PULL_MESSAGE, ext_fields={})
    reply = await subject.client.invoke(fast, request, 5_000)
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
