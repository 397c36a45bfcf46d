"""Tables that a Java broker has kept in RocksDB: a start without them would forget topics, groups
and consumer offsets.

The layout is that of the brokers 5.2.0, 5.3.3 and 5.5.0 with storeType=defaultRocksDB;
tests/interop/test_rocksdb_stores.py runs them.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import golden
from reput import config
from reput.errors import StoreUnavailable
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.message_store import MessageStore
from reput.store.reader import StoreReader

SIZES = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
    "maxMessageSize",
)
LATER_S = 10_000_000_000


def config_of(root: Path) -> StoreConfig:
    java = golden.manifest("5.5.0", "clean")["config"]
    settings = {key: java[key] for key in SIZES}
    return config.load(StoreConfig, {**settings, "storePathRootDir": str(root)}).value


def put_into_rocksdb(root: Path, name: str, modified_s: int) -> None:
    folder = root / paths.CONFIG / name
    folder.mkdir()
    (folder / "CURRENT").write_text("MANIFEST-000005\n")
    (folder / "000009.sst").write_bytes(b"a table")
    os.utime(folder / "000009.sst", (modified_s, modified_s))


@pytest.mark.parametrize("path", paths.ROCKSDB_TABLES)
@pytest.mark.parametrize("has_file", [True, False])
def test_a_start_without_the_newest_table_is_refused(
    golden_copy: Callable[[str, str], Path], path: str, *, has_file: bool
) -> None:
    root = golden_copy("5.5.0", "clean")
    name = path.rpartition("/")[2]
    put_into_rocksdb(root, name, LATER_S)
    if not has_file:
        (root / paths.ROCKSDB_TABLES[path]).unlink()
    with pytest.raises(StoreUnavailable, match=rf"{path} in RocksDB.*-t {name} -e .*\.json"):
        MessageStore.open(config=config_of(root))
    assert not (root / paths.ABORT).exists(), "a refused start leaves no trace"
    # Messages do not depend on tables.
    StoreReader.open(str(root))


def test_a_start_with_newer_files_is_not_refused(
    golden_copy: Callable[[str, str], Path],
) -> None:
    root = golden_copy("5.5.0", "clean")
    for path in paths.ROCKSDB_TABLES:
        put_into_rocksdb(root, path.rpartition("/")[2], 1)
    MessageStore.open(config=config_of(root)).close()
