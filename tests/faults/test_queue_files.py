"""Queue files that are missing or damaged when a store is opened are rebuilt from the log.

No start is refused. All messages of the log are readable afterwards, at the same queue offsets.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import store_fixture
from reput.clock import ManualClock
from reput.format import cq_unit, message as record
from reput.store.files import paths
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage
from store_fixture import START_MS, RoomyDisk

pytestmark = pytest.mark.crash

COUNT = 47
"""Number of messages of the queue, in five files."""


def open_store(root: Path) -> MessageStore:
    return MessageStore.open(
        config=store_fixture.config(root),
        clock=ManualClock(START_MS + 100_000),
        disk=RoomyDisk(),
    )


def queue_offsets(store: MessageStore, topic: str) -> dict[int, int]:
    """Return the number of the message at each queue offset."""
    numbers = {}
    position, end = store.min_offset(topic, 0), store.max_offset(topic, 0)
    while position < end:
        result = store.get(topic, 0, position)
        for data in result.records:
            message = record.decode(data)
            numbers[message.queue_offset] = int(message.body)
        position = result.next_offset
    return numbers


def put(store: MessageStore, topic: str, number: int) -> None:
    keys = f"KEYS\x01k{number}\x02".encode()  # So that the index has full files.
    store.put(IncomingMessage(topic, b"%d" % number, 0, keys))


def make(root: Path, *, is_clean: bool) -> None:
    """Make a store whose queue Quiet got no message after the last checkpoint; Busy did."""
    store = open_store(root)
    for number in range(COUNT):
        put(store, "Quiet", number)
        if number < 5:
            put(store, "Short", number)
    for number in range(30):
        put(store, "Busy", number)
    while store.step():
        pass
    store.flusher.flush_all()
    assert store.checkpoint.fields.queue_physical_offset
    for number in range(30, 35):
        put(store, "Busy", number)
    while store.step():
        pass
    store.close() if is_clean else store.abandon()


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def junk(path: Path) -> None:
    path.write_bytes(bytes(range(1, 201)))


def junk_first(path: Path) -> None:
    path.write_bytes(b"\x7f" * cq_unit.SIZE + path.read_bytes()[cq_unit.SIZE :])


def junk_middle(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: 3 * cq_unit.SIZE] + b"\xff" * 20 + data[4 * cq_unit.SIZE :])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "deleted": Path.unlink,
    "zeroed": zero,
    "junk": junk,
    "junk at its start": junk_first,
}


def check(root: Path) -> None:
    with open_store(root) as store:
        assert queue_offsets(store, "Quiet") == {number: number for number in range(COUNT)}
        assert queue_offsets(store, "Short") == {number: number for number in range(5)}
        assert queue_offsets(store, "Busy") == {number: number for number in range(35)}
    store_fixture.assert_sound(root)


@pytest.fixture(params=["clean", "crashed"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "store"
    make(root, is_clean=request.param == "clean")
    return root


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", range(5))
@pytest.mark.sampled(3)
def test_each_file_of_a_queue(root: Path, damage: str, number: int) -> None:
    path = sorted((root / "consumequeue/Quiet/0").iterdir())[number]
    DAMAGES[damage](path)
    check(root)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_only_file_of_a_queue(root: Path, damage: str) -> None:
    (path,) = (root / "consumequeue/Short/0").iterdir()
    DAMAGES[damage](path)
    check(root)


@pytest.mark.parametrize("pattern", ["*", "Short"])
def test_files_whose_size_was_not_written(root: Path, pattern: str) -> None:
    for path in root.glob(f"consumequeue/{pattern}/0/*"):
        os.truncate(path, 0)
    if pattern == "Short":  # No other file has the size.
        shutil.rmtree(root / "consumequeue/Quiet")
        shutil.rmtree(root / "consumequeue/Busy")
    check(root)


def test_units_after_a_damaged_one_of_the_last_file(root: Path) -> None:
    junk_middle(max((root / "consumequeue/Quiet/0").iterdir()))
    check(root)


def test_an_empty_folder_in_place_of_a_queue(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = root / "consumequeue/Short/0"
    shutil.rmtree(folder)
    folder.mkdir()
    check(root)


def test_a_queue_without_a_folder_that_a_group_has_read(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/Short")
    commit(root, "Short", 0)
    check(root)


def commit(root: Path, topic: str, queue_id: int) -> None:
    """Commit a consumer offset: a group has read two messages of a queue."""
    names = {"Quiet", "Short", "Busy", topic}
    topics = {name: {"topicName": name, "readQueueNums": 2} for name in names}
    (root / "config").mkdir()
    (root / "config/topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    offsets = {f"{topic}@readers": {str(queue_id): 2}}
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))


@pytest.mark.parametrize("topic", ["Short", "Nobody"])
def test_an_offset_of_a_queue_that_never_existed_causes_no_long_start(
    root: Path, topic: str
) -> None:
    commit(root, topic, 1)
    with open_store(root) as store:
        assert store.recovery.dispatched_from > store.min_physical_offset
        assert store.recovery.rebuilt_queues == []


@pytest.mark.parametrize("text", [None, "", "{}x", '{"Short": 0}', "[1]", '{"Short":[0'])
def test_without_a_list_of_queues_any_offset_is_trusted(tmp_path: Path, text: str | None) -> None:
    root = tmp_path / "store"
    make(root, is_clean=False)
    known = root / paths.KNOWN_QUEUES
    assert json.loads(known.read_text())["Short"] == [0]
    known.unlink() if text is None else known.write_text(text)
    shutil.rmtree(root / "consumequeue/Short")
    commit(root, "Short", 0)
    check(root)
    assert json.loads(known.read_text()) == {"Quiet": [0], "Short": [0], "Busy": [0]}


def test_a_queue_that_is_younger_than_the_list(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make(root, is_clean=False)
    with open_store(root) as store:
        store.abandon()
    store = open_store(root)
    for number in range(5):
        put(store, "Young", number)
    while store.step():
        pass
    store.flusher.write_out_queues()
    store.abandon()
    shutil.rmtree(root / "consumequeue/Young")
    commit(root, "Young", 0)
    with open_store(root) as store:
        assert queue_offsets(store, "Young") == {number: number for number in range(5)}
        assert store.recovery.dispatched_from > store.min_physical_offset
    check(root)


def test_an_empty_folder_causes_one_long_start(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make(root, is_clean=False)
    folder = root / "consumequeue/Nobody/0"
    folder.mkdir(parents=True)
    store = open_store(root)
    assert ("Nobody", 0) in store.recovery.rebuilt_queues
    store.abandon()
    assert not folder.exists()
    store = open_store(root)
    assert store.recovery.rebuilt_queues == []
    store.close()


def test_an_undamaged_store_is_not_rebuilt(root: Path) -> None:
    with open_store(root) as store:
        assert store.recovery.dispatched_from > store.min_physical_offset
        assert store.recovery.rebuilt_queues == []


def test_expired_queue_files_are_not_missing(tmp_path: Path) -> None:
    """The log begins after the first file of the queue, so this file is not missing."""
    root = tmp_path / "store"
    store = open_store(root)
    for number in range(400):
        keys = f"KEYS\x01k{number}\x02".encode()
        store.put(IncomingMessage("TopicA", bytes(700), 0, keys))
    while store.step():
        pass
    store.flusher.flush_all()
    first = store.log.files.files[2].start
    for file in store.log.files.files[:2]:
        os.utime(file.path, (0, 0))
    store.retention.expire_now()
    while store.step():
        pass
    assert store.min_physical_offset == first
    min_offset = store.min_offset("TopicA", 0)
    store.flusher.flush_all()
    store.abandon()
    store = open_store(root)
    files = sorted((root / "consumequeue/TopicA/0").iterdir())
    is_aligned = int(files[0].name) // cq_unit.SIZE == min_offset
    assert store.recovery.rebuilt_queues == ([("TopicA", 0)] if is_aligned else [])
    assert store.min_offset("TopicA", 0) == min_offset
    store.close()
