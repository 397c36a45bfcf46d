"""Background work of a broker: each loop runs its steps at its own pace.

Work that waits for the disk runs in other threads. A loop that fails is logged and restarted after
a second; until its next turn ``failures`` makes the broker unhealthy.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable

from reput.broker.access.plain_control import PlainControl
from reput.broker.lite import expiry
from reput.broker.parts import Parts
from reput.broker.registration import PERIOD_MS_MAX, PERIOD_MS_MIN
from reput.errors import WriteFailed
from reput.remoting.time_slices import Steps, run_in_slices

BUSY_MS = 10
"""The pause between two steps while there is work, ms."""
CALM_MS = 50
"""The pause of the disk loop while the log grows by CALM_BYTES at most between two steps, ms. Files
are created that far in advance, and a step costs as much as some pops."""
CALM_BYTES = 1 << 20
IDLE_MS = 200
"""The pause between two steps while there is no work, ms."""
DELAYED_MS = 100
POPS_MS = 100
TRANSACTIONS_MS = 100
TABLES_MS = 1_000
CLIENTS_MS = 10_000
ACCESS_MS = 1_000
_RESTART_MS = 1_000

_log = logging.getLogger(__name__)


class Loops:
    """The loops of a broker.

    Args:
        parts: The parts of the broker; the threads are started and stopped with the loops.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tasks: list[asyncio.Task[None]] = []
        self._has_readable = asyncio.Event()
        self.failures: dict[str, str] = {}
        """Loop -> the error that it ended with, until its next turn."""
        self.turns: dict[str, int] = {}
        """Loop -> the time of its last turn, monotonic ms."""

    def start(self) -> None:
        """Start all loops."""
        bodies: dict[str, Callable[[], object]] = {
            "store": self._run_store,
            "disk": self._run_disk,
            "holds": self._run_holds,
            "delayed": self._run_delayed,
            "transactions": self._run_transactions,
            "pops": self._run_pops,
            "tables": self._run_tables,
            "clients": self._run_clients,
            "lite": self._run_lite,
            "registration": self._run_registration,
        }
        if self._parts.plain_control is not None:
            bodies["access"] = functools.partial(self._run_access, self._parts.plain_control)
        self._parts.sync_thread.start(self.synced)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._supervise(name, body), name=name)
            for name, body in bodies.items()
        ]

    async def stop(self) -> None:
        """Stop all loops, the tasks of requests, and the threads, which finish their work first."""
        self._parts.sync_thread.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._parts.tasks.cancel()
        await self._parts.topic_writes.stop()
        self._parts.disk_thread.stop()

    async def _supervise(self, name: str, body: Callable[[], object]) -> None:
        while True:
            try:
                await body()  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001 - the outermost edge of a loop
                self.failures[name] = f"{type(error).__name__}: {error}"
                _log.exception("loop %s failed; it restarts in %d ms", name, _RESTART_MS)
            await self._wait(_RESTART_MS)

    def _turn(self, name: str) -> None:
        """Record the turn of a loop."""
        self.turns[name] = self._parts.clock.monotonic_ms()
        self.failures.pop(name, None)

    @staticmethod
    async def _wait(duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)

    # The store --------------------------------------------------------------------------------

    async def _run_store(self) -> None:
        parts = self._parts
        while True:
            is_busy = self._step_memory()
            parts.pending_replies.settle()
            parts.replication.slave_port.pump()  # of puts that no request has made
            if parts.topic_writes.are_pending:
                parts.topic_writes.write_soon()  # its task may have failed while replies wait
            self._turn("store")
            if is_busy and parts.store.has_more_to_do:
                await self._wait(0)
            else:
                await self._wait_for_dispatch(BUSY_MS if is_busy else IDLE_MS)

    async def _wait_for_dispatch(self, duration_ms: int) -> None:
        """Wait until the disk loop has made bytes readable, or for a duration."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_ms / 1000):
                await self._has_readable.wait()
        self._has_readable.clear()

    def _step_memory(self) -> bool:
        try:
            did = self._parts.store.step_memory()
        except WriteFailed as error:
            self._parts.write_failures.add("store", error)
            return False
        self._parts.write_failures.clear("store")
        return did

    async def step_disk(self) -> bool:
        """Do the store's work that waits for the disk; return whether there was any."""
        store = self._parts.store
        try:
            is_busy = await self._parts.disk_thread.run(store.step_disk)
        except WriteFailed as error:
            self._parts.write_failures.add("disk", error)
            is_busy = False
        else:
            self._parts.write_failures.clear("disk")
        if store.has_more_to_do:  # bytes that were in the pool's buffers, or not durable
            self._has_readable.set()
        self._parts.replication.slave_port.pump()  # of the same bytes
        self._turn("disk")
        return is_busy

    async def _run_disk(self) -> None:
        store = self._parts.store
        written = -1
        while True:
            is_busy = await self.step_disk()
            growth = store.max_physical_offset - written
            written += growth
            if is_busy or growth > CALM_BYTES:
                await self._wait(BUSY_MS)
            else:
                await self._wait(CALM_MS if growth else IDLE_MS)

    def synced(self, problem: Exception | None) -> None:
        """Send the replies whose messages are durable, or will never be.

        Args:
            problem: Why the log could not be made durable; None if it is durable.
        """
        self._turn("sync")
        if isinstance(problem, WriteFailed):
            _log.error("%s", problem)
        elif problem is not None:
            self.failures["sync"] = f"{type(problem).__name__}: {problem}"
            _log.error("the log could not be made durable", exc_info=problem)
        self._parts.replication.slave_port.pump()  # with haSendAfter=disk
        self._step_memory()
        self._parts.pending_replies.settle()

    async def _idle_on_slave(self, loop: str, interval_ms: int) -> None:
        """Count turns while this is a slave, which gets the messages from its master."""
        while not self._parts.identity.is_master:
            self._turn(loop)
            await self._wait(interval_ms)

    async def _run_delayed(self) -> None:
        parts = self._parts
        await self._idle_on_slave("delayed", DELAYED_MS)
        while True:
            now_ms = parts.clock.now_ms()
            is_busy = parts.delayed.step(now_ms)
            is_busy = parts.timers.step(now_ms) or is_busy
            if is_busy:
                if parts.store.flusher.is_sync:
                    parts.pending_replies.sync_soon()  # before that clients cannot read them
                parts.store.notify()
                parts.replication.slave_port.pump()
            self._turn("delayed")
            times = (parts.delayed.next_due_ms(now_ms), parts.timers.next_due_ms(now_ms))
            due_ms = min(
                (time_ms for time_ms in times if time_ms is not None), default=now_ms + DELAYED_MS
            )
            await self._wait(0 if is_busy else max(1, min(due_ms - now_ms, DELAYED_MS)))

    async def _run_transactions(self) -> None:
        parts = self._parts
        while True:
            end = parts.transactions.put_end
            is_busy = parts.identity.is_master and parts.transactions.step(parts.clock.now_ms())
            if parts.transactions.put_end != end:
                parts.replication.slave_port.pump()
                if parts.store.flusher.is_sync:
                    parts.pending_replies.sync_soon()
            self._turn("transactions")
            await self._wait(0 if is_busy else TRANSACTIONS_MS)

    async def _run_pops(self) -> None:
        parts = self._parts
        await self._idle_on_slave("pops", POPS_MS)
        while True:
            now_ms = parts.clock.now_ms()
            is_busy = self.step_pops(now_ms)
            if is_busy:
                if parts.store.flusher.is_sync:
                    parts.pending_replies.sync_soon()  # before that clients cannot read them
                parts.store.notify()
                parts.replication.slave_port.pump()
            self._turn("pops")
            times = (parts.pops.next_due_ms(), parts.lite.next_due_ms())
            due_ms = min((ms for ms in times if ms is not None), default=None)
            left_ms = POPS_MS if due_ms is None else due_ms - now_ms
            await self._wait(0 if is_busy else max(1, min(left_ms, POPS_MS)))

    def step_pops(self, now_ms: int) -> bool:
        """Do a bounded part of the work for popped messages; return False if none is left."""
        parts = self._parts
        did = parts.pops.revive.step(now_ms)
        if parts.topics.table.is_saved:  # a crash that loses a retry topic loses its messages
            parts.pops.publish_progress()
        did = parts.lite.freed(now_ms) or did
        return parts.pops.freed(now_ms) or did

    # After a jump of the clock ------------------------------------------------------------------

    async def deliver_due(self, *, asks_producers: bool) -> None:
        """Deliver all messages that are due by the clock, which a test has advanced.

        Args:
            asks_producers: Ask also about undecided transactions.
        """
        parts = self._parts
        did = parts.identity.is_master  # a slave gets the messages from its master
        if asks_producers:
            parts.transactions.hasten(parts.clock.now_ms())
        while did:
            await self._dispatch_all()
            now_ms = parts.clock.now_ms()
            did = parts.delayed.step(now_ms)
            did = parts.timers.step(now_ms) or did
            did = self.step_pops(now_ms) or did
            did = (asks_producers and parts.transactions.step(now_ms)) or did
        parts.store.notify()
        parts.replication.slave_port.pump()

    def next_due_ms(self, now_ms: int, until_ms: int) -> int | None:
        """Return the next time at which a message of a period is due; None if there is none.

        Args:
            now_ms: The time.
            until_ms: End of the period. The timer rounds up, so that it may deliver a message
                whose time is in the period up to a second after its end.
        """
        parts = self._parts
        timers_until_ms = parts.timers.rounded_up_ms(until_ms)
        times = (
            (parts.delayed.next_due_ms(now_ms), until_ms),
            (parts.timers.next_due_ms(now_ms), timers_until_ms),
            (parts.pops.next_due_ms(), until_ms),
            (parts.lite.next_due_ms(), until_ms),
        )
        return min(
            (
                due_ms
                for due_ms, last_ms in times
                if due_ms is not None and now_ms < due_ms <= last_ms
            ),
            default=None,
        )

    async def _dispatch_all(self) -> None:
        """Dispatch all records, after they were flushed (pooled buffers) or synced (SYNC_FLUSH)."""
        store = self._parts.store
        with contextlib.suppress(WriteFailed):  # reported by the disk loop
            store.flusher.commit()
        end = store.max_physical_offset
        if store.flusher.is_sync and store.log.flushed_offset < end:
            self._parts.pending_replies.sync_soon()
            while store.log.flushed_offset < end and store.flusher.failure is None:
                await self._wait(1)
        while self._step_memory() and store.has_more_to_do:
            pass

    # Clients ----------------------------------------------------------------------------------

    async def _run_holds(self) -> None:
        parts = self._parts
        while True:
            await run_in_slices(self.expire_held(), seconds=parts.clock.work_s)
            self._turn("holds")
            monotonic_ms = parts.clock.monotonic_ms()
            left_ms = parts.held_pulls.left_ms(monotonic_ms, IDLE_MS)
            left_ms = parts.lite.held.left_ms(monotonic_ms, left_ms)
            await self._wait(parts.pops.held.left_ms(monotonic_ms, left_ms))

    def expire_held(self) -> Steps[None]:
        """Answer the requests whose deadline has passed."""
        parts = self._parts
        pulls, pops, lite = parts.held_pulls, parts.pops.held, parts.lite.held
        yield from pulls.retry_unread()
        yield from pops.retry_unread()
        yield from lite.retry_unread()
        yield from pulls.expire(parts.clock.monotonic_ms())
        yield from pops.expire(parts.clock.monotonic_ms())
        yield from lite.expire(parts.clock.monotonic_ms())

    async def _run_tables(self) -> None:
        parts = self._parts
        while True:
            await parts.saved_tables.save_due()
            now_ms = parts.clock.now_ms()
            await run_in_slices(parts.deliveries.stats.sample(now_ms), seconds=parts.clock.work_s)
            parts.pending_replies.put_times.step(parts.clock.now_ms())
            self._turn("tables")
            await self._wait(TABLES_MS)

    async def _run_clients(self) -> None:
        while True:
            parts, config = self._parts, self._parts.settings.broker
            parts.members.expire()
            now_ms = parts.clock.monotonic_ms()
            timeout_ms = config.lite_subscription_check_timeout_mills
            await run_in_slices(parts.lite.expire(now_ms - timeout_ms), seconds=parts.clock.work_s)
            self._turn("clients")
            await self._wait(CLIENTS_MS)

    async def _run_lite(self) -> None:
        parts = self._parts
        await self._idle_on_slave("lite", IDLE_MS)
        while True:
            await self.expire_lite_topics()
            self._turn("lite")
            await self._wait(parts.settings.broker.lite_ttl_check_interval)

    async def expire_lite_topics(self) -> int:
        """Delete the lite topics that have expired; return their number. Raises ``WriteFailed``."""
        parts = self._parts
        return await expiry.expire(
            parts.lite,
            parts.deletions,
            parts.topics,
            parts.subscription_groups,
            parts.store,
            parts.clock,
        )

    async def _run_access(self, control: PlainControl) -> None:
        while True:
            await control.reload(self._parts.clock.monotonic_ms())
            self._turn("access")
            await self._wait(ACCESS_MS)

    async def _run_registration(self) -> None:
        parts = self._parts
        period_ms = parts.settings.broker.register_name_server_period
        while True:
            parts.registration.begin()
            self._turn("registration")
            await self._wait(max(PERIOD_MS_MIN, min(period_ms, PERIOD_MS_MAX)))
