"""A slave's log: bytes of the master's log in any pieces, dispatched as whole records."""

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from log_copy import assert_same, copy_log, log_bytes
from reput.errors import DiskFull, StoreUnavailable
from reput.format import message as record
from reput.store.message_store import MessageStore
from reput.store.verify import FindingKind
from reput.store.writing.dispatch import Hole
from reput.store.writing.incoming import PutStatus
from store_fixture import RoomyDisk, Stores
from store_subject import batch_body, expire_files, message, step_to_the_end

FILE = 64 * 1024


def put_some(store: MessageStore, count: int, size: int = 700, topic: str = "TopicA") -> None:
    for number in range(count):
        sent = message(topic, bytes([number % 251]) * size, number % 3, keys=f"key{number}")
        assert store.put(sent).status is PutStatus.PUT_OK
    store.step()


def pair(stores: Stores, **settings: object) -> tuple[MessageStore, MessageStore]:
    return stores.open("master"), stores.open("slave", broker_role="SLAVE", **settings)


def reopen(
    store: MessageStore, stores: Stores, role: str = "SLAVE", **settings: object
) -> MessageStore:
    return stores.open(Path(store.root).name, broker_role=role, **settings)


# --- receiving ------------------------------------------------------------------------------


def test_a_copied_log_is_equal_and_so_are_its_queues(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 300)
    master.put(message("TopicB", b"", tags="t", unique_key="U1"))
    master.put(message("TopicA", b"x" * 15_000))
    master.put_batch(message("TopicB", batch_body(*[message(body=b"b" * 300)] * 30)))
    copy_log(master, slave)
    assert master.log.written_offset > 3 * FILE
    assert_same(master, slave)
    assert slave.query("TopicA", "key299").records == master.query("TopicA", "key299").records
    assert not slave.replica_log.problem


@hypothesis.given(
    bodies=st.lists(st.integers(0, 16_000), min_size=1, max_size=40),
    sizes=st.lists(
        st.one_of(st.integers(1, 20), st.integers(1, 3_000), st.integers(1, FILE)), min_size=1
    ),
    flush=st.sampled_from(["ASYNC_FLUSH", "SYNC_FLUSH"]),
)
@hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
    max_examples=hypothesis.settings.default.max_examples // 4,
)
def test_frames_may_end_anywhere(
    tmp_path: Path, bodies: list[int], sizes: list[int], flush: str
) -> None:
    stores = Stores(tmp_path / str(next(_folders)))
    master, slave = pair(stores, flush_disk_type=flush)
    for number, size in enumerate(bodies):
        sent = message(f"Topic{number % 2}", bytes([number]) * size, number % 3, keys=f"k{number}")
        master.put(sent)
    master.step()
    # Many frames of a few bytes take long, and show no more than some.
    few = itertools.chain(itertools.islice(itertools.cycle(sizes), 200), itertools.repeat(1999))
    copy_log(master, slave, few)
    step_to_the_end(slave)
    assert_same(master, slave)
    stores.check()


_folders: Iterator[int] = itertools.count()


def test_a_record_waits_until_it_is_whole(stores: Stores) -> None:
    master, slave = pair(stores)
    ends = [master.put(message(body=b"x" * 500)).end_offset for _ in range(2)]
    received: list[tuple[str, int, int, int]] = []
    slave.add_listener(lambda *news: received.append(news))
    copy_log(master, slave, stop=ends[0] - 1)
    assert slave.max_offset("TopicA", 0) == 0
    assert slave.replica_log.end == ends[0] - 1
    assert not slave.has_more_to_do
    assert not slave.step_memory()
    copy_log(master, slave, stop=ends[0] + 1)
    assert received == [("TopicA", 0, 0, 1)]
    copy_log(master, slave)
    assert received == [("TopicA", 0, 0, 1), ("TopicA", 0, 1, 2)]
    assert slave.last_record() == master.last_record()
    assert not slave.replica_log.problem


def test_the_first_record_of_each_queue_is_found_before_it_is_dispatched(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 200)  # more than a file
    first = master.put(message("TopicB", b"x" * 500, queue_id=2))
    put_some(master, 3)
    second = master.put(message("TopicB", b"x", queue_id=1))
    assert first.physical_offset > FILE
    log = slave.replica_log

    def receive(stop: int) -> None:
        while log.end < stop:
            view = master.log_view(log.end, min(stop - log.end, 32 * 1024))
            assert view is not None
            log.buffer(len(view.data))[:] = view.data
            log.add(len(view.data))
            assert view.release()

    copy_log(master, slave, stop=2000)  # queues 0 and 1 have a record
    receive(first.physical_offset + 100)
    place, stored = log.find_unqueued(slave.dispatcher.dispatched_offset)
    assert stored is not None
    assert (stored.topic, stored.queue_id, stored.queue_offset) == ("TopicA", 2, 0)
    assert place == stored.physical_offset
    log.dispatch()
    step_to_the_end(slave)
    assert log.find_unqueued(place) == (first.physical_offset, None)  # not whole yet
    receive(master.max_physical_offset)
    (place, stored), expected = log.find_unqueued(place), first.physical_offset
    assert stored is not None
    assert (place, stored.topic, stored.queue_id) == (expected, "TopicB", 2)
    place, stored = log.find_unqueued(place + stored.store_size)
    assert stored is not None
    assert (place, stored.topic, stored.queue_id) == (second.physical_offset, "TopicB", 1)
    log.dispatch()
    assert log.find_unqueued(place) == (log.end, None)


def test_a_blank_waits_until_it_is_whole(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 100)
    blank = next(
        end for end in ends_of(master) if log_bytes(master, end, end + 8)[4:] == BLANK_MAGIC
    )
    for stop in (blank + 3, blank + 8, blank + 20, FILE - 1):
        copy_log(master, slave, stop=stop)
        assert slave.dispatcher.dispatched_offset == blank
        assert not slave.has_more_to_do
    copy_log(master, slave, stop=FILE)
    assert slave.dispatcher.dispatched_offset == FILE
    copy_log(master, slave)
    assert_same(master, slave)


BLANK_MAGIC = struct.pack(">I", 0xCBD43194)


def ends_of(store: MessageStore) -> list[int]:
    """Return the ends of all records."""
    ends = []
    position = 0
    while position < store.log.written_offset:
        data = store.record_at(position)
        if data is None:
            position = (position // FILE + 1) * FILE
        else:
            position += len(data)
            ends.append(position)
    return ends


def test_the_blank_of_4_5_has_other_bytes_after_its_head(stores: Stores) -> None:
    """4.5.2 appends the rest of its buffer, with whatever it contains, as a blank's tail."""
    master, slave = pair(stores)
    put_some(master, 100)
    data = bytearray(log_bytes(master))
    start = next(end for end in ends_of(master) if data[end + 4 : end + 8] == BLANK_MAGIC)
    data[start + 8 : FILE] = bytes(data[: FILE - start - 8])
    for position in range(0, len(data), 1000):
        piece = data[position : position + 1000]
        while piece:
            part = piece[: FILE - slave.replica_log.end % FILE]
            slave.replica_log.buffer(len(part))[:] = part
            slave.replica_log.publish(len(part))
            piece = piece[len(part) :]
    assert log_bytes(slave) == data
    assert [slave.max_offset("TopicA", i) for i in range(3)] == [34, 33, 33]


@pytest.mark.parametrize("size", [8, 91, 700])
def test_bytes_that_are_no_record_stop_dispatch(stores: Stores, size: int) -> None:
    master, slave = pair(stores)
    put_some(master, 2)
    copy_log(master, slave)
    end = slave.replica_log.end
    holes: list[Hole] = []
    slave.dispatcher.on_hole = holes.append
    slave.replica_log.buffer(size)[:] = b"\xee" * size
    slave.replica_log.publish(size)
    if size < record.JUDGED_BYTES:
        assert not slave.replica_log.problem  # too few to judge
        return
    assert f"physical offset {end}" in slave.replica_log.problem
    put_some(master, 1)
    valid = log_bytes(master, end)
    slave.replica_log.buffer(len(valid))[:] = valid
    slave.replica_log.publish(len(valid))
    assert slave.dispatcher.dispatched_offset == end
    assert not slave.has_more_to_do
    assert slave.replica_log.end == end + size + len(valid)
    assert not holes


def test_a_record_of_another_offset_stops_dispatch(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 2)
    first = log_bytes(master, 0, ends_of(master)[0])
    slave.replica_log.buffer(len(first))[:] = first
    slave.replica_log.publish(len(first))
    slave.replica_log.buffer(len(first))[:] = first
    slave.replica_log.publish(len(first))
    assert f"physical offset {len(first)}: PHYSICALOFFSET" in slave.replica_log.problem
    assert slave.max_offset("TopicA", 0) == 1


def test_zeros_between_records_stop_dispatch(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 1)
    copy_log(master, slave)
    end = slave.replica_log.end
    slave.replica_log.buffer(200)[:] = bytes(200)
    slave.replica_log.publish(200)
    assert f"physical offset {end}" in slave.replica_log.problem


def test_a_slave_takes_no_puts(stores: Stores) -> None:
    _, slave = pair(stores)
    assert slave.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert slave.put_encoded(b"", 0)[0] == 0


def test_bytes_that_do_not_fit_into_the_file_are_refused(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 1)
    copy_log(master, slave)
    left = FILE - slave.replica_log.end
    assert len(slave.replica_log.buffer(left)) == left
    with pytest.raises(StoreUnavailable, match=f"{left + 1} bytes .* {left} bytes left.*{FILE}"):
        slave.replica_log.buffer(left + 1)


def test_a_second_buffer_has_no_bytes_of_the_first(stores: Stores) -> None:
    """A frame may end with its connection; the next master's bytes may be others."""
    _, slave = pair(stores)
    slave.replica_log.buffer(5_000)[:] = b"\xee" * 5_000
    room = slave.replica_log.buffer(100)
    assert bytes(room) == bytes(100)
    assert not any(slave.replica_log.buffer(20_000))


def test_what_was_filled_and_not_added_is_cleared_unless_it_is_kept(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 3)
    copy_log(master, slave)
    log, data = slave.replica_log, b"\xee" * 5_000
    with log.spare(5_000) as spare:
        spare[:] = data
    log.add(0, 5_000)
    assert log.has_unpublished
    assert bytes(log.buffer(6_000, 2_000)) == data[:2_000] + bytes(4_000)
    with log.spare(5_000) as spare:
        assert bytes(spare) == bytes(5_000)
        spare[:] = data
    log.add(4_000, 5_000)
    with log.spare(5_000) as spare:
        assert bytes(spare) == bytes(5_000)
    assert not log.has_unpublished


def test_there_is_no_spare_where_bytes_need_space_first(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 100)
    assert not slave.replica_log.spare(10)  # it is not known where the log begins
    copy_log(master, slave, stop=FILE - 5)
    assert len(slave.replica_log.spare(10)) == 5
    copy_log(master, slave, stop=FILE)
    assert not slave.replica_log.spare(10)


def test_published_bytes_may_be_fewer_than_the_buffer(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 3)
    data = log_bytes(master)
    room = slave.replica_log.buffer(len(data))
    room[:1000] = data[:1000]
    slave.replica_log.publish(1000)
    assert slave.replica_log.end == 1000
    room = slave.replica_log.buffer(len(data) - 1000)
    room[:] = data[1000:]
    slave.replica_log.publish(len(room))
    assert_same(master, slave)


def test_a_full_disk_leaves_the_log_as_it_is(stores: Stores) -> None:
    class SmallDisk(RoomyDisk):
        left = 2

        def reserve(self, descriptor: int, path: str, start: int, length: int) -> None:
            if "commitlog" in path:
                self.left -= 1
                if self.left < 0:
                    raise DiskFull(path, length, "no space")
            super().reserve(descriptor, path, start, length)

    master = stores.open("master")
    put_some(master, 300)
    disk = SmallDisk()
    slave = stores.open("slave", disk=disk, broker_role="SLAVE")
    with pytest.raises(DiskFull):
        copy_log(master, slave)
    end = slave.replica_log.end
    assert 0 < end < master.log.written_offset
    assert log_bytes(slave) == log_bytes(master, 0, end)
    disk.left = 1000
    copy_log(master, slave)
    assert_same(master, slave)


# --- the start ------------------------------------------------------------------------------


def test_an_empty_log_may_begin_at_any_file(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 300)
    slave.replica_log.begin_at(2 * FILE, 0)
    assert slave.replica_log.end == slave.min_physical_offset == 2 * FILE
    assert slave.replica_log.durable_end == 2 * FILE
    copy_log(master, slave)
    assert log_bytes(slave) == log_bytes(master, 2 * FILE)
    for queue_id in range(3):
        assert slave.max_offset("TopicA", queue_id) == 100
        first = slave.min_offset("TopicA", queue_id)
        (data,) = slave.get("TopicA", queue_id, first, 1).records
        assert record.decode(data).queue_offset == first > 0


def test_a_log_that_has_begun_can_begin_elsewhere_while_it_is_empty(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 300)
    slave.replica_log.begin_at(3 * FILE, 0)
    slave.replica_log.begin_at(FILE, 0)
    copy_log(master, slave)
    assert slave.min_physical_offset == FILE
    assert log_bytes(slave) == log_bytes(master, FILE)
    slave.close()
    slave = reopen(slave, stores)
    assert slave.min_physical_offset == FILE


@pytest.mark.parametrize("physical_offset", [-FILE, 1, FILE + 1, 123_456])
def test_a_log_begins_with_a_file(stores: Stores, physical_offset: int) -> None:
    _, slave = pair(stores)
    with pytest.raises(StoreUnavailable, match=f"{physical_offset}.*multiple of .*{FILE}"):
        slave.replica_log.begin_at(physical_offset, 0)


def test_a_log_with_records_does_not_begin_again(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 1)
    copy_log(master, slave)
    with pytest.raises(StoreUnavailable, match=f"from 0 to {slave.replica_log.end}"):
        slave.replica_log.begin_at(FILE, 0)


# --- restarts -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("distance", [1, 8, 100, 699])
def test_a_restart_inside_a_record_goes_back_to_its_start(
    stores: Stores, is_clean: bool, distance: int
) -> None:
    master, slave = pair(stores)
    put_some(master, 20)
    end = ends_of(master)[9]
    copy_log(master, slave, stop=end + distance)
    (slave.close if is_clean else slave.abandon)()
    slave = reopen(slave, stores)
    assert slave.replica_log.end == end
    assert slave.recovery.was_clean is is_clean
    copy_log(master, slave)
    assert_same(master, slave)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("distance", [3, 8, 20])
def test_a_restart_inside_a_blank_goes_back_to_its_start(
    stores: Stores, is_clean: bool, distance: int
) -> None:
    master, slave = pair(stores)
    put_some(master, 100)
    blank = max(end for end in ends_of(master) if end < FILE)
    assert FILE - blank > 20
    copy_log(master, slave, stop=blank + distance)
    (slave.close if is_clean else slave.abandon)()
    slave = reopen(slave, stores)
    assert slave.replica_log.end == blank
    copy_log(master, slave)
    assert_same(master, slave)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_restart_at_the_end_of_a_file_continues(stores: Stores, is_clean: bool) -> None:
    master, slave = pair(stores)
    put_some(master, 100)
    copy_log(master, slave, stop=FILE)
    (slave.close if is_clean else slave.abandon)()
    slave = reopen(slave, stores)
    copy_log(master, slave)
    assert_same(master, slave)


@pytest.mark.parametrize("size", [300, 798, 799, 800])
def test_a_frame_that_did_not_end_is_not_part_of_the_log(stores: Stores, size: int) -> None:
    master, slave = pair(stores)
    put_some(master, 20)
    ends = ends_of(master)
    copy_log(master, slave, stop=ends[4])
    half = log_bytes(master, ends[4], ends[4] + size)
    slave.replica_log.buffer(5_000)[:size] = half
    assert slave.replica_log.end == ends[4]
    slave.close()
    slave = reopen(slave, stores)
    assert slave.replica_log.end == ends[4]
    copy_log(master, slave)
    assert_same(master, slave)


def test_a_stop_after_a_problem_keeps_the_whole_records(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 20)
    end = ends_of(master)[9]
    copy_log(master, slave, stop=end)
    slave.replica_log.buffer(300)[:] = b"\xee" * 300
    slave.replica_log.publish(300)
    assert slave.replica_log.problem
    slave.close()
    slave = reopen(slave, stores)
    assert slave.replica_log.end == end
    assert not slave.replica_log.problem
    copy_log(master, slave)
    assert_same(master, slave)


# --- flushes, expiry ------------------------------------------------------------------------


def test_sync_flush_dispatches_what_is_durable(stores: Stores) -> None:
    master, slave = pair(stores, flush_disk_type="SYNC_FLUSH")
    put_some(master, 3)
    copy_log(master, slave)
    assert slave.replica_log.durable_end == 0
    assert slave.max_offset("TopicA", 0) == 0
    slave.sync()
    assert slave.replica_log.durable_end == slave.replica_log.end
    step_to_the_end(slave)
    assert_same(master, slave)


def test_async_flush_dispatches_at_once(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 3)
    copy_log(master, slave)
    assert slave.replica_log.durable_end == 0
    assert slave.max_offset("TopicA", 0) == 1


def test_a_slave_has_no_transient_pool(stores: Stores) -> None:
    _, slave = pair(stores, transient_store_pool_enable=True)
    assert slave.log.pool is None


def test_files_of_a_slave_expire(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 300)
    copy_log(master, slave)
    expire_files(slave, 2 * FILE)
    assert slave.min_physical_offset == 2 * FILE
    assert log_bytes(slave) == log_bytes(master, 2 * FILE)
    put_some(master, 100)
    copy_log(master, slave)
    assert log_bytes(slave) == log_bytes(master, 2 * FILE)
    assert slave.max_offset("TopicA", 0) == master.max_offset("TopicA", 0)
    assert slave.min_offset("TopicA", 0) > 0


# --- a slave becomes master -----------------------------------------------------------------


def test_no_queue_offset_is_given_twice_after_a_promotion(stores: Stores) -> None:
    """1,000 records are in the log and in no queue when the slave becomes master."""
    master, slave = pair(stores, flush_disk_type="SYNC_FLUSH")
    put_some(master, 1000, size=50)
    copy_log(master, slave)
    assert slave.max_offset("TopicA", 0) == 0
    slave.abandon()
    promoted = reopen(slave, stores, "ASYNC_MASTER")
    assert [promoted.put(message(queue_id=i)).queue_offset for i in range(3)] == [334, 333, 333]


def test_a_promoted_slave_continues_after_the_last_whole_record(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 20)
    end = ends_of(master)[9]
    copy_log(master, slave, stop=end + 100)
    slave.abandon()
    promoted = reopen(slave, stores, "SYNC_MASTER")
    assert promoted.log.written_offset == end
    assert promoted.put(message(queue_id=10 % 3)).queue_offset == 3


# --- the last records -----------------------------------------------------------------------


def test_the_newest_records_come_first(stores: Stores) -> None:
    master, slave = pair(stores)
    put_some(master, 300)
    ends = ends_of(master)
    copy_log(master, slave, stop=ends[250] + 10)
    expected = [
        (end - len(data), data)
        for end, data in (
            (end, log_bytes(master, end - size, end))
            for end in reversed(ends[:251])
            for size in [struct.unpack(">i", size_before(master, ends, end))[0]]
        )
    ]
    assert slave.replica_log.last_record() == expected[0]
    assert list(slave.replica_log.records_before(slave.replica_log.end)) == expected
    assert list(slave.replica_log.records_before(ends[100])) == expected[150:]
    assert next(slave.replica_log.records_before(ends[100] - 1)) == expected[151]
    assert list(slave.replica_log.records_before(ends[0] - 1)) == []


def size_before(store: MessageStore, ends: list[int], end: int) -> bytes:
    index = ends.index(end)
    start = ends[index - 1] if index else 0
    if index and log_bytes(store, start, start + 8)[4:] == BLANK_MAGIC:
        start = (start // FILE + 1) * FILE
    return log_bytes(store, start, start + 4)


def test_an_empty_log_has_no_last_record(stores: Stores) -> None:
    _, slave = pair(stores)
    assert slave.replica_log.last_record() is None
    slave.replica_log.begin_at(FILE, 0)
    assert slave.replica_log.last_record() is None


def test_a_body_that_looks_like_a_record_is_none(stores: Stores) -> None:
    """A client can guess the physical offset of its message and put a record into its body."""
    settings = {"mapped_file_size_commit_log": 1 << 20, "max_message_size": 512 * 1024}
    master = stores.open("master", **settings)
    slave = stores.open("slave", broker_role="SLAVE", **settings)
    first = master.put(message(body=b"first")).end_offset
    data = bytearray(log_bytes(master, 0, first))
    big = bytearray(300_000)
    body_start = first + 84 + 4
    for position in (240_000, 270_000):
        struct.pack_into(">q", data, record.POSITION_PHYSICAL_OFFSET, body_start + position)
        big[position : position + len(data)] = data
    end = master.put(message(body=bytes(big))).end_offset
    copy_log(master, slave)
    assert log_bytes(master, body_start, body_start + len(big)) == big
    assert slave.replica_log.last_record() == (first, log_bytes(master, first, end))
    assert len(list(slave.replica_log.records_before(end))) == 2


def test_a_damaged_log_is_cut_and_its_bytes_are_kept(stores: Stores) -> None:
    """A power failure can take a sector from the middle: the master sends it again."""
    master, slave = pair(stores)
    put_some(master, 40)
    ends = ends_of(master)
    copy_log(master, slave)
    slave.abandon()
    with Path(slave.root, "commitlog", "0" * 20).open("r+b") as file:
        file.seek(ends[19])
        file.write(bytes(512))
    slave = reopen(slave, stores)
    assert slave.replica_log.end == ends[19]
    (kept,) = Path(slave.root, "cut").iterdir()
    assert kept.name.startswith(f"{ends[19]:020d}-")
    assert kept.read_bytes() == bytes(512) + log_bytes(master, ends[19] + 512)
    holes: list[Hole] = []
    slave.dispatcher.on_hole = holes.append
    copy_log(master, slave)
    assert_same(master, slave)
    assert not holes


def damage(store: MessageStore, physical_offset: int, data: bytes) -> None:
    """Overwrite bytes of the first log file of a store that was abandoned."""
    with Path(store.root, "commitlog", "0" * 20).open("r+b") as file:
        file.seek(physical_offset)
        file.write(data)


@pytest.mark.parametrize("part", ["body", "properties"])
@pytest.mark.parametrize("index", [5, 38], ids=["in the middle of its queue", "at its end"])
def test_records_that_the_master_lost_a_part_of_are_skipped(
    stores: Stores, index: int, part: str
) -> None:
    """The master's dispatch skips them after its power failure, and gives their offset again."""
    master, slave = pair(stores)
    for number in range(40):
        keys = f"key{number} " + "k" * 600  # more than a sector
        master.put(message("TopicA", b"b" * 700, number // 39, keys=keys))
    ends = ends_of(master)
    copy_log(master, slave, stop=ends[1])
    master.abandon()
    if part == "body":
        damage(master, ends[index] - 1_000, bytes(10))
    else:
        damage(master, ends[index] - ends[index] % 512, bytes(ends[index] % 512))
    master = reopen(master, stores, "ASYNC_MASTER")
    (hole,) = master.recovery.holes
    put_some(master, 1)
    holes: list[Hole] = []
    slave.dispatcher.on_hole = holes.append
    copy_log(master, slave)
    assert_same(master, slave)
    assert not slave.replica_log.problem
    assert [(each.physical_offset, each.length) for each in holes] == [
        (hole.physical_offset, hole.length)
    ]
    stores.allow(  # the hole in the log, and the message that has its queue offset
        FindingKind.LOG_HOLE,
        FindingKind.UNIT_WRONG_RECORD,
        FindingKind.KEY_MISSING,
        FindingKind.QUEUE_OFFSET_TWICE,
    )
