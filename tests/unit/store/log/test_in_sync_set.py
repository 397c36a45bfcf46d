"""A master under a controller: who must have a message before it is acknowledged and consumed."""

from typing import Any

from cases import each
from log_copy import copy_log
from reput.clock import ManualClock
from reput.store.log.in_sync_set import InSyncSet
from reput.store.log.replica_acks import Replica, ReplicaAcks
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import PutStatus
from store_fixture import START_MS, Stores
from store_subject import message

OWN = 1
SLAVE_TIMEOUT_MS = 3_000


class Group:
    """A master's store, its in-sync set and its lease."""

    def __init__(self, stores: Stores, *, needs_all: bool, has_lease: bool, **settings: Any):
        self.clock = ManualClock(START_MS)
        settings = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 1} | settings
        self.store: MessageStore = stores.open(clock=self.clock, **settings)
        self.has_lease = has_lease
        self.in_sync = InSyncSet(
            OWN, self.store.replicas, needs_all=needs_all, may_act_alone=lambda: self.has_lease
        )
        self.store.enter_group(self.in_sync)

    def connect(self, broker_id: int | None, acked_offset: int | None) -> Replica:
        replica = Replica(
            f"10.0.0.{broker_id}:1", acked_offset, reported_ms=START_MS, broker_id=broker_id
        )
        self.store.replicas.add(replica)
        return replica


ALL = 1 << 40
"""An acknowledged offset after each message."""


@each(
    ("members", "claimed", "acked", "needs_all", "has_lease", "is_safe"),
    [
        # alone in the set: no other broker can be elected
        ({1}, set(), {}, True, False, True),
        # with a lease and without allAckInSyncStateSet no slave is asked
        ({1, 2}, set(), {2: 0}, False, True, True),
        # without a lease, all are asked
        ({1, 2}, set(), {2: 0}, False, False, False),
        ({1, 2}, set(), {2: ALL}, False, False, True),
        # with allAckInSyncStateSet, always
        ({1, 2}, set(), {2: 0}, True, True, False),
        ({1, 2}, set(), {2: ALL}, True, True, True),
        # each of them, not the fastest
        ({1, 2, 3}, set(), {2: ALL, 3: 0}, True, True, False),
        ({1, 2, 3}, set(), {2: ALL, 3: ALL}, True, True, True),
        # a member that is gone, or has not reported yet, is still a member
        ({1, 2, 3}, set(), {2: ALL}, True, True, False),
        ({1, 2, 3}, set(), {2: ALL, 3: None}, True, True, False),
        # a slave outside of the set, or without an id, confirms nothing
        ({1, 2}, set(), {3: ALL, None: ALL}, True, True, False),
        # a broker that the controller may have added must have it, too
        ({1}, {2}, {2: 0}, True, True, False),
        ({1}, {2}, {2: 0}, False, False, False),
        ({1}, {2}, {2: ALL}, True, True, True),
        ({1, 2}, {3}, {2: ALL}, True, False, False),
    ],
)
def test_who_must_have_a_message(
    stores: Stores,
    members: set[int],
    claimed: set[int],
    acked: dict[int | None, int | None],
    needs_all: bool,
    has_lease: bool,
    is_safe: bool,
) -> None:
    group = Group(stores, needs_all=needs_all, has_lease=has_lease)
    try:
        for broker_id, acked_offset in acked.items():
            group.connect(broker_id, acked_offset)
        group.in_sync.change(frozenset(members), frozenset(claimed))
        put = group.store.begin_put(message())
        group.store.replicas_changed()
        assert (put.result is not None) is is_safe
        if is_safe:
            assert put.result.status is PutStatus.PUT_OK
        else:  # it waits as long as for a slave, and is not acknowledged
            group.clock.advance(SLAVE_TIMEOUT_MS - 1)
            group.store.step()
            assert put.result is None
            group.clock.advance(1)
            group.store.step()
            assert put.result is not None
            assert put.result.status is PutStatus.FLUSH_SLAVE_TIMEOUT
    finally:
        group.store.close()


def test_a_waiting_put_follows_the_set_and_the_lease(stores: Stores) -> None:
    group = Group(stores, needs_all=False, has_lease=False)
    store, in_sync = group.store, group.in_sync
    second, third = group.connect(2, 0), group.connect(3, 0)
    in_sync.change(frozenset({1, 2}))
    first_put = store.begin_put(message())
    in_sync.change(frozenset({1, 2}), claimed=frozenset({3}))
    second.acked_offset = first_put.stored.end_offset
    store.replicas_changed()
    assert first_put.result is None
    third.acked_offset = first_put.stored.end_offset
    store.replicas_changed()
    assert first_put.result is not None
    second_put = store.begin_put(message())  # type: ignore[unreachable]
    in_sync.change(frozenset({1}))
    store.replicas_changed()
    assert second_put.result.status is PutStatus.PUT_OK
    in_sync.change(frozenset({1, 2}))
    third_put = store.begin_put(message())
    assert third_put.result is None
    group.has_lease = True
    store.replicas_changed()
    assert third_put.result.status is PutStatus.PUT_OK


@each("acked_offset", [0, 1, 100])
def test_the_confirmed_offset_is_the_smallest(acked_offset: int) -> None:
    acks = ReplicaAcks([Replica("", 100, broker_id=2), Replica("", acked_offset, broker_id=3)])
    in_sync = InSyncSet(OWN, acks, needs_all=True, may_act_alone=lambda: True)
    in_sync.change(frozenset({1, 2}), frozenset({3}))
    assert in_sync.confirmed(90) == min(acked_offset, 90)
    in_sync.change(frozenset({1, 4}))
    assert in_sync.confirmed(90) == 0
    in_sync.change(frozenset({1}))
    assert in_sync.confirmed(90) == 90


def test_too_small_a_set_refuses_puts(stores: Stores) -> None:
    """The set decides, not the connections: only its members can be elected."""
    group = Group(stores, needs_all=True, has_lease=True, min_in_sync_replicas=2)
    group.connect(2, 0)
    refusal = group.store.put(message())
    assert refusal.status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    assert group.store.log.written_offset == 0
    group.in_sync.change(frozenset({1, 2}))
    assert group.store.begin_put(message()).result is None


def test_messages_are_consumed_up_to_the_confirmed_offset(stores: Stores) -> None:
    group = Group(stores, needs_all=True, has_lease=True)
    store = group.store
    second = group.connect(2, 0)
    group.in_sync.change(frozenset({1, 2}), frozenset())
    puts = [store.begin_put(message()) for _ in range(3)]
    store.step()
    assert store.dispatcher.dispatched_offset == 0
    for count, put in enumerate(puts, start=1):
        second.acked_offset = put.stored.end_offset
        store.replicas_changed()
        assert store.dispatcher.dispatched_offset == put.stored.end_offset
        assert store.get("TopicA", 0, 0, 10).message_count == count
    group.in_sync.change(frozenset({1, 2}), frozenset({3}))
    store.begin_put(message())
    second.acked_offset = store.max_physical_offset
    store.replicas_changed()
    assert store.dispatcher.dispatched_offset == puts[-1].stored.end_offset


def test_a_set_that_need_not_confirm_delays_no_consumer(stores: Stores) -> None:
    group = Group(stores, needs_all=False, has_lease=False)
    group.connect(2, 0)
    group.in_sync.change(frozenset({1, 2}))
    group.store.begin_put(message())
    group.store.step()
    assert group.store.dispatcher.dispatched_offset == group.store.max_physical_offset


def test_a_slave_dispatches_what_its_master_says_is_confirmed(stores: Stores) -> None:
    master = stores.open("master")
    ends = [master.put(message()).end_offset for _ in range(3)]
    slave = stores.open("slave", broker_role="SLAVE")
    slave.confirmed_offset = ends[0]
    copy_log(master, slave)
    assert slave.dispatcher.dispatched_offset == ends[0]
    slave.confirmed_offset = 1 << 40
    slave.step()
    assert slave.dispatcher.dispatched_offset == ends[-1]
