"""Stores of a test: small files, a separate clock, and at the end a verification of each.

    def test_something(stores):
        store = stores.open(flush_disk_type="SYNC_FLUSH")
        store.put(IncomingMessage("TopicA", b"hello"))

The fixture ``stores`` (``conftest.py``) closes and verifies them. A test whose store ends with
findings above notes allows them: ``stores.allow(FindingKind.CLOCK_BACK)``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest

import seeds
from reput.clock import Clock, ManualClock
from reput.store.config import BrokerRole, FlushDiskType, StoreConfig
from reput.store.files.disk import Disk
from reput.store.kernels import hot
from reput.store.message_store import MessageStore
from reput.store.reader import StoreReader
from reput.store.verify import FindingKind, Severity, VerifyReport, verify

Case = TypeVar("Case")

START_MS = 1_700_000_000_000

needs_kernels = pytest.mark.skipif(not hot.is_compiled, reason="no compiled kernels here")
"""Mark of the tests of a fast path, which requires compiled kernels."""

SMALL_FILES: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 20 * 10,
    "max_hash_slot_num": 50,
    "max_index_num": 40,
    "max_message_size": 16 * 1024,
    "delete_commit_log_files_interval": 0,
    "delete_consume_queue_files_interval": 0,
    "clean_resource_interval": 0,
}
"""Sizes so small that files end within a test: 10 units, 39 entries; no pauses of deletions."""


def some(cases: Sequence[Case]) -> Sequence[Case]:
    """Return every fifth of many cases, others each day, and the last; with ``make soak`` all."""
    if hypothesis.settings.default.max_examples > 100:
        return cases
    return [*cases[seeds.today() % 5 : -1 : 5], *cases[-1:]]


class RoomyDisk(Disk):
    """A disk that is half full, whatever the machine's."""

    def usage(self, path: str) -> float:
        return 0.5


def config(root: str | Path, **settings: Any) -> StoreConfig:
    """Return a configuration with small files; enumerations may be given by name."""
    for name, kind in (("flush_disk_type", FlushDiskType), ("broker_role", BrokerRole)):
        if name in settings:
            settings[name] = kind(settings[name])
    return StoreConfig(**(SMALL_FILES | settings), store_path_root_dir=str(root))


class Stores:
    """The stores of a test, and the findings that they may end with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: list[MessageStore] = []
        self._allowed: set[FindingKind] = set()

    def root(self, name: str = "store") -> Path:
        """Return the folder of a store."""
        return self._folder / name

    def open(
        self,
        name: str = "store",
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        **settings: Any,
    ) -> MessageStore:
        """Open a store of this name, with small files unless ``settings`` override them."""
        store = MessageStore.open(
            config=config(self.root(name), **settings),
            clock=clock or ManualClock(START_MS),
            disk=disk or RoomyDisk(),
        )
        self._opened.append(store)
        return store

    def allow(self, *kinds: FindingKind) -> None:
        """Allow the stores of this test to end with these findings."""
        self._allowed.update(kinds)

    def check(self) -> None:
        """Close all stores, and verify all stores on disk."""
        for store in self._opened:
            if not store.max_physical_offset:
                self.allow(FindingKind.LOG_EMPTY)
            store.close()
        for root in sorted({store.root for store in self._opened}):
            assert_sound(root, allowed=self._allowed)
        self._opened.clear()


def assert_sound(root: str | Path, *, allowed: set[FindingKind] | None = None) -> VerifyReport:
    """Verify a store: the only findings are notes and allowed ones."""
    report = verify(StoreReader.open(str(root)))
    assert_allowed(report, allowed or set())
    return report


def assert_allowed(report: VerifyReport, allowed: set[FindingKind]) -> None:
    """Check that the findings of a verification are notes, or of allowed kinds."""
    wrong = [
        finding
        for finding in report.findings
        if finding.severity > Severity.NOTE and finding.kind not in allowed
    ]
    lines = (f"{finding.severity.name} {finding.path}: {finding.text}" for finding in wrong)
    assert not wrong, "\n".join(lines)
