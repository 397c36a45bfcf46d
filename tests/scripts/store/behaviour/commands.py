"""Commands of scripts with the same output for all five kinds of store.

Each put is followed by the background work that makes it readable, so that no script depends on
the times of flush and dispatch.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memory_store import MemoryStore
from reput.store.kernels import hot, reference
from scripts.store.commands import Commands as StoreCommands

_IMPLEMENTATIONS = ("append", "pull", "dispatch")
_SETTINGS: dict[str, dict[str, Any]] = {
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "pool": {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
}
_BACKGROUND_MS = 200
"""Time after which a pool buffer is committed."""


class Commands(StoreCommands):
    """A store of one kind: asynchronous or synchronous flush, pool, reference kernels, memory."""

    SUBJECTS = ("async", "sync", "pool", "twin", "memory")

    def __init__(self, folder: Path, subject: str) -> None:
        super().__init__(folder, subject)
        self._kernels = {name: getattr(hot, name) for name in _IMPLEMENTATIONS}
        if subject == "twin":
            for name in _IMPLEMENTATIONS:
                setattr(hot, name, getattr(reference, name))

    def close(self) -> None:
        """Close and verify the store, and restore the kernels."""
        try:
            super().close()
        finally:
            for name, kernel in self._kernels.items():
                setattr(hot, name, kernel)

    def open(self, **settings: str) -> Iterable[str]:
        """Open a store; print nothing, as the work of recovery depends on the kind."""
        self.settings |= _SETTINGS.get(self.subject, {})
        if self.subject == "memory":
            self.store = MemoryStore(self._config(settings), clock=self.clock)
        else:
            list(super().open(**settings))
        return []

    def settle(self) -> None:
        """Run all steps that are due some time later."""
        now_ms = self.clock.now_ms()
        self.clock.advance(_BACKGROUND_MS)
        self.clock.set(now_ms)
        self.step()

    def expire_before(self, physical_offset: int) -> str:
        """Delete the log files that end before an offset, and everything that depends on them."""
        if isinstance(self.store, MemoryStore):
            size = self.settings["mapped_file_size_commit_log"]
            self.store.expire(physical_offset // size * size)
        else:
            for file in self.store.log.files.files:
                if file.end <= physical_offset:
                    os.utime(file.path, (0, 0))
            self.store.retention.expire_now()
            self.step()
        return self.ends()
