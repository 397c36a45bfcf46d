"""Runs of timed messages, compared with a plain sorted list."""

from collections import Counter
from unittest import mock

import numpy as np
from hypothesis import given, strategies as st

from reput.broker.timer import runs as timer_runs
from reput.broker.timer.runs import ENTRY_TYPE, TimerRuns

Operation = tuple[str, list[int]] | tuple[str, int, int, int]

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 50), max_size=40)),
        st.tuples(st.just("take"), st.integers(-1, 60), st.integers(0, 30), st.integers(0, 30)),
    ),
    max_size=30,
)


@given(OPERATIONS, st.sampled_from([1, 30, timer_runs.ENTRIES_PER_RUN]))
def test_messages_are_delivered_by_time_and_then_by_queue_offset(
    operations: list[Operation], most: int
) -> None:
    with mock.patch.object(timer_runs, "ENTRIES_PER_RUN", most):
        check(operations)


def check(operations: list[Operation]) -> None:
    runs = TimerRuns()
    model: list[tuple[int, int]] = []
    queue_offset = 0
    for operation in operations:
        if len(operation) == 2:
            times = operation[1]
            entries = np.zeros(len(times), ENTRY_TYPE)
            for entry, time_ms in zip(entries, times, strict=True):
                entry["leaves_ms"], entry["queue_offset"] = time_ms, queue_offset
                entry["physical_offset"], entry["size"] = 1000 * queue_offset, queue_offset + 7
                model.append((time_ms, queue_offset))
                queue_offset += 1
            runs.add(entries)
            model.sort()
        else:
            _, limit_ms, count_max, dropped = operation
            first = runs.first(limit_ms, count_max)
            expected = [pair for pair in model if pair[0] <= limit_ms][:count_max]
            assert [(row["leaves_ms"], row["queue_offset"]) for row in first] == expected
            assert all(row["physical_offset"] == 1000 * row["queue_offset"] for row in first)
            assert all(row["size"] == row["queue_offset"] + 7 for row in first)
            runs.drop(min(dropped, len(first)))
            del model[: min(dropped, len(first))]
        assert len(runs) == len(model)
        assert runs.first_ms() == min((leaves_ms for leaves_ms, _ in model), default=None)
        assert runs.min_queue_offset() == min((offset for _, offset in model), default=None)
        counts = Counter(leaves_ms for leaves_ms, _ in model)
        assert {leaves_ms: runs.count_at(leaves_ms) for leaves_ms in counts} == counts
        assert runs.count_at(99) == 0
