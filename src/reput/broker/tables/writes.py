"""Writes of small tables that requests wait for: off the loop, and one for all who wait.

Requests change a table in memory and are answered once the file has the change. However many do so
while the file is being written, one more write is for all of them. It outlives the process, not the
machine: ``loops`` makes tables durable a little later.
"""

import asyncio
import functools
from typing import TYPE_CHECKING

from reput.broker.tables.failures import WriteFailures
from reput.broker.worker_thread import WorkerThread
from reput.errors import ReputError
from reput.format import command as commands
from reput.format.command import Command
from reput.remoting.time_slices import run_in_slices
from reput.store.table_files import SavedTable, Written

if TYPE_CHECKING:
    from reput.clock import Clock
    from reput.remoting.channel import Channel

_Done = asyncio.Future[None]

_NOT_WRITTEN = ReputError("not written: the broker stops")


def place_of(table: SavedTable) -> str:
    """Return what a table is called among what cannot be written."""
    return f"table {table.path}"


async def write_table(
    table: SavedTable,
    thread: WorkerThread,
    clock: "Clock",
    failures: WriteFailures,
    *,
    is_durable: bool,
) -> None:
    """Write what a table holds now, off the loop; a failure is noted until a write succeeds.

    When it returns, the file has the entries that the table had when it was called, or later ones.

    Args:
        table: What is written.
        thread: Who writes it.
        clock: What the time is.
        failures: What cannot be written.
        is_durable: Wait for the disk.

    Raises:
        WriteFailed: It stays dirty.
    """
    written = Written.OVERTAKEN  # by another thread that writes the table, perhaps not through
    try:
        while written is Written.OVERTAKEN:
            await run_in_slices(table.prepare())
            now_ms = clock.now_ms()
            draft = table.take(now_ms)
            write = functools.partial(table.write, draft, now_ms, is_durable=is_durable)
            written = await thread.run(write)
    except Exception as error:
        failures.add(place_of(table), error)
        raise
    failures.clear(place_of(table))


class TableWrites:
    """Writes tables in a thread of its own.

    Args:
        clock: What the time is.
        failures: What cannot be written.
    """

    def __init__(self, clock: "Clock", failures: WriteFailures) -> None:
        self._clock = clock
        self._failures = failures
        self._thread = WorkerThread("reput-tables")
        self._waiting: dict[SavedTable, list[_Done]] = {}
        self._tasks: dict[SavedTable, asyncio.Task[None]] = {}
        self._is_stopped = False
        self.write_count = 0
        """Writes that were begun, each for all who waited."""

    async def stop(self) -> None:
        """End; whoever waits is answered first, and who comes later is refused."""
        self._is_stopped = True
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._thread.stop()

    def answer(
        self, channel: "Channel", request: Command, table: SavedTable, reply: Command | None = None
    ) -> None:
        """Answer a request once what a table holds now is in its file.

        Args:
            channel: Who is answered.
            request: To what.
            table: What was changed.
            reply: The answer; None: a plain success.
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
        """Write a table soon; return a future that is done when the file has what it holds now.

        The future raises ``WriteFailed``. It is cancelled at the end of the broker.
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
                await asyncio.sleep(0)  # the end of this turn: others may change it in it
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
        """Write a table; return what went wrong."""
        self.write_count += 1
        try:
            await write_table(table, self._thread, self._clock, self._failures, is_durable=False)
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            return error
        return None


def _set(done: _Done, error: Exception | None) -> None:
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
