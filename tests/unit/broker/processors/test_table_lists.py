"""Lists of topics or groups (18, 225), put in slices while other requests change the table."""

import dataclasses
from collections.abc import Callable, Generator
from typing import Any

import pytest

from reput.broker import limits
from reput.broker.processors.table import PROCESSORS
from reput.errors import LimitExceeded, RequestRefused
from reput.format import bodies
from reput.format.bodies import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfigData,
    TopicConfigList,
)
from reput.format.codes import RequestCode as Code
from reput.format.command import Command
from reput.limits import Limit
from reput.remoting.long_replies import CHUNK
from world import Subject, until

COUNT = 2 * CHUNK + 1
"""Entries of a list: three parts."""

Work = Generator[None, None, Any]


class SomeChannel:
    """A connection to which nothing is sent."""

    is_closed = False
    peer, address = "10.0.0.1:1", "10.0.0.1"

    def answer(self, request: Command, reply: Command) -> None:
        """Accept a reply."""


def topic(name: str, queue_count: int = 1, **attributes: str) -> TopicConfigData:
    return TopicConfigData(
        order=False,
        perm=6,
        read_queue_nums=queue_count,
        topic_filter_type="SINGLE_TAG",
        topic_name=name,
        topic_sys_flag=0,
        write_queue_nums=queue_count,
        attributes=attributes or None,
    )


def begin(subject: Subject, code: int, body: object) -> Work:
    request = Command(code, body=bodies.encode(body))
    channel: Any = SomeChannel()
    work = PROCESSORS[code](subject.broker.parts, channel, request)
    assert isinstance(work, Generator)
    return work


def topics(subject: Subject, listed: list[TopicConfigData]) -> Work:
    code = Code.UPDATE_AND_CREATE_TOPIC_LIST
    return begin(subject, code, TopicConfigList(topic_config_list=listed))


def groups(subject: Subject, listed: list[SubscriptionGroupConfig]) -> Work:
    code = Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    return begin(subject, code, SubscriptionGroupList(group_config_list=listed))


def new_topics(subject: Subject, prefix: str) -> Work:
    return topics(subject, [topic(f"{prefix}{i}", 2) for i in range(COUNT)])


def new_groups(subject: Subject, prefix: str) -> Work:
    names = [f"{prefix}{i}" for i in range(COUNT)]
    return groups(subject, [SubscriptionGroupConfig(group_name=name) for name in names])


def large_groups(subject: Subject, prefix: str) -> Work:
    attributes = {"+lite.bind.topic": "b" * 900}
    listed = [
        SubscriptionGroupConfig(group_name=f"{prefix}{i}", attributes=attributes)
        for i in range(COUNT)
    ]
    return groups(subject, listed)


def in_turns(*works: Work) -> list[Exception]:
    """Run work generators in turn, a step each; return what they raised."""
    left, errors = list(works), []
    while left:
        for work in list(left):
            try:
                next(work)
            except StopIteration:
                left.remove(work)
            except RequestRefused as error:
                errors.append(error)
                left.remove(work)
    return errors


def with_room(subject: Subject, limit: Limit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave room for one list and a half."""
    broker = subject.broker
    size, name = {
        limits.TOPICS: (len(broker.parts.topics.table) + COUNT + COUNT // 2, "reput_topics_max"),
        limits.QUEUES: (broker.parts.topics.queue_count + 3 * COUNT, "reput_queues_max"),
        limits.GROUPS: (
            len(broker.parts.subscription_groups.table) + 3 * COUNT // 2,
            "reput_groups_max",
        ),
        limits.ALL_GROUP_SETTINGS_BYTES: (COUNT * 1_400, ""),
    }[limit]
    if name:
        broker.settings.broker = dataclasses.replace(broker.settings.broker, **{name: size})
        broker.parts.topics.config = broker.parts.subscription_groups.config = (
            broker.settings.broker
        )
    else:
        monkeypatch.setattr(limits, limit.name.upper(), limit.at(size))


@pytest.mark.parametrize(
    ("limit", "made"),
    [
        (limits.TOPICS, new_topics),
        (limits.QUEUES, new_topics),
        (limits.GROUPS, new_groups),
        (limits.ALL_GROUP_SETTINGS_BYTES, large_groups),
    ],
    ids=lambda value: value.name if isinstance(value, Limit) else "",
)
async def test_concurrent_lists_do_not_share_the_same_room(
    limit: Limit,
    made: Callable[[Subject, str], Work],
    subject: Subject,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_room(subject, limit, monkeypatch)
    broker = subject.broker
    errors = in_turns(*(made(subject, prefix) for prefix in "abc"))
    assert [type(error) for error in errors] == [LimitExceeded, LimitExceeded]
    assert {error.limit for error in errors if isinstance(error, LimitExceeded)} == {limit.name}
    known = {*broker.parts.topics.all(), *broker.parts.subscription_groups.all()}
    assert [f"{prefix}{i}" in known for prefix in "abc" for i in (0, COUNT - 1)] == (
        [True, True, False, False, False, False]
    )


async def test_reservations_of_a_list_end_when_it_is_put_or_abandoned(subject: Subject) -> None:
    broker = subject.broker
    left = broker.parts.topics.queue_count + 2 * COUNT
    broker.parts.topics.config = dataclasses.replace(broker.settings.broker, reput_queues_max=left)
    assert in_turns(new_topics(subject, "a")) == []
    for i in range(COUNT):
        broker.parts.topics.delete(f"a{i}", 0)
    assert in_turns(new_topics(subject, "b")) == []  # as many again: none stayed reserved
    # A topic of a list may use what another one of the list released; other requests may not.
    swapped = [topic("b0", 1), *(topic(f"b{i}", 2) for i in range(1, COUNT - 1))]
    work = topics(subject, [*swapped, topic(f"b{COUNT - 1}", 3)])
    while broker.parts.topics.queue_count == left:
        next(work)
    assert [type(error) for error in in_turns(topics(subject, [topic("other")]), work)] == [
        LimitExceeded
    ]
    assert broker.parts.topics.queue_count == left


async def test_a_list_is_completed_after_the_connection_closes(subject: Subject) -> None:
    work = new_topics(subject, "a")
    while subject.parts.topics.get("a0") is None:
        next(work)
    assert subject.parts.topics.get(f"a{COUNT - 1}") is None
    work.close()  # as the server does for a closed connection
    await until(lambda: not len(subject.broker.serving.slices))
    assert all(subject.parts.topics.get(f"a{i}") is not None for i in range(COUNT))


async def test_a_list_under_check_is_dropped_when_the_connection_closes(
    subject: Subject,
) -> None:
    work = new_topics(subject, "a")
    next(work)
    next(work)
    work.close()
    assert not len(subject.broker.serving.slices)
    assert subject.parts.topics.get("a0") is None


async def test_concurrent_changes_of_attributes_are_both_kept(subject: Subject) -> None:
    broker = subject.broker
    in_turns(topics(subject, [topic("last")]), new_groups(subject, "g"))
    fill = [topic(f"a{i}") for i in range(COUNT)]
    slow = topics(subject, [*fill, topic("last", **{"+reserve.time": "5"})])
    while broker.parts.topics.get("a0") is None:
        next(slow)
    quick = topics(subject, [topic("last", **{"+message.type": "FIFO"})])
    assert in_turns(quick) == in_turns(slow) == []
    config = broker.parts.topics.get("last")
    assert config is not None
    assert dict(config.attributes) == {"message.type": "FIFO", "reserve.time": "5"}


async def test_a_change_made_impossible_meanwhile_is_refused_and_the_others_are_put(
    subject: Subject,
) -> None:
    broker = subject.broker
    in_turns(topics(subject, [topic("gone", **{"+reserve.time": "5"})]))
    fill = [topic(f"a{i}") for i in range(COUNT - 1)]
    work = topics(subject, [*fill, topic("gone", **{"-reserve.time": ""}), topic("behind")])
    while broker.parts.topics.get("a0") is None:
        next(work)
    broker.parts.topics.delete("gone", 0)
    assert [str(error) for error in in_turns(work)] == [
        "only add attribute is supported while creating topic. key: reserve.time"
    ]
    assert broker.parts.topics.get("gone") is None  # a change does not restore it
    assert broker.parts.topics.get("behind") is not None
