"""The golden stores below ``data/golden``: written and described by RocketMQ's own classes.

``import golden`` in a test (pyproject puts ``tests`` on the path), or take the fixtures of the
same names from ``conftest.py``. A store is unpacked once a session, for all workers together, and
only if a test requests it; ``files`` and ``records`` read bytes without unpacking.
**An unpacked store is shared: do not change it.** A test that changes a store takes ``copy_store``.

Names of stores are those of the archives (``clean``, ...), ``torn/VARIANT`` for a damaged store
and ``torn/VARIANT-recovered`` for the same store after the broker's recovery.

    STORE = pytest.mark.parametrize(("version", "name"), golden.STORES)

    @STORE
    def test_reads(version: str, name: str) -> None:
        store = golden.unpack(version, name)
        assert count(store) == golden.manifest(version, name)["log"]["records"]
"""

import functools
import gzip
import json
import os
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

import seeds

DATA = Path(__file__).parent / "data" / "golden"
VERSIONS = ("4.5.2", "4.9.7", "5.5.0")

STORES = [
    (version, archive.name.removesuffix(".tar.zst"))
    for version in VERSIONS
    for archive in sorted((DATA / version).glob("*.tar.zst"))
    if archive.name != "torn.tar.zst"
]
"""Every store with a separate archive, as (version, name)."""

OPENED = [(version, name) for version, name in STORES if name != "unclean"]
"""Every store that Java opened after it was written; ``unclean`` is as a killed broker left it."""

TORN = [
    (version, variant)
    for version in VERSIONS
    for variant in json.loads(gzip.decompress((DATA / version / "torn.json.gz").read_bytes()))[
        "variants"
    ]
]
"""Every kind of damage of a ``clean`` store, as (version, variant)."""

IS_SOAK = "REPUT_SOAK" in os.environ


def _by_turns() -> Iterator[tuple[str, str]]:
    for number, name in enumerate(sorted({name for _, name in STORES}), start=seeds.today()):
        written = [version for version, store_name in STORES if store_name == name]
        yield written[number % len(written)], name


EACH_STORE = STORES if IS_SOAK else list(_by_turns())
"""Each kind of store in one version, another each day; with ``make soak`` the same as ``STORES``.

For expensive tests, if other tests cover the layout of each version with all ``STORES``.
"""

EACH_DAMAGE = (
    TORN
    if IS_SOAK
    else [
        (VERSIONS[number % len(VERSIONS)], variant)
        for number, variant in enumerate(
            sorted({variant for _, variant in TORN}), start=seeds.today()
        )
    ]
)
"""Each kind of damage in one version, another each day; with ``make soak`` the same as ``TORN``."""

_WINDOW_BYTES_MAX = 128 * 1024 * 1024  # Of torn.tar.zst: the default limit of zstd.

ROOT_VARIABLE = "GOLDEN_STORES"
"""Environment variable: folder of the unpacked stores. conftest.py creates and removes it."""


# --- the manifests ------------------------------------------------------------


@functools.cache
def manifest(version: str, name: str) -> dict[str, Any]:
    """Return the manifest of a store; damaged stores share the manifest ``torn``."""
    contents: dict[str, Any] = json.loads(_text(version, name, ".json"))
    return contents


@functools.cache
def messages(version: str, name: str) -> list[dict[str, Any]]:
    """Return an entry for each record, in the order of the log."""
    return [json.loads(line) for line in _text(version, name, ".messages.jsonl").splitlines()]


def _text(version: str, name: str, ending: str) -> bytes:
    if name.startswith("torn/"):
        return _archive(version, "torn").read(name + ending)
    return gzip.decompress((DATA / version / f"{name}{ending}.gz").read_bytes())


@functools.cache
def sent(version: str, name: str) -> list[dict[str, Any]]:
    """Return the producers' send results for a store that producers filled; else an empty list."""
    file = DATA / version / f"{name}.sent.jsonl.gz"
    if not file.exists():
        return []
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


def torn_variants(version: str) -> dict[str, dict[str, Any]]:
    """Return the damage of each variant and Java's result (``brokerStarted``, ...)."""
    variants: dict[str, dict[str, Any]] = manifest(version, "torn")["variants"]
    return variants


def torn_recovered(version: str) -> list[str]:
    """Return the variants on which the broker started, so that there is a state after recovery."""
    return [name for name, entry in torn_variants(version).items() if entry["brokerStarted"]]


def known_properties(version: str, properties: dict[str, str]) -> dict[str, str]:
    """Return ``properties`` as the decoder of that version reads them.

    4.5 drops a pair whose value contains the separator ``\x01``; 4.9 and 5.x keep it.
    """
    if not version.startswith("4.5"):
        return properties
    return {name: value for name, value in properties.items() if "\x01" not in value}


# --- the stores -----------------------------------------------------------


@functools.cache
def unpack(version: str, name: str) -> Path:
    """Return the root directory of an unpacked store, shared by all tests: do not change it."""
    target = Path(os.environ[ROOT_VARIABLE]) / version / name
    if not target.exists():
        prefix = f"{name}/" if name.startswith("torn/") else ""
        archive = _archive(version, name.split("/")[0])
        _appear(target, lambda draft: archive.extract(prefix, draft))
    return target / "store"


def files(version: str, name: str) -> dict[str, bytes]:
    """Return every file of a store, by its path below the root directory; nothing is unpacked."""
    prefix = f"{name}/store/" if name.startswith("torn/") else "store/"
    archive = _archive(version, name.split("/")[0])
    return {
        path.removeprefix(prefix): archive.read(path)
        for path in sorted(archive.members)
        if path.startswith(prefix)
    }


def copy_store(version: str, name: str, into: Path) -> Path:
    """Copy a store that a test may change, below ``into``; file times are kept."""
    target = into / "store"
    shutil.copytree(unpack(version, name), target)
    return target


def log_files(store: Path) -> list[Path]:
    """Return the files of the commit log, oldest first."""
    return sorted((store / "commitlog").iterdir())


class Place(NamedTuple):
    """The bytes of a file with a record, and the position of the record."""

    file: bytes
    position: int
    physical_offset: int
    size: int

    @property
    def record(self) -> bytes:
        """Bytes of the record."""
        return self.file[self.position : self.position + self.size]


def records(version: str, name: str) -> Iterator[tuple[dict[str, Any], Place]]:
    """Yield every message of the manifest, with its bytes; ``name`` as for ``manifest``."""
    logs = {
        int(path.removeprefix("commitlog/")): data
        for path, data in files(version, name).items()
        if path.startswith("commitlog/")
    }
    file_bytes = int(manifest(version, name)["config"]["mappedFileSizeCommitLog"])
    for message in messages(version, name):
        offset = message["commitLogOffset"]
        position = offset % file_bytes
        yield message, Place(logs[offset - position], position, offset, message["storeSize"])


def find_record(version: str, name: str, physical_offset: int) -> Place:
    """Return the bytes of the record at a physical offset, found without the manifest."""
    for path, data in files(version, name).items():
        if path.startswith("commitlog/"):
            position = physical_offset - int(path.removeprefix("commitlog/"))
            if 0 <= position < len(data):
                (size,) = struct.unpack_from(">i", data, position)
                return Place(data, position, physical_offset, size)
    raise LookupError(f"{version} {name} has no offset {physical_offset}")


# --- unpacking ------------------------------------------------------------


def prepare() -> None:
    """Decompress the archives that test collection reads, once and not in each worker."""
    for version in VERSIONS:
        _archive(version, "torn")


class _Archive:
    """A decompressed archive: any file of it can be read, and any folder of it unpacked.

    Positions of files are in an index: some archives have ten thousand files, whose listing takes a
    second in each worker.
    """

    def __init__(self, tar: Path, index: Path) -> None:
        # Never closed: the process reads from it until it ends.
        self._descriptor = os.open(tar, os.O_RDONLY)
        listed = json.loads(index.read_bytes())
        self._folders: list[str] = listed["folders"]
        self.members: dict[str, tuple[int, int, float]] = listed["files"]
        """Path to position in the archive, size, and time of the last change."""

    def read(self, path: str) -> bytes:
        """Return the bytes of a file."""
        position, size, _ = self.members[path]
        return os.pread(self._descriptor, size, position)

    def extract(self, prefix: str, into: Path) -> None:
        """Unpack the files below a prefix, without the prefix; times of files are kept."""
        for path in self._folders:
            if path.startswith(prefix):
                (into / path.removeprefix(prefix)).mkdir(parents=True, exist_ok=True)
        for path, (_, _, changed) in self.members.items():
            if path.startswith(prefix):
                file = into / path.removeprefix(prefix)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(self.read(path))
                os.utime(file, (changed, changed))


def _list(tar: Path, index: Path) -> None:
    """Write the index that ``_Archive`` reads."""
    with tarfile.open(tar) as archive:
        members = archive.getmembers()
    assert all(member.isdir() or (member.isreg() and not member.issparse()) for member in members)
    index_entries = {
        "folders": [member.name for member in members if member.isdir()],
        "files": {
            member.name: (member.offset_data, member.size, member.mtime)
            for member in members
            if member.isreg()
        },
    }
    index.write_text(json.dumps(index_entries))


@functools.cache
def _archive(version: str, name: str) -> _Archive:
    target = Path(os.environ[ROOT_VARIABLE]) / version / f"{name}.tar"
    index = target.with_suffix(".index")
    if not target.exists():
        packed = DATA / version / f"{name}.tar.zst"
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)

        def decompress(draft: Path) -> None:
            with packed.open("rb") as source, draft.open("wb") as plain:
                decompressor.copy_stream(source, plain)

        _appear(target, decompress)
    if not index.exists():
        _appear(index, lambda draft: _list(target, draft))
    return _Archive(target, index)


def _appear(target: Path, make: Callable[[Path], None]) -> None:
    """Make a file or folder that appears under its name when it is complete.

    Concurrent workers both do the work, and the later one discards its result: there is no lock to
    wait for or to leave.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        draft = Path(folder) / "draft"
        make(draft)
        try:
            draft.rename(target)
        except OSError:
            if not target.exists():
                raise
