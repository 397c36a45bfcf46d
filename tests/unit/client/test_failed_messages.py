"""A failed message is a line of the log that says what happens to it; dead letters are counted."""

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from reput.client import (
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    MessageModel,
    PopConsumer,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from reput.client.group_member import GroupMember
from reput.testing import LocalBroker

GUARD_S = 30
LINE = re.compile(
    r"group (?P<group>\S+): message (?P<id>\w+) of topic (?P<topic>\S+) \(queue 0 of broker-a,"
    r" offset \d+, keys: (?P<keys>[^)]+)\) failed in attempt (?P<attempt>\d+),"
    r" and is (?P<outcome>.+)"
)
Make = Callable[..., GroupMember]
CONSUMERS: dict[str, Make] = {
    "push": PushConsumer,
    "orderly": partial(PushConsumer, orderly=True),
    "pop": PopConsumer,
    "orderly pop": partial(PopConsumer, orderly=True),
}
each_consumer = pytest.mark.parametrize("make", CONSUMERS.values(), ids=CONSUMERS)


@pytest.fixture
def mq() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"T": 1}) as running:
        yield running


def fail(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
    raise ZeroDivisionError("an error of the user's")


async def until_logged(caplog: pytest.LogCaptureFixture, outcome: str) -> dict[str, str]:
    """Wait for the line of a message; return its parts."""
    async with asyncio.timeout(GUARD_S):
        while True:
            for record in caplog.records:
                match = LINE.fullmatch(record.getMessage())
                if match is not None and outcome in match["outcome"]:
                    return match.groupdict()
            await asyncio.sleep(0.01)


def dead_letters(consumer: GroupMember) -> float:
    values = consumer.metrics()["reput_client_dead_letters_total"].values
    return sum(value for value in values.values() if isinstance(value, (int, float)))


@each_consumer
async def test_a_dead_letter_is_logged_and_counted(
    mq: LocalBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=0)
    async with Producer("P", namesrv=mq.namesrv_addr) as producer:
        sent = await producer.send(Message("T", b"poison", keys=["k1", "k2"]))
    async with make("G", namesrv=mq.namesrv_addr, listener=fail, config=config) as consumer:
        await consumer.subscribe("T")
        line = await until_logged(caplog, "dead letters")
        assert dead_letters(consumer) == 1
    assert line == {
        "group": "G",
        "id": sent.message_id,
        "topic": "T",
        "keys": "k1 k2",
        "attempt": "1",
        "outcome": "sent to the dead letters of G",
    }
    assert [message.body for message in await mq.wait_for("%DLQ%G")] == [b"poison"]
    assert "again" not in caplog.text


# The delays of RocketMQ: level 3 is the first retry, an orderly queue pauses for a second.
@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("push", "delivered again after delay level 3, 10 s by default"),
        ("orderly", "delivered again in 1 s"),
        ("pop", "delivered again in 10 s"),
        ("orderly pop", "delivered again in 1 s"),
    ],
)
async def test_a_retry_is_logged_with_its_delay(
    mq: LocalBroker, kind: str, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with Producer("P", namesrv=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"poison"))
    make = CONSUMERS[kind]
    async with make("G", namesrv=mq.namesrv_addr, listener=fail, config=config) as consumer:
        await consumer.subscribe("T")
        line = await until_logged(caplog, "again")
        assert dead_letters(consumer) == 0
    assert (line["attempt"], line["keys"], line["outcome"]) == ("1", "none", outcome)


async def test_a_broadcasting_group_drops_failed_messages(
    mq: LocalBroker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # which has the offsets of such members
    config = ConsumerConfig(
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, message_model=MessageModel.BROADCASTING
    )
    async with Producer("P", namesrv=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"poison"))
    consumer = PushConsumer("G", namesrv=mq.namesrv_addr, listener=fail, config=config)
    async with consumer:
        await consumer.subscribe("T")
        await until_logged(caplog, "dropped")
