"""The broker that replies to pulls suggest is the same on the fast path and in the processor.

The expectations are those of Java's ``PullMessageProcessor`` of 4.9.7.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker_pair
import broker_subject
from behaviour.test_both_pull_paths import COMMIT, MESSAGES, TEXT, fill, pull
from broker_pair import NOW_MS, Both, replies_in
from reput.format.command import Serialization
from reput.store.config import BrokerRole
from reput.store.tables.groups import SubscriptionGroup

ALL_IS_FAR = {"access_message_in_memory_max_ratio": 0}
"""Every message counts as far from the end of the log."""
READERS = SubscriptionGroup(name="readers")


def read_slaves(both: Both, group: SubscriptionGroup = READERS) -> None:
    """Switch slaveReadEnable on, and set the group that reads."""
    for wire in (both.with_kernel, both.without):
        broker_subject.reconfigure(wire.broker, {"slaveReadEnable": "true"})
        wire.broker.parts.subscription_groups.put(group, NOW_MS)


def suggested(both: Both, frame: bytes) -> tuple[list[str], int]:
    """Feed a frame three times; return the suggested ids and the number of fast replies."""
    fast_count = both.feed(frame) + both.feed(frame * 2)
    suggestions = []
    for wire in (both.with_kernel, both.without):
        (reply,) = replies_in(wire.feed(frame))
        assert reply.ext_fields is not None
        suggestions.append(reply.ext_fields["suggestWhichBrokerId"])
    return suggestions, fast_count


@pytest.fixture(params=["near", "far"])
def both(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Both]:
    for pair in broker_pair.open_both(tmp_path, **(ALL_IS_FAR if request.param == "far" else {})):
        fill(pair, MESSAGES)
        yield pair


@pytest.fixture
def is_far(both: Both) -> bool:
    return both.without.broker.store.config.access_message_in_memory_max_ratio == 0


@pytest.mark.parametrize("serialization", list(Serialization))
def test_the_suggestion_depends_on_the_distance(
    both: Both, is_far: bool, serialization: Serialization
) -> None:
    frame = pull(serialization=serialization)
    assert suggested(both, frame) == (["0", "0"], 2), "slaveReadEnable is off by default"
    read_slaves(both)
    assert suggested(both, frame) == (["1", "1"] if is_far else ["0", "0"], 2)


@pytest.mark.parametrize("serialization", list(Serialization))
def test_a_group_chooses_its_brokers(
    both: Both, is_far: bool, serialization: Serialization
) -> None:
    read_slaves(both, dataclasses.replace(READERS, broker_id=3, slow_broker_id=9))
    frame = pull(serialization=serialization)
    assert suggested(both, frame) == (["9", "9"] if is_far else ["3", "3"], 2)


@pytest.mark.parametrize("ids", [(10, 12), (-1, -2)])
def test_ids_that_are_no_digit(both: Both, is_far: bool, ids: tuple[int, int]) -> None:
    read_slaves(both, dataclasses.replace(READERS, broker_id=ids[0], slow_broker_id=ids[1]))
    assert suggested(both, pull()) == ([str(ids[is_far])] * 2, 0)


def test_a_change_applies_at_once(both: Both, is_far: bool) -> None:
    read_slaves(both)
    suggested(both, pull())
    for wire in (both.with_kernel, both.without):
        broker_subject.reconfigure(wire.broker, {"slaveReadEnable": "false"})
    assert suggested(both, pull()) == (["0", "0"], 2)


def test_a_pull_that_finds_nothing(both: Both) -> None:
    """Without messages the distance is not known: Java suggests the group's broker."""
    read_slaves(both, dataclasses.replace(READERS, broker_id=3))
    assert suggested(both, pull(queue_offset=MESSAGES)) == (["3", "3"], 0)


def test_a_slave_takes_the_fast_path(tmp_path: Path) -> None:
    """It answers as the processor does, and stores no offset that came with a pull."""
    for pair in broker_pair.open_both(tmp_path):
        fill(pair, MESSAGES)
    for pair in broker_pair.open_both(tmp_path, broker_role=BrokerRole.SLAVE):
        frame = pull(sys_flag=TEXT | COMMIT, commit_offset=7)
        assert suggested(pair, frame) == (["0", "0"], 2)
        for wire in (pair.with_kernel, pair.without):
            assert list(wire.broker.parts.deliveries.consumer_offsets.all()) == []
        read_slaves(pair, dataclasses.replace(READERS, broker_id=2))
        assert suggested(pair, frame) == (["2", "2"], 2)
