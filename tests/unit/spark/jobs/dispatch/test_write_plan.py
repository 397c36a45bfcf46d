"""Plans of a dispatch, compared with a model that handles one record at a time."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, strategies as st

from reput.format import message as record
from reput.spark.jobs.dispatch import write_plan
from reput.spark.jobs.dispatch.write_plan import (
    EntrySpan,
    IndexFile,
    NeedsDetail,
    QueueEnd,
    QueueKey,
    QueuePlan,
    RecordRun,
    Survey,
    plan_index,
    plan_queues,
)


@dataclass
class Record:
    """A record of the model's log."""

    key: QueueKey
    queue_offset: int
    physical_offset: int
    size: int


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Queues whose offsets mostly continue by one, and sometimes jump, repeat, or restart."""
    physical_offset = 0
    next_offsets = {("T", i): draw(st.integers(0, 3)) for i in range(2)}
    log = []
    for _ in range(draw(st.integers(0, 40))):
        key = draw(st.sampled_from(sorted(next_offsets)))
        jump = draw(st.sampled_from([0, 0, 0, 0, 0, 1, 2, 9, -1, -4, 1 << 40]))
        queue_offset = max(next_offsets[key] + jump, 0)
        if jump != 1 << 40:
            next_offsets[key] = queue_offset + 1
        size = draw(st.integers(record.FIXED_BYTES_V1 + 1, 300))
        log.append(Record(key, queue_offset, physical_offset, size))
        physical_offset += size
    return log


def model(log: list[Record], multiple: int) -> dict[QueueKey, dict[int, int]]:
    """Return queue -> queue offset -> physical offset as a single dispatcher puts the units."""
    units: dict[QueueKey, dict[int, int]] = {}
    ends: dict[QueueKey, tuple[int, int]] = {}
    for message in log:
        queue = units.get(message.key, {})
        next_offset, end = ends.get(message.key, (0, 0))
        if queue and message.queue_offset == 0:
            # Its topic was deleted and created again.
            for key in [key for key, (_, other_end) in ends.items() if other_end <= end]:
                del units[key], ends[key]
            queue = {}
        if queue and message.queue_offset > next_offset:
            room = message.physical_offset - end
            if message.queue_offset > next_offset + room // record.FIXED_BYTES_V1:
                continue
            filled = range(next_offset, message.queue_offset + 1)
        elif (queue and message.queue_offset < next_offset) or message.queue_offset > 1 << 38:
            continue
        else:
            begin = message.queue_offset if queue else message.queue_offset // multiple * multiple
            filled = range(begin, message.queue_offset + 1)
        units.setdefault(message.key, {}).update(dict.fromkeys(filled, message.physical_offset))
        ends[message.key] = (message.queue_offset + 1, message.physical_offset + message.size)
    return units


def runs(log: list[Record], detailed: set[QueueKey]) -> dict[QueueKey, list[RecordRun]]:
    by_queue: dict[QueueKey, list[RecordRun]] = {}
    for key in {message.key for message in log}:
        mine = [message for message in log if message.key == key]
        by_queue[key] = write_plan.runs_of(
            np.array([message.queue_offset for message in mine], np.int64),
            np.array([message.physical_offset for message in mine], np.int64),
            np.array([message.size for message in mine], np.int64),
            is_detailed=key in detailed,
        )
    return by_queue


def planned(
    parts: list[list[Record]],
    detailed: dict[int, set[QueueKey]],
    fresh: QueueEnd,
    queue_ends: dict[QueueKey, QueueEnd],
) -> QueuePlan:
    """Plan the parts of a log; pass single records of a queue where the plan needs them."""
    try:
        surveys = [Survey(runs=runs(part, detailed.get(i, set()))) for i, part in enumerate(parts)]
        return plan_queues(surveys, fresh=fresh, queue_ends=queue_ends)
    except NeedsDetail as need:
        known = detailed.get(need.number, set())
        more = {**detailed, need.number: known | {need.key}}
        return planned(parts, more, fresh, queue_ends)


@given(logs(), st.lists(st.integers(0, 40), max_size=6), st.integers(0, 7), st.sampled_from([1, 4]))
def test_tasks_put_the_units_of_their_records_for_any_ranges(
    log: list[Record], cuts: list[int], first_step: int, multiple: int
) -> None:
    places = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
    parts = [log[low:high] for low, high in itertools.pairwise(places)]
    fresh = QueueEnd(begins_at_multiple_of=multiple)
    # In two steps, like a stream; the second one has the queue ends of the first one.
    first = planned(parts[:first_step], {}, fresh, {})
    second = planned(parts[first_step:], {}, fresh, first.queue_ends)
    expected = model(log, multiple)
    kept = [
        {key: share for key, share in shares.items() if key not in second.begun_again}
        for shares in first.shares
    ]
    all_shares = [*kept, *second.shares]
    assert {key for shares in all_shares for key in shares} == expected.keys()
    for key, units in expected.items():
        assert {**first.queue_ends, **second.queue_ends}[key].max_offset == max(units) + 1
        written: list[int] = []
        for part, shares in zip(parts, all_shares, strict=True):
            if key not in shares:
                continue
            share = shares[key]
            assert share.is_start == (not written)
            written += range(share.first, share.stop)
            own = {message.physical_offset for message in part}
            assert {units[offset] for offset in range(share.first, share.stop)} <= own
        assert written == sorted(units)


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(2, 8), st.integers(0, 7))
def test_index_files_take_all_entries_in_order(counts: list[int], entry_max: int, has: int) -> None:
    has = min(has, entry_max - 1)
    entries = [(i, entry) for i, count in enumerate(counts) for entry in range(count)]
    files = plan_index(counts, entry_max, number=3, has=has)
    taken: list[tuple[int, int]] = []
    room = entry_max - 1 - has
    first = 3 if room else 4
    assert [file.number for file in files] == list(range(first, first + len(files)))
    for file in files:
        assert file.has == (has if file.number == 3 else 0)
        assert file.before == (taken[-1] if taken else None)
        taken += [
            (span.range_number, i) for span in file.spans for i in range(span.start, span.stop)
        ]
        assert file.has + file.count == entry_max - 1 or file is files[-1]
    assert taken == entries


def test_an_index_file_has_the_entry_before_it() -> None:
    assert plan_index([4, 0, 3], 5) == [
        IndexFile(0, (EntrySpan(0, 0, 4),)),
        IndexFile(1, (EntrySpan(2, 0, 3),), before=(0, 3)),
    ]


def test_runs_continue_over_windows() -> None:
    joined = [RecordRun(5, 7, 0, 200)]
    write_plan.append_runs(joined, [RecordRun(7, 9, 300, 500), RecordRun(9, 10, 600, 700)])
    write_plan.append_runs(joined, [RecordRun(3, 4, 800, 900)])
    assert joined == [RecordRun(5, 10, 0, 700), RecordRun(3, 4, 800, 900)]


def test_an_impossible_queue_offset_is_rejected() -> None:
    queue_end = QueueEnd(10, 1000, is_fresh=False)
    rejected = write_plan.step(queue_end, RecordRun(5000, 5001, 1100, 1200))
    assert (rejected.after, rejected.rejected) == (queue_end, 1)
    with pytest.raises(NeedsDetail):
        write_plan.step(queue_end, RecordRun(5000, 5002, 1100, 1300))


def test_spans_are_cut_at_places_within() -> None:
    assert write_plan.cut_spans([(0, 10), (10, 30)], [10, 15, 40]) == [
        (0, 10),
        (10, 15),
        (15, 30),
    ]
