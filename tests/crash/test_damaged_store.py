"""Stores with every kind of damage: each answer is right, or a documented error.

A returned message may differ from the written one only in a field without redundancy, and only if
that byte was damaged. All other messages are unchanged. No call hangs, and the only exceptions are
``ReputError``.

Redundancy: lengths, magic and physical offset frame a record; BODYCRC covers the body; ``__CRC32#``
covers the whole record. The other fields have no redundancy.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

import pytest

import golden
import seeds
import store_builder
import store_fixture
from reput.errors import CorruptRecord, NotInStore, ReputError, StoreUnavailable
from reput.format import message as record, message_id, sys_flag as flags
from reput.format.message import StoredMessage
from reput.store.log.commit_log_view import Damage
from reput.store.reader import Boundary, StoreReader
from store_builder import MemoryFolder, message

pytestmark = [pytest.mark.crash, pytest.mark.slow]

FILE_BYTES = 4096
COUNT = 48
END_OF_TIME_MS = (1 << 63) - 1
STAND_ALONE = {
    "queue_id",
    "flag",
    "queue_offset",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "topic",
    "property_bytes",
}
"""Fields of a message whose damage may be undetected."""
COMPARED = [field.name for field in fields(StoredMessage) if field.name != "properties"]


some = store_fixture.some


class Sample(NamedTuple):
    """A small store and its messages."""

    folder: MemoryFolder
    messages: list[StoredMessage]
    fields: list[str]
    """The field of each byte of the log; empty after the last record of a file."""
    owners: list[int]
    """The index of each byte's message; -1 for none."""
    records: list[bytes]
    """The messages as stored."""

    @property
    def log_paths(self) -> list[str]:
        return [path for path in self.folder.files if path.startswith("commitlog/")]

    @property
    def end_offset(self) -> int:
        return self.messages[-1].physical_offset + self.messages[-1].store_size

    @property
    def reader(self) -> StoreReader:
        return StoreReader(self.folder)


def layout(stored: StoredMessage) -> list[tuple[str, int]]:
    """Return the fields of a record and their sizes, written from docs/formats/commit-log.md."""
    topic = len(stored.topic.encode())
    return [
        ("store_size", 4),
        ("magic", 4),
        ("body_crc", 4),
        ("queue_id", 4),
        ("flag", 4),
        ("queue_offset", 8),
        ("physical_offset", 8),
        ("sys_flag", 4),
        ("born_timestamp", 8),
        ("born_host", 20 if stored.sys_flag & 0x10 else 8),
        ("store_timestamp", 8),
        ("store_host", 20 if stored.sys_flag & 0x20 else 8),
        ("reconsume_times", 4),
        ("prepared_transaction_offset", 8),
        ("body_length", 4),
        ("body", len(stored.body)),
        ("topic_length", 2 if topic > 127 else 1),
        ("topic", topic),
        ("property_length", 2),
        ("property_bytes", len(stored.property_bytes)),
    ]


def sample_messages() -> list[StoredMessage]:
    """Return messages of all shapes, which take three files of 4 KB."""
    v6 = {"born_host": store_builder.HOST_V6, "store_host": store_builder.HOST_V6}
    shapes = [
        message("TopicA", b"plain", keys="k0 shared", tags="TagA", unique_key="A" * 32),
        message("TopicA", b"", keys="shared"),
        message("TopicB", bytes(200), queue_id=1, flag=-1, reconsume_times=3),
        message("%RETRY%" + "x" * 140, b"long topic", keys="shared"),
        message("TopicA", b"v6", keys="k4 shared", **v6),
        message("TopicB", b"\xda\xa3\x20\xa7" * 9, queue_id=1, keys="k5"),
        message("TopicA", b"commit", sys_flag=flags.TRANSACTION_COMMIT, keys="k6"),
        message("TopicB", b"", queue_id=1),
        message("TopicA", b"prepared", sys_flag=flags.TRANSACTION_PREPARED, keys="k8"),
        message("TopicA", bytes(range(256)), tags="TagB", keys="k9 shared"),
    ]
    return [replace(shape, flag=i) for i, shape in enumerate((shapes * 5)[:COUNT])]


def make_sample(root: Path, *, record_crc: bool = False) -> Sample:
    built = store_builder.build(
        root, sample_messages(), log_file_bytes=FILE_BYTES, slots=5, record_crc=record_crc
    )
    assert 3 <= len(list((root / "commitlog").iterdir())) <= 5
    names: list[str] = []
    owners: list[int] = []
    for i, stored in enumerate(built.messages):
        names += [""] * (stored.physical_offset - len(names))
        owners += [-1] * (stored.physical_offset - len(owners))
        for name, size in layout(stored):
            names += [name] * size
            owners += [i] * size
        assert len(names) == stored.physical_offset + stored.store_size
    room = len(list((root / "commitlog").iterdir())) * FILE_BYTES - len(names)
    folder = MemoryFolder.load(root)
    records = [record.encode(stored) for stored in built.messages]
    return Sample(folder, built.messages, names + [""] * room, owners + [-1] * room, records)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return make_sample(tmp_path_factory.mktemp("plain") / "store")


@pytest.fixture(scope="module")
def crc_sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return make_sample(tmp_path_factory.mktemp("crc") / "store", record_crc=True)


# --- expectations -------------------------------------------------------------


def differences(stored: StoredMessage, other: StoredMessage) -> set[str]:
    return {name for name in COMPARED if getattr(stored, name) != getattr(other, name)}


def check_rows(
    sample: Sample, reader: StoreReader, damaged: set[int], *, may_end_early: bool = False
) -> None:
    """Compare a scan with the written messages; ``damaged`` are the changed bytes of the log."""
    touched = {sample.owners[physical_offset] for physical_offset in damaged} - {-1}
    batches = list(reader.walk())
    runs = [run for batch in batches for run in batch.damage]
    rest = [tail for tail in (reader.tail.torn, reader.tail.stale) if tail is not None]
    by_place = {stored.physical_offset: i for i, stored in enumerate(sample.messages)}
    seen = set()
    for batch in batches:
        for position, size in zip(batch.positions.tolist(), batch.sizes.tolist(), strict=True):
            physical_offset = batch.physical_offset + position
            assert physical_offset in by_place, "no message was here"
            i = by_place[physical_offset]
            seen.add(i)
            if i in touched:
                stored = record.decode(batch.buffer, position)
                wrong = differences(stored, sample.messages[i])
                allowed = {
                    sample.fields[physical_offset]
                    for physical_offset in damaged
                    if sample.owners[physical_offset] == i
                }
                # The checksum of an empty body is not compared.
                alone = STAND_ALONE if stored.body else STAND_ALONE | {"body_crc"}
                assert wrong <= allowed & alone
            else:
                assert batch.buffer[position : position + size] == sample.records[i]
    for i, stored in enumerate(sample.messages):
        if i in seen:
            continue
        is_reported = any(covers(run, stored.physical_offset) for run in [*runs, *rest])
        is_after_end = may_end_early and stored.physical_offset >= reader.end_offset
        assert i in touched or is_after_end, f"message {i} is lost, and was not damaged"
        assert is_reported or is_after_end, f"message {i} is lost in silence"


def covers(run: Damage, physical_offset: int) -> bool:
    return run.physical_offset <= physical_offset < run.end


def check_lookups(sample: Sample, reader: StoreReader, wanted: Iterable[int]) -> None:
    """Look up some messages in every way: the result is the message or a documented error."""
    walked = {stored.physical_offset: stored for stored in reader.messages()}
    for i in wanted:
        stored = sample.messages[i]
        good = walked.get(stored.physical_offset)
        try:
            assert reader.message_at(stored.physical_offset) == good
        except (CorruptRecord, NotInStore):
            assert good is None
        if flags.is_queued(stored.sys_flag):
            where = (stored.topic, stored.queue_id, stored.queue_offset)
            try:
                result = reader.message_in_queue(*where)
            except (CorruptRecord, NotInStore):
                pass
            else:
                assert result == good
                assert (result.topic, result.queue_id, result.queue_offset) == where
        for key in stored.keys:
            try:
                hits = reader.messages_by_key(stored.topic, key)
            except CorruptRecord:
                continue
            assert all(hit == walked[hit.physical_offset] for hit in hits.messages)
            assert all(key in hit.keys and hit.topic == stored.topic for hit in hits.messages)
        for text in filter(None, (message_id.offset_id(stored), stored.unique_key)):
            try:
                by_id = reader.messages_by_id(text, stored.topic)
            except CorruptRecord:
                continue
            assert all(hit == walked[hit.physical_offset] for hit in by_id)
        for boundary in Boundary:
            queue_offset = reader.offset_by_time(
                stored.topic, stored.queue_id, stored.store_timestamp, boundary
            )
            queue = reader.queue(stored.topic, stored.queue_id)
            assert queue.min_offset <= queue_offset <= queue.max_offset


def changed_log(sample: Sample, physical_offset: int, data: bytes) -> tuple[StoreReader, set[int]]:
    """Return a reader of the store with other bytes at a physical offset, and the changed bytes."""
    path = sample.log_paths[physical_offset // FILE_BYTES]
    whole = bytearray(sample.folder.files[path])
    position = physical_offset % FILE_BYTES
    data = data[: FILE_BYTES - position]
    damaged = {physical_offset + i for i, byte in enumerate(data) if whole[position + i] != byte}
    whole[position : position + len(data)] = data
    return StoreReader(sample.folder.changed(path, whole)), damaged


def byte_at(sample: Sample, physical_offset: int) -> int:
    return sample.folder.files[sample.log_paths[physical_offset // FILE_BYTES]][
        physical_offset % FILE_BYTES
    ]


# --- the log --------------------------------------------------------------


def test_the_sample_is_complete(sample: Sample, crc_sample: Sample) -> None:
    for intact in (sample, crc_sample):
        assert list(intact.reader.messages()) == intact.messages
        check_rows(intact, intact.reader, set())
        check_lookups(intact, intact.reader, range(len(intact.messages)))


@pytest.mark.parametrize("mask", [0xFF, 0x01, 0x80])
@pytest.mark.sampled(3)
def test_every_byte_of_the_log_changed(sample: Sample, mask: int) -> None:
    for physical_offset in some(range(0, len(sample.fields), 1 if mask == 0xFF else 7)):
        reader, damaged = changed_log(
            sample, physical_offset, bytes([byte_at(sample, physical_offset) ^ mask])
        )
        check_rows(sample, reader, damaged)
        if physical_offset % 23 == 0:
            i = sample.owners[physical_offset]
            check_lookups(sample, reader, {max(i - 1, 0), max(i, 0), i + 1} - {COUNT})


def test_every_byte_changed_of_records_with_a_record_checksum(crc_sample: Sample) -> None:
    """No message differs, unless the checksum property itself is no longer recognizable."""
    for physical_offset in some(range(0, len(crc_sample.fields), 5)):
        reader, damaged = changed_log(
            crc_sample, physical_offset, bytes([byte_at(crc_sample, physical_offset) ^ 0xFF])
        )
        check_rows(crc_sample, reader, damaged)
        i = crc_sample.owners[physical_offset]
        if i < 0:
            continue
        stored = crc_sample.messages[i]
        is_trailer = (
            physical_offset
            >= stored.physical_offset + stored.store_size - record.CRC_PROPERTY_BYTES
        )
        end = stored.physical_offset + stored.store_size
        for actual in reader.messages(stored.physical_offset, end):
            wrong = differences(actual, stored)
            assert not wrong or (is_trailer and wrong == {"property_bytes"})


def test_every_16_bytes_of_the_log_zeroed(sample: Sample) -> None:
    for start in some(range(0, len(sample.fields), 8)):
        reader, damaged = changed_log(sample, start, bytes(16))
        check_rows(sample, reader, damaged)
        if start % 24 == 0:
            owners = {sample.owners[position] for position in damaged} - {-1}
            check_lookups(sample, reader, owners | {0, COUNT - 1})


@pytest.mark.parametrize("length", [64, 300, 512, 1024, 4096])
@pytest.mark.sampled(5)
def test_sectors_of_the_log_lost(sample: Sample, length: int) -> None:
    source = seeds.random("lost sectors", length)
    for start in range(0, len(sample.fields), max(length // 2, 128)):
        for data in (bytes(length), source.randbytes(length), b"\xff" * length):
            reader, damaged = changed_log(sample, start, data)
            check_rows(sample, reader, damaged)


def test_the_log_cut_at_every_byte(sample: Sample) -> None:
    """Each file of the log is cut, as by an interrupted copy."""
    for number, path in enumerate(sample.log_paths):
        data = sample.folder.files[path]
        for length in some(range(0, FILE_BYTES, 2 if number == 1 else 7)):
            reader = StoreReader(sample.folder.changed(path, data[:length]))
            damaged = set(range(number * FILE_BYTES + length, (number + 1) * FILE_BYTES))
            check_rows(sample, reader, damaged)
            if length % 210 == 0:
                check_lookups(sample, reader, range(0, COUNT, 7))


def data_end(stored: StoredMessage) -> int:
    """Return the end of a record's last byte that may be nonzero; a length of 0 is zeros."""
    return stored.physical_offset + stored.store_size - (0 if stored.property_bytes else 2)


@pytest.mark.parametrize("with_abort", [False, True])
@pytest.mark.parametrize("with_queues", [False, True])
@pytest.mark.sampled(4)
def test_the_last_bytes_of_the_log_never_written(
    sample: Sample, with_abort: bool, with_queues: bool
) -> None:
    """A crash at every byte of the last records leaves a prefix of the messages."""
    files: dict[str, bytes | bytearray] = {
        path: data
        for path, data in sample.folder.files.items()
        if with_queues or path.startswith("commitlog/")
    }
    if with_abort:
        files["abort"] = b""
    path = sample.log_paths[-1]
    start = (len(sample.log_paths) - 1) * FILE_BYTES
    end = sample.messages[-1].physical_offset + sample.messages[-1].store_size
    for length in some(range(end - start + 1)):
        cut = bytes(sample.folder.files[path][:length]).ljust(FILE_BYTES, b"\0")
        reader = StoreReader(MemoryFolder({**files, path: cut}))
        messages = list(reader.messages())
        whole = [stored for stored in sample.messages if data_end(stored) <= start + length]
        last = len(whole)
        assert messages[:last] == whole
        if with_abort:
            assert messages == whole
        # After a clean stop the reader trusts the queues, and properties have no checksum.
        for stored, wanted in zip(messages[last:], sample.messages[last:], strict=False):
            assert differences(stored, wanted) <= {"property_bytes", "topic"}
        assert len(messages) <= last + 1
        if with_abort and not with_queues:
            assert [run for batch in reader.walk() for run in batch.damage] == []
            if length and reader.tail.torn is not None:
                assert reader.tail.torn.physical_offset == reader.end_offset


def test_each_file_deleted(sample: Sample) -> None:
    for path in sample.folder.files:
        reader = StoreReader(sample.folder.changed(path, None))
        if not path.startswith("commitlog/"):
            assert list(reader.messages()) == sample.messages
            check_lookups(sample, reader, range(COUNT))
            continue
        number = sample.log_paths.index(path)
        damaged = set(range(number * FILE_BYTES, (number + 1) * FILE_BYTES))
        lost = {sample.owners[position] for position in damaged}
        expected = [stored for i, stored in enumerate(sample.messages) if i not in lost]
        assert list(reader.messages()) == expected
        check_lookups(sample, reader, range(COUNT))
        is_inner = 0 < number < len(sample.log_paths) - 1
        runs = [run for batch in reader.walk() for run in batch.damage]
        missing = [(run.physical_offset, run.length) for run in runs]
        assert missing == ([(number * FILE_BYTES, FILE_BYTES)] if is_inner else [])
        for i in lost - {-1}:
            with pytest.raises(NotInStore):
                reader.message_at(sample.messages[i].physical_offset)


def test_several_damages_at_once(sample: Sample) -> None:
    source = seeds.random("several damages")
    for _ in some(range(300)):
        folder = sample.folder
        damaged: set[int] = set()
        for _ in range(source.randint(2, 6)):
            physical_offset = source.randrange(len(sample.fields))
            length = source.choice((1, 4, 20, 100))
            path = sample.log_paths[physical_offset // FILE_BYTES]
            whole = bytearray(folder.files[path])
            place = physical_offset % FILE_BYTES
            length = min(length, FILE_BYTES - place)
            whole[place : place + length] = source.randbytes(length)
            damaged |= set(range(physical_offset, physical_offset + length))
            folder = folder.changed(path, whole)
        reader = StoreReader(folder)
        check_rows(sample, reader, damaged)
        check_lookups(sample, reader, source.sample(range(COUNT), 3))


def test_garbage_in_place_of_the_log(sample: Sample) -> None:
    source = seeds.random("garbage logs")
    for kind in range(4):
        folder = sample.folder
        for path in sample.log_paths:
            data = (
                bytes(FILE_BYTES),
                b"\xff" * FILE_BYTES,
                source.randbytes(FILE_BYTES),
                b"",
            )[kind]
            folder = folder.changed(path, data)
        for abort in (False, True):
            reader = StoreReader(folder.changed("abort", b"") if abort else folder)
            assert list(reader.messages()) == []
            check_lookups(sample, reader, range(0, COUNT, 9))
            list(reader.log_file_states())


# --- queues ---------------------------------------------------------------


def queue_paths(sample: Sample) -> list[str]:
    return [path for path in sample.folder.files if path.startswith("consumequeue/")]


def check_with_damaged_queue(sample: Sample, reader: StoreReader, path: str) -> None:
    """The log does not need the queues; a queue gives its messages or errors."""
    assert reader.end_offset == sample.end_offset
    assert sum(len(batch.positions) for batch in reader.walk()) == len(sample.messages)
    _, topic, queue_id, _ = path.split("/")
    where = (topic, int(queue_id))
    queue = reader.queue(*where)
    expected = {
        stored.queue_offset: stored
        for stored in sample.messages
        if (stored.topic, stored.queue_id) == where and flags.is_queued(stored.sys_flag)
    }
    for number in range(queue.min_offset, queue.max_offset):
        try:
            actual = reader.message_in_queue(*where, number)
        except (CorruptRecord, NotInStore):
            continue
        assert actual == expected[number]
    for boundary in Boundary:
        for stored in list(expected.values())[::9]:
            queue_offset = reader.offset_by_time(*where, stored.store_timestamp, boundary)
            assert queue.min_offset <= queue_offset <= queue.max_offset


@pytest.mark.parametrize("mask", [0xFF, 0x01])
@pytest.mark.sampled(2)
def test_every_byte_of_the_queues_changed(sample: Sample, mask: int) -> None:
    for path in queue_paths(sample):
        data = sample.folder.files[path]
        for position in some(range(0, len(data), 1 if mask == 0xFF else 7)):
            changed = bytearray(data)
            changed[position] ^= mask
            reader = StoreReader(sample.folder.changed(path, changed))
            check_with_damaged_queue(sample, reader, path)


def test_queues_zeroed_and_cut(sample: Sample) -> None:
    for path in queue_paths(sample):
        data = sample.folder.files[path]
        for position in some(range(0, len(data), 10)):
            zeroed = bytearray(data)
            zeroed[position : position + 16] = bytes(16)
            for changed in (zeroed, data[:position]):
                reader = StoreReader(sample.folder.changed(path, changed))
                check_with_damaged_queue(sample, reader, path)


def test_one_lost_unit_does_not_hide_the_others(sample: Sample) -> None:
    """Nor does the lost unit move the ends of the queue."""
    for path in queue_paths(sample):
        _, topic, queue_id, start = path.split("/")
        whole = sample.reader.queue(topic, int(queue_id))
        first = int(start) // 20
        stop = min(whole.max_offset, first + 20)
        for number in range(first, stop - 1):
            data = bytearray(sample.folder.files[path])
            data[(number - first) * 20 : (number - first + 1) * 20] = bytes(20)
            reader = StoreReader(sample.folder.changed(path, data))
            queue = reader.queue(topic, int(queue_id))
            assert queue.max_offset == whole.max_offset
            for other in range(whole.min_offset, whole.max_offset):
                if other == number:
                    with pytest.raises(NotInStore):
                        reader.message_in_queue(topic, int(queue_id), other)
                else:
                    actual = reader.message_in_queue(topic, int(queue_id), other)
                    assert actual.queue_offset == other


# --- index, checkpoint, tables --------------------------------------------


def damaged_files(data: bytes | bytearray, step: int) -> Iterator[bytes]:
    """Yield the file with each byte changed, each 16 bytes zeroed, and cut at each byte."""
    for position in some(range(0, len(data), step)):
        changed = bytearray(data)
        changed[position] ^= 0xFF
        yield bytes(changed)
        changed = bytearray(data)
        changed[position : position + 16] = bytes(16)
        yield bytes(changed)
        yield bytes(data[:position])


def test_damaged_index_files(sample: Sample) -> None:
    """A lookup gives messages that have the key, or an error; lookups by id need no index."""
    (path, *_) = (path for path in sample.folder.files if path.startswith("index/"))
    by_place = {stored.physical_offset: stored for stored in sample.messages}
    for data in damaged_files(sample.folder.files[path], 3):
        reader = StoreReader(sample.folder.changed(path, data))
        for topic, key in (("TopicA", "shared"), ("TopicA", "k0"), ("TopicB", "k5"), ("T", "x")):
            try:
                hits = reader.messages_by_key(topic, key)
            except CorruptRecord as error:
                assert error.file == path  # noqa: PT017 - raising is allowed
                continue
            for hit in hits.messages:
                assert hit == by_place[hit.physical_offset]
                assert hit.topic == topic
                assert key in hit.keys
        stored = sample.messages[12]
        assert reader.messages_by_id(message_id.offset_id(stored), stored.topic) == [stored]


def test_damaged_checkpoints(sample: Sample) -> None:
    """A checkpoint is shown as stored, and reported if truncated; messages do not depend on it."""
    for data in damaged_files(bytes(sample.folder.files["checkpoint"][:120]), 1):
        for abort in (False, True):
            folder = sample.folder.changed("checkpoint", data)
            reader = StoreReader(folder.changed("abort", b"") if abort else folder)
            state = reader.state
            assert (state.checkpoint_problem is not None) == (0 < len(data) < 48)
            assert reader.end_offset == sample.reader.end_offset
            assert list(reader.messages(0, 500)) == list(sample.reader.messages(0, 500))


@pytest.mark.parametrize("name", ["topics", "consumerOffset", "subscriptionGroup", "delayOffset"])
def test_damaged_tables(sample: Sample, name: str) -> None:
    path = f"config/{name}.json"
    for data in damaged_files(sample.folder.files[path], 2):
        reader = StoreReader(sample.folder.changed(path, data))
        for ask in (
            reader.topics,
            reader.consumer_offsets,
            reader.subscription_groups,
            reader.delay_offsets,
            reader.delay_progress,
            reader.broker_name,
        ):
            try:
                ask()
            except CorruptRecord as error:
                assert error.file == path  # noqa: PT017 - raising is allowed
        assert reader.end_offset == sample.reader.end_offset


# --- on disk, as a user would see it --------------------------------------


def test_damaged_folders_are_opened_or_refused(tmp_path: Path) -> None:
    """Any file of a store is replaced by nothing, a folder, or garbage."""
    built = store_builder.build(tmp_path / "store", sample_messages(), has_next_file=True)
    source = seeds.random("damaged folders")
    for path in sorted(file for file in built.root.rglob("*") if file.is_file()):
        whole = path.read_bytes()
        for kind in ("empty", "folder", "garbage", "long", "gone"):
            path.unlink()
            if kind == "folder":
                path.mkdir()
            elif kind != "gone":
                content = {"empty": b"", "garbage": source.randbytes(200), "long": whole * 2}
                path.write_bytes(content[kind])
            check_any_folder(built)
            if kind == "folder":
                path.rmdir()
            elif kind != "gone":
                path.unlink()
            path.write_bytes(whole)
    assert list(StoreReader.open(str(built.root)).messages()) == built.messages


def check_any_folder(built: store_builder.Built) -> None:
    by_place = {stored.physical_offset: stored for stored in built.messages}
    try:
        reader = StoreReader.open(str(built.root))
    except StoreUnavailable:
        return
    for ask in (
        lambda: list(reader.messages()),
        lambda: list(reader.log_file_states()),
        lambda: [queue.max_offset for queue in reader.queues()],
        lambda: reader.messages_by_key("TopicA", "shared").messages,
        lambda: reader.messages_by_id("A" * 32),
        lambda: [reader.message_in_queue("TopicA", 0, 3)],
        lambda: [reader.message_at(by_place[0].physical_offset)],
        reader.topics,
        reader.delay_progress,
    ):
        try:
            answers = ask()
        except ReputError:
            continue
        for stored in answers:
            if isinstance(stored, StoredMessage):
                assert stored == by_place[stored.physical_offset]


@pytest.mark.parametrize("version", golden.VERSIONS)
@pytest.mark.sampled(3)
def test_bytes_of_a_golden_log_changed(version: str) -> None:
    """In a store that Java wrote, only the record with the changed byte differs or is damaged."""
    folder = MemoryFolder.load(golden.unpack(version, "clean"))
    file_bytes = int(golden.manifest(version, "clean")["config"]["mappedFileSizeCommitLog"])
    original = list(StoreReader(folder).messages())
    source = seeds.random("golden bytes", version)
    for _ in range(40):
        victim = source.choice(original)
        physical_offset = victim.physical_offset + source.randrange(victim.store_size)
        start = physical_offset - physical_offset % file_bytes
        path = f"commitlog/{start:020d}"
        data = bytearray(folder.files[path])
        data[physical_offset - start] ^= 1 << source.randrange(8)
        reader = StoreReader(folder.changed(path, data))
        low, high = max(start, 0), start + file_bytes
        expected = [m for m in original if low <= m.physical_offset < high]
        messages = {m.physical_offset: m for m in reader.messages(low, high)}
        runs = [run for batch in reader.walk(low, high) for run in batch.damage]
        for wanted in expected:
            if wanted != victim:
                assert messages.pop(wanted.physical_offset) == wanted
        if victim.physical_offset in messages:
            names = differences(messages.pop(victim.physical_offset), victim)
            assert names <= STAND_ALONE
            assert len(names) == 1
        else:
            assert [(run.physical_offset, run.end) for run in runs] == [
                (victim.physical_offset, victim.physical_offset + victim.store_size)
            ]
        assert messages == {}


def test_the_layout_of_this_test_equals_that_of_golden_records() -> None:
    """The expectations above depend on this layout."""
    for version in golden.VERSIONS:
        for i, (_, place) in enumerate(golden.records(version, "clean")):
            if i % 20:
                continue
            stored = record.decode(place.record)
            position = 0
            for name, size in layout(stored):
                part = place.record[position : position + size]
                position += size
                if size in (4, 8) and isinstance(getattr(stored, name, None), int):
                    (value,) = struct.unpack(">i" if size == 4 else ">q", part)
                    assert value == getattr(stored, name)
                if name in ("body", "property_bytes"):
                    assert part == getattr(stored, name)
                if name == "topic":
                    assert part.decode() == stored.topic
            assert position == stored.store_size
