"""Saves the settings that clients share in a thread, as a disk may be slow.

    change -> staged, refused if there is no room -> a thread writes the file -> answered

Changes that arrive while the file is being written are written together afterwards.
"""

import asyncio
import logging
from collections.abc import Callable

from reput.errors import ReputError, WriteFailed
from reput.namesrv import limits
from reput.namesrv.kv_table import KvChange, KvTable

_log = logging.getLogger(__name__)

Callback = Callable[[ReputError | None], None]
"""Called when a change is on disk, or with the error because of which it has no effect."""


class KvSaver:
    """Saves one table.

    Args:
        table: The table.
    """

    def __init__(self, table: KvTable) -> None:
        self._table = table
        self._waiting: list[tuple[KvChange, Callback]] = []
        self._saving: asyncio.Task[None] | None = None
        self.failure = ""
        """Error of the latest save; empty if it succeeded."""

    def change(self, change: KvChange, on_saved: Callback) -> bool:
        """Save a change; return False if it changes nothing.

        In that case, if no save is running, ``on_saved`` is called at once.

        Raises:
            InvalidHeader: A name or value cannot be encoded.
            LimitExceeded: There is no room, or too many changes are pending.
        """
        limits.KV_CHANGES_WAITING.check(len(self._waiting) + 1)
        is_change = self._table.stage(change)
        if not is_change and self._saving is None:
            on_saved(None)  # no pending change that it could depend on
            return False
        self._waiting.append((change, on_saved))
        if self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._save())
        return is_change

    async def close(self) -> None:
        """Wait until all changes are saved."""
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
        except Exception as error:  # noqa: BLE001 - waiting callbacks need any error
            if not isinstance(error, WriteFailed):
                _log.exception("saving %s failed", self._table.path)
            self.failure = str(error)
            return error if isinstance(error, ReputError) else ReputError(repr(error))
        self.failure = ""
        return None

    def _stage_again(self) -> None:
        """Stage the changes that arrived during a failed save again, without that save."""
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
    """Call a waiting callback; its errors must not keep other callbacks from being called."""
    try:
        on_saved(error)
    except Exception:  # noqa: BLE001 - errors of callers
        _log.exception("the reply to a change of a setting failed")
