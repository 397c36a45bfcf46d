"""Saves the settings that clients share, beside the loop: a disk may take its time.

    change -> staged, refused if there is no room -> a thread writes the file -> answered

Changes that come while the file is written wait, and are written together.
"""

import asyncio
import logging
from collections.abc import Callable

from reput import limits
from reput.errors import ReputError, WriteFailed
from reput.namesrv.kv_table import KvChange, KvTable

_log = logging.getLogger(__name__)

Callback = Callable[[ReputError | None], None]
"""Called when a change is on disk, or with why it is not and has no effect."""


class KvSaver:
    """Saves one table.

    Args:
        table: Which.
    """

    def __init__(self, table: KvTable) -> None:
        self._table = table
        self._waiting: list[tuple[KvChange, Callback]] = []
        self._saving: asyncio.Task[None] | None = None
        self.failure = ""
        """Why the last save failed; empty: it did not."""

    def change(self, change: KvChange, on_saved: Callback) -> bool:
        """Save a change; return whether it changes anything.

        If not, and if nothing is being saved, ``on_saved`` is called at once.

        Raises:
            InvalidHeader: A name or value cannot be written.
            LimitExceeded: There is no room, or too many changes wait.
        """
        limits.KV_CHANGES_WAITING.check(len(self._waiting) + 1)
        is_change = self._table.stage(change)
        if not is_change and self._saving is None:
            on_saved(None)  # nothing waits that it could depend on
            return False
        self._waiting.append((change, on_saved))
        if self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._save())
        return is_change

    async def close(self) -> None:
        """Wait until all is saved."""
        if self._saving is not None:
            await asyncio.wait((self._saving,))

    async def _save(self) -> None:
        try:
            while self._waiting:
                changes, self._waiting = self._waiting, []
                pairs = self._table.staged()
                error = await self._written(pairs)
                if error is None:
                    self._table.saved(pairs)
                else:
                    self._stage_again()
                for _, on_saved in changes:
                    _call(on_saved, error)
        finally:
            self._saving = None

    async def _written(self, pairs: dict[str, dict[str, str]]) -> ReputError | None:
        try:
            await asyncio.to_thread(self._table.write, pairs)
        except Exception as error:  # noqa: BLE001 - who waits must hear of it, whatever it is
            if not isinstance(error, WriteFailed):
                _log.exception("saving %s failed", self._table.path)
            self.failure = str(error)
            return error if isinstance(error, ReputError) else ReputError(repr(error))
        self.failure = ""
        return None

    def _stage_again(self) -> None:
        """Take what came while a save failed as if that save had never been."""
        self._table.forget_staged()
        waiting, self._waiting = self._waiting, []
        for change, on_saved in waiting:
            try:
                self._table.stage(change)
            except ReputError as error:
                _call(on_saved, error)
            else:
                self._waiting.append((change, on_saved))


def _call(on_saved: Callback, error: ReputError | None) -> None:
    """Call somebody who waits; an error in it must not keep the others from their replies."""
    try:
        on_saved(error)
    except Exception:  # noqa: BLE001 - of others' code
        _log.exception("the reply to a change of a setting failed")
