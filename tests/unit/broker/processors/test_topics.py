"""17, 18, 21, 202, 215, 300, 305, 306, 316, 343, 345, 351 at a broker. Texts are Java's."""

import json
from pathlib import Path
from typing import Any

from reput.broker.settings.config import BrokerConfig
from reput.broker.topic.topics import Topics
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    TopicHeader,
)
from reput.store.files.disk import Disk
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.topics import TopicTable
from world import NAME, Subject


async def delete(subject: Subject, name: str) -> Command:
    return await subject.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=name))


async def test_a_topic_created_by_a_send_is_in_the_file(
    subject: Subject,
) -> None:
    broker = subject.broker
    for number in range(1500):
        broker.parts.topics.table.put(TopicConfig(f"Other{number}", 1, 1, 6), 0)
    for task in broker.loops._tasks:  # no table is saved by its timer
        task.cancel()
    assert (await subject.send("New")).code == ResponseCode.SUCCESS
    saved = json.loads((Path(broker.store.root) / "config/topics.json").read_text())
    assert saved["topicConfigTable"].keys() == broker.parts.topics.all().keys()
    assert {"New", "Other1499"} <= saved["topicConfigTable"].keys()


async def test_queues_of_unknown_topics_are_cleaned(subject: Subject) -> None:
    now_ms = subject.broker.clock.now_ms()
    subject.parts.topics.delete("T", now_ms)  # only the table, as an older version did
    assert subject.broker.store.max_offset("T", 3) == 1
    assert (await subject.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
    assert subject.broker.store.max_offset("T", 3) == 0


# --- of 5.x -----------------------------------------------------------------


async def settings(subject: Subject, name: str) -> dict[str, Any]:
    reply = await subject.ask(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic=name))
    table: dict[str, Any] = json.loads(reply.body)
    return table


def test_a_recreated_topic_is_written_after_the_others(tmp_path: Path) -> None:
    topics = Topics(TopicTable.load(str(tmp_path), Disk()), BrokerConfig(broker_name=NAME))
    topics.on_make = lambda: None
    written: list[str] = []
    topics.on_written.append(written.append)

    def make(name: str) -> None:
        topics.for_group(f"%RETRY%{name}", 1, 6, 0)

    make("again")
    make("other")
    topics.delete("%RETRY%again", 0)
    make("again")
    topics.written(2)
    assert written == ["%RETRY%other"]
    topics.written(3)
    assert written == ["%RETRY%other", "%RETRY%again"]
