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
def test_they_leave_by_time_and_then_in_the_order_of_the_queue(
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
            found = runs.first(limit_ms, count_max)
            expected = [one for one in model if one[0] <= limit_ms][:count_max]
            assert [(one["leaves_ms"], one["queue_offset"]) for one in found] == expected
            assert all(one["physical_offset"] == 1000 * one["queue_offset"] for one in found)
            assert all(one["size"] == one["queue_offset"] + 7 for one in found)
            runs.drop(min(dropped, len(found)))
            del model[: min(dropped, len(found))]
        assert len(runs) == len(model)
        assert runs.first_ms() == min((one for one, _ in model), default=None)
        assert runs.min_queue_offset() == min((one for _, one in model), default=None)
        counts = Counter(one for one, _ in model)
        assert {one: runs.count_at(one) for one in counts} == counts
        assert runs.count_at(99) == 0
