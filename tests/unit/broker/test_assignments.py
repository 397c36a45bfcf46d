"""400 to 402: how groups consume topics, and which queues a member gets."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import GeneratorType
from typing import Any

import pytest

import world
from reput.broker import limits
from reput.broker.assignments import TopicQueues, divide
from reput.broker.processors.table import PROCESSORS
from reput.broker.settings.config import BrokerConfig
from reput.format import bodies
from reput.format.bodies import (
    ConsumerData,
    HeartbeatData,
    MessageQueue,
    SubscriptionData,
)
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.remoting.long_replies import CHUNK
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.pop_tables import POP, PULL, RequestMode
from world import Subject

QUEUES = TopicQueues("T", {"b": 2, "a": 2})
ALL = ["m1", "m2", "m3", "m4"]


def numbers(queues: Iterator[MessageQueue] | None) -> list[tuple[str, int]] | None:
    return None if queues is None else [(queue.broker_name, queue.queue_id) for queue in queues]


@pytest.mark.parametrize(
    ("mode", "share", "strategy", "client", "clients", "expected"),
    [
        # Pull: as members divide the queues themselves.
        (PULL, 0, "AVG", "m1", ALL[:2], [("a", 0), ("a", 1)]),
        (PULL, 0, "AVG_BY_CIRCLE", "m2", ALL[:2], [("a", 1), ("b", 1)]),
        (PULL, 0, "AVG", "gone", ALL[:2], []),
        # Pop: any queue of every broker.
        (POP, 0, "AVG", "m1", ALL, [("a", -1), ("b", -1)]),
        (POP, -1, "AVG", "m1", ALL[:1], [("a", -1), ("b", -1)]),
        (POP, 3, "AVG", "m4", ALL, [("a", -1), ("b", -1)]),
        # With a share: a member's own queues, and those of the next members.
        (POP, 1, "AVG", "m1", ALL, [("a", 0), ("a", 1)]),
        (POP, 1, "AVG", "m4", ALL, [("b", 1), ("a", 0)]),
        (POP, 2, "AVG", "m3", ALL, [("b", 0), ("b", 1), ("a", 0)]),
        (POP, 1, "AVG", "m6", [f"m{number}" for number in range(1, 7)], [("a", 1)]),
        # No answer: members keep their queues.
        (POP, 0, "MACHINE_ROOM", "m1", ALL, None),
        (PULL, 0, "AVG", "m1", [], None),
    ],
)
def test_queues_are_divided_as_in_java(
    mode: str, share: int, strategy: str, client: str, clients: list[str], expected: Any
) -> None:
    """The expected queues were derived by hand from ``QueryAssignmentProcessor``."""
    queues = divide(RequestMode("T", "G", mode, share), strategy, client, QUEUES, clients)
    assert numbers(queues) == expected


async def assigned(subject: Subject, topic: str = "T", **fields: Any) -> Any:
    body = {
        "topic": topic,
        "consumerGroup": "G",
        "clientId": "client",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
        **fields,
    }
    reply = await subject.send_body(RequestCode.QUERY_ASSIGNMENT, body)
    assert reply.code == ResponseCode.SUCCESS
    assignments = json.loads(reply.body).get("messageQueueAssignments")
    if assignments is None:
        return None
    return sorted(
        (assignment["messageQueue"]["queueId"], assignment["mode"]) for assignment in assignments
    )


async def join(subject: Subject) -> None:
    data = HeartbeatData(
        client_id="client",
        consumer_data_set=[
            ConsumerData(
                consume_from_where="CONSUME_FROM_FIRST_OFFSET",
                consume_type="CONSUME_PASSIVELY",
                group_name="G",
                message_model="CLUSTERING",
                subscription_data_set=[SubscriptionData(sub_version=1, topic="T")],
                unit_mode=False,
            )
        ],
        producer_data_set=[],
    )
    assert (await subject.send_body(RequestCode.HEART_BEAT, data)).code == ResponseCode.SUCCESS


def test_queues_are_generated_lazily() -> None:
    """The brokers have 65,535 queues each, and 20,000 members have shares."""
    queues = TopicQueues("T", {f"broker{number}": 65_535 for number in range(200)})
    members = [f"m{number:05}" for number in range(20_000)]
    mode = RequestMode("T", "G", POP, 19_998)
    assigned_queues = divide(mode, "AVG", "m00001", queues, members)
    assert assigned_queues is not None
    assert numbers(itertools.islice(assigned_queues, 2)) == [("broker0", 656), ("broker0", 657)]


async def test_many_queues_are_returned_in_small_steps(tmp_path: Path) -> None:
    async with world.broker(tmp_path) as subject:
        broker = subject.broker
        topic = TopicConfig(name="Big", read_queue_count=3_000, write_queue_count=1, perm=6)
        broker.parts.topics.table.put(topic, broker.clock.now_ms())
        await join(subject)
        channel: Any = None
        body = bodies.encode(
            {"topic": "Big", "consumerGroup": "G", "clientId": "client", "strategyName": "AVG"}
        )
        request = Command(RequestCode.QUERY_ASSIGNMENT, body=body)
        work = PROCESSORS[RequestCode.QUERY_ASSIGNMENT](broker.parts, channel, request)
        assert isinstance(work, GeneratorType)
        assert len(list(work)) == 3_000 / CHUNK
        queues = await assigned(subject, "Big")
        assert queues == [(queue_id, "PULL") for queue_id in range(3_000)]


async def test_a_light_queue_is_queue_0_of_the_broker_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no route; with more members than queues, the others have none."""
    monkeypatch.setattr(BrokerConfig, "name_servers", property(lambda _: ("127.0.0.1:1",)))
    async with world.broker(tmp_path, store={"enable_lmq": True}) as subject:
        await join(subject)
        assert await assigned(subject, "%LMQ%x") == [(0, "PULL")]


async def test_the_number_of_requests_waiting_for_a_name_server_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ASSIGNMENTS_ASKED", limits.ASSIGNMENTS_ASKED.at(2))
    async with world.broker(tmp_path) as subject:
        broker, answered, begun = subject.broker, asyncio.Event(), asyncio.Semaphore(0)

        async def route(topic: str) -> None:
            begun.release()
            await answered.wait()

        async def other() -> None:
            await answered.wait()

        monkeypatch.setattr(BrokerConfig, "name_servers", property(lambda _: ("127.0.0.1:1",)))
        monkeypatch.setattr(broker.parts.registration, "route", route)
        for _ in range(5):  # tasks of other requests do not count
            broker.parts.tasks.keep(asyncio.get_running_loop().create_task(other()))
        first = [asyncio.create_task(assigned(subject)) for _ in range(2)]
        for _ in first:
            await begun.acquire()
        body = {"topic": "T", "consumerGroup": "G", "clientId": "c", "strategyName": "AVG",
                "messageModel": "CLUSTERING"}  # fmt: skip
        reply = await subject.send_body(RequestCode.QUERY_ASSIGNMENT, body)
        assert reply.code == ResponseCode.SYSTEM_BUSY
        assert "assignments_asked" in (reply.remark or "")
        answered.set()
        assert await asyncio.gather(*first) == [None, None]
        assert await assigned(subject) is None
