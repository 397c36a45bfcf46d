"""The small tables of a broker, and how they become durable."""

import logging
from collections.abc import Iterator

from reput.broker.tables.failures import WriteFailures
from reput.broker.tables.writes import place_of, write_table
from reput.broker.threads import WorkerThread
from reput.clock import Clock
from reput.errors import WriteFailed
from reput.store.tables.saved_table import SavedTable

_log = logging.getLogger(__name__)


class SavedTables:
    """Tables that are saved at intervals and at shutdown.

    Args:
        tables: The tables.
        clock: The clock.
        failures: Files that cannot be written at present.
        disk_thread: The thread that writes.
    """

    def __init__(
        self,
        tables: tuple[SavedTable, ...],
        clock: Clock,
        failures: WriteFailures,
        disk_thread: WorkerThread,
    ) -> None:
        self._tables = tables
        self._clock = clock
        self._failures = failures
        self._disk_thread = disk_thread

    def __iter__(self) -> Iterator[SavedTable]:
        return iter(self._tables)

    async def save(self, table: SavedTable) -> bool:
        """Make a table durable, if it is not; return False if the disk failed."""
        if table.is_saved:
            self._failures.clear(place_of(table))
            return True
        try:
            await write_table(
                table, self._disk_thread, self._clock, self._failures, is_durable=True
            )
        except WriteFailed:
            return False
        return True

    async def save_due(self) -> None:
        """Make the tables durable whose interval has passed."""
        for table in self._tables:
            if table.is_due(self._clock.now_ms()):
                await self.save(table)

    def save_all(self) -> None:
        """Save all tables at once, at shutdown.

        Raises:
            WriteFailed: The first failure. The other tables are saved.
        """
        failure: WriteFailed | None = None
        for table in self._tables:
            try:
                table.save(self._clock.now_ms())
            except WriteFailed as error:
                failure = failure or error
                _log.error("a table is not saved: %s", error)
        if failure is not None:
            raise failure
