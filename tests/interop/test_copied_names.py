"""Topics and groups of an official master on our slave, and of our master on official slaves."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from interop import java_cluster, pairs
from interop.clusters import PAUSE, until
from interop.pairs import REPUT, Pair
from interop.wire import Remote
from reput.format import bodies
from reput.format.bodies import SubscriptionGroupConfig, TopicConfigTable
from reput.format.codes import RequestCode as Code, ResponseCode
from reput.format.headers import CreateTopicHeader, GroupNameHeader, TopicHeader

pytestmark = [
    pytest.mark.rotating,
    pytest.mark.interop,
    pytest.mark.slow,
]

TOPIC = "orders"
GROUP = "readers"
COPIED_S = 10
"""Seconds in which a slave of ours, or of 4.x, has the tables."""


def ask(address: str, code: Code, header: object = None, body: bytes = b"") -> bytes:
    """Return the body of a reply, which must be a success."""

    async def question(remote: Remote) -> bytes:
        reply = await remote.ask(code, header, body)  # type: ignore[arg-type]
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        return bytes(reply.body)

    answer: bytes = pairs.asked(address, question)
    return answer


def create_topic(address: str, count: int) -> None:
    header = CreateTopicHeader(
        topic=TOPIC,
        default_topic="TBW102",
        read_queue_nums=count,
        write_queue_nums=count,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        order=False,
    )
    ask(address, Code.UPDATE_AND_CREATE_TOPIC, header)


def delete_topic(address: str) -> None:
    ask(address, Code.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))


def create_group(address: str, retry_max: int) -> None:
    group = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=retry_max)
    ask(address, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=bodies.encode(group))


def delete_group(address: str) -> None:
    header = GroupNameHeader(group_name=GROUP, clean_offset=True)
    ask(address, Code.DELETE_SUBSCRIPTIONGROUP, header)


def topic_table(address: str) -> TopicConfigTable:
    return bodies.decode(TopicConfigTable, ask(address, Code.GET_ALL_TOPIC_CONFIG))


def write_queues(address: str) -> int | None:
    """Return the number of the topic's write queues; None without the topic."""
    topic = topic_table(address).topic_config_table.get(TOPIC)
    return None if topic is None else topic.write_queue_nums


def retries(address: str) -> int | None:
    """Return a setting of the group; None without the group."""
    table = json.loads(ask(address, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    group = table["subscriptionGroupTable"].get(GROUP)
    return None if group is None else int(group["retryMaxTimes"])


def send(address: str, *all_bodies: bytes) -> None:
    async def question(remote: Remote) -> None:
        for body in all_bodies:
            reply = await remote.send(TOPIC, body)
            assert reply.code in (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE)

    pairs.asked(address, question)


def read(address: str, count: int) -> list[bytes]:
    async def question(remote: Remote) -> list[bytes]:
        return [message.body for message in await remote.read(TOPIC, count)]

    answer: list[bytes] = pairs.asked(address, question)
    return answer


def has_both(slave: str, count: int | None) -> bool:
    return write_queues(slave) == count == retries(slave)


def change_all(master: str, slave: str, copied_s: float) -> None:
    """Create, change and delete a topic and a group on a master; wait until its slave has each."""
    for count in (3, 8):
        create_topic(master, count)
        create_group(master, count)
        until(partial(has_both, slave, count), copied_s)
    send(master, b"a", b"b", b"c")
    assert read(slave, 3) == [b"a", b"b", b"c"]
    delete_topic(master)
    delete_group(master)
    until(partial(has_both, slave, None), copied_s)


@pytest.mark.parametrize("version", java_cluster.broker_versions())
def test_our_slave_of_an_official_master(version: str, tmp_path: Path) -> None:
    with Pair(version, REPUT, tmp_path) as pair:
        master, slave = pair.master.address, pair.slave.address
        change_all(master, slave, COPIED_S)
        assert pairs.max_offset(slave, TOPIC, 0) == 0
        assert not (pair.slave.store / "consumequeue" / TOPIC).exists()

        # Created again, noticed.
        create_topic(master, 4)
        send(master, b"x", b"y")
        until(lambda: write_queues(slave) == 4, COPIED_S)
        assert read(slave, 2) == [b"x", b"y"]
        # Created again before the slave has noticed.
        delete_topic(master)
        create_topic(master, 4)
        send(master, b"z")
        until(lambda: pairs.max_offset(slave, TOPIC, 0) == 1, COPIED_S)
        assert pairs.max_offset(master, TOPIC, 0) == 1
        assert read(slave, 1) == [b"z"]

        until(lambda: topic_table(slave).data_version == topic_table(master).data_version, COPIED_S)
        # It stays so.
        saved = pair.slave.store / "config/topics.json"
        until(lambda: '"writeQueueNums":4' in saved.read_text(), 30)
        PAUSE.wait(COPIED_S)
        assert topic_table(slave).data_version == topic_table(master).data_version
        assert "not copied" not in pair.slave.log()
        assert "they are kept" not in pair.slave.log()


@pytest.mark.parametrize("version", java_cluster.broker_versions())
def test_an_official_slave_of_our_master(version: str, tmp_path: Path) -> None:
    """A slave of 5.x copies every 60 s. Queues stay (known-bugs.md#deletions-on-slaves)."""
    with Pair(REPUT, version, tmp_path) as pair:
        master, slave = pair.master.address, pair.slave.address
        change_all(master, slave, 75 if version[0] == "5" else COPIED_S + 2)
        warnings = (pair.slave.folder / "warnings.log").read_text(errors="replace")
        assert not re.findall(r".*SlaveSynchronize.*|.*Exception.*", warnings), warnings[-3000:]
