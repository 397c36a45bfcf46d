"""What an editor offers after ``client.``: only names that programs are to use."""

import logging

import pytest

from reput import client
from reput.client import ConsumeContext, MessageQueue, blocking
from reput.client.listener import ListenerCalls

LIFE = {"start", "close", "metrics", "is_connected", "ready", "is_ready"}
PRODUCER = LIFE | {
    *("send", "send_batch", "send_many", "send_oneway"),
    *("request", "reply", "recall", "queues"),
}
SUBSCRIBER = LIFE | {
    *("subscribe", "subscribe_sql", "unsubscribe"),
    "queues",
}
NAMES = {
    "Producer": PRODUCER,
    "TransactionProducer": PRODUCER | {"send_in_transaction", "send_half", "end"},
    "PushConsumer": SUBSCRIBER | {"pause", "resume"},
    "PopConsumer": SUBSCRIBER | {"pop", "ack", "nack", "extend"},
    "PullConsumer": SUBSCRIBER
    | {
        *("assign", "assignment", "pause", "resume", "poll"),
        *("position", "seek", "seek_to_begin", "seek_to_end", "seek_to_time"),
        *("begin_offset", "end_offset", "offset_at", "committed", "commit"),
    },
}


@pytest.mark.parametrize("module", [client, blocking])
@pytest.mark.parametrize("name", NAMES)
def test_a_client_shows_what_programs_are_to_use(module: object, name: str) -> None:
    shown = {member for member in dir(getattr(module, name)) if not member.startswith("_")}
    assert shown == NAMES[name]


async def test_log_lines_have_queues_in_plain_words(caplog: pytest.LogCaptureFixture) -> None:
    def listen(messages: object, context: object) -> None:
        raise ValueError

    calls = ListenerCalls(listen, 1)
    with caplog.at_level(logging.ERROR, "reput.client"):
        await calls.call([], ConsumeContext(MessageQueue("Orders", "broker-a", 3)))
    calls.close()
    (line,) = caplog.messages
    assert "queue 3 of Orders on broker-a" in line
