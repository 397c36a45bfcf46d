"""``reput cluster drain``: a broker leaves the routes, and waits until nothing is left."""

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ports import free_port, free_port_of_broker
from reput.client import (
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    ReceivedMessage,
    TransactionState,
    blocking,
)
from reput.testing.local_broker import LocalBroker
from wire_command import Command

QUICK = ("--quiet", "0.2", "--limit", "60")
WAIT_S = 60


@pytest.fixture
def rocketmq() -> Iterator[LocalBroker]:
    """A separate broker: messages of other tests would be waited for."""
    with LocalBroker() as broker:
        yield broker


def perm_of(namesrv: str, topic: str) -> int:
    with blocking.Admin(namesrv=namesrv) as admin:
        (queues,) = admin.topic_route(topic).data.queue_datas
        return queues.perm


def send(namesrv: str, topic: str, **more: object) -> None:
    with blocking.Producer("senders", namesrv=namesrv) as producer:
        producer.send(Message(topic, b"one", **more))


def consume(namesrv: str, topic: str, group: str) -> None:
    """Consume a message and save the offset."""
    is_done = threading.Event()

    def listen(messages: Sequence[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        is_done.set()
        return ConsumeResult.SUCCESS

    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    with blocking.PushConsumer(group, namesrv=namesrv, listener=listen, config=config) as consumer:
        consumer.subscribe(topic)
        assert is_done.wait(WAIT_S)


def test_an_idle_broker_is_drained(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders")
    preview = command.json("cluster", "drain", "broker-a")
    assert (preview["is_done"], preview["is_drained"]) == (False, False)
    assert perm_of(rocketmq.namesrv_addr, "Orders") == 6
    drained = command.json("cluster", "drain", "broker-a", *QUICK, "--yes")
    assert (drained["is_drained"], drained["remaining"]) == (True, [])
    assert perm_of(rocketmq.namesrv_addr, "Orders") == 4


def test_what_remains_is_shown_and_waited_for(command: Command, rocketmq: LocalBroker) -> None:
    namesrv = rocketmq.namesrv_addr
    rocketmq.create_topic("Orders")
    send(namesrv, "Orders", keys=["a"])
    consume(namesrv, "Orders", "billing")
    send(namesrv, "Orders")
    send(namesrv, "Orders", delay_level=18)
    with blocking.TransactionProducer(
        "shop", namesrv=namesrv, check=lambda _: TransactionState.UNKNOWN
    ) as producer:
        producer.send_in_transaction(Message("Orders", b"x"), lambda *_: TransactionState.UNKNOWN)
    limited = ("cluster", "drain", "broker-a", "--yes", "--limit", "0")
    drained = command.json(*limited, code=1)
    assert not drained["is_drained"]
    assert drained["remaining"] == [
        {"what": "lag", "group": "billing", "topic": "Orders", "count": 1},
        {"what": "delayed", "group": None, "topic": None, "count": 1},
        {"what": "half", "group": None, "topic": None, "count": 1},
    ]
    assert not command.json("cluster", "drain", "broker-a")["is_done"]
    command(*limited[:-1], "0.5", code=1)
    assert "billing lags 1 in Orders, 1 delayed, 1 half" in command.notes
    ignoring = command.json(*limited, "--ignore", "billing", code=1)
    assert [row["what"] for row in ignoring["remaining"]] == ["delayed", "half"]


def test_a_broker_that_comes_back_for_producers_is_removed_again(
    command: Command, rocketmq: LocalBroker
) -> None:
    """A broker that registers a topic has all of its topics in the routes again."""
    rocketmq.create_topic("Orders")
    command.json("cluster", "drain", "broker-a", *QUICK, "--yes")
    rocketmq.create_topic("Steps")
    assert perm_of(rocketmq.namesrv_addr, "Orders") == 6
    command.json("cluster", "drain", "broker-a", *QUICK, "--yes")
    assert {perm_of(rocketmq.namesrv_addr, topic) for topic in ("Orders", "Steps")} == {4}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["broker-x", "--yes"], "allowed: broker-a"),
        (["broker-a", "--stop", "--yes"], "not a process of this user on this machine"),
    ],
)
def test_refusals_are_one_line(command: Command, arguments: list[str], text: str) -> None:
    # LocalBroker is in this process, which the command does not stop.
    assert text in command.complaint("cluster", "drain", *arguments)


def test_the_process_is_stopped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    namesrv, port = f"127.0.0.1:{free_port()}", free_port_of_broker()
    arguments = ["up", "--port", namesrv.rpartition(":")[2], "--broker-port", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "reput", *arguments, "--json"], cwd=tmp_path, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        drained = Command(namesrv, capsys).json(
            "cluster", "drain", "broker-a", *QUICK, "--stop", "--yes"
        )
        assert drained["is_stopped"]
        assert process.wait(WAIT_S) == 0
