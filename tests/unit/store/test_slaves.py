"""A store with slaves: refusals, statuses, and the bytes that slaves may have."""

from pathlib import Path

import pytest

from reput.clock import ManualClock
from reput.store.config import DurableIn
from reput.store.log.replica_acks import Replica, ReplicaAcks
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import PutStatus
from store_fixture import START_MS, Stores
from store_subject import batch_body, message

FILE = 64 * 1024


def add_slave(
    store: MessageStore, acked_offset: int | None, reported_ms: int = START_MS
) -> Replica:
    replica = Replica("10.0.0.2:40000", acked_offset, reported_ms=reported_ms)
    store.replicas.add(replica)
    return replica


@pytest.mark.parametrize(
    ("acked", "confirmed"),
    [
        ([], [None, None]),
        ([None], [None, None]),
        ([7], [7, None]),
        ([7, 9, None, 8], [9, 8]),
        ([7, 7], [7, 7]),
    ],
)
def test_the_confirmed_offset_is_the_kth_largest(
    acked: list[int | None], confirmed: list[int | None]
) -> None:
    acks = ReplicaAcks([Replica("", offset) for offset in acked])
    assert [acks.confirmed(1), acks.confirmed(2)] == confirmed
    assert acks.confirmed(0) is None


# --- puts -----------------------------------------------------------------------------------


def test_too_few_brokers_refuse_every_put_that_waits(stores: Stores) -> None:
    store = stores.open(broker_role="SYNC_MASTER", in_sync_replicas=1, min_in_sync_replicas=2)
    batch = message(body=batch_body(message(), message()))
    refusals = [
        store.put(message()),
        store.put_batch(batch),
        store.begin_put(message()).result,
        store.begin_put(batch, is_batch=True).result,
    ]
    for refusal in refusals:
        assert refusal is not None
        assert refusal.status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        assert not refusal.status.is_stored
        assert not refusal.status.is_final
        assert refusal.reason == "in-sync replicas not enough"
    assert store.lacks_replicas
    assert store.log.written_offset == 0
    results = store.put_many([message(), message(waits=False), message()])
    assert [result.status for result in results] == [
        PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
        PutStatus.PUT_OK,
        PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
    ]
    assert store.max_offset("TopicA", 0) == 1
    add_slave(store, 0)
    assert not store.lacks_replicas
    assert store.put(message()).status is PutStatus.PUT_OK


def test_an_async_master_refuses_nothing(stores: Stores) -> None:
    """As in Java: ``CommitLog.needHandleHA`` is true for SYNC_MASTER only."""
    store = stores.open(broker_role="ASYNC_MASTER", min_in_sync_replicas=3)
    assert store.put(message()).status is PutStatus.PUT_OK


def test_a_put_without_a_broker_does_not_wait(stores: Stores) -> None:
    store = stores.open(broker_role="SYNC_MASTER")
    assert store.put(message()).status is PutStatus.SLAVE_NOT_AVAILABLE
    slave = add_slave(store, 0)
    assert store.put(message()).status is PutStatus.FLUSH_SLAVE_TIMEOUT
    slave.acked_offset = 1 << 20
    assert store.put(message()).status is PutStatus.PUT_OK


def test_a_put_waits_for_a_slave_that_must_report_again(stores: Stores) -> None:
    clock = ManualClock(START_MS)
    store = stores.open(clock=clock, broker_role="SYNC_MASTER", in_sync_replicas=3)
    now_ms = clock.monotonic_ms()
    first, second = (add_slave(store, 1 << 20, now_ms) for _ in range(2))
    first.acked_offset, first.doubtful_offset = None, 0
    put = store.begin_put(message())
    assert put.result is None
    first.acked_offset = second.acked_offset
    store.replicas_changed()
    assert put.result is not None
    assert put.result.status is PutStatus.PUT_OK  # type: ignore[unreachable]


def test_acknowledgements_settle_pending_puts(stores: Stores) -> None:
    clock = ManualClock(START_MS)
    store = stores.open(clock=clock, broker_role="SYNC_MASTER")
    slave = add_slave(store, 0, clock.monotonic_ms())
    puts = [store.begin_put(message()) for _ in range(3)]
    store.replicas_changed()
    assert [put.result for put in puts] == [None, None, None]
    slave.acked_offset = puts[1].stored.end_offset
    store.replicas_changed()
    assert [put.result and put.result.status for put in puts] == [
        PutStatus.PUT_OK,
        PutStatus.PUT_OK,
        None,
    ]
    clock.advance(3000)
    store.step()
    assert puts[2].result is not None
    assert puts[2].result.status is PutStatus.FLUSH_SLAVE_TIMEOUT


# --- bytes ----------------------------------------------------------------------------------


def test_a_view_ends_with_its_file_or_the_log(stores: Stores) -> None:
    store = stores.open()
    for _ in range(120):
        store.put(message(body=b"x" * 700))
    end = store.replication_limit
    assert end == store.log.written_offset > FILE
    for start, size_max, size in [
        (0, 10, 10),
        (0, 1 << 30, FILE),
        (FILE - 1, 10, 1),
        (FILE, 1 << 30, end - FILE),
        (end - 3, 10, 3),
    ]:
        view = store.log_view(start, size_max)
        assert view is not None
        file = store.log.files.files[start // FILE]
        position = start - file.start
        assert bytes(view.data) == Path(file.path).read_bytes()[position : position + size]
        assert view.physical_offset == start
        assert view.release()
    for start in (-1, end, end + 1, 1 << 40):
        assert store.log_view(start, 10) is None
        assert store.log_file(start) is None
    assert store.log_file(100) == (store.log.files.files[0].path, 100, FILE - 100)
    assert store.log_file(FILE + 5) == (store.log.files.files[1].path, 5, end - FILE - 5)


def test_slaves_may_have_only_what_is_durable(stores: Stores) -> None:
    store = stores.open(ha_send_after=DurableIn.DISK)
    store.put(message())
    assert store.replication_limit == 0
    assert store.log_view(0, 10) is None
    store.sync()
    assert store.replication_limit == store.log.written_offset
    view = store.log_view(0, 1 << 20)
    assert view is not None
    assert len(view.data) == store.log.written_offset
    view.release()


def test_a_view_outlives_its_file(stores: Stores) -> None:
    store = stores.open()
    for _ in range(120):
        store.put(message(body=b"x" * 700))
    view = store.log_view(0, 100)
    assert view is not None
    data = bytes(view.data)
    store.log.delete_first(now_ms=0, forced_after_ms=120_000)
    assert store.min_physical_offset == FILE
    assert bytes(view.data) == data
    assert view.release()
    assert store.log_view(0, 100) is None
