"""Where the broker waits: runs each step at its pace, and what needs the disk in other threads.

A loop that fails is logged, counted and started again; ``failures`` turns health red (anchors D28).
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from reput.broker.route import PERIOD_MS_MAX, PERIOD_MS_MIN
from reput.broker.sync_thread import SyncThread
from reput.errors import WriteFailed
from reput.store.table_files import SavedTable

if TYPE_CHECKING:
    from reput.broker.server import Broker

BUSY_MS = 10
"""Between two steps while something happens."""
CALM_MS = 50
"""Between two steps of the disk while the log grows by CALM_BYTES at most from one to the next:
room is made that far ahead, and a step costs as much as some pops."""
CALM_BYTES = 1 << 20
IDLE_MS = 200
"""Between two steps while nothing does."""
DELAYED_MS = 100
POPS_MS = 100
TRANSACTIONS_MS = 100
TABLES_MS = 1_000
CLIENTS_MS = 10_000
_RESTART_MS = 1_000

_log = logging.getLogger(__name__)


class Loops:
    """The broker's background work.

    Args:
        broker: Whose work it is.
    """

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="reput-disk")
        self._sync = SyncThread(lambda: broker.store.sync(), self._synced)
        self._saving: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._begun: set[asyncio.Task[None]] = set()
        self.failures: dict[str, str] = {}
        """Loop -> the error it ended with last; empty while all run."""
        self.turns: dict[str, int] = {}
        """Loop -> monotonic ms of its last turn."""

    def start(self) -> None:
        """Start all."""
        work: dict[str, Callable[[], object]] = {
            "store": self._run_store,
            "disk": self._run_disk,
            "holds": self._run_holds,
            "delayed": self._run_delayed,
            "transactions": self._run_transactions,
            "pops": self._run_pops,
            "tables": self._run_tables,
            "clients": self._run_clients,
            "registration": self._run_registration,
        }
        self._sync.start()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._supervise(name, body), name=name) for name, body in work.items()
        ]

    async def stop(self) -> None:
        """Stop all; what the disk is at work on is waited for."""
        self._sync.stop()
        tasks = [*self._tasks, *self._begun]
        if self._saving is not None:
            tasks.append(self._saving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._disk.shutdown(wait=True)

    def keep(self, task: "asyncio.Task[None]") -> None:
        """Keep a task that a request began, until it ends or all do."""
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)

    def sync_soon(self) -> None:
        """Make durable what was put; replies wait for it."""
        self._sync.ask()

    async def _supervise(self, name: str, body: Callable[[], object]) -> None:
        while True:
            try:
                await body()  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001 - the outermost edge of a loop
                self.failures[name] = f"{type(error).__name__}: {error}"
                _log.exception("loop %s failed; it starts again in %d ms", name, _RESTART_MS)
            await self._wait(_RESTART_MS)

    def _turn(self, name: str) -> None:
        """Take note that a loop has done a turn."""
        self.turns[name] = self._broker.clock.monotonic_ms()
        self.failures.pop(name, None)

    @staticmethod
    async def _wait(duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)

    # The store --------------------------------------------------------------------------------

    async def _run_store(self) -> None:
        broker = self._broker
        while True:
            is_busy = self._step_memory()
            if broker.topics.table.is_saved:
                broker.intake.settle()
            elif len(broker.intake):
                self.sync_soon()  # it saves the topics first
            self._turn("store")
            await self._wait(BUSY_MS if is_busy else IDLE_MS)

    def _step_memory(self) -> bool:
        try:
            return self._broker.store.step_memory()
        except WriteFailed as error:
            _log.error("%s", error)
            return False

    async def _run_disk(self) -> None:
        loop = asyncio.get_running_loop()
        store = self._broker.store
        written = -1
        while True:
            try:
                is_busy = await loop.run_in_executor(self._disk, store.step_disk)
            except WriteFailed as error:
                _log.error("%s", error)
                is_busy = False
            self._turn("disk")
            growth = store.max_physical_offset - written
            written += growth
            if is_busy or growth > CALM_BYTES:
                await self._wait(BUSY_MS)
            else:
                await self._wait(CALM_MS if growth else IDLE_MS)

    def _synced(self, problem: Exception | None) -> None:
        """Answer those whose messages the disk has, or will never have."""
        self._turn("sync")
        if isinstance(problem, WriteFailed):
            _log.error("%s", problem)
        elif problem is not None:
            self.failures["sync"] = f"{type(problem).__name__}: {problem}"
            _log.error("the log could not be made durable", exc_info=problem)
        self._step_memory()
        if self._broker.topics.table.is_saved:
            self._broker.intake.settle()
        elif self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._save_and_settle())

    async def _save_and_settle(self) -> None:
        # Topics that messages have made are to be as durable as the messages. A save that another
        # one overtook has done nothing.
        table = self._broker.topics.table
        while not table.is_saved and await self._save(table):
            pass
        self._broker.intake.settle()

    async def _run_delayed(self) -> None:
        broker = self._broker
        while True:
            now_ms = broker.clock.now_ms()
            # A slave has them from its master.
            is_busy = broker.is_master and broker.delayed.step(now_ms)
            is_busy = (broker.is_master and broker.timers.step(now_ms)) or is_busy
            if is_busy:
                if broker.store.flusher.is_sync:
                    self.sync_soon()  # before that nobody can read them
                broker.store.notify()
            self._turn("delayed")
            times = (broker.delayed.next_due_ms(now_ms), broker.timers.next_due_ms(now_ms))
            due_ms = min((one for one in times if one is not None), default=now_ms + DELAYED_MS)
            await self._wait(0 if is_busy else max(1, min(due_ms - now_ms, DELAYED_MS)))

    async def _run_transactions(self) -> None:
        broker = self._broker
        while True:
            end = broker.transactions.put_end
            is_busy = broker.is_master and broker.transactions.step(broker.clock.now_ms())
            if broker.transactions.put_end != end and broker.store.flusher.is_sync:
                self.sync_soon()
            self._turn("transactions")
            await self._wait(0 if is_busy else TRANSACTIONS_MS)

    async def _run_pops(self) -> None:
        broker = self._broker
        while True:
            now_ms = broker.clock.now_ms()
            # A slave has them from its master.
            is_busy = broker.is_master and broker.step_pops(now_ms)
            if is_busy:
                if broker.store.flusher.is_sync:
                    self.sync_soon()  # before that nobody can read them
                broker.store.notify()
            self._turn("pops")
            due_ms = broker.pops.next_due_ms()
            left_ms = POPS_MS if due_ms is None else due_ms - now_ms
            await self._wait(0 if is_busy else max(1, min(left_ms, POPS_MS)))

    async def _save(self, table: SavedTable) -> bool:
        """Make a table durable, if it is not; return whether the disk went along."""
        if table.is_saved:
            return True
        for _ in table.prepare():
            await asyncio.sleep(0)  # others are served in between
        now_ms = self._broker.clock.now_ms()
        draft = table.take(now_ms)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._disk, table.write, draft, now_ms)
        except WriteFailed as error:
            _log.error("a table stays unsaved for now: %s", error)
            return False
        return True

    # Clients ----------------------------------------------------------------------------------

    async def _run_holds(self) -> None:
        broker = self._broker
        while True:
            broker.expire_held_pulls()
            self._turn("holds")
            monotonic_ms = broker.clock.monotonic_ms()
            left_ms = broker.held_pulls.left_ms(monotonic_ms, IDLE_MS)
            await self._wait(broker.pops.held.left_ms(monotonic_ms, left_ms))

    async def _run_tables(self) -> None:
        broker = self._broker
        while True:
            for table in broker.tables:
                if table.is_due(broker.clock.now_ms()):
                    await self._save(table)
            broker.stats.step(broker.clock.now_ms())
            broker.intake.put_times.step(broker.clock.now_ms())
            self._turn("tables")
            await self._wait(TABLES_MS)

    async def _run_clients(self) -> None:
        while True:
            self._broker.expire_clients()
            self._turn("clients")
            await self._wait(CLIENTS_MS)

    async def _run_registration(self) -> None:
        broker = self._broker
        period_ms = broker.config.register_name_server_period
        while True:
            broker.registration.begin()
            self._turn("registration")
            await self._wait(max(PERIOD_MS_MIN, min(period_ms, PERIOD_MS_MAX)))
