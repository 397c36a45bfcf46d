"""Tasks that several threads read side by side, and whose batches come in the order of the tasks.

Batches that are not taken yet are bounded in bytes, whatever the number and size of the tasks.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import pyarrow as pa

Task = TypeVar("Task")

BYTES_AHEAD = 128 * 1024 * 1024
"""Size of batches beyond which threads wait for the consumer, in bytes. Each thread may hold one
batch more."""


class _Read(Generic[Task]):
    """The state that the consumer and the threads share.

    Threads take tasks in order, and the consumer empties them in order: the task it waits for is
    always being read, and its thread waits only if there is a batch to take.
    """

    def __init__(self, tasks: Sequence[Task], bytes_ahead: int) -> None:
        self.tasks = tasks
        self._bytes_ahead = bytes_ahead
        self._changed = threading.Condition()
        self._taken_count = 0
        self._current = 0
        """Number of the task whose batches are being taken."""
        self._waiting: list[deque[pa.RecordBatch]] = [deque() for _ in tasks]
        self._ends: dict[int, BaseException | None] = {}
        """Tasks that are read completely, or until an error."""
        self._held_bytes = 0
        self._is_stopped = False

    # For the threads ------------------------------------------------------------------------

    def take(self) -> int | None:
        """Return the number of the next task; None if there is none."""
        with self._changed:
            if self._is_stopped or self._taken_count == len(self.tasks):
                return None
            self._taken_count += 1
            return self._taken_count - 1

    def put(self, number: int, batch: pa.RecordBatch) -> bool:
        """Hand over a batch, once there is room; return False if the read was stopped."""
        waiting = self._waiting[number]
        with self._changed:
            while not self._is_stopped and not (
                self._held_bytes < self._bytes_ahead or (number == self._current and not waiting)
            ):
                self._changed.wait()
            if self._is_stopped:
                return False
            waiting.append(batch)
            self._held_bytes += batch.nbytes
            self._changed.notify_all()
        return True

    def end(self, number: int, error: BaseException | None) -> None:
        """Record that a task has no more batches."""
        with self._changed:
            self._ends[number] = error
            self._changed.notify_all()

    # For the consumer -----------------------------------------------------------------------

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task. Raises its error after them."""
        waiting = self._waiting[number]
        while True:
            with self._changed:
                self._current = number
                self._changed.notify_all()
                while not waiting and number not in self._ends:
                    self._changed.wait()
                if not waiting:
                    break
                batch = waiting.popleft()
                self._held_bytes -= batch.nbytes
                self._changed.notify_all()
            yield batch
        error = self._ends[number]
        if error is not None:
            raise error

    def stop(self) -> None:
        """Request the end of the threads, without waiting for it; may be called in any thread."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()


def _run(read: "_Read[Task]", batches_of: Callable[[Task], Iterator[pa.RecordBatch]]) -> None:
    while (number := read.take()) is not None:
        problem: BaseException | None = None
        try:
            for batch in batches_of(read.tasks[number]):
                if not read.put(number, batch):
                    return
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            problem = error
        read.end(number, problem)


def in_order(
    tasks: Sequence[Task],
    batches_of: Callable[[Task], Iterator[pa.RecordBatch]],
    thread_count: int,
    *,
    bytes_ahead: int = BYTES_AHEAD,
    on_task: Callable[[int, int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of tasks, in order. Threads start with the first one.

    Args:
        tasks: The tasks.
        batches_of: Yields the batches of a task; several threads call it.
        thread_count: Number of threads.
        bytes_ahead: Maximum size of read batches that are not taken yet.
        on_task: Called after each task with the numbers of completed tasks and of all.
    """
    read = _Read(tasks, bytes_ahead)
    for _ in range(min(thread_count, len(tasks))):
        # A daemon: a reader that is not emptied must not keep the process from ending.
        threading.Thread(
            target=_run, args=(read, batches_of), name="reput-scan", daemon=True
        ).start()
    try:
        for number in range(len(tasks)):
            yield from read.batches(number)
            if on_task is not None:
                on_task(number + 1, len(tasks))
    finally:
        read.stop()
