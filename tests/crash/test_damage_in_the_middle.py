"""Damage in the middle of the log of a store that goes on: kept, told, and nothing else suffers.

Also what must not outlive a cut: positions beyond the end (known-bugs.md#positions-after-a-cut),
bytes behind it (known-bugs.md#stale-tail), and maps that somebody reads while their files are
deleted (known-bugs.md#unmapped-files).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import store_fixture
from reput.format import cq_unit, message as record, properties as props
from reput.format.message import StoredMessage
from reput.store.checkpoint import CheckpointFile
from reput.store.disk import Disk
from reput.store.incoming import IncomingMessage
from reput.store.message_store import MessageStore
from store_fixture import Stores

pytestmark = pytest.mark.crash

COUNT = 60
SETTINGS = {"mapped_file_size_commit_log": 16 * 1024, "max_message_size": 4096}


def fill(store: MessageStore) -> list[StoredMessage]:
    for number in range(COUNT):
        put(store, number)
    return messages(store)


def put(store: MessageStore, number: int) -> None:
    named = props.encode({"KEYS": f"k{number}"})
    body = bytes([number]) * 1000
    assert store.put(IncomingMessage("TopicA", body, number % 2, named)).status.is_stored


def messages(store: MessageStore) -> list[StoredMessage]:
    found = []
    for queue_id in (0, 1):
        at, end = 0, store.max_offset("TopicA", queue_id)
        while at < end:
            result = store.get("TopicA", queue_id, at)
            found += [record.decode(data) for data in result.records]
            at = result.next_offset
    unique = {one.physical_offset: one for one in found}
    return [unique[at] for at in sorted(unique)]


def log_path(store: MessageStore, physical_offset: int) -> tuple[Path, int]:
    size = store.config.mapped_file_size_commit_log
    start = physical_offset // size * size
    return Path(store.root) / "commitlog" / f"{start:020d}", physical_offset - start


def flip_body(data: bytearray, at: int, one: StoredMessage) -> None:
    data[at + 200] ^= 0x10


def flip_size(data: bytearray, at: int, one: StoredMessage) -> None:
    data[at + 2] ^= 0x40


def zero_record(data: bytearray, at: int, one: StoredMessage) -> None:
    data[at : at + one.store_size] = bytes(one.store_size)


def zero_page(data: bytearray, at: int, one: StoredMessage) -> None:
    page = at // 4096 * 4096
    data[page : page + 4096] = bytes(4096)


DAMAGES: list[Callable[[bytearray, int, StoredMessage], None]] = [
    flip_body,
    flip_size,
    zero_record,
    zero_page,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [0, 20, 50])
def test_damage_is_kept_and_told_and_what_is_behind_is_read(
    tmp_path: Path, damage: Callable[[bytearray, int, StoredMessage], None], number: int
) -> None:
    root = tmp_path / "store"
    config = store_fixture.config(root, **SETTINGS)
    store = MessageStore.open(config=config)
    written = fill(store)
    store.abandon()  # nothing is durable: all queues and the index must follow from the log
    victim = written[number]
    path, at = log_path(store, victim.physical_offset)
    data = bytearray(path.read_bytes())
    before = bytes(data)
    damage(data, at, victim)
    path.write_bytes(data)
    changed = {i + victim.physical_offset - at for i in range(len(data)) if data[i] != before[i]}
    hit = {
        one.physical_offset
        for one in written
        if not changed.isdisjoint(range(one.physical_offset, one.physical_offset + one.store_size))
    }
    with MessageStore.open(config=config) as store:
        assert store.recovery.end_offset == written[-1].physical_offset + written[-1].store_size
        holes = store.recovery.holes
        for place in hit:
            assert any(
                hole.physical_offset <= place < hole.physical_offset + hole.length for hole in holes
            )
        assert [one for one in messages(store) if one.physical_offset not in hit] == [
            one for one in written if one.physical_offset not in hit
        ]
        for i, one in enumerate(written):
            hits = store.query("TopicA", f"k{i}", 9).records
            assert len(hits) == (one.physical_offset not in hit)
        put(store, COUNT)
    assert path.read_bytes() == bytes(data), "damage is evidence"


@pytest.mark.parametrize("lost_file", [False, True])
def test_a_queue_made_anew_that_lost_its_first_messages(tmp_path: Path, lost_file: bool) -> None:
    """What stands before its first unit; why, is in decision 0008."""
    root = tmp_path / "store"
    config = store_fixture.config(root, **SETTINGS)
    with MessageStore.open(config=config) as store:
        written = fill(store)
    first = root / "commitlog" / f"{0:020d}"
    if lost_file:
        first.unlink()
        left = [
            one for one in written if one.physical_offset >= SETTINGS["mapped_file_size_commit_log"]
        ]
    else:
        left = written[6:]
        with first.open("r+b") as file:
            file.write(bytes(left[0].physical_offset))
    shutil.rmtree(root / "consumequeue")
    with MessageStore.open(config=config) as store:
        assert messages(store) == left
    for queue_id in (0, 1):
        one = next(one for one in left if one.queue_id == queue_id)
        start = one.queue_offset // 10 * 10  # of its file
        assert start < one.queue_offset
        own = cq_unit.pack(cq_unit.Unit(one.physical_offset, one.store_size, 0))
        before = cq_unit.pack(cq_unit.Unit(0, cq_unit.PRE_BLANK_SIZE, 0)) if lost_file else own
        name = f"consumequeue/TopicA/{queue_id}/{start * cq_unit.SIZE:020d}"
        count = one.queue_offset - start
        assert (root / name).read_bytes()[: len(own) * (count + 1)] == before * count + own


def test_dispatch_that_lags_skips_damage_only(tmp_path: Path) -> None:
    """A bit flips between a put and its dispatch, which waits for the flush."""
    config = store_fixture.config(tmp_path / "store", flush_disk_type="SYNC_FLUSH", **SETTINGS)
    store = MessageStore.open(config=config)
    for number in range(9):
        named = props.encode({"KEYS": f"k{number}"})
        store.begin_put(IncomingMessage("TopicA", bytes(1000), 0, named))
    path, _ = log_path(store, 0)
    size = int.from_bytes(path.read_bytes()[:4])
    with path.open("r+b") as file:
        file.seek(3 * size + 4)
        file.write(b"\0")
    while store.step():
        pass
    (hole,) = store.dispatcher.holes
    assert (hole.physical_offset, hole.length) == (3 * size, size)
    assert [one.queue_offset for one in messages(store)] == [0, 1, 2, 4, 5, 6, 7, 8]
    store.close()


def test_what_was_cut_does_not_come_back(tmp_path: Path) -> None:
    """Cut, write a little, crash: where the new record ends, an old one must not begin."""
    root = tmp_path / "store"
    config = store_fixture.config(root, **SETTINGS)
    store = MessageStore.open(config=config)
    written = fill(store)
    store.abandon()
    # The last three are torn: one bit of the first, and the head of the others.
    path, at = log_path(store, written[-3].physical_offset)
    data = bytearray(path.read_bytes())
    end = at + sum(one.store_size for one in written[-3:])
    data[at + 300] ^= 1
    for one in written[-2:]:
        start = at + one.physical_offset - written[-3].physical_offset
        data[start : start + 8] = b"\xff" * 8
    path.write_bytes(data)
    store = MessageStore.open(config=config)
    assert store.recovery.end_offset == written[-3].physical_offset
    assert path.read_bytes()[at:] == bytes(len(data) - at)
    assert end <= len(data)
    named = props.encode({"KEYS": "new"})
    store.put(IncomingMessage("TopicA", b"\1" * 1000, (COUNT - 3) % 2, named))
    store.abandon()
    with MessageStore.open(config=config) as store:
        assert [one.body for one in messages(store)][:-1] == [one.body for one in written[:-3]]
        assert len(messages(store)) == COUNT - 2
    store_fixture.assert_sound(root)


@pytest.mark.parametrize("is_clean", [True, False])
def test_positions_beyond_the_end_are_cut(tmp_path: Path, is_clean: bool) -> None:
    """The last file of the log is gone: checkpoint, units and entries speak of more."""
    root = tmp_path / "store"
    config = store_fixture.config(root, **SETTINGS)
    store = MessageStore.open(config=config)
    written = fill(store)
    store.flusher.flush_all()
    store.close() if is_clean else store.abandon()
    last = max((root / "commitlog").iterdir())
    last.unlink()
    end = int(last.name)
    with MessageStore.open(config=config) as store:
        assert store.max_physical_offset <= end
        assert store.checkpoint.fields.queue_physical_offset <= end
        assert messages(store) == [one for one in written if one.physical_offset < end]
        put(store, COUNT)
    store_fixture.assert_sound(root)


def test_a_checkpoint_that_is_nonsense_is_not_believed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    config = store_fixture.config(root, **SETTINGS)
    store = MessageStore.open(config=config)
    written = fill(store)
    store.abandon()
    for offset in (1, 777, 20_000, 1 << 40, -5):
        page = CheckpointFile(f"{root}/checkpoint", Disk())
        page.fields = replace(page.load(), queue_physical_offset=offset, queue_timestamp=0)
        page.flush()
        shutil.rmtree(root / "consumequeue", ignore_errors=True)
        store = MessageStore.open(config=config)
        assert messages(store) == written
        store.queues.write_out()
        store.abandon()


def test_units_that_contradict_each_other_are_made_anew_not_lost(tmp_path: Path) -> None:
    root = tmp_path / "store"
    config = store_fixture.config(root, **SETTINGS)
    store = MessageStore.open(config=config)
    written = fill(store)
    store.close()
    for file in (root / "consumequeue/TopicA/0").iterdir():
        data = bytearray(file.read_bytes())
        data[: cq_unit.SIZE], data[60:80] = data[60:80], data[: cq_unit.SIZE]
        file.write_bytes(data)
    with MessageStore.open(config=config) as store:
        assert store.recovery.rebuilt_queues == [("TopicA", 0)]
        assert messages(store) == written
    store_fixture.assert_sound(root)


DELETING = """
import ctypes, sys, threading
import store_fixture
from reput.store.incoming import IncomingMessage
from reput.store.message_store import MessageStore

config = store_fixture.config(sys.argv[1], mapped_file_size_commit_log=16384, max_message_size=4096)
store = MessageStore.open(config=config)
for number in range(400):
    store.put(IncomingMessage(f"Topic{number % 9}", bytes([1 + number % 99]) * 1000))
files = store.log.files.files
is_done = threading.Event()

def read():
    while not is_done.is_set():
        for file in files:
            if file.hold():
                is_whole = any(ctypes.string_at(file.address, 2000))
                assert not file.release() or is_whole

threads = [threading.Thread(target=read) for _ in range(3)]
for thread in threads:
    thread.start()
for number in range(9):
    store.delete_topic(f"Topic{number}")
while len(store.log.files.files) > 1:
    store.log.delete_first(0, 0)
    store.step()
is_done.set()
for thread in threads:
    thread.join()
store.log.files.step(1 << 40)
store.close()
print("alive")
"""


def test_files_are_deleted_while_others_read_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", DELETING, str(tmp_path / "store")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(store_fixture.__file__).parent)},
    )
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_keys_of_a_record_that_two_index_files_share_survive(stores: Stores) -> None:
    """The header of the full file must tell of the entries that were put last."""
    store = stores.open()
    for number in range(30):
        keys = " ".join(f"k{number}-{i}" for i in range(7))
        store.put(IncomingMessage("TopicA", b"x", 0, props.encode({"KEYS": keys})))
    store.close()
    for life in ("clean", "crashed"):
        store = stores.open()
        for number in range(30):
            for i in range(7):
                hits = store.query("TopicA", f"k{number}-{i}", 9).records
                assert [record.decode(hit).queue_offset for hit in hits] == [number]
        store.abandon() if life == "clean" else store.close()
