"""Queues, extension units and index, deleted and derived again: the same bytes as Java's."""

import dataclasses
import shutil
from pathlib import Path

import pytest

import golden
from reput import config
from reput.format import cq_unit, index_entry, message as record
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.message_store import MessageStore
from reput.store.reader import StoreReader
from reput.store.tables.filters import ConsumerFilterTable

WHOLE = [
    (version, name) for version, name in golden.STORES if name in ("clean", "ext", "recovered")
]
"""Stores whose log has all messages that queues and index point at."""
EXPIRED = [(version, "expired") for version in golden.VERSIONS]


def settings(version: str, name: str, root: Path) -> StoreConfig:
    """Return the configuration of the broker that wrote a store."""
    properties = dict(golden.manifest(version, name)["config"])
    properties.pop("storePathRootDir", None)
    properties.pop("storePathCommitLog", None)
    explicit = {
        "store_path_root_dir": str(root),
        "index_tags": version >= "5.4",
        "enable_calc_filter_bit_map": name == "ext",
    }
    return config.load(StoreConfig, properties, environment={}, explicit=explicit).value


def files_of(root: Path, family: str) -> dict[str, bytes]:
    """Return all files of a family: path below the root -> bytes."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted((root / family).rglob("*"))
        if path.is_file()
    }


def index_files(root: Path) -> list[bytes]:
    """Return the index files in order; their names are their creation times."""
    return [path.read_bytes() for path in sorted((root / paths.INDEX).iterdir())]


def rebuild(version: str, name: str, into: Path) -> tuple[Path, Path]:
    """Return the original, and a copy whose derived files reput has rebuilt."""
    original = golden.unpack(version, name)
    copy = golden.copy_store(version, name, into)
    for family in (paths.CONSUME_QUEUE, paths.CONSUME_QUEUE_EXT, paths.INDEX):
        shutil.rmtree(copy / family, ignore_errors=True)
    filters = ConsumerFilterTable.load(str(copy), Disk())
    with MessageStore.open(config=settings(version, name, copy), filters=filters) as store:
        assert store.recovery.holes == []
    return original, copy


@pytest.mark.crash
@pytest.mark.parametrize(("version", "name"), WHOLE)
@pytest.mark.sampled(4)
def test_rebuilt_queues_have_the_same_bytes(version: str, name: str, tmp_path: Path) -> None:
    original, copy = rebuild(version, name, tmp_path)
    for family in (paths.CONSUME_QUEUE, paths.CONSUME_QUEUE_EXT):
        expected, rebuilt = (
            {
                path: data
                for path, data in files_of(root, family).items()
                # Some messages of this topic were dispatched before there was a filter: see below.
                if "GoldenOne-ext" not in path
            }
            for root in (original, copy)
        )
        assert sorted(rebuilt) == sorted(expected)
        for path, data in expected.items():
            assert rebuilt[path] == data, path


@pytest.mark.crash
@pytest.mark.parametrize("version", golden.VERSIONS)
def test_rebuilt_extension_units_have_the_same_bits(version: str, tmp_path: Path) -> None:
    original, copy = rebuild(version, "ext", tmp_path)
    before, after = (StoreReader.open(str(path)) for path in (original, copy))
    with_bits = 0
    for queue in before.queues():
        copied_queue = after.queue(queue.topic, queue.queue_id)
        for queue_offset in range(queue.max_offset):
            expected, unit = queue.unit(queue_offset), copied_queue.unit(queue_offset)
            assert (unit.physical_offset, unit.size) == (expected.physical_offset, expected.size)
            place = queue.topic, queue.queue_id
            expected_ext = before.extension(*place).unit(expected.tags_code)
            ext = after.extension(*place).unit(unit.tags_code)
            assert ext.tags_code == expected_ext.tags_code
            assert ext.store_timestamp == expected_ext.store_timestamp
            if expected_ext.bit_map:
                assert ext.bit_map == expected_ext.bit_map
                with_bits += 1
    assert with_bits > 50


@pytest.mark.crash
@pytest.mark.parametrize(
    ("version", "name"),
    [(version, name) for version, name in WHOLE if name != "recovered"],  # Java lost keys here.
)
def test_the_rebuilt_index_has_the_same_bytes(version: str, name: str, tmp_path: Path) -> None:
    original, copy = rebuild(version, name, tmp_path)
    expected, rebuilt = index_files(original), index_files(copy)
    assert len(rebuilt) == len(expected)
    if version == "4.5.2":
        # Java counts every entry as a new slot (known-bugs.md#index-slot-count).
        expected, rebuilt = (
            [_without_slots_used(index_file) for index_file in each] for each in (expected, rebuilt)
        )
    assert rebuilt == expected


def _without_slots_used(data: bytes) -> bytes:
    header = dataclasses.replace(index_entry.unpack_header(data), slots_used=0)
    return index_entry.pack_header(header) + data[index_entry.HEADER.size :]


@pytest.mark.crash
@pytest.mark.parametrize(("version", "name"), EXPIRED)
def test_queues_of_an_expired_log_start_at_its_first_message(
    version: str, name: str, tmp_path: Path
) -> None:
    original, copy = rebuild(version, name, tmp_path)
    before, after = (StoreReader.open(str(path)) for path in (original, copy))
    alive = [queue for queue in before.queues() if queue.min_offset < queue.max_offset]
    assert len(alive) > 2
    for queue in alive:
        copied_queue = after.queue(queue.topic, queue.queue_id)
        assert (copied_queue.min_offset, copied_queue.max_offset) == (
            queue.min_offset,
            queue.max_offset,
        )
        for queue_offset in range(queue.min_offset, queue.max_offset):
            assert copied_queue.unit(queue_offset) == queue.unit(queue_offset)


@pytest.mark.crash
@pytest.mark.parametrize("version", golden.VERSIONS)
@pytest.mark.parametrize("is_on", [True, False])
def test_tags_are_found_through_extension_addresses(
    version: str, is_on: bool, tmp_path: Path
) -> None:
    """This includes a store with the option off, and one without the extension files."""
    copy = golden.copy_store(version, "ext", tmp_path)
    options = dataclasses.replace(settings(version, "ext", copy), enable_consume_queue_ext=is_on)
    expected = [
        message
        for message in StoreReader.open(str(copy)).messages()
        if message.topic == "GoldenOne-ext" and message.queue_id == 0 and message.tags == "TagA"
    ]
    assert expected
    with MessageStore.open(config=options) as store:
        for _ in range(2):
            records: list[bytes] = []
            queue_offset = 0
            while queue_offset < store.max_offset("GoldenOne-ext", 0):
                got = store.get(
                    "GoldenOne-ext", 0, queue_offset, tags_codes=[cq_unit.tags_code("TagA")]
                )
                records += map(bytes, got.records)
                queue_offset = got.next_offset
            assert [record.decode(message) for message in records] == expected
            shutil.rmtree(copy / paths.CONSUME_QUEUE_EXT / "GoldenOne-ext", ignore_errors=True)
