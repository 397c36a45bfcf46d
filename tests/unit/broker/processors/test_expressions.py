"""SQL92 expressions of requests: others are served while a long one is compiled."""

import itertools
from collections.abc import Generator
from typing import Any

import pytest

from reput.broker.fastpath.pops import FastPops
from reput.broker.processors.table import PROCESSORS
from reput.errors import ReputError
from reput.format import bodies, command as commands
from reput.format.bodies import CheckClientBody, ConsumerData, HeartbeatData, SubscriptionData
from reput.format.codes import RequestCode as Code
from reput.format.command import Command
from world import Subject, reconfigure

NAMES = itertools.count()
STEPS_MIN = 10
"""Of 800 tokens and more."""


def expression(terms: int) -> str:
    """Return an expression that is compiled for the first time."""
    return " OR ".join([f"a{next(NAMES)} = 1"] * terms)


class Client:
    """A connection with the attributes that processors use."""

    is_closed = False
    address = "192.0.2.1"
    peer = "192.0.2.1:5000"

    def __init__(self) -> None:
        self.replies: list[Command] = []

    def notify(self, command: Command) -> None:
        """Accept a notice."""

    def answer(self, request: Command, reply: Command) -> None:
        self.replies.append(reply)


def pop(text: str) -> dict[str, str]:
    return {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "maxMsgNums": "1", "initMode": "0",
        "invisibleTime": "10000", "pollTime": "0", "bornTime": "0", "expType": "SQL92", "exp": text,
    }  # fmt: skip


def request(code: int, text: str) -> Command:
    """Return a request with an expression."""
    subscription = SubscriptionData(
        topic="T", sub_string=text, expression_type="SQL92", sub_version=1
    )
    if code == Code.HEART_BEAT:
        consumer = ConsumerData(
            group_name="g",
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=[subscription],
        )
        data = HeartbeatData(client_id="c", consumer_data_set=[consumer])
        return Command(code, body=bodies.encode(data))
    if code == Code.CHECK_CLIENT_CONFIG:
        body = CheckClientBody(client_id="c", group="g", subscription_data=subscription)
        return Command(code, body=bodies.encode(body))
    if code == Code.POP_MESSAGE:
        return Command(code, ext_fields=pop(text))
    fields = {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "1",
        "subscription": text, "expressionType": "SQL92",
    }  # fmt: skip
    return Command(code, ext_fields=fields)


@pytest.mark.parametrize("terms", [200, 1_000], ids=["valid", "over the limit"])
@pytest.mark.parametrize(
    "code",
    [
        Code.PULL_MESSAGE,
        Code.LITE_PULL_MESSAGE,
        Code.POP_MESSAGE,
        Code.CHECK_CLIENT_CONFIG,
        Code.HEART_BEAT,
    ],
)
async def test_it_is_compiled_in_steps(subject: Subject, code: Code, terms: int) -> None:
    """Each took 20 ms at once; those over the limit again in each request."""
    reconfigure(subject.broker, {"enablePropertyFilter": "true"})
    text = expression(terms)
    client: Any = Client()

    def pauses() -> int:
        count = 0
        try:
            reply = PROCESSORS[code](subject.parts, client, request(code, text))
            if isinstance(reply, Generator):
                for _ in reply:
                    count += 1
        except ReputError:
            assert terms > 300
        return count

    assert pauses() >= STEPS_MIN
    assert pauses() < STEPS_MIN, "it is known"


async def test_the_fast_path_leaves_the_first_pop_to_the_processor(subject: Subject) -> None:
    reconfigure(subject.broker, {"enablePropertyFilter": "true"})
    text = expression(200)
    client: Any = Client()
    frame = commands.encode(request(Code.POP_MESSAGE, text))
    pops = FastPops(subject.parts)
    assert pops.serve(client, memoryview(frame), 0, len(frame)) == 0
    reply = PROCESSORS[Code.POP_MESSAGE](subject.parts, client, request(Code.POP_MESSAGE, text))
    assert isinstance(reply, Generator)
    list(reply)
    assert pops.serve(client, memoryview(frame), 0, len(frame)) == len(frame)
    assert [reply.code for reply in client.replies] == [210]
