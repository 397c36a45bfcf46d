"""Allocation of queues in a group. tests/interop/test_assign.py compares with Java's results."""

import pytest
from hypothesis import given, strategies as st

from reput.client.core import assign
from reput.client.core.assign import Strategy
from reput.errors import InvalidOption
from reput.format.bodies import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "room@broker", queue_id) for queue_id in range(count)]


STRATEGIES: list[Strategy] = [
    assign.Averagely(),
    assign.AveragelyByCircle(),
    assign.ByMachineRoom(["room"]),
    assign.ConsistentHash(),
    assign.MachineRoomNearby(assign.Averagely(), lambda _: "room", lambda _: "room"),
    assign.MachineRoomNearby(assign.AveragelyByCircle(), lambda _: "far", lambda room: room),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda client_id: client_id.name)
@given(count=st.integers(0, 40), members=st.sets(st.text("abc@#1", min_size=1), min_size=1))
def test_each_queue_has_one_owner(strategy: Strategy, count: int, members: set[str]) -> None:
    ids = assign.sorted_clients(members)
    shares = [strategy.allocate(client_id, queues(count), ids) for client_id in ids]
    assert sorted(queue for share in shares for queue in share) == queues(count)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_a_client_outside_the_group_gets_no_queues(strategy: Strategy) -> None:
    assert strategy.allocate("stranger", queues(4), ["a", "b"]) == []


def test_by_config_ignores_queues_of_other_topics() -> None:
    strategy = assign.ByConfig([*queues(2), MessageQueue("Other", "room@broker", 0)])
    assert strategy.allocate("anyone", queues(8), ["a"]) == queues(2)


def test_invalid_strategy_options_are_refused() -> None:
    strategy = assign.MachineRoomNearby(assign.Averagely(), lambda _: "", lambda _: "room")
    with pytest.raises(InvalidOption, match="machine room"):
        strategy.allocate("a", queues(1), ["a"])
    with pytest.raises(InvalidOption, match="virtual_node_count"):
        assign.ConsistentHash(0)


def test_strategy_names() -> None:
    assert [strategy.name for strategy in STRATEGIES] == [
        "AVG",
        "AVG_BY_CIRCLE",
        "MACHINE_ROOM",
        "CONSISTENT_HASH",
        "MACHINE_ROOM_NEARBY-AVG",
        "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE",
    ]
