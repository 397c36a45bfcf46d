"""Writes of small tables that requests wait for: off the event loop, and shared.

A request changes a table in memory and is answered once the file has the change. All changes that
are made while the file is being written share the next write. The result survives the process, not
a power cut: ``loops`` makes tables durable a little later.
"""

import asyncio
import functools
from typing import TYPE_CHECKING

from reput.broker.tables.failures import WriteFailures
from reput.broker.threads import WorkerThread
from reput.errors import ReputError
from reput.format import command as commands
from reput.format.command import Command
from reput.remoting.time_slices import run_in_slices
from reput.store.tables.saved_file import Written
from reput.store.tables.saved_table import SavedTable

if TYPE_CHECKING:
    from reput.clock import Clock
    from reput.remoting.channel import Channel

_Done = asyncio.Future[None]

_NOT_WRITTEN = ReputError("not written: the broker stops")


def place_of(table: SavedTable) -> str:
    """Return the name of a table for messages."""
    return f"table {table.path}"


async def write_table(
    table: SavedTable,
    thread: WorkerThread,
    clock: "Clock",
    failures: WriteFailures,
    *,
    is_durable: bool,
) -> None:
    """Write the current content of a table off the loop; record failure or success.

    When it returns, the file has the entries that the table had at the call, or newer ones.

    Args:
        table: The table.
        thread: The thread that writes.
        clock: The clock.
        failures: Files that cannot be written at present.
        is_durable: True to sync the file to disk.

    Raises:
        WriteFailed: The table remains unsaved.
    """
    written = Written.OVERTAKEN  # if another thread writes the table, its write may have failed
    try:
        while written is Written.OVERTAKEN:
            await run_in_slices(table.prepare(), seconds=clock.work_s)
            now_ms = clock.now_ms()
            draft = table.take(now_ms)
            write = functools.partial(table.write, draft, now_ms, is_durable=is_durable)
            written = await thread.run(write)
    except Exception as error:
        failures.add(place_of(table), error)
        raise
    failures.clear(place_of(table))


class TableWrites:
    """Writes tables in a separate thread.

    Args:
        clock: The clock.
        failures: Files that cannot be written at present.
    """

    def __init__(self, clock: "Clock", failures: WriteFailures) -> None:
        self._clock = clock
        self._failures = failures
        self._thread = WorkerThread("reput-tables")
        self._waiting: dict[SavedTable, list[_Done]] = {}
        self._tasks: dict[SavedTable, asyncio.Task[None]] = {}
        self._is_stopped = False
        self.write_count = 0
        """Writes that were started, each for all waiting requests."""

    async def stop(self) -> None:
        """Stop; waiting requests are answered first, and later ones are refused."""
        self._is_stopped = True
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._thread.stop()

    def answer(
        self, channel: "Channel", request: Command, table: SavedTable, reply: Command | None = None
    ) -> None:
        """Answer a request once the current content of a table is in its file.

        Args:
            channel: Connection of the client.
            request: The request.
            table: The changed table.
            reply: The reply; None for a plain success.
        """
        request = commands.envelope(request)

        def answered(done: _Done) -> None:
            error = _NOT_WRITTEN if done.cancelled() else done.exception()
            if request.is_oneway:
                return
            if error is None:
                channel.answer(request, reply or commands.reply(request))
            elif isinstance(error, ReputError):
                channel.answer(request, commands.reply(request, error.response_code, str(error)))
            else:
                text = f"{type(error).__name__}: {error}"
                channel.answer(request, commands.reply(request, ReputError.response_code, text))

        self.soon(table).add_done_callback(answered)

    def soon(self, table: SavedTable) -> _Done:
        """Write a table soon; return a future that is done when the file has its current content.

        The future raises ``WriteFailed``. It is cancelled when the broker stops.
        """
        loop = asyncio.get_running_loop()
        done: _Done = loop.create_future()
        if self._is_stopped:
            done.cancel()
            return done
        self._waiting.setdefault(table, []).append(done)
        if table not in self._tasks:
            self._tasks[table] = loop.create_task(self._run(table), name=f"write {table.path}")
        return done

    async def _run(self, table: SavedTable) -> None:
        waiting: list[_Done] = []
        try:
            while self._waiting.get(table):
                # the end of this turn, in which other requests may change the table
                await asyncio.sleep(0)
                waiting = self._waiting.pop(table)
                error = await self._write(table)
                for done in waiting:
                    if not done.done():
                        _set(done, error)
        finally:
            del self._tasks[table]
            for done in (*waiting, *self._waiting.pop(table, ())):
                if not done.done():
                    done.cancel()

    async def _write(self, table: SavedTable) -> Exception | None:
        """Write a table; return the error, or None."""
        self.write_count += 1
        try:
            await write_table(table, self._thread, self._clock, self._failures, is_durable=False)
        except Exception as error:  # noqa: BLE001 - waiting requests get the error
            return error
        return None


def _set(done: _Done, error: Exception | None) -> None:
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
