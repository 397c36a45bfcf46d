"""The checkpoint of a store that is open for writing: the durable parts of log, queues and index.

The page has 4096 bytes, of which 48 are used. They are in one sector and are overwritten in place
with one write, so a crash leaves the old fields or the new ones. Layout:
docs/formats/checkpoint.md.

Rules:
    * A field is set after the sync of its data, never before (a flush of the index does not change
      the fields of queues).
    * Offsets only increase, except by ``cut``.
    * Times are those of the last synced record. They decrease when a clock is set back: recovery
      compares them with the first record of each file, and the highest time would skip files that
      were written since and not synced.
"""

import dataclasses
import logging
import os
import threading
from pathlib import Path

from reput.errors import StoreUnavailable
from reput.format import checkpoint_page
from reput.format.checkpoint_page import Checkpoint
from reput.store.files.disk import Disk

_log = logging.getLogger(__name__)


class CheckpointFile:
    """The file ``checkpoint`` and its fields in memory. May be used from any thread."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self.fields = Checkpoint()
        """Fields of the data that is durable now; on disk after the next ``flush``."""
        self._disk = disk
        self._on_disk: Checkpoint | None = None
        self._is_distrust_final = False
        self._lock = threading.Lock()  # guards `fields`; not held during disk work
        self._flushing = threading.Lock()  # guards `_on_disk`; held during disk work

    def load(self) -> Checkpoint:
        """Read the fields.

        A missing or truncated file yields zeros, with which recovery starts at the oldest file:
        slow, but correct.

        Raises:
            StoreUnavailable: The file cannot be read.
        """
        page = self._read()
        is_whole = len(page) >= checkpoint_page.PAGE.size
        if page and not is_whole:
            _log.warning(
                "%s is truncated: %d of %d bytes; recovery starts at the oldest file",
                self.path,
                len(page),
                checkpoint_page.SIZE,
            )
        self.fields = checkpoint_page.unpack(page) if is_whole else Checkpoint()
        self._on_disk = self.fields if len(page) == checkpoint_page.SIZE else None
        return self.fields

    def advance(
        self,
        *,
        physical_timestamp: int | None = None,
        queue_timestamp: int | None = None,
        index_timestamp: int | None = None,
        master_flushed_offset: int | None = None,
        confirmed_physical_offset: int | None = None,
        queue_physical_offset: int | None = None,
    ) -> None:
        """Set the fields of data that became durable. Times in ms; lower offsets are ignored."""
        times = {
            "physical_timestamp": physical_timestamp,
            "queue_timestamp": queue_timestamp,
            "index_timestamp": index_timestamp,
        }
        offsets = {
            "master_flushed_offset": master_flushed_offset,
            "confirmed_physical_offset": confirmed_physical_offset,
            "queue_physical_offset": queue_physical_offset,
        }
        with self._lock:
            if self._is_distrust_final:
                times["queue_timestamp"] = offsets["queue_physical_offset"] = None
            changes = {name: time for name, time in times.items() if time is not None}
            for name, offset in offsets.items():
                if offset is not None:
                    changes[name] = max(offset, getattr(self.fields, name))
            self.fields = dataclasses.replace(self.fields, **changes)

    def cut(self, physical_offset: int) -> None:
        """Decrease offsets that are after the end of a truncated log."""
        with self._lock:
            fields = self.fields
            self.fields = dataclasses.replace(
                fields,
                master_flushed_offset=min(fields.master_flushed_offset, physical_offset),
                confirmed_physical_offset=min(fields.confirmed_physical_offset, physical_offset),
                queue_physical_offset=min(fields.queue_physical_offset, physical_offset),
            )

    def limit_to(self, physical_offset: int, store_timestamp: int) -> None:
        """Decrease offsets and times that are after the last record of a truncated log.

        The next records may be another broker's and have earlier times: with later times here,
        they would count as durable before they are.

        Args:
            physical_offset: Physical offset of the record; 0 without one.
            store_timestamp: Its store time, in ms; 0 without one.
        """
        self.cut(physical_offset)
        with self._lock:
            fields = self.fields
            self.fields = dataclasses.replace(
                fields,
                physical_timestamp=min(fields.physical_timestamp, store_timestamp),
                queue_timestamp=min(fields.queue_timestamp, store_timestamp),
                index_timestamp=min(fields.index_timestamp, store_timestamp),
            )

    def distrust_queues(self, *, keeps_time: bool = False, is_final: bool = False) -> None:
        """Reset the fields of queues, before queues lose units; ``flush`` it before they do.

        Args:
            keeps_time: Reset the offset only.
            is_final: Ignore later ``advance`` of these fields: the next start rebuilds the queues.
        """
        with self._lock:
            self._is_distrust_final |= is_final
            timestamp = self.fields.queue_timestamp if keeps_time else 0
            self.fields = dataclasses.replace(
                self.fields, queue_timestamp=timestamp, queue_physical_offset=0
            )

    def is_missing(self) -> bool:
        """Return True if the file was deleted after its write; the next ``flush`` writes it."""
        if self._on_disk is None or Path(self.path).exists():
            return False
        with self._flushing:
            self._on_disk = None
        return True

    def flush(self) -> None:
        """Make the fields durable, if they are not.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``.
        """
        with self._flushing:
            if self.fields == self._on_disk:
                return
            # Fields that change during the sync are written by the next flush.
            fields, self._on_disk = self.fields, None
            if Path(self.path).exists():
                descriptor = self._disk.open(self.path)
            else:
                descriptor = self._disk.create(self.path, checkpoint_page.SIZE)
            try:
                self._disk.write(descriptor, self.path, 0, checkpoint_page.pack(fields))
                self._disk.sync_file(descriptor, self.path)
            finally:
                os.close(descriptor)
            self._on_disk = fields

    def _read(self) -> bytes:
        try:
            return Path(self.path).read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be read: {error}") from error
