"""Threads that read tasks: order, bounds, errors, and the end of a read that is not emptied."""

import gc
import threading
from collections.abc import Iterator

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from reput.arrow.task_threads import in_order

BATCH_BYTES = 8


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array([number], pa.int64())})


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [each["n"][0].as_py() for each in batches]


@hypothesis.given(
    st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=8),
    st.integers(1, 4),
    st.integers(0, 64),
)
@hypothesis.settings(max_examples=40, deadline=None)
def test_batches_come_in_the_order_of_tasks(
    tasks: list[list[int]], thread_count: int, bytes_ahead: int
) -> None:
    completed: list[tuple[int, int]] = []
    batches = in_order(
        tasks,
        lambda task: map(batch, task),
        thread_count,
        bytes_ahead=bytes_ahead,
        on_task=lambda done, total: completed.append((done, total)),
    )
    assert numbers(batches) == [number for task in tasks for number in task]
    assert completed == [(done + 1, len(tasks)) for done in range(len(tasks))]


@pytest.mark.parametrize("thread_count", [1, 3])
def test_what_is_read_ahead_is_bounded(thread_count: int) -> None:
    made = taken = most = 0
    lock = threading.Lock()

    def batches_of(task: int) -> Iterator[pa.RecordBatch]:
        nonlocal made, most
        for number in range(50):
            with lock:
                made += 1
                most = max(most, made - taken)
            yield batch(number)

    for _ in in_order(range(6), batches_of, thread_count, bytes_ahead=4 * BATCH_BYTES):
        with lock:
            taken += 1
    assert made == taken == 300
    assert 0 < most <= 4 + thread_count + 1


def test_an_error_comes_after_the_batches_before_it() -> None:
    def batches_of(task: int) -> Iterator[pa.RecordBatch]:
        yield batch(task)
        if task == 2:
            raise ValueError("damaged")

    batches = in_order(range(9), batches_of, 3)
    assert [next(batches)["n"][0].as_py() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="damaged"):
        next(batches)


def test_a_dropped_reader_ends_its_threads() -> None:
    closed = threading.Semaphore(0)

    def batches_of(task: int) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield batch(task)
        finally:
            closed.release()

    before = {*threading.enumerate()}
    batches = in_order(range(2), batches_of, 2, bytes_ahead=BATCH_BYTES)
    reader = pa.RecordBatchReader.from_batches(batch(0).schema, batches)
    del batches
    assert {*threading.enumerate()} == before  # nothing starts before the first batch
    assert reader.read_next_batch()["n"].to_pylist() == [0]
    started = {*threading.enumerate()} - before
    assert len(started) == 2
    del reader
    gc.collect()
    for thread in started:
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert closed.acquire(timeout=30)
