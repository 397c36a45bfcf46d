"""Groups: their members, large heartbeats, and many members: cost and limits."""

import dataclasses
import json
from collections.abc import Generator
from typing import Any

import pytest

from reput.broker.group.groups import Groups, Maxima
from reput.broker.processors.table import PROCESSORS
from reput.errors import LimitExceeded
from reput.format import bodies
from reput.format.bodies import ConsumerData, HeartbeatData, SubscriptionData
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.remoting.time_slices import run_whole
from world import Subject


class Peer:
    """A connection that counts how often it is hashed, that is, looked up."""

    def __init__(self, peer: str = "192.0.2.1:1") -> None:
        self.peer = peer
        self.hash_count = 0

    def __hash__(self) -> int:
        self.hash_count += 1
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def consumer(group: str, *topics: str, sub_string: str = "*") -> ConsumerData:
    return ConsumerData(
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        consume_type="CONSUME_PASSIVELY",
        group_name=group,
        message_model="CLUSTERING",
        subscription_data_set=[
            SubscriptionData(topic=topic, sub_string=sub_string, sub_version=1) for topic in topics
        ],
    )


async def beat(subject: Subject, groups: list[str], topics: int = 0, producers: int = 0) -> Command:
    subscriptions = [
        {"topic": f"T{topic}", "subString": "*", "subVersion": 1} for topic in range(topics)
    ]
    body = {
        "clientID": "c",
        "consumerDataSet": [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": subscriptions,
            }
            for group in groups
        ],
        "producerDataSet": [{"groupName": f"p{number}"} for number in range(producers)],
    }
    return await subject.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())


def test_members_come_and_go() -> None:
    groups: Groups[Peer] = Groups()
    first, second = Peer(), Peer()
    assert groups.register_consumer(first, "a", consumer("g", "T"), 0, 1, 10)
    assert not groups.register_consumer(first, "a", consumer("g", "T"), 0, 1, 20)
    assert groups.register_consumer(first, "a", consumer("g"), 0, 1, 30)  # T is removed
    groups.register_producer(second, "b", "p", 0, 1, 15)
    assert groups.silent(16) == [second]
    assert groups.silent(31) == [first, second]
    assert groups.remove(first) == ["g"]
    assert groups.consumer("g") is None
    assert groups.remove(second) == []
    assert groups.producer_groups() == {}


async def test_a_heartbeat_with_many_new_groups_writes_the_topic_table_a_few_times(
    subject: Subject,
) -> None:
    table, writes = subject.parts.topics.table, []
    write = table.write

    def counted(*arguments: Any, **more: Any) -> Any:
        writes.append(1)
        return write(*arguments, **more)

    table.write = counted  # type: ignore[method-assign]
    assert (
        await beat(subject, [f"g{number}" for number in range(999)])
    ).code == ResponseCode.SUCCESS
    assert subject.parts.topics.get("%RETRY%g998") is not None
    # Each retry topic used to write the whole table.
    assert len(writes) < 100


# --- limits per connection and in total -----------------------------------------


def test_closing_a_connection_costs_as_much_as_it_has_groups() -> None:
    def hashes_of_removal(group_count: int) -> int:
        groups: Groups[Peer] = Groups()
        peer, others = Peer(), [Peer() for _ in range(50)]
        for number in range(group_count):
            groups.register_producer(peer, "a", f"p{number}", 0, 1, 0)
            groups.register_producer(others[number % 50], "b", f"q{number}", 0, 1, 0)
        peer.hash_count = 0
        assert groups.remove(peer) == []
        assert not [name for name in groups.producer_groups() if name.startswith("p")]
        return peer.hash_count

    # Each group used to be searched completely.
    assert hashes_of_removal(400) < 6 * hashes_of_removal(100)


def test_a_client_that_changes_its_id_leaves_no_entry() -> None:
    groups: Groups[Peer] = Groups()
    peer = Peer()
    for number in range(100):
        groups.register_producer(peer, f"client {number}", "p", 0, 1, number)
    assert groups.producer_of_client("client 99") is not None
    assert [n for n in range(99) if groups.producer_of_client(f"client {n}") is not None] == []
    groups.remove(peer)
    assert groups.producer_of_client("client 99") is None
    assert groups.membership_count == 0
    assert groups.silent(1 << 60) == []


# --- heartbeats in slices -----------------------------------------------------


class Client(Peer):
    """A connection with the attributes that processors use."""

    is_closed = False
    address = "192.0.2.1"

    def notify(self, command: Command) -> None:
        """Accept a notice."""


def begin(subject: Subject, channel: Peer, *consumers: ConsumerData) -> Generator[None, None, Any]:
    data = HeartbeatData(client_id="c", consumer_data_set=list(consumers))
    request = Command(RequestCode.HEART_BEAT, body=bodies.encode(data))
    as_channel: Any = channel
    work = PROCESSORS[RequestCode.HEART_BEAT](subject.broker.parts, as_channel, request)
    assert isinstance(work, Generator)
    return work


def set_config(subject: Subject, **settings: int) -> None:
    broker = subject.broker
    broker.settings.broker = dataclasses.replace(broker.settings.broker, **settings)
    broker.parts.topics.config = broker.parts.subscription_groups.config = broker.settings.broker
    broker.parts.groups.maxima = Maxima.of(broker.settings.broker)


async def test_concurrent_heartbeats_do_not_share_the_same_room(subject: Subject) -> None:
    set_config(subject, reput_memberships_max=subject.parts.groups.membership_count + 30)
    left, limits_met = [], []
    for prefix in "ab":
        consumers = [consumer(f"{prefix}{number}", "T") for number in range(20)]
        left.append(begin(subject, Client(), *consumers))
    while left:
        for work in list(left):
            try:
                next(work)
            except StopIteration:
                left.remove(work)
            except LimitExceeded as error:
                left.remove(work)
                limits_met.append(error.limit)
    assert set(limits_met) == {"memberships"}
    assert subject.parts.groups.membership_count == 30


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"reput_subscription_bytes_max": 5_000}, "all_subscription_bytes"),
        ({"reput_auto_created_groups_per_address_max": 2}, "auto_created_groups_per_address"),
        ({"reput_auto_created_topics_per_address_max": 2}, "auto_created_topics_per_address"),
    ],
)
async def test_a_heartbeat_over_a_limit_has_no_effect(
    subject: Subject, settings: dict[str, int], limit: str
) -> None:
    set_config(subject, **settings)
    broker = subject.broker
    known = broker.parts.topics.all().keys(), broker.parts.subscription_groups.all().keys()
    consumers = [consumer(f"g{number}", "T", sub_string="x" * 2_000) for number in range(3)]
    with pytest.raises(LimitExceeded) as caught:
        run_whole(begin(subject, Client(), *consumers))
    assert caught.value.limit == limit
    assert broker.parts.groups.membership_count == 0
    assert (
        broker.parts.topics.all().keys(),
        broker.parts.subscription_groups.all().keys(),
    ) == known


@pytest.mark.parametrize("tags", [{"tags_set": [""] * 2_001}, {"code_set": [0] * 2_001}])
async def test_the_number_of_tags_of_a_member_is_bounded(
    subject: Subject, tags: dict[str, list[object]]
) -> None:
    """A megabyte of empty tags used no byte of a subscription, but work for each tag."""
    member = consumer("g", "T")
    for name, values in tags.items():
        setattr(member.subscription_data_set[0], name, values)
    with pytest.raises(LimitExceeded, match="subscription_tags"):
        run_whole(begin(subject, Client(), member))
    assert subject.parts.groups.membership_count == 0
