"""The golden stores below ``data/golden``: written and described by RocketMQ's own classes.

``import golden`` in a test (pyproject puts ``tests`` on the path), or take the fixtures of the
same names from ``conftest.py``. Archives are unpacked once a session, for all workers together.
**An unpacked store is shared: read it.** A test that changes one takes ``copy_store``.

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

DATA = Path(__file__).parent / "data" / "golden"
VERSIONS = ("4.5.2", "4.9.7", "5.5.0")

STORES = [
    (version, archive.name.removesuffix(".tar.zst"))
    for version in VERSIONS
    for archive in sorted((DATA / version).glob("*.tar.zst"))
    if archive.name != "torn.tar.zst"
]
"""Every store that is one archive, as (version, name)."""

TORN = [
    (version, variant)
    for version in VERSIONS
    for variant in json.loads(gzip.decompress((DATA / version / "torn.json.gz").read_bytes()))[
        "variants"
    ]
]
"""Every way a ``clean`` store was damaged, as (version, variant)."""

_WINDOW_BYTES_MAX = 128 * 1024 * 1024  # of torn.tar.zst: the default limit of zstd

ROOT_VARIABLE = "REPUT_GOLDEN"
"""Environment variable: where this session unpacks to. conftest.py makes and removes it."""


# --- what the manifests say -----------------------------------------------


@functools.cache
def manifest(version: str, name: str) -> dict[str, Any]:
    """The manifest of a store, or of ``torn/VARIANT`` as Java left it after recovery."""
    if name.startswith("torn/"):
        text = _recovered(version, name).with_suffix(".json").read_bytes()
    else:
        text = gzip.decompress((DATA / version / f"{name}.json.gz").read_bytes())
    found: dict[str, Any] = json.loads(text)
    return found


@functools.cache
def messages(version: str, name: str) -> list[dict[str, Any]]:
    """One entry a record, in the order of the log; ``name`` as for ``manifest``."""
    if name.startswith("torn/"):
        text = _recovered(version, name).with_suffix(".messages.jsonl").read_bytes()
    else:
        text = gzip.decompress((DATA / version / f"{name}.messages.jsonl.gz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


@functools.cache
def sent(version: str, name: str) -> list[dict[str, Any]]:
    """What the producers had been told, where the store was filled by them; else empty."""
    file = DATA / version / f"{name}.sent.jsonl.gz"
    if not file.exists():
        return []
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


def torn_variants(version: str) -> dict[str, dict[str, Any]]:
    """Variant to what was damaged and what Java made of it (``brokerStarted``, ...)."""
    found: dict[str, dict[str, Any]] = manifest(version, "torn")["variants"]
    return found


def torn_recovered(version: str) -> list[str]:
    """The variants on which the broker started, so that there is a state after recovery."""
    return [name for name, entry in torn_variants(version).items() if entry["brokerStarted"]]


def known_properties(version: str, properties: dict[str, str]) -> dict[str, str]:
    """``properties`` as the decoder of that version sees them.

    4.5 drops a pair whose value holds the separator ``\\x01``; 4.9 and 5.x keep it.
    """
    if not version.startswith("4.5"):
        return properties
    return {name: value for name, value in properties.items() if "\x01" not in value}


# --- the stores -----------------------------------------------------------


def unpack(version: str, name: str) -> Path:
    """The root directory of an unpacked store, shared by all tests: do not change it.

    ``name`` is an archive (``clean``, ...), ``torn/VARIANT`` for a damaged store, or
    ``torn/VARIANT-recovered`` for what the broker made of it.
    """
    if name.startswith("torn/"):
        return _unpack(version, "torn") / name / "store"
    return _unpack(version, name) / "store"


def copy_store(version: str, name: str, into: Path) -> Path:
    """A copy of a store that a test may change, below ``into``; file times are kept."""
    target = into / "store"
    shutil.copytree(unpack(version, name), target)
    return target


def log_files(store: Path) -> list[Path]:
    """The files of the commit log, oldest first."""
    return sorted((store / "commitlog").iterdir())


class Place(NamedTuple):
    """Bytes of one record, and where they stand."""

    file: bytes
    position: int
    physical_offset: int
    size: int

    @property
    def record(self) -> bytes:
        """The record alone."""
        return self.file[self.position : self.position + self.size]


def records(version: str, name: str) -> Iterator[tuple[dict[str, Any], Place]]:
    """Every message of the manifest, with its bytes; ``name`` as for ``manifest``."""
    store = _recovered(version, name) / "store" if "/" in name else unpack(version, name)
    files = {int(file.name): file.read_bytes() for file in log_files(store)}
    file_bytes = int(manifest(version, name)["config"]["mappedFileSizeCommitLog"])
    for message in messages(version, name):
        offset = message["commitLogOffset"]
        position = offset % file_bytes
        yield message, Place(files[offset - position], position, offset, message["storeSize"])


def find_record(version: str, name: str, physical_offset: int) -> Place:
    """The bytes of the record at an offset of the log, found without the manifest."""
    for file in log_files(unpack(version, name)):
        position = physical_offset - int(file.name)
        if 0 <= position < file.stat().st_size:
            data = file.read_bytes()
            (size,) = struct.unpack_from(">i", data, position)
            return Place(data, position, physical_offset, size)
    raise LookupError(f"{version} {name} has no offset {physical_offset}")


# --- unpacking ------------------------------------------------------------


def _recovered(version: str, name: str) -> Path:
    return _unpack(version, "torn") / f"{name.removesuffix('-recovered')}-recovered"


@functools.cache
def _unpack(version: str, name: str) -> Path:
    """Unpack an archive, or use what another worker has unpacked.

    It appears under its name when it is whole. Two workers that meet do the work twice, and the
    second one throws its own away: no lock to wait for or to leave behind.
    """
    target = Path(os.environ[ROOT_VARIABLE]) / version / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as draft:
        whole = Path(draft) / name
        whole.mkdir()
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
        with (
            (DATA / version / f"{name}.tar.zst").open("rb") as packed,
            decompressor.stream_reader(packed) as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            archive.extractall(whole, filter="data")
        try:
            whole.rename(target)
        except OSError:
            if not target.exists():
                raise
    return target
