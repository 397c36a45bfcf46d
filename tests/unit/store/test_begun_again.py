"""Queues that begin again at queue offset 0 in the log: their topic was deleted, and created again.

A slave, or a rebuild of the queues, learns that from the log alone.
"""

from pathlib import Path

import pytest

from log_copy import assert_same, copy_log
from reput.format import batch, message as record, sys_flag as flags
from reput.format.batch import InnerMessage
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage
from store_fixture import Stores
from store_subject import message


def put(store: MessageStore, topic: str, bodies: str, queue_id: int = 0) -> None:
    for body in bodies:
        store.put(message(topic, body.encode(), queue_id))


def bodies_of(store: MessageStore, topic: str, queue_id: int = 0) -> str:
    start, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    texts = []
    for queue_offset in range(start, end):
        (data,) = store.get(topic, queue_id, queue_offset, 1).records
        texts.append(record.decode(data).body.decode())
    return "".join(texts)


def pair(stores: Stores, **settings: object) -> tuple[MessageStore, MessageStore]:
    return stores.open("master", **settings), stores.open("slave", broker_role="SLAVE", **settings)


@pytest.mark.parametrize("new", ["x", "xyz", "vwxyz"])
@pytest.mark.parametrize("has_extensions", [False, True])
def test_a_topic_that_was_created_again_has_its_new_messages_on_the_slave(
    stores: Stores, new: str, has_extensions: bool
) -> None:
    """Also with as many messages as before, or more."""
    master, slave = pair(stores, enable_consume_queue_ext=has_extensions)
    put(master, "T", "abc")
    put(master, "Other", "o")
    copy_log(master, slave)
    master.delete_topic("T")
    put(master, "T", new)
    copy_log(master, slave)
    assert bodies_of(slave, "T") == new
    assert_same(master, slave)
    slave = reopened(slave, stores)
    assert bodies_of(slave, "T") == new
    assert_same(master, slave)


def reopened(store: MessageStore, stores: Stores, role: str = "SLAVE") -> MessageStore:
    store.close()
    return stores.open(Path(store.root).name, broker_role=role)


def test_a_new_slave_of_the_whole_history_has_the_last_topic(stores: Stores) -> None:
    master = stores.open("master")
    for bodies in ("abcd", "ef", "ghi"):
        if master.queue_counts():
            master.delete_topic("T")
        put(master, "T", bodies)
    slave = stores.open("slave", broker_role="SLAVE")
    copy_log(master, slave)
    assert bodies_of(slave, "T") == "ghi"
    assert_same(master, slave)


@pytest.mark.parametrize("role", ["SLAVE", "ASYNC_MASTER"])
def test_a_crash_brings_no_old_message_back(stores: Stores, role: str) -> None:
    """Dispatch is repeated from before the deletion, also by a slave that is promoted."""
    master, slave = pair(stores)
    put(master, "T", "abcdefgh")
    copy_log(master, slave)
    master.delete_topic("T")
    put(master, "T", "xyz")
    copy_log(master, slave)
    slave.queues.write_out()
    slave.abandon()
    slave = stores.open("slave", broker_role=role)
    assert bodies_of(slave, "T") == "xyz"
    assert_same(master, slave)


def test_a_promoted_slave_that_had_not_dispatched_the_new_messages(stores: Stores) -> None:
    master, slave = pair(stores)
    put(master, "T", "abc")
    copy_log(master, slave)
    master.delete_topic("T")
    put(master, "T", "x")
    slave.dispatcher.problem = "stopped by the test"
    copy_log(master, slave)
    assert bodies_of(slave, "T") == "abc"
    slave.abandon()
    slave = stores.open("slave", broker_role="ASYNC_MASTER")
    assert bodies_of(slave, "T") == "x"
    put(slave, "T", "y")
    assert bodies_of(slave, "T") == "xy"


def test_queues_that_end_before_the_one_that_begins_again_go_with_it(stores: Stores) -> None:
    master, slave = pair(stores)
    for queue_id in range(3):
        put(master, "T", "ab", queue_id)
    copy_log(master, slave)
    master.delete_topic("T")
    put(master, "T", "x", 2)
    copy_log(master, slave)
    assert [bodies_of(slave, "T", queue_id) for queue_id in range(3)] == ["", "", "x"]


def test_a_queue_that_was_written_before_the_others_began_again_keeps_its_messages(
    stores: Stores,
) -> None:
    master, slave = pair(stores)
    put(master, "T", "abc", 0)
    put(master, "T", "def", 1)
    copy_log(master, slave)
    master.delete_topic("T")
    for queue_id, body in ((2, "m"), (1, "n"), (0, "o"), (1, "p"), (2, "q")):
        put(master, "T", body, queue_id)
    copy_log(master, slave)
    assert [bodies_of(slave, "T", queue_id) for queue_id in range(3)] == ["o", "np", "mq"]
    assert_same(master, slave)
    slave.abandon()
    slave = stores.open("slave", broker_role="SLAVE")
    assert_same(master, slave)


def test_batch_queues_begin_again(stores: Stores) -> None:
    master, slave = pair(stores)
    put_batch(master, "abc", "de")
    copy_log(master, slave)
    assert slave.max_offset("B", 0) == 5
    master.delete_topic("B")
    put_batch(master, "xy")
    copy_log(master, slave)
    assert slave.max_offset("B", 0) == 2
    assert_same(master, slave)
    slave = reopened(slave, stores)
    assert_same(master, slave)


def put_batch(store: MessageStore, *batches: str) -> None:
    for bodies in batches:
        inner = [InnerMessage(0, body.encode(), b"") for body in bodies]
        is_batch = flags.INNER_BATCH | flags.NEED_UNWRAP
        store.put_batch(IncomingMessage("B", batch.encode(inner), sys_flag=is_batch))


def test_queues_are_removed_up_to_a_place_of_the_log(stores: Stores) -> None:
    """The slave learns later than the log that a topic was deleted: it may exist again."""
    master, slave = pair(stores)
    put(master, "T", "abc", 0)
    put(master, "T", "de", 1)
    copy_log(master, slave)
    end = master.log.written_offset
    master.delete_topic("T")
    put(master, "T", "x", 1)
    copy_log(master, slave)
    removal = slave.begin_deletion_before("T", end)
    assert removal is not None
    assert [(queue.topic, queue.queue_id) for queue in removal.queues] == [("T", 0)]
    for _ in slave.removals.release(removal):
        pass
    slave.removals.finish()
    assert_same(master, slave)
    assert slave.begin_deletion_before("T", end) is None
    slave = reopened(slave, stores)
    assert_same(master, slave)
    put(master, "T", "y", 0)
    copy_log(master, slave)
    assert_same(master, slave)


def test_the_new_messages_are_announced_from_the_start(stores: Stores) -> None:
    master, slave = pair(stores)
    put(master, "T", "abc")
    copy_log(master, slave)
    received: list[tuple[str, int, int, int]] = []
    slave.add_listener(lambda *news: received.append(news))
    begun: list[tuple[str, int]] = []
    slave.dispatcher.on_begun_again = lambda topic, queue_ids: begun.extend(
        (topic, queue_id) for queue_id in queue_ids
    )
    master.delete_topic("T")
    put(master, "T", "x")
    copy_log(master, slave)
    assert received == [("T", 0, 0, 1)]
    assert begun == [("T", 0)]
