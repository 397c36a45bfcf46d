"""Damage in the middle of the log, at several positions; and maps that threads read while their
files are deleted (known-bugs.md#unmapped-files). Scripts: ``tests/scripts/store/recovery``.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import store_fixture
from reput.format import message as record, properties as props
from reput.format.message import StoredMessage
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage

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
    records = []
    for queue_id in (0, 1):
        queue_offset, end = 0, store.max_offset("TopicA", queue_id)
        while queue_offset < end:
            result = store.get("TopicA", queue_id, queue_offset)
            records += [record.decode(data) for data in result.records]
            queue_offset = result.next_offset
    unique = {message.physical_offset: message for message in records}
    return [unique[queue_offset] for queue_offset in sorted(unique)]


def log_path(store: MessageStore, physical_offset: int) -> tuple[Path, int]:
    size = store.config.mapped_file_size_commit_log
    start = physical_offset // size * size
    return Path(store.root) / "commitlog" / f"{start:020d}", physical_offset - start


def flip_body(data: bytearray, position: int, message: StoredMessage) -> None:
    data[position + 200] ^= 0x10


def flip_size(data: bytearray, position: int, message: StoredMessage) -> None:
    data[position + 2] ^= 0x40


def zero_record(data: bytearray, position: int, message: StoredMessage) -> None:
    data[position : position + message.store_size] = bytes(message.store_size)


def zero_page(data: bytearray, position: int, message: StoredMessage) -> None:
    page = position // 4096 * 4096
    data[page : page + 4096] = bytes(4096)


DAMAGES: list[Callable[[bytearray, int, StoredMessage], None]] = [
    flip_body,
    flip_size,
    zero_record,
    zero_page,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [0, 20, 50])
def test_damage_is_kept_and_reported_and_later_messages_are_read(
    tmp_path: Path, damage: Callable[[bytearray, int, StoredMessage], None], number: int
) -> None:
    root = tmp_path / "store"
    config = store_fixture.config(root, **SETTINGS)
    store = MessageStore.open(config=config)
    written = fill(store)
    store.abandon()  # Nothing is durable: all queues and the index must be derived from the log.
    victim = written[number]
    path, position = log_path(store, victim.physical_offset)
    data = bytearray(path.read_bytes())
    before = bytes(data)
    damage(data, position, victim)
    path.write_bytes(data)
    changed = {
        i + victim.physical_offset - position for i in range(len(data)) if data[i] != before[i]
    }
    hit = {
        message.physical_offset
        for message in written
        if not changed.isdisjoint(
            range(message.physical_offset, message.physical_offset + message.store_size)
        )
    }
    with MessageStore.open(config=config) as store:
        assert store.recovery.end_offset == written[-1].physical_offset + written[-1].store_size
        holes = store.recovery.holes
        for place in hit:
            assert any(
                hole.physical_offset <= place < hole.physical_offset + hole.length for hole in holes
            )
        assert [message for message in messages(store) if message.physical_offset not in hit] == [
            message for message in written if message.physical_offset not in hit
        ]
        for i, message in enumerate(written):
            hits = store.query("TopicA", f"k{i}", 9).records
            assert len(hits) == (message.physical_offset not in hit)
        put(store, COUNT)
    assert path.read_bytes() == bytes(data), "damage is evidence"


DELETING = """
import ctypes, sys, threading
import store_fixture
from reput.store.writing.incoming import IncomingMessage
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
